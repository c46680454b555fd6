"""Daemons that are asked themselves instead of through their slow clients, and when the client is asked all the same."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lodger.host import facts
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.docker import Docker
from lodger.host.facts.machine import Program

XML = """<?xml version='1.0'?>
<methodResponse>
<params>
<param>
<value><array><data>
{}</data></array></value>
</param>
</params>
</methodResponse>
"""
PLAIN = (
    "[unix_http_server]\nfile=/x\n\n[supervisorctl]\nserverurl=unix://{socket} ; use a unix:// URL\n\n[include]\nfiles = x\n"
)
ID = "ab" * 32


class Bench:
    """A host of stand-ins: programs on a PATH of their own, and a socket that is there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.socket = folder, folder / "bin", folder / "sock"
        self.bin.mkdir()
        (folder / "etc").mkdir()
        self.asked = folder / "asked"
        self.environment: dict[str, str] = {"HOME": str(folder)}

    def program(self, name: str, body: str) -> None:
        """Put a program there that says it was asked, then runs ``body``."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\necho {name} >> {self.asked}\n{body}\n")
        path.chmod(0o755)

    def read(self, fact: Fact[Any]) -> tuple[Any, set[str]]:
        """Return what ``fact`` reads, and which programs were asked."""
        self.asked.write_text("")
        snippet = fact.snippet.replace("/var/run/docker.sock", str(self.socket)).replace(
            "/usr/libexec/docker", str(self.folder)
        )
        done = subprocess.run(
            ["sh", "-c", snippet],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            env={"PATH": f"{self.bin}:{os.environ['PATH']}", **self.environment},
        )
        found = Facts({fact.name: (done.returncode, done.stdout)})[fact]
        return found, set(self.asked.read_text().split())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(made.socket))
        yield made


def compact(value: Any) -> str:
    """Return JSON as dockerd writes it."""
    return json.dumps(value, separators=(",", ":"))


def inspected() -> str:
    plain = [ID, "/notebook", "i", "running", {"Name": "no", "MaximumRetryCount": 0}, 0, "t", 5, {}, {}, "bridge", {}, False]
    return json.dumps(plain)


# ---------------------------------------------------------------- Docker


@pytest.fixture
def docker(bench: Bench) -> Bench:
    info = compact({"ID": "x", "Labels": ['"ServerVersion":"0"'], "DockerRootDir": "/data/docker", "ServerVersion": "29.1"})
    listed = compact([{"Id": ID, "Names": ["/notebook"], "ImageID": "sha256:" + "cd" * 32, "Labels": {"Id": "x; reboot"}}])
    bench.program(
        "curl",
        f"""for url; do :; done; case $url in
    */info) echo '{info}' ;;
    */containers/json*) echo '{listed}' ;;
    *here*) printf 200 ;;
    *broken*) printf 500 ;;
    *) printf 404 ;;
esac""",
    )
    bench.program(
        "docker",
        f"""case "$*" in
    info*) printf 'server=20.10\\nroot=/var/lib/docker\\n' ;;
    compose*) echo 2.1-client ;;
    "ps -aq --no-trunc") echo {ID} ;;
    "container inspect --format"*{ID}) echo '{inspected()}' ;;
    *) exit 1 ;;
esac""",
    )
    (bench.folder / "cli-plugins").mkdir()
    (bench.folder / "cli-plugins" / "docker-compose").write_text(f"#!/bin/sh\necho plugin >> {bench.asked}\necho 2.40.0\n")
    (bench.folder / "cli-plugins" / "docker-compose").chmod(0o755)
    return bench


def test_dockerd_and_the_plugin_are_asked_without_the_client(docker: Bench) -> None:
    found, asked = docker.read(facts.DOCKER)
    assert (found.client, found.server, found.compose, found.root) == (True, "29.1", "2.40.0", "/data/docker")
    assert asked == {"curl", "plugin"}


def test_containers_are_listed_by_dockerd_and_inspected_by_the_client(docker: Bench) -> None:
    found, asked = docker.read(facts.CONTAINERS)
    assert set(found) == {"notebook"}
    assert asked == {"curl", "docker"}
    for strange in ("exit 7", "echo '{}'", "echo '[ {} ]'"):
        docker.program("curl", strange)
        assert docker.read(facts.CONTAINERS)[0] == found
    docker.program("curl", "echo '[]'")
    assert docker.read(facts.CONTAINERS) == ({}, {"curl"})


@pytest.mark.parametrize("why", ["variable", "context", "folders", "podman", "silent", "strange"])
def test_where_the_client_may_come_elsewhere_it_is_asked(docker: Bench, why: str) -> None:
    config = docker.folder / ".docker" / "config.json"
    config.parent.mkdir()
    if why == "variable":
        docker.environment["DOCKER_HOST"] = "ssh://elsewhere"
    if why == "context":
        config.write_text('{\n\t"currentContext": "lab"\n}')
    if why == "folders":
        config.write_text('{"cliPluginsExtraDirs": ["/opt"]}')
    if why == "podman":
        docker.socket.rename(docker.folder / "podman.sock")
        docker.socket.symlink_to(docker.folder / "podman.sock")
    if why == "silent":
        docker.program("curl", "exit 28")
    if why == "strange":
        docker.program("curl", 'echo \'{"message": "not here"}\'')
    found = docker.read(facts.DOCKER)[0]
    assert (found.server, found.root) == ("20.10", "/var/lib/docker")
    plain = why in {"podman", "silent", "strange"}
    assert found.compose == ("2.40.0" if plain else "2.1-client")


def test_a_login_to_a_registry_is_no_reason_to_ask_the_client(docker: Bench) -> None:
    (docker.folder / ".docker").mkdir()
    (docker.folder / ".docker" / "config.json").write_text('{"auths": {"registry.lab": {"auth": "eA=="}}}')
    assert docker.read(facts.DOCKER)[1] == {"curl", "plugin"}


def test_a_host_without_docker_or_with_a_dead_dockerd(docker: Bench) -> None:
    docker.program("docker", "exit 1")
    docker.program("curl", "exit 7")
    (docker.folder / "cli-plugins" / "docker-compose").unlink()
    assert docker.read(facts.DOCKER)[0] == Docker(True, "", "", docker.read(facts.DOCKER)[0].gpu_hook, "/var/lib/docker")
    with pytest.raises(facts.Unreadable, match="containers could not be read"):
        docker.read(facts.CONTAINERS)


def test_images_are_asked_of_dockerd_and_of_the_client_where_it_has_no_answer(docker: Bench) -> None:
    fact = facts.images_fact(["here@sha256:1", "absent@sha256:2"])
    assert docker.read(fact) == ({"here@sha256:1": True, "absent@sha256:2": False}, {"curl"})
    docker.program("docker", '[ "$*" = "image inspect broken@sha256:3" ]')
    assert docker.read(facts.images_fact(["broken@sha256:3"])) == ({"broken@sha256:3": True}, {"curl", "docker"})


# ---------------------------------------------------------------- supervisord


def told(**values: str | int) -> str:
    members = "".join(
        f"<member>\n<name>{name}</name>\n<value><{kind}>{value}</{kind}></value>\n</member>\n"
        for name, value in values.items()
        for kind in ["int" if isinstance(value, int) else "string"]
    )
    return f"<value><struct>\n{members}</struct></value>\n"


@pytest.fixture
def supervised(bench: Bench) -> Bench:
    programs = (
        told(
            name="api",
            group="web",
            start=1,
            state=20,
            statename="RUNNING",
            pid=12,
            description="pid 12, uptime 3 days, 0:00:24",
        ),
        told(name="old", group="old", state=0, statename="STOPPED", spawnerr="", pid=0, description="Not started"),
        told(
            name="bad", group="bad", state=200, statename="FATAL", pid=0, description="can't find &lt;x&gt; &amp;\n&lt;name&gt;"
        ),
    )
    (bench.folder / "answer.xml").write_text(XML.format("".join(programs)))
    bench.program("curl", f"cat {bench.folder}/answer.xml")
    bench.program("supervisorctl", "printf 'web:api   RUNNING   pid 12, uptime 3 days, 0:00:24\\n'; exit 3")
    (bench.folder / "etc" / "supervisord.conf").write_text(PLAIN.format(socket=bench.socket))
    return bench


def test_supervisord_is_asked_without_the_client(supervised: Bench) -> None:
    found, asked = supervised.read(facts.PROGRAMS)
    assert found == {
        "web:api": Program("web:api", "RUNNING", 12),
        "old": Program("old", "STOPPED", 0),
        "bad": Program("bad", "FATAL", 0),
    }
    assert asked == {"curl"}


def test_a_supervisord_without_programs(supervised: Bench) -> None:
    (supervised.folder / "answer.xml").write_text(XML.format(""))
    assert supervised.read(facts.PROGRAMS) == ({}, {"curl"})


CLIENT = {"web:api": Program("web:api", "RUNNING", 12)}


@pytest.mark.parametrize(
    "config",
    [
        PLAIN.replace("serverurl=unix://{socket}", "serverurl=http://localhost:9001"),
        PLAIN.replace("[include]", "username = operator\npassword = secret\n[include]"),
        PLAIN.replace("{socket}", "%(here)s/sock"),
        PLAIN.replace("{socket}", "{socket}-not-there"),
        PLAIN.replace("serverurl", "serverurl=unix://{socket}\nserverurl"),
        PLAIN.replace("[supervisorctl]", "[ctl]"),
        "",
    ],
)
def test_where_its_configuration_is_not_plain_the_client_is_asked(supervised: Bench, config: str) -> None:
    (supervised.folder / "etc" / "supervisord.conf").write_text(config.format(socket=supervised.socket))
    assert supervised.read(facts.PROGRAMS) == (CLIENT, {"supervisorctl"})


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "unauthorized",
        XML.format(told(name="a", statename="RUNNING"))[:200],
        "<methodResponse>\n<fault>\n</fault>\n</methodResponse>\n",
    ],
)
def test_where_supervisord_gives_no_whole_answer_the_client_is_asked(supervised: Bench, answer: str) -> None:
    (supervised.folder / "answer.xml").write_text(answer)
    assert supervised.read(facts.PROGRAMS) == (CLIENT, {"curl", "supervisorctl"})
