"""Pinning against a registry on this machine: HTTPS with a certificate of its own, tokens, moved tags, bad answers."""

import datetime
import hashlib
import ipaddress
import json
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from lodger import inventory
from lodger.checkout import CODE
from lodger.errors import InventoryError, LodgerError
from lodger.inventory.pin import PinnedDigest, edited, pin

HOSTS = CODE / "hosts"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest(letter: str) -> str:
    return f"sha256:{letter * 64}"


@dataclass
class Registry:
    """What the registry says, and what it was asked."""

    address: str
    certificate: Path
    tags: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # name:tag -> (content type, manifest)
    token: str = ""
    tells_digest: bool = True
    status: int = 0
    moved: bool = False
    asked: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def digest(self, reference: str) -> str:
        return f"sha256:{hashlib.sha256(self.tags[reference][1]).hexdigest()}"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "registry of a test")])
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key_file.write_bytes(key.private_bytes(*pem))
    return cert_file, key_file


@pytest.fixture
def registry(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            state.asked.append(f"{self.command} {self.path}")
            state.keys.append(self.headers.get("Authorization", ""))
            if parts.path == "/token":
                scope = parse_qs(parts.query)["scope"][0]
                assert scope.startswith("repository:")
                self.answer(200, json.dumps({"token": state.token}).encode())
            elif state.status:
                self.answer(state.status, Retry_After="3600")
            elif state.moved and not self.path.startswith("/there/"):
                self.answer(307, Location=f"https://localhost:{state.address.split(':')[1]}/there{self.path}")
            elif state.token and self.headers.get("Authorization") != f"Bearer {state.token}":
                name = parts.path.removeprefix("/v2/").partition("/manifests/")[0]
                challenge = f'Bearer realm="https://{state.address}/token",service="test",scope="repository:{name}:pull"'
                self.answer(401, WWW_Authenticate=challenge)
            else:
                name, _, tag = parts.path.removeprefix("/there").removeprefix("/v2/").partition("/manifests/")
                if f"{name}:{tag}" not in state.tags:
                    self.answer(404)
                    return
                kind, body = state.tags[f"{name}:{tag}"]
                assert kind in self.headers.get("Accept", "")
                told = {"Docker_Content_Digest": state.digest(f"{name}:{tag}")} if state.tells_digest else {}
                self.answer(200, body, Content_Type=kind, **told)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    state = Registry(f"127.0.0.1:{server.server_port}", certificate[0])
    state.tags["lmsysorg/sglang:v0.5.19-cu129"] = (MANIFEST, b'{"engine": 1}')
    state.tags["lmsysorg/sglang-router:v0.2.4"] = (MANIFEST, b'{"router": 1}')
    monkeypatch.setenv("SSL_CERT_FILE", str(state.certificate))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def hosts(tmp_path: Path, registry: Registry) -> Path:
    folder = tmp_path / "hosts"
    folder.mkdir()
    for file in HOSTS.glob("*.yml"):
        shutil.copy(file, folder)
    fleet = folder / "fleet.yml"
    fleet.write_text(fleet.read_text().replace("docker.m.daocloud.io", registry.address))
    return folder


def changes(hosts: Path) -> dict[str, PinnedDigest]:
    return {change.image: change for change in pin(hosts)}


def test_each_tag_becomes_the_digest_that_the_registry_has_for_it(hosts: Path, registry: Registry) -> None:
    before = inventory.load(hosts).images["sglang"].digest
    found = changes(hosts)
    engine, router = (registry.digest(ref) for ref in registry.tags)
    assert (found["sglang"].old, found["sglang"].new) == (before, engine)
    assert (found["router"].old, found["router"].new) == (inventory.load(HOSTS).images["router"].digest, router)
    assert {name: image.digest for name, image in inventory.load(hosts).images.items()} == {"sglang": engine, "router": router}


def test_nothing_but_digests_changes_in_the_file(hosts: Path, registry: Registry) -> None:
    before = (hosts / "fleet.yml").read_text().splitlines()
    pin(hosts)
    after = (hosts / "fleet.yml").read_text().splitlines()
    assert [line for line in after if "digest:" not in line] == [line for line in before if "digest:" not in line]
    assert sum("digest: " in line and "sha256:" in line for line in after) == 2


def test_second_pin_finds_nothing_to_change_and_does_not_touch_the_file(hosts: Path, registry: Registry) -> None:
    pin(hosts)
    before = (hosts / "fleet.yml").stat()
    assert not any(change.changed for change in pin(hosts))
    after = (hosts / "fleet.yml").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_moved_tag_is_shown_with_what_it_was(hosts: Path, registry: Registry) -> None:
    pin(hosts)
    was = registry.digest("lmsysorg/sglang:v0.5.19-cu129")
    registry.tags["lmsysorg/sglang:v0.5.19-cu129"] = (MANIFEST, b'{"engine": 2}')
    moved = changes(hosts)["sglang"]
    assert moved.changed
    assert f"was {was}, is {registry.digest('lmsysorg/sglang:v0.5.19-cu129')}" in str(moved)


def test_digest_of_one_platform_stays_while_the_tags_index_lists_it(hosts: Path, registry: Registry) -> None:
    present = inventory.load(hosts).images["sglang"].digest
    index = json.dumps({"manifests": [{"digest": digest("1")}, {"digest": present}]}).encode()
    registry.tags["lmsysorg/sglang:v0.5.19-cu129"] = (OCI_INDEX, index)
    assert not changes(hosts)["sglang"].changed
    registry.tags["lmsysorg/sglang:v0.5.19-cu129"] = (OCI_INDEX, b'{"manifests": []}')
    assert changes(hosts)["sglang"].new == registry.digest("lmsysorg/sglang:v0.5.19-cu129")


def test_registry_that_wants_a_token_gets_it(hosts: Path, registry: Registry) -> None:
    registry.token = "t0ken"  # noqa: S105  # a registry of this test gave it
    assert changes(hosts)["router"].new == registry.digest("lmsysorg/sglang-router:v0.2.4")
    assert any(line.startswith("GET /token?") and "lmsysorg%2Fsglang%3Apull" in line for line in registry.asked)


def test_digest_is_computed_where_the_registry_does_not_tell_it(hosts: Path, registry: Registry) -> None:
    registry.tells_digest = False
    assert changes(hosts)["sglang"].new == registry.digest("lmsysorg/sglang:v0.5.19-cu129")


def test_registry_that_sends_on_to_another_name_is_followed_without_the_key(hosts: Path, registry: Registry) -> None:
    registry.token, registry.moved = "t0ken", True  # a registry of this test gave it
    with pytest.raises(LodgerError, match="only to somebody with an account"):
        pin(hosts)
    there = [key for key, line in zip(registry.keys, registry.asked, strict=True) if "/there/" in line]
    assert there
    assert not any(there)
    registry.token = ""
    assert changes(hosts)["router"].new == registry.digest("lmsysorg/sglang-router:v0.2.4")


def test_what_netrc_has_for_a_registry_is_not_sent(
    hosts: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\nmachine localhost login me password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    registry.moved = True
    changes(hosts)
    assert {key for key in registry.keys if key} == set()


def no_tag(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    del registry.tags["lmsysorg/sglang-router:v0.2.4"]


def no_trust(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")


def no_access(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.status = 403


def out_of_order(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.status = 500


def bad_digest(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "digest", lambda *_: "sha256:x")


def bad_index(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.tags["lmsysorg/sglang:v0.5.19-cu129"] = (OCI_INDEX, b"<html>")


@pytest.mark.parametrize(
    "spoil",
    [
        (no_tag, "has no 127.0.0.1:", "images.router"),
        (no_trust, "cannot ask 127.0.0.1:", "SSL_CERT_FILE"),
        (no_access, "only to somebody with an account", "by hand"),
        (out_of_order, "gives no digest", "another registry"),
        (bad_digest, "gives no digest", "another registry"),
        (bad_index, "cannot ask", "check"),
    ],
)
def test_answer_that_is_none_leaves_the_file_alone(
    hosts: Path,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    spoil: tuple[Callable[[Registry, pytest.MonkeyPatch], None], str, str],
) -> None:
    spoiler, what, hint = spoil
    spoiler(registry, monkeypatch)
    before = (hosts / "fleet.yml").read_bytes()
    with pytest.raises(LodgerError) as caught:
        pin(hosts)
    assert (caught.value.exit_code, (hosts / "fleet.yml").read_bytes()) == (1, before)
    assert what in str(caught.value)
    assert hint in caught.value.hint


def test_registry_that_is_not_there_is_named(hosts: Path, registry: Registry) -> None:
    fleet = hosts / "fleet.yml"
    fleet.write_text(fleet.read_text().replace(registry.address, "127.0.0.1:1"))
    with pytest.raises(LodgerError, match=r"cannot ask 127\.0\.0\.1:1 what .* is") as caught:
        pin(hosts)
    assert caught.value.cause == "Connection refused"


def test_a_registry_that_says_when_to_come_again_is_not_waited_for(hosts: Path, registry: Registry) -> None:
    registry.status = 503
    with pytest.raises(LodgerError, match="gives no digest"):
        pin(hosts)
    assert len(registry.asked) == 1


def test_mistaken_inventory_is_refused_before_any_registry_is_asked(hosts: Path, registry: Registry) -> None:
    (hosts / "node1.yml").write_text("address: 1\n")
    with pytest.raises(InventoryError):
        pin(hosts)
    assert registry.asked == []


# ---------------------------------------------------------------- the file

LAYOUTS = {
    "block without digest": ("images:\n  a:\n    tag: t # y\nz: 1\n", '    tag: t # y\n    digest: "{}"\nz: 1\n'),
    "block with digest": ("images:\n  a:\n    digest: old # why\n    tag: t\n", '    digest: "{}" # why\n    tag: t\n'),
    "quoted digest": ("images: \n  a: \n    tag: t\n    digest: 'old'\n", "    tag: t\n    digest: \"{}\"\n"),
    "empty digest": ("images:\n  a:\n    tag: t\n    digest:    # later\n", '    digest: "{}"    # later\n'),
    "flow without digest": ("images:\n  a: {tag: t} # x\n", '  a: {tag: t, digest: "{}"} # x\n'),
    "flow with digest": ('images:\n  a: {digest: "old", tag: t}\n', '  a: {digest: "{}", tag: t}\n'),
    "no newline at the end": ("images:\n  a:\n    tag: t", '    tag: t\n    digest: "{}"'),
    "windows line ends": ("images:\r\n  a:\r\n    tag: t # x\r\nz: 1\r\n", '    tag: t # x\r\n    digest: "{}"\r\nz: 1\r\n'),
    "byte order mark": ("\ufeffimages:\n  a:\n    tag: t\nz: 1\n", '    tag: t\n    digest: "{}"\nz: 1\n'),
    "text beyond ASCII": ("s: 实验室 🚀\nimages:\n  a:\n    tag: t # é\nz: 1\n", '    tag: t # é\n    digest: "{}"\nz: 1\n'),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_digest_is_written_into_any_layout(layout: str) -> None:
    before, expected = LAYOUTS[layout]
    after = edited(before.encode(), {"a": digest("a")}).decode()
    assert after.endswith(expected.replace("{}", digest("a")))
    assert after.startswith(before[: before.index("a:")])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.text("# xé🚀", max_size=5)), min_size=1, max_size=4))
def test_any_number_of_images_is_pinned_at_once(images: list[tuple[bool, bool, str]]) -> None:
    lines = ["images:"]
    for number, (flow, pinned, comment) in enumerate(images):
        old = "digest: old" if pinned else ""
        if flow:
            lines.append(f"  i{number}: {{tag: t{', ' + old if old else ''}}} # {comment}")
        else:
            lines += [f"  i{number}:", f"    tag: t # {comment}", *([f"    {old}"] if old else []), f"    # {comment}"]
    wanted = {f"i{number}": digest(str(number)) for number in range(len(images))}
    after = edited("\n".join(lines).encode(), wanted).decode()
    assert [line.split("#")[-1] for line in after.splitlines() if "#" in line] == [
        line.split("#")[-1] for line in lines if "#" in line
    ]
    assert all(after.count(value) == 1 for value in wanted.values())
