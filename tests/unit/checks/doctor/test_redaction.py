"""Nothing that names people, machines or secrets survives, and what says something about the fault does."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lodger.checks.doctor.redaction import redacted

KNOWN = {"host": ["node1", "gpu.lab.example.org"], "user": ["alice", "al"], "id": ["a" * 32]}
words = st.from_regex(r"[a-z][a-z0-9_.-]{0,12}[a-z0-9]", fullmatch=True)
around = st.text(st.characters(codec="ascii"), max_size=20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1: GPU 0 of NODE1", "<host-1>: GPU 0 of <host-1>"),
        ("ssh alice@node1.lab.example.org", "ssh <user-1>@<host-1>"),
        ("node1.lab.example.org", "<host-1>"),
        ("write it into node1.yml", "write it into <host-1>.yml"),
        ("mynode12 and renal", "mynode12 and renal"),
        ("pid 7, user alice, al-train", "pid 7, user <user-1>, <user-2>-train"),
        ("/home/bob/x and /home/bob/y", "/home/<user-1>/x and /home/<user-1>/y"),
        ("10.1.2.3:22 and 10.1.2.4, 10.1.2.3", "<address-1>:22 and <address-2>, <address-1>"),
        ("[fe80::1%eth0] 2001:db8::7", "[<address-1>%eth0] <address-2>"),
        ("GPU-0e1d1b2c-1111-2222-3333-444455556666", "<uuid-1>"),
        ("machine-id 472c3d1b115d5aab8508d1bea1f7cc60", "machine-id <id-1>"),
        (f"id {'a' * 32}", "id <id-1>"),
        (f"container {'0f' * 32}", "container <id-1>"),
        ("02:42:ac:11:00:04", "<mac-1>"),
        ("serial: 1322921012345", "serial: <serial-1>"),
        ("python3 train.py --api-key=sk-1 --hf-token hf_2", "python3 train.py --api-key=<secret> --hf-token <secret>"),
        ("WANDB_API_KEY=abc PASSWORD='two words' x", "WANDB_API_KEY=<secret> PASSWORD=<secret> x"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer <secret>"),
        ("curl https://me:pw@registry/x", "curl https://<secret>@registry/x"),
    ],
)
def test_what_is_private_becomes_a_word_for_its_kind(text: str, expected: str) -> None:
    assert redacted(text, KNOWN) == expected


@pytest.mark.parametrize(
    "text",
    [
        "driver 580.126.09, CUDA up to 13.0, kernel 6.1.0-28-amd64",
        "Xid 79, 1 times, GPU 1 (PCI 0a:00): pid='<unknown>', GPU has fallen off the bus.",
        "0.0.0.0:30000, 127.0.0.1:29000, [::]:22, [::1]:53, *:8888",
        "12:34:56, x4 of x16, 0x0000000000000040, 24576 MiB",
        f"docker.io/lmsysorg/sglang@sha256:{'5' * 64}",
        "nvidia-persistenced.service libnvidia-ml.so.580.126.09",
        "",
    ],
)
def test_what_says_something_about_the_fault_stays(text: str) -> None:
    assert redacted(text, {"host": ["node1"]}) == text


def whole(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", re.IGNORECASE)


@given(hosts=st.lists(words, max_size=3), users=st.lists(words, max_size=3), parts=st.lists(around, min_size=1), data=st.data())
@example(hosts=["a-b", "a"], users=["b"], parts=["-", "."], data=None)
def test_no_known_word_survives(hosts: list[str], users: list[str], parts: list[str], data: st.DataObject | None) -> None:
    known = [*hosts, *users]
    picked = [data.draw(st.sampled_from(known)) if data and known else "a-b" for _ in parts]
    text = "".join(f"{part} {word} ({word})" for part, word in zip(parts, picked, strict=True))
    said = redacted(text, {"host": hosts, "user": users})
    # A placeholder's own words are nobody's.
    left = re.sub(r"<(host|user|mail|uuid|mac|id|serial|address)-\d+>|<secret>", "\0", said)
    for word in known:
        assert not whole(word).search(left), (text, said)


@given(around, st.ip_addresses().filter(lambda ip: not ip.is_loopback and int(ip)), st.uuids())
def test_no_address_and_no_uuid_survives(text: str, address: object, uuid: object) -> None:
    said = redacted(f"{text} {address} ({uuid}) GPU-{uuid}", {})
    assert str(address) not in said
    assert str(uuid) not in said


@given(
    st.sampled_from(["--api-key ", "--token=", "MY_PASSWORD=", "secret: ", "Bearer "]),
    st.from_regex(r"[A-Za-z0-9+/_.-]{8,40}", fullmatch=True),
)
def test_no_secret_of_a_command_line_survives(option: str, secret: str) -> None:
    assert secret not in redacted(f"python3 x.py {option}{secret} --port 1", {})


@given(st.lists(words, min_size=1, max_size=4), around)
def test_the_same_word_is_the_same_placeholder(names: list[str], text: str) -> None:
    line = f"{text} {' '.join(names)}\n"
    one, other = redacted(line, {"user": names}), redacted(line * 2, {"user": names})
    assert other.startswith(one)
    assert other == one * 2
