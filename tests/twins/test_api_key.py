"""The key of a pool: it opens worker and router, and stands nowhere but in their files."""

from __future__ import annotations

import base64
import json

from lab.lab import Lab
from tests.twins.site import Site

TWINS = ("node2",)


def test_a_key_opens_the_pool_goes_back_with_its_release_and_stands_nowhere_else(lab: Lab, site: Site) -> None:
    node2, key, later = lab.twin("node2"), "open-" + "0123456789abcdef" * 2, "later-" + "fedcba9876543210" * 2
    path = site.hosts / "pool.key"
    path.write_text(f"{key}\n")
    path.chmod(0o600)
    site.pool(api_key_file="pool.key")
    site.edit("node2", lambda host: host["workers"].pop("b", None))
    site.edit("node1", lambda host: host["workers"].clear())
    chat = json.dumps({"model": "qwen3.8-27b", "messages": [{"role": "user", "content": "17 + 25"}]})
    ask = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Content-Type: application/json", "-d", chat]

    def opens(*headers: str) -> list[str]:
        """Return what worker and router answer to a request with these headers."""
        urls = [f"http://127.0.0.1:{port}/v1/chat/completions" for port in (30000, 30002)]
        return [node2.exec([*ask, *(word for one in headers for word in ("-H", one)), url]).stdout for url in urls]

    ran = [site.well("deploy", "--host", "node2"), site.ops("verify", "--host", "node2"), site.ops("smoke", "--host", "node2")]
    assert [one.code for one in ran] == [0, 0, 0], "\n".join(map(str, ran))
    assert opens() == ["401", "401"]
    assert opens(f"Authorization: Bearer {key}") == ["200", "200"]
    path.write_text(f"{later}\n")
    ran.append(site.well("deploy", "--host", "node2"))
    assert opens(f"Authorization: Bearer {key}") == ["401", "401"]
    assert opens(f"Authorization: Bearer {later}") == ["200", "200"]
    held = node2.exec("stat -L -c '%a %U' /etc/lodger/keys/*; ls /etc/lodger/keys | cut -d. -f1").stdout.split()
    assert held == ["600", "root"] * 3 + ["qwen38"] * 3
    ran.append(site.well("rollback", "--host", "node2"))
    assert opens(f"Authorization: Bearer {key}") == ["200", "200"]

    everywhere = """ps axww -o args; docker ps -aq | xargs docker inspect; for name in $(docker ps -aq); do docker logs $name; done 2>&1
        journalctl --no-pager -o cat; cat $(find /opt/lodger /var/lib/lodger /etc/systemd/system/lodger-* -type f)"""
    seen = node2.exec(everywhere).stdout
    assert "launch_server" in seen
    written = [file.read_text(errors="replace") for file in site.journal.rglob("*") if file.is_file()]
    assert written
    for secret in (key, later):
        encoded = base64.b64encode(f"Authorization: Bearer {secret}\n".encode()).decode()
        for text in [seen, *written, *(said for one in ran for said in (one.out, one.err))]:
            assert secret not in text
            assert encoded not in text
