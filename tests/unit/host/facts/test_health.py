"""Each parser on text as drivers, kernels and hosts print it, and the snippets where a machine without GPUs can run them."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from lodger.checkout import CODE
from lodger.host import facts
from lodger.host.facts import health
from lodger.host.facts.base import Fact, Unreadable
from lodger.host.facts.health import DriverOnDisk, Link, MemoryErrors, Mount, TimeService, Xid, bounded

MATRIX_OF_FOUR = """\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\tSYS\tSYS\tPHB\t0-31\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tSYS\tPHB\t0-31\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tPHB\tSYS\t32-63\t1\t\tN/A
GPU3\tSYS\tSYS\tPHB\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPHB\tPHB\tSYS\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""
PEERS_OF_TWO = " \tGPU0\tGPU1\t\n GPU0\tX\tCNS\t\n GPU1\tOK\tX\t\n\nLegend:\n\n  X    = Self\n  CNS  = Chipset not supported\n"


def through_sh(fact: Fact[Any]) -> facts.Facts:
    done = subprocess.run(["sh", "-c", facts.script([fact])], capture_output=True, text=True, check=False, timeout=60)
    return facts.parse(done.stdout)


# ---------------------------------------------------------------- bounds


def test_a_fact_that_hangs_is_cut_off_and_what_it_left_behind_is_not_waited_for() -> None:
    hanging = bounded(Fact("hanging", "echo half; (sleep 60) & sleep 60", str), 0.3)
    after = Fact("after", "echo here", str.strip)
    start = time.monotonic()
    read = facts.parse(
        subprocess.run(["sh", "-c", facts.script([hanging, after])], capture_output=True, text=True, check=False).stdout
    )
    assert time.monotonic() - start < 50
    assert read.sections["hanging"][0] == health.KILLED
    assert read[after] == "here"


def test_a_bounded_fact_reads_as_the_fact_it_was() -> None:
    quoting = Fact("quoting", "printf '%s' \"it's $HOME\" '$x'", str)
    assert through_sh(bounded(quoting, 5))[quoting] == through_sh(quoting)[quoting]


# ---------------------------------------------------------------- nvidia-smi


def test_links() -> None:
    text = "0, 00000000:01:00.0, 16, 16, 41\n1, 00000000:0A:00.0, 4, 16, 67\n2, 00000000:4B:00.0, [N/A], [N/A], [N/A]\n"
    assert health.LINKS.parse(text) == {
        0: Link("01:00", 16, 16, 41),
        1: Link("0a:00", 4, 16, 67),
        2: Link("4b:00", None, None, None),
    }


def test_clock_reasons_by_either_name_of_the_field() -> None:
    assert health.REASONS.parse("0, 0x0000000000000001\n1, 0x0000000000000044\n") == {0: 1, 1: 0x44}
    older = 'Field "clocks_event_reasons.active" is not a valid field to query.\n\n0, 0x0000000000000008\n1, [Not Supported]\n'
    assert health.REASONS.parse(older) == {0: 8}


def test_memory_errors_of_cards_that_count_them_and_of_cards_that_do_not() -> None:
    text = "0, [N/A], [N/A]\n1, 12, 3\n2, [Not Supported], [Not Supported]\n"
    none = MemoryErrors(None, None)
    assert health.MEMORY_ERRORS.parse(text) == {0: none, 1: MemoryErrors(12, 3), 2: none}


@pytest.mark.parametrize("fact", [health.LINKS, health.REASONS, health.MEMORY_ERRORS, health.TOPOLOGY])
@pytest.mark.parametrize(
    "text", ["", "Unable to determine the device handle for GPU0000:0A:00.0: Unknown Error\n", "\x00,,,,\n"]
)
def test_what_is_no_answer_raises(fact: Fact[Any], text: str) -> None:
    with pytest.raises(ValueError, match="no "):
        fact.parse(text)


@pytest.mark.parametrize("driver", ["545.23.06", "580.126.09"])
def test_questions_as_both_drivers_take_them(driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The field of the clock reasons has another name in each."""
    about = {"name": "NVIDIA GeForce RTX 3090", "memory_mib": 24576, "compute_capability": "8.6", "driver": driver}
    for index in range(2):
        (tmp_path / f"nvidia{index}").write_text(json.dumps({**about, "index": index, "uuid": f"GPU-{index}"}) + "\n")
    (tmp_path / "nvidia-smi").symlink_to(CODE / "lab/gpu/nvidia_smi.py")
    monkeypatch.setenv("SIM_DEV_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert through_sh(health.REASONS)[health.REASONS] == {0: 1, 1: 1}
    assert through_sh(health.LINKS)[health.LINKS] == {0: Link("01:00", 16, 16, 41), 1: Link("02:00", 16, 16, 41)}
    assert through_sh(health.MEMORY_ERRORS)[health.MEMORY_ERRORS][0] == MemoryErrors(None, None)
    table = through_sh(health.TOPOLOGY)[health.TOPOLOGY]
    assert (table.paths[0, 1], table.peers[0, 1]) == ("PHB", "CNS")


def test_topology_with_colours_and_network_cards() -> None:
    table = health.TOPOLOGY.parse(MATRIX_OF_FOUR + "@peers\n" + PEERS_OF_TWO)
    assert table.paths[0, 1] == "NV4"
    assert table.paths[3, 0] == "SYS"
    assert len(table.paths) == 16
    assert table.peers[0, 1] == "CNS"
    assert table.bridged((0, 1))
    assert not table.bridged((0, 1, 2))
    assert not table.peered((0, 1)), "one direction is not enough"


def test_topology_of_a_driver_that_does_not_know_peers() -> None:
    table = health.TOPOLOGY.parse(MATRIX_OF_FOUR + "@peers\nInvalid combination of input arguments.\n")
    assert table.peers == {}
    assert not table.peered((0, 1))


def test_one_gpu_alone_has_a_table_too() -> None:
    assert health.TOPOLOGY.parse("\tGPU0\tCPU Affinity\nGPU0\t X \t0-31\n@peers\n").paths == {(0, 0): "X"}


# ---------------------------------------------------------------- the kernel's log


LOG = """\
[    9.0] EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0
[    9.1] EDAC MC: Ver: 3.0.0
[    9.2] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.126.09
[ 1843.3] NVRM: Xid (PCI:0000:B3:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[ 1843.4]                NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.
2026-11-29T18:00:00+0000 node1 kernel: NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel
[ 1843.5] NVRM: Xid (PCI:0000:01:00): 45
[ 1843.6] mce: [Hardware Error]: Machine check events logged
"""
AGAIN = "".join(f"[ 2000.{n}] NVRM: Xid (PCI:0000:01:00): 13, pid=7, Graphics Exception: {n}\n" for n in range(1000))


@pytest.mark.parametrize("source", ["journal", "dmesg"])
def test_complaints_of_the_driver_from_journal_and_buffer(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes a thousand times after all others hides none of them."""
    (tmp_path / "log").write_text(LOG + AGAIN)
    for name, body in (
        ("journalctl", f"cat {tmp_path}/log" if source == "journal" else "true"),
        ("dmesg", f"cat {tmp_path}/log"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    said = through_sh(health.KERNEL_LOG)[health.KERNEL_LOG]
    assert said.source == source
    assert said.xids == (
        Xid("b3:00", 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        Xid("01:00", 94, "pid=7194, Contained: CE User Channel"),
        Xid("01:00", 45, ""),
        Xid("01:00", 13, "pid=7, Graphics Exception: 999", 1000),
    )
    assert [(one.last.split("] ", 1)[1].strip(), one.count) for one in said.lost] == [
        ("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.", 1)
    ]
    assert [one.last[10:18] for one in said.memory] == ["EDAC MC0", "mce: [Ha"], "that a driver is there is no error"


def test_a_log_that_cannot_be_read_says_so() -> None:
    assert health.KERNEL_LOG.parse("source=\n").source == ""


# ---------------------------------------------------------------- the machine


def test_time_services() -> None:
    assert health.TIME_SERVICE.parse("NTP=yes\nNTPSynchronized=no\n") == TimeService(True, False)
    assert health.TIME_SERVICE.parse("") == TimeService(None, None)


def test_cgroup_versions() -> None:
    assert [health.CGROUP.parse(kind) for kind in ("cgroup2fs\n", "tmpfs\n")] == [2, 1]


def test_driver_on_disk_and_when_it_came() -> None:
    text = (
        "module=580.126.09\nlibrary=/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.126.09\n"
        "changed=1700000500 1700000900 \nnow=1700001000\nuptime=1000.5\nuserspace=4500000\n"
    )
    assert health.ON_DISK.parse(text) == DriverOnDisk("580.126.09", "580.126.09", 1700000900.0, 1700000004.0)
    nothing = "module=\nlibrary=\nchanged=\nnow=10\nuptime=5\nuserspace=\n"
    assert health.ON_DISK.parse(nothing) == DriverOnDisk("", "", 0.0, 5.0)


def test_network_mounts_that_answer_fail_and_hang() -> None:
    text = (
        "0 gluster1:/lab /data/gluster fuse.glusterfs \n"
        "1 gluster1:/old /data/with\\040blank fuse.glusterfs stat: cannot read file system information for '/x': Transport endpoint is not connected\n"
        "137 nas:/home /home nfs4 \n"
    )
    assert health.NETWORK_MOUNTS.parse(text) == {
        "/data/gluster": Mount("gluster1:/lab", "fuse.glusterfs", ""),
        "/data/with blank": Mount("gluster1:/old", "fuse.glusterfs", "Transport endpoint is not connected"),
        "/home": Mount("nas:/home", "nfs4", "no answer within 3 s"),
    }


def test_only_network_mounts_are_asked(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(
        f"tmpfs /run tmpfs rw 0 0\nsystemd-1 {tmp_path} autofs rw 0 0\nnas:/here {tmp_path} nfs4 rw 0 0\n"
        f"nas:/away {tmp_path}/no\\040such nfs rw 0 0\n//box/share {tmp_path} cifs rw 0 0\ngluster1:/x {tmp_path} fuse.glusterfs rw 0 0\n"
    )
    snippet = health.NETWORK_MOUNTS.snippet.replace("/proc/mounts", str(table))
    read = through_sh(Fact("mounts", snippet, str))
    found = health.NETWORK_MOUNTS.parse(read.sections["mounts"][1])
    assert set(found) == {str(tmp_path), f"{tmp_path}/no such"}
    assert found[f"{tmp_path}/no such"].trouble == "No such file or directory"


@pytest.mark.parametrize(
    "fact",
    [
        health.CLOCK,
        health.TIME_SERVICE,
        health.CGROUP,
        health.ON_DISK,
        health.KERNEL_LOG,
        health.NETWORK_MOUNTS,
        health.DOCKER_ROOM,
    ],
)
def test_a_machine_with_none_of_it_is_read_all_the_same(fact: Fact[Any]) -> None:
    through_sh(bounded(fact, 20))[fact]


def test_without_nvidia_smi_its_facts_say_so() -> None:
    bare = Fact("links", f"PATH=/nowhere\n{health.LINKS.snippet}", health.LINKS.parse)
    with pytest.raises(Unreadable, match="not found"):
        through_sh(bare)[bare]
