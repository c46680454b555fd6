"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from lodger.host import facts
from lodger.host.command import Command, Transport
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.deployed import HostFile
from lodger.host.facts.weights import Folder
from lodger.host.nvidia import cuda_of_driver, version_key
from lodger.host.ownership import Owner
from lodger.release.manifest import manifest_text, services
from lodger.release.service import Service
from lodger.states.base import Action, Blocker, Check, NoUndo, State
from lodger.states.gpus_free import GpusFree
from lodger.states.host_fit import HostFit
from lodger.states.image_present import ImagePresent
from lodger.states.neighbour_paused import NeighbourPaused
from lodger.states.neighbour_record import recorded
from lodger.states.neighbour_replaced import NeighbourReplaced
from lodger.states.neighbour_restored import NeighbourRestored
from lodger.states.neighbour_status import NeighbourStatus
from lodger.states.old_releases_pruned import OldReleasesPruned
from lodger.states.release_current import ReleaseCurrent
from lodger.states.release_staged import Content, ReleaseStaged, archive
from lodger.states.service_base import cause_in, phase
from lodger.states.service_gone import ServiceGone
from lodger.states.service_installed import ServiceInstalled
from lodger.states.service_ready import ServiceReady
from lodger.states.service_stopped import ServiceStopped
from lodger.states.smoke_passed import SmokePassed
from lodger.states.weights_present import WeightsPresent
from tests.unit.readings import (
    HOST,
    base,
    container,
    deployed,
    driver,
    in_container,
    installed,
    on_gpus,
    ours,
    port,
    process,
    program,
    readings,
    record,
    release_files,
    router,
    serving,
    unit,
    unit_text,
    worker,
)

A = worker("a")
UNIT = facts.unit_fact(A.unit)
SERVING = facts.serving_fact(A.container, A.unit, HOST)
ENABLED = unit(A.unit)


def shown(actions: Sequence[Action] | NoUndo) -> list[str]:
    """Return actions as an operator reads them, without sudo, which all commands here have."""
    assert not isinstance(actions, NoUndo), actions.reason
    assert all(isinstance(one, Check) or one.sudo for one in actions)
    return [str(one).removeprefix("sudo ") for one in actions]


def scripts(actions: Sequence[Action] | NoUndo) -> str:
    assert not isinstance(actions, NoUndo), actions.reason
    return "\n".join(one.script if isinstance(one, Command) else str(one) for one in actions)


def written(actions: Sequence[Action] | NoUndo, path: str) -> str:
    """Return what a command among ``actions`` writes to ``path``."""
    assert not isinstance(actions, NoUndo), actions.reason
    found = [one for one in actions if isinstance(one, Command) and f"mv -f {path}.new {path}" in one.script]
    assert len(found) == 1
    return (found[0].input_bytes() or b"").decode()


def whats(found: Sequence[Blocker]) -> list[str]:
    return [blocker.what for blocker in found]


def host(**values: Any) -> dict[Fact[Any], Any]:
    """Return a host with worker a's own facts beside the rest: ``unit`` and ``serving``."""
    return base(**values) | {
        UNIT: values.get("unit"),
        SERVING: values.get("serving", serving(container="", address="", port=0, config="", health=0)),
        facts.DRIVER: values.get("driver", driver(0, 0, 0, 0)),
    }


# ---------------------------------------------------------------- host_fit

FIT = HostFit(driver="580.126.09", gpu_count=4, gpu_memory=24576, cuda="12.9")
MACHINE = facts.Machine("0" * 32, "b", HOST, "6.1.0", 5000.0, 1.8e9, 252, "14:05")
DOCKER = facts.Docker(True, "20.10.24", "2.26.1-4", True, "/var/lib/docker")


def fit(**values: Any) -> Facts:
    disks = {"/opt/lodger": 2**34, "/var/lib/lodger": 2**34, "/etc/systemd/system": 2**34} | values.get("free", {})
    known: dict[Fact[Any], Any] = {
        facts.MACHINE: MACHINE,
        facts.DOCKER: values.get("docker", DOCKER),
        facts.DRIVER: values.get("driver", driver(4, 4, 4, 4)),
        facts.CURL: values.get("curl", True),
    }
    return readings(
        known
        | {facts.disk_fact(path): facts.Disk(free, path not in values.get("read_only", ())) for path, free in disks.items()}
    )


def test_a_host_that_can_carry_it_is_satisfied() -> None:
    assert (FIT.missing(fit()), FIT.blockers(fit())) == ("", [])


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"docker": replace(DOCKER, client=False, server="", compose="", gpu_hook=False)}, "Docker is not installed"),
        ({"docker": replace(DOCKER, server="")}, "dockerd does not answer"),
        ({"docker": replace(DOCKER, compose="")}, "Docker Compose v2 is missing"),
        ({"docker": replace(DOCKER, compose="1.29.2")}, "Docker Compose v2 is missing"),
        ({"docker": replace(DOCKER, gpu_hook=False)}, "Docker cannot give GPUs to containers"),
        ({"curl": False}, "curl is missing"),
        ({"read_only": ("/opt/lodger",)}, "/opt/lodger cannot be written"),
        ({"free": {"/var/lib/lodger": 2**20}}, "the disk below /var/lib/lodger is full"),
        ({"driver": driver(complaint="NVML: mismatch")}, "nvidia-smi does not work"),
        ({"driver": driver(4, 4, 4, 4, loaded="545.23.08")}, "the driver is not the declared one"),
        ({"driver": driver(4, 4, 4)}, "the number of GPUs is not the declared one"),
        ({"driver": driver(4, 4, 4, 4, memory=12288)}, "the GPUs have less memory than declared"),
    ],
)
def test_what_a_host_lacks_is_one_final_blocker_with_a_hint(values: dict[str, Any], what: str) -> None:
    read = fit(**values)
    found = FIT.blockers(read)
    assert found[0].what == FIT.missing(read) == what
    assert all(blocker.hint and not blocker.awaits for blocker in found)


def test_everything_that_is_missing_is_named_at_once() -> None:
    read = fit(docker=replace(DOCKER, compose=""), curl=False, driver=driver(4, 4, 4), free={"/opt/lodger": 0})
    assert len(FIT.blockers(read)) == 4


def test_a_driver_too_old_for_the_images_cuda_is_named_whatever_the_inventory_declares() -> None:
    old = HostFit(driver="545.23.08", gpu_count=1, gpu_memory=24576, cuda="12.9")
    found = old.blockers(fit(driver=driver(4, loaded="545.23.08")))
    assert whats(found) == ["the image's CUDA is too new for the driver"]
    assert "runs CUDA up to 12.3" in found[0].cause
    assert HostFit(driver="545.23.08", gpu_count=1, gpu_memory=24576).blockers(fit(driver=driver(4, loaded="545.23.08"))) == []


def test_a_gpu_may_show_a_little_less_memory_than_its_label() -> None:
    assert FIT.missing(fit(driver=driver(4, 4, 4, 4, memory=24268))) == ""


@pytest.mark.parametrize(
    ("version", "cuda"),
    [
        ("580.126.09", "13.0"),
        ("579.99", "12.9"),
        ("575.51.03", "12.9"),
        ("545.23.08", "12.3"),
        ("525.1", "12.0"),
        ("470.1", ""),
    ],
)
def test_newest_cuda_of_a_driver(version: str, cuda: str) -> None:
    assert cuda_of_driver(version) == cuda


def test_versions_compare_as_numbers() -> None:
    assert version_key("2.9") < version_key("v2.26.1-4")
    assert version_key("") < version_key("1")


# ---------------------------------------------------------------- image_present, weights_present

REFERENCE = "registry/sglang@sha256:1"
IMAGE = ImagePresent(REFERENCE, room=40 * 2**30)


def image(*, there: bool, free: int = 2**40) -> Facts:
    return readings(
        {facts.images_fact([REFERENCE]): {REFERENCE: there}, facts.disk_fact("/var/lib/docker"): facts.Disk(free, True)}
    )


def test_an_image_that_is_there_needs_no_room() -> None:
    read = image(there=True, free=0)
    assert (IMAGE.missing(read), IMAGE.blockers(read)) == ("", [])


def test_an_image_that_is_not_there_is_noted_as_ours_before_it_is_pulled() -> None:
    read = image(there=False)
    assert REFERENCE in IMAGE.missing(read)
    assert IMAGE.blockers(read) == []
    note, pull = shown(IMAGE.act(read))
    assert ">> /var/lib/lodger/images" in note
    assert pull == f"docker pull {REFERENCE}"
    assert isinstance(IMAGE.undo(read, read), NoUndo)


def test_no_room_for_an_image_is_refused_with_both_numbers() -> None:
    found = IMAGE.blockers(image(there=False, free=2**30))
    assert whats(found) == [f"there is no room for the image {REFERENCE}"]
    assert found[0].cause == "1.0 GiB are free, about 40.0 GiB are needed"


@pytest.mark.parametrize(
    ("folder", "size", "said"),
    [
        (Folder(True, 100), 100, ""),
        (Folder(True, 101), 100, ""),
        (Folder(True, 5), None, ""),
        (Folder(True, 100, True), 100, "the weights of m are of two revisions: a fetch was cut short in /data/models/M"),
        (Folder(False, 0), 100, "the weights of m are missing: /data/models/M has no config.json"),
        (Folder(True, 99), 100, "the weights of m are incomplete: 99 of 100 bytes in /data/models/M"),
        (Folder(True, 99, lost=0), 100, ""),
        (
            Folder(True, 100, lost=1),
            100,
            "the weights of m are incomplete: 1 fetched files are missing in /data/models/M",
        ),
    ],
)
def test_weights_are_only_looked_at(folder: Folder, size: int | None, said: str) -> None:
    state = WeightsPresent("m", "/data/models/M", size)
    read = readings({facts.folder_fact("/data/models/M"): folder})
    assert state.missing(read) == said
    assert whats(state.blockers(read)) == ([said] if said else [])


# ---------------------------------------------------------------- release_staged

FILES = {"worker-a/compose.yml": Content("x: 1\n"), f"units/{A.unit}": Content("[Unit]\n")}
MANIFEST = manifest_text("ab12", HOST, "r1", [A], {})
STAGED = ReleaseStaged("ab12", FILES, MANIFEST)
ROOT = "/opt/lodger/releases/ab12"


def staged(**changes: HostFile | None) -> Facts:
    there: dict[str, HostFile | None] = {
        "worker-a/compose.yml": HostFile("x: 1\n", 0o644, "root"),
        f"units/{A.unit}": HostFile("[Unit]\n", 0o644, "root"),
        "manifest.json": HostFile(MANIFEST, 0o644, "root"),
    }
    files = {f"{ROOT}/{path}": file for path, file in (there | changes).items() if file is not None}
    return readings(base(deployed=deployed(stored=("ab12",), files=files)))


def test_a_release_that_stands_as_it_should_is_satisfied() -> None:
    assert STAGED.missing(staged()) == ""


@pytest.mark.parametrize(
    ("path", "file", "said"),
    [
        ("worker-a/compose.yml", None, "is missing"),
        ("worker-a/compose.yml", HostFile("x: 2\n", 0o644, "root"), "was changed on the host"),
        ("worker-a/compose.yml", HostFile("x: 1\n", 0o666, "root"), "was changed on the host"),
        ("worker-a/compose.yml", HostFile("x: 1\n", 0o644, "mallory"), "was changed on the host"),
        ("manifest.json", None, "is missing"),
        ("manifest.json", HostFile("{", 0o644, "root"), "was changed"),
        ("manifest.json", HostFile("[]", 0o644, "root"), "was changed"),
        ("manifest.json", HostFile(manifest_text("ab12", HOST, "r1", [replace(A, port=1)], {}), 0o644, "root"), "was changed"),
        ("worker-a/extra", HostFile("", 0o644, "root"), "does not belong to the release"),
    ],
)
def test_a_release_edited_by_hand_is_found(path: str, file: HostFile | None, said: str) -> None:
    assert STAGED.missing(staged(**{path: file})) == f"{ROOT}/{path} {said}"


def test_the_same_release_from_a_later_revision_is_the_same() -> None:
    later = HostFile(manifest_text("ab12", HOST, "r2", [A], {}), 0o644, "root")
    assert STAGED.missing(staged(**{"manifest.json": later})) == ""


def test_a_release_is_uploaded_beside_checked_there_and_then_put_in_place() -> None:
    read = readings(base())
    assert STAGED.missing(read) == "release ab12 is not on the host"
    actions = STAGED.act(read)
    upload, verify, compose, place = shown(actions)
    assert "tar -x --no-same-owner -C /opt/lodger/releases/.ab12.new" in upload
    assert "systemd-analyze verify" in verify
    assert f"/opt/lodger/releases/.ab12.new/units/{A.unit}" in verify
    assert compose == "docker compose -f /opt/lodger/releases/.ab12.new/worker-a/compose.yml config --quiet"
    assert "mv -T /opt/lodger/releases/.ab12.new /opt/lodger/releases/ab12" in place
    with tarfile.open(fileobj=io.BytesIO(actions[0].input_bytes() or b"")) as tar:
        assert sorted(tar.getnames()) == ["manifest.json", f"units/{A.unit}", "worker-a/compose.yml"]
        assert {(one.uid, one.gid, one.mode) for one in tar.getmembers()} == {(0, 0, 0o644)}


def test_the_archive_of_the_same_files_is_the_same_bytes() -> None:
    assert archive(FILES) == archive(dict(reversed(FILES.items())))


def test_only_a_release_that_this_run_staged_is_removed_again() -> None:
    fresh, there = readings(base()), staged()
    assert "rm -rf /opt/lodger/releases/ab12 " in scripts(STAGED.undo(fresh, there))
    assert STAGED.undone(fresh, there) == f"{ROOT} is still there"
    assert STAGED.undone(fresh, fresh) == ""
    assert isinstance(STAGED.undo(there, there), NoUndo)
    assert STAGED.undone(there, there) == ""


# ---------------------------------------------------------------- release_current, old_releases_pruned


def history(*releases: str, **changes: Any) -> Facts:
    return readings(base(deployed=deployed(releases, **changes)))


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (history("r1", "r2"), ""),
        (history("r1", "r2", current=""), "the host is recorded to run no release"),
        (history("r1"), "the host is recorded to run r1"),
        (history("r1", current="r2"), "the history says r1"),
        (history(current="r2"), "the history says nothing"),
        (history("r2", "r1", current="r2"), "the history says r2 r1"),
    ],
)
def test_the_record_is_link_and_history(read: Facts, said: str) -> None:
    assert ReleaseCurrent("r2").missing(read) == said


@pytest.mark.parametrize(
    ("before", "after"), [(("r1",), "r1\nr2\n"), (("r1", "r2"), "r1\nr2\n"), (("r2", "r1"), "r2\nr1\nr2\n")]
)
def test_recording_a_release_adds_one_line_and_then_moves_the_link(before: tuple[str, ...], after: str) -> None:
    actions = ReleaseCurrent("r2").act(history(*before))
    assert written(actions, "/opt/lodger/history") == after
    assert "ln -sfn /opt/lodger/releases/r2 /opt/lodger/current.new" in shown(actions)[-1]


def test_rollback_records_a_shorter_history_or_none() -> None:
    back = ReleaseCurrent("r1", ("r1",))
    assert back.missing(history("r1", "r2")) == "the host is recorded to run r2"
    assert back.missing(history("r1")) == ""
    assert written(back.act(history("r1", "r2")), "/opt/lodger/history") == "r1\n"
    end = ReleaseCurrent("", ())
    assert end.missing(history("r1")) == "the host is recorded to run r1"
    assert shown(end.act(history("r1"))) == ["rm -f /opt/lodger/current /opt/lodger/history"]
    assert end.missing(history()) == ""


def test_the_record_is_undone_to_what_it_was() -> None:
    state = ReleaseCurrent("r2")
    assert written(state.undo(history("r1"), history("r1", "r2")), "/opt/lodger/history") == "r1\n"
    assert shown(state.undo(history(), history("r2"))) == ["rm -f /opt/lodger/current /opt/lodger/history"]
    assert state.undone(history("r1"), history("r1", "r2")) != ""
    assert state.undone(history("r1"), history("r1", "r2", current="r1")) != ""
    assert state.undone(history("r1"), history("r1")) == ""


def removed(command: Command) -> str:
    """Return the removal in a command that may tidy up empty folders after it."""
    return command.script.partition(";")[0]


def test_the_newest_three_releases_are_kept_and_the_history_says_so_first() -> None:
    images = {f"r{number}": worker("a", image=f"sglang@{number}") for number in range(1, 6)}
    files = {path: file for name, service in images.items() for path, file in release_files(name, service).items()}
    files |= record("images", "sglang@1\nsglang@2\nsglang@5\n")
    read = history("r1", "r2", "r3", "r4", "r5", files=files)
    state = OldReleasesPruned("r5")
    assert state.missing(read) == "release r1 is no longer needed"
    actions = state.act(read)
    assert written(actions, "/opt/lodger/history") == "r3\nr4\nr5\n"
    assert removed(actions[1]) == "rm -rf /opt/lodger/releases/r1 /opt/lodger/releases/r2"
    assert [line for line in shown(actions) if "image rm" in line] == ["docker image rm sglang@1", "docker image rm sglang@2"]
    assert written(actions, "/var/lib/lodger/images") == "sglang@5\n"
    assert all(action.ok == (0, 1) for action in actions if "image rm" in action.script)
    assert OldReleasesPruned("r5").missing(history("r3", "r4", "r5")) == ""


def test_an_image_that_lodger_did_not_pull_or_that_a_kept_release_uses_stays() -> None:
    files = {
        path: file
        for number in range(1, 5)
        for path, file in release_files(f"r{number}", worker("a", image="shared@1")).items()
    }
    read = history("r1", "r2", "r3", "r4", files=files | record("images", "shared@1\n"))
    assert "image rm" not in scripts(OldReleasesPruned("r4").act(read))
    read = history("r1", "r2", "r3", "r4", files=files)
    assert "image rm" not in scripts(OldReleasesPruned("r4").act(read))


def test_a_release_deployed_again_counts_once_and_a_rollback_never_stands_still() -> None:
    files = {path: file for name in ("a1", "b2", "c3", "d4") for path, file in release_files(name, A).items()}
    read = history("a1", "b2", "a1", "c3", "d4", files=files)
    actions = OldReleasesPruned("d4").act(read)
    assert written(actions, "/opt/lodger/history") == "a1\nc3\nd4\n"
    assert removed(actions[1]) == "rm -rf /opt/lodger/releases/b2"


def test_releases_that_were_only_staged_are_pruned_too() -> None:
    assert OldReleasesPruned("r1").missing(history("r1", stored=("r1", "f0"))) == "release f0 is no longer needed"


def test_with_no_release_left_nothing_of_ours_is_kept_but_the_images() -> None:
    read = readings(base(deployed=deployed(stored=("r1",), files=release_files("r1", A) | record("images", "sglang@1\n"))))
    assert [removed(one) for one in OldReleasesPruned("").act(read)] == ["rm -rf /opt/lodger/releases/r1"]


# ---------------------------------------------------------------- neighbour_replaced, neighbour_restored

VLLM = unit("vllm-qwen.service")
VLLM_UNIT = facts.unit_fact("vllm-qwen.service")
REPLACED = NeighbourReplaced("unit", "vllm-qwen.service")
UNIT_RECORD = "replaced/unit-vllm-qwen.service.json"


def with_unit(found: facts.Unit | None, **values: Any) -> Facts:
    return readings(base(**values) | {VLLM_UNIT: found})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (VLLM, "vllm-qwen.service is running"),
        (replace(VLLM, active="activating"), "vllm-qwen.service is running"),
        (replace(VLLM, active="inactive"), "vllm-qwen.service is enabled"),
        (replace(VLLM, active="failed"), "vllm-qwen.service is enabled"),
        (replace(VLLM, active="inactive", file_state="disabled"), ""),
        (replace(VLLM, active="inactive", file_state="static"), ""),
        (None, ""),
    ],
)
def test_a_replaced_unit_is_neither_running_nor_enabled(found: facts.Unit | None, said: str) -> None:
    assert REPLACED.missing(with_unit(found)) == said


# The link of a unit file that lies elsewhere, which `disable` removes, is put back.
DISABLED = (
    'sh -c \'file=$(systemctl show -p FragmentPath --value -- vllm-qwen.service); real=$(readlink -f -- "$file")\n'
    'systemctl disable --now vllm-qwen.service && { [ -e "$file" ] || systemctl link "$real"; }\''
)


def test_a_unit_is_replaced_after_its_record_is_written_and_never_deleted() -> None:
    actions = REPLACED.act(with_unit(VLLM))
    note = written(actions, f"/var/lib/lodger/{UNIT_RECORD}")
    assert recorded(deployed(files=record(UNIT_RECORD, note))) == [NeighbourStatus("unit", "vllm-qwen.service", True, True)]
    assert shown(actions)[1:] == [DISABLED]
    assert REPLACED.stops(with_unit(VLLM)) == ["unit vllm-qwen.service"]
    assert REPLACED.touched(with_unit(VLLM)) == {Owner("unit", "vllm-qwen.service")}


def test_the_first_record_of_a_neighbour_stays() -> None:
    first = record(UNIT_RECORD, json.dumps(asdict(NeighbourStatus("unit", "vllm-qwen.service", True, True))))
    enabled_only = with_unit(replace(VLLM, active="inactive"), deployed=deployed(files=first))
    assert shown(REPLACED.act(enabled_only)) == [DISABLED]


def test_replacing_a_unit_is_undone_to_how_it_stood() -> None:
    down = with_unit(replace(VLLM, active="inactive", file_state="disabled"))
    assert shown(REPLACED.undo(with_unit(VLLM), down)) == [
        "systemctl enable vllm-qwen.service",
        "systemctl start vllm-qwen.service",
        f"rm -f /var/lib/lodger/{UNIT_RECORD}",
    ]
    assert REPLACED.undone(with_unit(VLLM), down) != ""
    assert REPLACED.undone(with_unit(VLLM), with_unit(VLLM)) == ""
    assert shown(REPLACED.undo(with_unit(replace(VLLM, active="failed")), down))[:1] == ["systemctl enable vllm-qwen.service"]
    assert isinstance(REPLACED.undo(with_unit(None), down), NoUndo)


def test_an_undo_keeps_the_record_that_an_earlier_deploy_left() -> None:
    before = with_unit(VLLM, deployed=deployed(files=record(UNIT_RECORD, "{}")))
    assert shown(REPLACED.undo(before, before)) == ["systemctl enable vllm-qwen.service", "systemctl start vllm-qwen.service"]


def test_a_unit_without_a_file_would_be_gone_once_it_is_stopped() -> None:
    (blocker,) = REPLACED.blockers(with_unit(replace(VLLM, file_state="transient")))
    assert (blocker.what, blocker.awaits) == ("vllm-qwen.service would be gone for good once it is stopped", "")
    assert REPLACED.blockers(with_unit(VLLM)) == REPLACED.blockers(with_unit(None)) == []


HAND_MADE = container("qwen38-fp8-sglang", restart_policy="unless-stopped")
BY_HAND = NeighbourReplaced("container", "qwen38-fp8-sglang")


def with_containers(*found: facts.Container, **values: Any) -> Facts:
    return readings(base(containers=found, **values))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([HAND_MADE], "qwen38-fp8-sglang is running"),
        ([replace(HAND_MADE, status="restarting")], "qwen38-fp8-sglang is running"),
        ([replace(HAND_MADE, status="exited")], "qwen38-fp8-sglang is enabled"),
        ([replace(HAND_MADE, status="exited", restart_policy="no")], ""),
        ([replace(HAND_MADE, status="exited", restart_policy="")], ""),
        ([container("another")], ""),
        ([], ""),
    ],
)
def test_a_replaced_container_is_neither_running_nor_restarted(found: list[facts.Container], said: str) -> None:
    assert BY_HAND.missing(with_containers(*found)) == said


def test_a_container_is_stopped_and_kept() -> None:
    actions = BY_HAND.act(with_containers(HAND_MADE))
    note = json.loads(written(actions, "/var/lib/lodger/replaced/container-qwen38-fp8-sglang.json"))
    assert note["members"] == {"qwen38-fp8-sglang": "unless-stopped"}
    assert shown(actions)[1:] == ["docker update --restart=no qwen38-fp8-sglang", "docker stop -t 60 qwen38-fp8-sglang"]
    down = with_containers(replace(HAND_MADE, status="exited", restart_policy="no"))
    assert shown(BY_HAND.undo(with_containers(HAND_MADE), down)) == [
        "docker update --restart=unless-stopped qwen38-fp8-sglang",
        "docker start qwen38-fp8-sglang",
        "rm -f /var/lib/lodger/replaced/container-qwen38-fp8-sglang.json",
    ]
    assert BY_HAND.undone(with_containers(HAND_MADE), down).endswith("has the restart policy no, it had unless-stopped")


# Docker lists the newest first.
MEMBERS = [
    container(
        "app-web-1", labels={"com.docker.compose.project": "app"}, started="2026-11-29T10:00:02Z", restart_policy="always"
    ),
    container("app-db-1", labels={"com.docker.compose.project": "app"}, started="2026-11-29T10:00:01Z"),
    container("app-old-1", labels={"com.docker.compose.project": "app"}, started="2026-11-01T10:00:00Z", status="exited"),
]


def test_a_project_is_stopped_last_first_and_started_first_first() -> None:
    state = NeighbourReplaced("compose", "app")
    read = with_containers(*MEMBERS, container("other"))
    assert shown(state.act(read))[1:] == [
        "docker update --restart=no app-old-1 app-db-1 app-web-1",
        "docker stop -t 60 app-web-1 app-db-1",
    ]
    assert state.touched(read) >= {Owner("container", name) for name in ("app-web-1", "app-db-1", "app-old-1")}
    back = shown(state.undo(read, read))
    assert [line for line in back if "docker start" in line] == ["docker start app-db-1", "docker start app-web-1"]
    assert "docker update --restart=always app-web-1" in back
    half = with_containers(replace(MEMBERS[0], status="exited"), *MEMBERS[1:])
    assert state.undone(read, half) == "app-web-1 is not running again"


RESTORED = NeighbourRestored(NeighbourStatus("unit", "vllm-qwen.service", True, True))
OWED = deployed(files=record(UNIT_RECORD, "{}"))
DOWN = replace(VLLM, active="inactive", file_state="disabled", main_pid=0)


@pytest.mark.parametrize(
    ("found", "ours_now", "said"),
    [
        (DOWN, OWED, "vllm-qwen.service is not as it was (running: True, starts by itself: True)"),
        (
            replace(VLLM, file_state="disabled"),
            OWED,
            "vllm-qwen.service is not as it was (running: True, starts by itself: True)",
        ),
        (VLLM, OWED, "the record of vllm-qwen.service is not spent"),
        (VLLM, deployed(), ""),
    ],
)
def test_a_neighbour_is_restored_when_it_stands_as_recorded_and_nothing_is_owed(
    found: facts.Unit, ours_now: facts.Deployed, said: str
) -> None:
    assert RESTORED.missing(with_unit(found, deployed=ours_now)) == said


def test_a_restored_neighbour_is_enabled_started_and_the_record_spent_last() -> None:
    assert shown(RESTORED.act(with_unit(DOWN, deployed=OWED))) == [
        "systemctl enable vllm-qwen.service",
        "systemctl start vllm-qwen.service",
        f"rm -f /var/lib/lodger/{UNIT_RECORD}",
    ]
    # Its owner was faster: only the record is left.
    assert shown(RESTORED.act(with_unit(VLLM, deployed=OWED))) == [f"rm -f /var/lib/lodger/{UNIT_RECORD}"]


def test_a_neighbour_that_was_off_when_it_was_replaced_is_not_started() -> None:
    state = NeighbourRestored(NeighbourStatus("unit", "vllm-qwen.service", active=False, enabled=True))
    assert shown(state.act(with_unit(DOWN, deployed=OWED)))[:-1] == ["systemctl enable vllm-qwen.service"]


def test_a_neighbour_that_no_longer_exists_stops_the_last_rollback_with_a_way_out() -> None:
    found = RESTORED.blockers(with_unit(None, deployed=OWED))
    assert whats(found) == ["the replaced unit vllm-qwen.service no longer exists"]
    assert f"/var/lib/lodger/{UNIT_RECORD}" in found[0].hint
    assert RESTORED.blockers(with_unit(DOWN, deployed=OWED)) == []


def test_restoring_is_undone_by_taking_it_down_with_its_record() -> None:
    actions = RESTORED.undo(with_unit(DOWN), with_unit(VLLM))
    assert json.loads(written(actions, f"/var/lib/lodger/{UNIT_RECORD}"))["enabled"] is True
    assert shown(actions)[1:] == [DISABLED]
    assert RESTORED.undone(with_unit(DOWN), with_unit(VLLM)) == "vllm-qwen.service is still up"
    assert RESTORED.undone(with_unit(DOWN), with_unit(DOWN)) == ""


def test_records_are_read_back_in_order_and_nothing_else_is() -> None:
    one, two = (
        NeighbourStatus("compose", "app", True, True, {"b": "no", "a": "always"}, ("b",)),
        NeighbourStatus("unit", "z.service"),
    )
    files = record("replaced/unit-z.service.json", json.dumps(asdict(two))) | record("images", "x")
    files |= record("replaced/compose-app.json", json.dumps(asdict(one)))
    assert recorded(deployed(files=files)) == [one, two]


# ---------------------------------------------------------------- service_installed

INSTALLED = ServiceInstalled(A, HOST, "r2")
RIGHT = deployed(("r1",), stored=("r1", "r2"), links={"worker-a": "r2"}, files=release_files("r1", A) | installed("r2", A))


def test_a_service_that_is_installed_is_satisfied() -> None:
    read = readings(host(deployed=RIGHT, unit=ENABLED))
    assert (INSTALLED.missing(read), INSTALLED.blockers(read)) == ("", [])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"deployed": replace(RIGHT, links={})}, "worker-a runs the files of no release"),
        ({"deployed": replace(RIGHT, links={"worker-a": "r1"})}, "worker-a runs the files of r1"),
        ({"deployed": replace(RIGHT, files=release_files("r2", A))}, "lodger-worker-a.service is not the release's"),
        (
            {
                "deployed": replace(
                    RIGHT,
                    files={
                        **RIGHT.files,
                        f"/etc/systemd/system/{A.unit}": HostFile(unit_text(A) + "# edited by hand\n", 0o644, "root"),
                    },
                )
            },
            "lodger-worker-a.service is not the release's",
        ),
        ({"unit": replace(ENABLED, file_state="disabled")}, "lodger-worker-a.service is not enabled"),
        ({"unit": None}, "lodger-worker-a.service is not enabled"),
    ],
)
def test_what_keeps_a_service_from_being_installed(values: dict[str, Any], said: str) -> None:
    assert INSTALLED.missing(readings(host(**{"deployed": RIGHT, "unit": ENABLED, **values}))) == said


BESIDE = {f"/etc/systemd/system/{A.unit}.d/override.conf": HostFile("[Service]\nNice=5\n", 0o644, "root")}
CHANGED = replace(RIGHT, files={**RIGHT.files, **BESIDE})


def test_what_changes_a_unit_from_beside_it_is_found_removed_and_put_back_by_an_undo() -> None:
    read = readings(host(deployed=CHANGED, unit=ENABLED))
    assert INSTALLED.missing(read) == f"/etc/systemd/system/{A.unit}.d/override.conf changes {A.unit}"
    assert shown(INSTALLED.act(read))[0] == f"rm -rf /etc/systemd/system/{A.unit}.d"
    assert all(".d" not in command for command in shown(INSTALLED.act(readings(host(deployed=RIGHT)))))
    another = readings(
        host(
            deployed=replace(
                CHANGED,
                files={
                    **CHANGED.files,
                    **{f"/etc/systemd/system/{router().unit}.d/override.conf": HostFile("", 0o644, "root")},
                },
            ),
            unit=ENABLED,
        )
    )
    assert "lodger-router" not in INSTALLED.missing(another)

    state, off = ServiceInstalled(A, HOST, "r1"), unit(A.unit, active="inactive")
    was = {**release_files("r1", A), **installed("r1", A)}
    before = readings(
        host(deployed=deployed(("r1",), links={"worker-a": "r1"}, files={**was, **BESIDE}), units=[off], unit=off)
    )
    now = readings(host(deployed=deployed(("r1",), links={"worker-a": "r1"}, files=was), units=[off], unit=off))
    assert state.undone(before, now) == f"what changed {A.unit} from beside it is not there again"
    back = state.undo(before, now)
    assert "override.conf" in back[0].script
    assert back[0].input_bytes() == b"[Service]\nNice=5\n"
    assert state.undone(before, before) == ""


def test_a_service_is_installed_by_renames_and_enabled() -> None:
    link, put, enable = shown(INSTALLED.act(readings(host())))
    assert "ln -sfn /opt/lodger/releases/r2/worker-a /opt/lodger/services/worker-a.new" in link
    assert "mv -f /etc/systemd/system/lodger-worker-a.service.new /etc/systemd/system/lodger-worker-a.service" in put
    assert "systemctl daemon-reload" in put
    assert enable == "systemctl enable lodger-worker-a.service"


def test_a_container_of_our_name_that_is_not_ours_is_refused() -> None:
    for labels in ({}, {"io.lodger.host": "node2"}):
        found = INSTALLED.blockers(readings(host(containers=[container(A.container, labels=labels)])))
        assert whats(found) == ["a container named lodger-worker-a is not ours"]
        assert not found[0].awaits
    assert INSTALLED.blockers(readings(host(containers=[ours(A)], unit=None))) == []


def test_a_unit_of_our_name_that_is_not_ours_is_refused() -> None:
    foreign = {f"/etc/systemd/system/{A.unit}": HostFile("[Service]\nExecStart=/bin/x\n", 0o644, "root")}
    found = INSTALLED.blockers(readings(host(deployed=deployed(files=foreign), unit=ENABLED)))
    assert whats(found) == ["a unit named lodger-worker-a.service is not ours"]
    elsewhere = replace(ENABLED, fragment=f"/lib/systemd/system/{A.unit}")
    found = INSTALLED.blockers(readings(host(unit=elsewhere)))
    assert found[0].cause == f"it comes from /lib/systemd/system/{A.unit}"


OLD = replace(A, config="c0", port=30000)
BEFORE = deployed(("r1",), links={"worker-a": "r1"}, files=installed("r1", OLD))
AFTER = replace(BEFORE, stored=("r1", "r2"), links={"worker-a": "r2"}, files=release_files("r1", OLD) | installed("r2", A))


def test_the_undo_of_the_first_deploy_removes_the_service() -> None:
    commands = INSTALLED.undo(readings(host()), readings(host(deployed=RIGHT)))
    assert shown(commands)[0] == "systemctl disable --now lodger-worker-a.service"
    assert "docker compose -p lodger-worker-a -f /opt/lodger/services/worker-a/compose.yml down" in scripts(commands)
    assert "rm -rf /opt/lodger/services/worker-a /etc/systemd/system/lodger-worker-a.service" in scripts(commands)


def test_the_undo_brings_the_previous_release_back_and_runs_it_if_it_ran() -> None:
    before = readings(host(deployed=BEFORE, units=[ENABLED], unit=ENABLED, containers=[ours(OLD)]))
    stopped = readings(host(deployed=AFTER, units=[ENABLED], unit=ENABLED))
    back = shown(INSTALLED.undo(before, stopped))
    assert "ln -sfn /opt/lodger/releases/r1/worker-a" in back[0]
    assert "systemctl restart lodger-worker-a.service" in back[-1]
    # The old configuration still runs: the deploy failed before it was stopped, and its users notice nothing.
    still = readings(host(deployed=AFTER, units=[ENABLED], unit=ENABLED, containers=[ours(OLD)]))
    assert "systemctl start lodger-worker-a.service" in shown(INSTALLED.undo(before, still))[-1]
    # It was stopped before, so it stays so.
    off = readings(host(deployed=BEFORE, units=[replace(ENABLED, active="inactive")]))
    assert "start" not in shown(INSTALLED.undo(off, stopped))[-1]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"deployed": BEFORE, "serving": serving(config="c0")}, ""),
        ({"deployed": AFTER, "serving": serving(config="c0")}, "lodger-worker-a.service is not that of release r1"),
        ({"deployed": BEFORE, "serving": serving(config="c1")}, "worker-a does not run its previous configuration"),
        ({"deployed": BEFORE, "serving": serving(config="c0", health=503)}, "worker-a is not ready again"),
    ],
)
def test_it_is_undone_when_the_previous_configuration_serves_again(now: dict[str, Any], said: str) -> None:
    before = readings(host(deployed=BEFORE, units=[ENABLED], serving=serving(config="c0")))
    assert INSTALLED.undone(before, readings(host(**now))) == said


def test_it_is_undone_when_nothing_is_left_of_a_first_deploy() -> None:
    before = readings(host())
    assert INSTALLED.undone(before, readings(host())) == ""
    assert INSTALLED.undone(before, readings(host(containers=[ours(A)]))) != ""
    assert INSTALLED.undone(before, readings(host(deployed=deployed(links={"worker-a": "r2"})))) != ""
    assert INSTALLED.undone(before, readings(host(deployed=deployed(files=installed("r2", A))))) != ""


def test_what_served_badly_before_need_not_serve_better_after_the_undo() -> None:
    before = readings(host(deployed=BEFORE, units=[ENABLED], serving=serving(config="c0", health=503)))
    assert INSTALLED.undone(before, readings(host(deployed=BEFORE, serving=serving(config="c0", health=503)))) == ""


# ---------------------------------------------------------------- gpus_free

CREATOR = program("aigc-creator", 439)
AIGC = Owner("program", "aigc-creator")
FREE = GpusFree(A, HOST, neighbours={AIGC: 1024}, replaced=[Owner("unit", "vllm-qwen.service"), Owner("container", "old")])
CREATING = process(439, user="root", cgroup="/system.slice/supervisor.service ", parents=(78,), devices=on_gpus(0, 1, 2, 3))


def test_free_gpus_are_free() -> None:
    read = readings(host())
    assert (FREE.missing(read), FREE.blockers(read), FREE.act(read), FREE.stops(read)) == ("", [], [], [])


def test_a_stranger_on_the_gpus_is_refused_with_pid_user_and_owner() -> None:
    stranger = process(800, user="alice", command="python3 train.py", devices=("/dev/nvidiactl", *on_gpus(2, 3, 5, 9)))
    read = readings(host(processes=[stranger]))
    found = FREE.blockers(read)
    assert whats(found) == ["GPU 2, 3 is held by pid 800 of user alice (process 800)"]
    assert (found[0].cause, found[0].awaits) == ("its command is `python3 train.py`", "")
    assert "ask alice" in found[0].hint
    assert FREE.missing(read) == "GPU 2 is held by pid 800 (process 800)"
    assert FREE.act(read) == []


def test_a_strangers_container_is_named_as_its_owner_would() -> None:
    notebook = container("notebook")
    read = readings(host(containers=[notebook], processes=[in_container(801, notebook, devices=on_gpus(0))]))
    assert whats(FREE.blockers(read)) == ["GPU 0 is held by pid 801 of user root (container notebook)"]


@pytest.mark.parametrize(
    "elsewhere",
    [
        process(802, devices=on_gpus(4, 5)),
        process(803, devices=("/dev/nvidiactl", "/dev/nvidia-uvm")),
        process(804, user="root", command="/usr/bin/nvidia-persistenced --user x", devices=on_gpus(0, 1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_processes_on_other_gpus_and_the_drivers_own_do_not_matter(elsewhere: facts.Process) -> None:
    read = readings(host(processes=[elsewhere]))
    assert (FREE.missing(read), FREE.blockers(read)) == ("", [])


def test_a_declared_neighbour_may_stay_within_what_it_was_promised() -> None:
    values = {"processes": [CREATING], "programs": [CREATOR]}
    read = readings(host(**values, driver=driver(1024, 1024, 1030, 0)))
    assert (FREE.missing(read), FREE.blockers(read)) == ("", [])
    read = readings(host(**values, driver=driver(0, 0, 4000, 0)))
    assert FREE.missing(read) == "4000 MiB of GPU 2 are in use, 1024 MiB are promised to neighbours"
    read = readings(host(**values, driver=driver(0, 0, 0, 0, 9000)))
    assert FREE.missing(read) == ""


def test_memory_that_a_dead_predecessor_still_holds_is_waited_for() -> None:
    plain = GpusFree(A, HOST, neighbours={}, replaced=[])
    assert "in use" in plain.missing(readings(host(driver=driver(0, 21000, 0, 0))))
    assert plain.missing(readings(host(driver=driver(0, 200, 0, 0)))) == ""
    assert plain.deadline > 0


def test_a_neighbour_to_be_replaced_holds_the_gpus_until_an_earlier_state_has_stopped_it() -> None:
    vllm = process(82, user="root", cgroup="/system.slice/vllm-qwen.service ", devices=on_gpus(0, 1, 2, 3))
    found = FREE.blockers(readings(host(processes=[vllm])))
    assert [blocker.awaits for blocker in found] == ["no unit vllm-qwen.service"]
    assert found[0].awaits in REPLACED.provides


def test_our_own_older_worker_is_stopped_and_its_running_requests_end_first() -> None:
    old = ours(OLD)
    read = readings(host(containers=[old], unit=ENABLED, processes=[in_container(90, old, devices=on_gpus(0, 1, 2, 3))]))
    assert FREE.missing(read) == "worker-a runs another configuration"
    assert FREE.blockers(read) == []
    assert FREE.stops(read) == [A.unit]
    (stop,) = FREE.act(read)
    assert (stop.script, stop.timeout > A.stop) == ("systemctl stop lodger-worker-a.service", True)
    assert isinstance(FREE.undo(read, read), NoUndo)


def test_our_own_worker_with_the_right_configuration_is_left_alone() -> None:
    mine = ours(A)
    read = readings(
        host(
            containers=[mine],
            unit=ENABLED,
            processes=[in_container(90, mine, devices=on_gpus(0, 1, 2, 3))],
            driver=driver(21000, 21000, 21000, 21000),
        )
    )
    assert (FREE.missing(read), FREE.blockers(read), FREE.stops(read)) == ("", [], [])


def test_a_unit_that_restarts_without_end_is_stopped_first() -> None:
    assert shown(FREE.act(readings(host(unit=replace(ENABLED, active="activating", sub="auto-restart"))))) == [
        "systemctl stop lodger-worker-a.service"
    ]


@pytest.mark.parametrize(
    ("values", "what", "awaits"),
    [
        ({"ports": [port(30000, 75, "nc")]}, "port 30000 is taken by nc", ""),
        ({"ports": [port(30000)]}, "port 30000 is taken by an unknown process", ""),
        (
            {"ports": [port(30000, 75, "python3")], "processes": [process(75, cgroup="/system.slice/web.service ")]},
            "port 30000 is taken by unit web.service",
            "",
        ),
        (
            {"ports": [port(30000, 5, "docker-proxy")], "containers": [container("notebook", published=(30000,))]},
            "port 30000 is taken by container notebook",
            "",
        ),
        (
            {"ports": [port(30000, 5, "docker-proxy")], "containers": [container("old", published=(30000,))]},
            "port 30000 is taken by container old",
            "no container old",
        ),
    ],
)
def test_a_port_that_somebody_has_is_refused(values: dict[str, Any], what: str, awaits: str) -> None:
    found = FREE.blockers(readings(host(**values)))
    assert [(blocker.what, blocker.awaits) for blocker in found] == [(what, awaits)]


@pytest.mark.parametrize(
    "values",
    [
        {"ports": [port(30001, 75, "nc")]},
        {"ports": [replace(port(30000, 75, "nc"), protocol="udp")]},
        {"ports": [port(30000, 5, "docker-proxy")], "containers": [ours(OLD)]},
    ],
)
def test_another_port_or_our_own_is_no_conflict(values: dict[str, Any]) -> None:
    assert FREE.blockers(readings(host(**values))) == []


def test_a_running_worker_is_not_moved_to_a_port_that_somebody_has() -> None:
    moved = GpusFree(replace(A, port=30005, config="c2"), HOST, neighbours={}, replaced=[])
    read = readings(host(containers=[ours(A)], ports=[port(30000, 5, "docker-proxy"), port(30005, 75, "nc")], unit=ENABLED))
    assert whats(moved.blockers(read)) == ["port 30005 is taken by nc"]


def test_a_port_that_another_of_ours_has_is_waited_for() -> None:
    other = container("lodger-worker-b", labels={"io.lodger.host": HOST}, published=(30000,))
    (blocker,) = FREE.blockers(readings(host(ports=[port(30000, 5, "docker-proxy")], containers=[other])))
    assert blocker.awaits == "lodger-worker-b off its old GPUs"
    assert "deploy without worker-a, then with it again" in blocker.hint


def test_a_router_does_not_start_on_a_port_that_somebody_has() -> None:
    state = ServiceReady(router(), HOST)
    taken = readings(host(ports=[port(router().port, 75, "nc")]))
    assert whats(state.blockers(taken)) == [f"port {router().port} is taken by nc"]
    assert READY.blockers(taken) == []


def test_gpus_that_another_worker_of_ours_gives_up_first_are_waited_for() -> None:
    """One worker on all GPUs becomes two: whichever GPUs the first keeps, the second gets the rest."""
    wide = replace(worker("a"), gpus=tuple(range(8)), config="c0")
    on_all = in_container(90, ours(wide), devices=on_gpus(*range(8)))
    read = readings(
        host(containers=[ours(wide)], processes=[on_all], driver=driver(*[0] * 8))
        | {facts.unit_fact("lodger-worker-b.service"): None}
    )
    for first, second in (((0, 1, 2, 3), (4, 5, 6, 7)), ((4, 5, 6, 7), (0, 1, 2, 3))):
        keeps = GpusFree(replace(A, gpus=first), HOST, neighbours={}, replaced=[])
        gets = GpusFree(worker("b", port=30001, gpus=second), HOST, neighbours={}, replaced=[])
        assert keeps.blockers(read) == []
        assert {blocker.awaits for blocker in gets.blockers(read)} <= keeps.provides
        assert gets.blockers(read) != []
    assert ServiceGone(wide, HOST).provides == keeps.provides


# ---------------------------------------------------------------- an undo that waits for nothing

ENDED = replace(ENABLED, active="failed", sub="failed", result="exit-code")
RESTARTING = replace(ENABLED, active="activating", sub="auto-restart", result="exit-code", restarts=3)
STOPPED = ServiceStopped(A, HOST, lambda _: False, [])
CRASHED = serving(
    config="", health=0, log="ValueError: bad option\nlodger-worker-a.service: Start request repeated too quickly."
)


@pytest.mark.parametrize("state", [INSTALLED, ServiceGone(OLD, HOST), STOPPED], ids=lambda state: state.name)
@pytest.mark.parametrize(
    ("now", "said"),
    [
        (ENABLED, ""),
        (RESTARTING, ""),
        (replace(ENDED, sub="failed-before-auto-restart"), ""),
        (ENDED, "lodger-worker-a.service failed (exit-code) and is not started again: ValueError: bad option"),
    ],
)
def test_an_undo_is_hopeless_once_systemd_gave_up_what_it_started_again(state: State, now: facts.Unit, said: str) -> None:
    before = readings(host(deployed=BEFORE, units=[ENABLED], unit=ENABLED, serving=serving(config="c0")))
    read = readings(host(deployed=BEFORE, units=[now], unit=now, serving=CRASHED))
    assert state.undone(before, read)
    assert state.undo_hopeless(before, read) == said
    assert state.evidence(read).endswith("Start request repeated too quickly.")


def test_a_service_that_did_not_run_before_is_not_what_an_undo_waits_for() -> None:
    before = readings(host(deployed=BEFORE, units=[ENDED], unit=ENDED, serving=serving(config="c0")))
    assert INSTALLED.undo_hopeless(before, readings(host(deployed=AFTER, units=[ENDED], unit=ENDED, serving=CRASHED))) == ""


@pytest.mark.parametrize(
    "state", [REPLACED, NeighbourPaused("unit", VLLM.id, lambda _: False, [])], ids=lambda state: state.name
)
def test_an_undo_does_not_wait_for_a_neighbour_that_its_manager_gave_up(state: State) -> None:
    ended = with_unit(replace(VLLM, active="failed", sub="failed", result="exit-code"))
    assert state.undone(with_unit(VLLM), ended)
    assert state.undo_hopeless(with_unit(VLLM), ended) == "vllm-qwen.service failed (exit-code) and is not started again"
    assert state.undo_hopeless(with_unit(VLLM), with_unit(replace(VLLM, active="inactive"))) == ""


# ---------------------------------------------------------------- worker_ready

READY = ServiceReady(A, HOST)


def starting(**values: Any) -> Facts:
    return readings(
        host(**{"unit": ENABLED, "serving": serving(), "containers": [ours(A)], **values}) | {facts.MACHINE: MACHINE}
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, ""),
        ({"unit": None}, "lodger-worker-a.service is not installed"),
        ({"unit": replace(ENABLED, active="failed")}, "lodger-worker-a.service is failed"),
        ({"unit": replace(ENABLED, active="activating")}, "lodger-worker-a.service is activating"),
        ({"serving": serving(config="c0")}, "lodger-worker-a is not running this configuration"),
        ({"serving": serving(health=503)}, "its health check answers 503"),
        ({"serving": serving(health=0)}, "its health check answers nothing"),
    ],
)
def test_ready_is_the_unit_the_configuration_and_health(values: dict[str, Any], said: str) -> None:
    assert READY.missing(starting(**values)) == said


def test_a_service_that_is_still_starting_only_needs_time() -> None:
    young = replace(ENABLED, started=str(int((MACHINE.uptime - 100) * 1e6)))
    assert READY.act(starting(unit=young, serving=serving(health=503))) == []


@pytest.mark.parametrize(
    "values",
    [
        {"unit": replace(ENABLED, started=str(int((MACHINE.uptime - A.start - 1) * 1e6)))},
        {"unit": replace(ENABLED, started="4999000000", restarts=2)},
        {"unit": replace(ENABLED, started="4999000000", active="failed")},
        {"unit": replace(ENABLED, started="4999000000"), "containers": [ours(OLD)]},
        {"unit": None, "containers": []},
    ],
)
def test_anything_else_is_started_again(values: dict[str, Any]) -> None:
    (command,) = READY.act(starting(**{"serving": serving(health=503), **values}))
    assert command.script == (
        "systemctl reset-failed lodger-worker-a.service 2>/dev/null; systemctl restart lodger-worker-a.service"
    )


@pytest.mark.parametrize(
    ("found", "log", "said"),
    [
        (ENABLED, "", ""),
        (None, "", ""),
        (replace(ENABLED, active="failed", result="exit-code"), "", "lodger-worker-a.service ended (exit-code)"),
        (replace(ENABLED, restarts=1), "ValueError: bad option\nbye", "ValueError: bad option"),
        (replace(ENABLED, active="activating", sub="auto-restart"), "", "lodger-worker-a.service ended (success)"),
    ],
)
def test_waiting_is_hopeless_once_it_has_ended(found: facts.Unit | None, log: str, said: str) -> None:
    assert READY.hopeless(starting(unit=found, serving=serving(health=0, log=log))) == said


def test_progress_is_the_phase_or_what_is_missing() -> None:
    assert READY.progress(starting(serving=serving(health=503, log="Load weight begin. avail mem=23 GB"))) == "loading weights"
    assert READY.progress(starting(serving=serving(health=503))) == "its health check answers 503"


def test_evidence_is_the_last_lines_in_bounds() -> None:
    log = "\n".join(f"line {number} " + "x" * 1000 for number in range(40))
    lines = READY.evidence(starting(serving=serving(log=log))).splitlines()
    assert (len(lines), lines[-1][:8], max(len(line) for line in lines)) == (15, "line 39 ", 300)


def test_a_start_is_undone_by_a_stop_unless_the_same_ran_before() -> None:
    assert shown(READY.undo(starting(containers=[]), starting())) == ["systemctl stop lodger-worker-a.service"]
    assert shown(READY.undo(starting(containers=[ours(OLD)]), starting())) == ["systemctl stop lodger-worker-a.service"]
    assert isinstance(READY.undo(starting(), starting()), NoUndo)
    assert READY.undone(starting(), starting()) == "lodger-worker-a.service is still active"
    for active in ("inactive", "failed"):
        assert READY.undone(starting(), starting(unit=replace(ENABLED, active=active))) == ""
    assert READY.undone(starting(), starting(unit=None)) == ""


def test_the_router_has_a_state_of_its_own_name() -> None:
    assert ServiceReady(router(), HOST).name == "router_ready(router)"
    assert READY.name == "worker_ready(a)"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", ""),
        ("hello", ""),
        ("server_args=ServerArgs(...)\nInit torch distributed begin.", "starting the ranks"),
        ("Load weight begin\nLoad weight end. elapsed=30 s", "weights loaded"),
        ("Load weight end\nMemory pool end. avail mem=3 GB\nCapture target verify CUDA graph begin", "capturing CUDA graphs"),
        (
            "Uvicorn running on http://0.0.0.0:30000\nThe server is fired up and ready to roll!",
            "warmed up, waiting for /health",
        ),
    ],
)
def test_phase_of_a_start(log: str, expected: str) -> None:
    assert phase(log) == expected


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("all is well", ""),
        (
            "x\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nKilled",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        ),
        ("launch_server.py: error: unrecognized arguments: --nope", "error: unrecognized arguments: --nope"),
        ("RuntimeError: first\nValueError: last", "ValueError: last"),
        ("OSError: [Errno 98] Address already in use", "OSError: [Errno 98] Address already in use"),
        (
            "Error response from daemon: failed to create task: unsatisfied condition: cuda>=13.0",
            "Error response from daemon: failed to create task: unsatisfied condition: cuda>=13.0",
        ),
        ("RuntimeError: " + "x" * 1000, "RuntimeError: " + "x" * 286),
    ],
)
def test_cause_of_an_end(log: str, expected: str) -> None:
    assert cause_in(log) == expected


# ---------------------------------------------------------------- service_gone

GONE = ServiceGone(OLD, HOST)


def test_a_service_is_gone_with_its_container_unit_and_link() -> None:
    assert GONE.missing(readings(host())) == ""
    assert "container" in GONE.missing(readings(host(containers=[ours(OLD)])))
    assert "is still there" in GONE.missing(readings(host(deployed=deployed(files=installed("r1", OLD)))))
    assert "is still there" in GONE.missing(readings(host(deployed=deployed(links={"worker-a": "r1"}))))
    # Somebody else's container of that name is nothing we would remove.
    assert GONE.missing(readings(host(containers=[container(OLD.container)]))) == ""


def test_a_service_goes_through_its_unit_and_can_come_back() -> None:
    running = readings(host(deployed=BEFORE, units=[ENABLED], containers=[ours(OLD)], serving=serving(config="c0")))
    assert GONE.stops(running) == [OLD.unit]
    assert shown(GONE.act(running))[0] == "systemctl disable --now lodger-worker-a.service"
    back = shown(GONE.undo(running, readings(host())))
    assert "ln -sfn /opt/lodger/releases/r1/worker-a" in back[0]
    assert back[-1] == "systemctl start lodger-worker-a.service"
    assert GONE.undone(running, readings(host())) == "worker-a is not ready again"
    assert GONE.undone(running, running) == ""
    off = readings(host(deployed=BEFORE, units=[replace(ENABLED, active="inactive")]))
    assert shown(GONE.undo(off, readings(host())))[-1] == "systemctl enable lodger-worker-a.service"


def test_a_service_that_only_a_cut_off_run_had_installed_does_not_come_back() -> None:
    assert isinstance(GONE.undo(readings(host()), readings(host())), NoUndo)


# ---------------------------------------------------------------- smoke_passed


def no_smoke(transport: Transport, address: str, port: int, progress: Any) -> str:
    return f"asked {address}:{port}"


SMOKED = SmokePassed(A, HOST, no_smoke)


@pytest.mark.parametrize(
    ("note", "passed"),
    [
        (json.dumps({"container": "f" * 64}), True),
        (json.dumps({"container": "e" * 64}), False),
        ("", False),
        ("{", False),
        (None, False),
    ],
)
def test_smoke_holds_for_exactly_the_container_that_passed(note: str | None, passed: bool) -> None:
    files = record("smoked/worker-a.json", note) if note is not None else {}
    read = readings(host(deployed=deployed(files=files), serving=serving()))
    assert (SMOKED.missing(read) == "") is passed


def test_smoke_of_nothing_that_runs_has_not_passed() -> None:
    files = record("smoked/worker-a.json", json.dumps({"container": ""}))
    assert SMOKED.missing(readings(host(deployed=deployed(files=files)))) != ""


def test_smoke_is_asked_at_the_containers_own_address_and_recorded_after() -> None:
    check, note = SMOKED.act(readings(host(serving=serving())))
    assert isinstance(check, Check)
    assert str(check).startswith("check: smoke of worker-a at http://$(docker inspect ")
    assert str(check).endswith("lodger-worker-a):30000")
    assert json.loads(written([note], "/var/lib/lodger/smoked/worker-a.json")) == {"container": "f" * 64, "config": "c1"}


# ---------------------------------------------------------------- all of them


def test_services_are_read_back_from_a_manifest() -> None:
    data = deployed(("r1",), files=release_files("r1", A, router()))
    assert services(data, "r1") == {"worker-a": A, "router": router()}
    assert services(data, "") == {}
    with pytest.raises(TypeError):
        Service.load({"name": "x", "gpus": []})


ALL = [
    *(
        FIT,
        IMAGE,
        WeightsPresent("m", "/m", 1),
        STAGED,
        ReleaseCurrent("r"),
        OldReleasesPruned("r"),
        REPLACED,
        BY_HAND,
        RESTORED,
    ),
    *(NeighbourReplaced("compose", "app"), INSTALLED, FREE, READY, GONE, SMOKED),
]


@pytest.mark.parametrize("state", ALL, ids=lambda state: state.name)
@pytest.mark.parametrize("outdated", [True, False])
def test_a_state_names_all_facts_that_it_reads(state: State, outdated: bool) -> None:
    """It is given no others: one that it forgot would end a run half way."""
    everything = host(
        **{"units": [ENABLED], "unit": ENABLED, "containers": [ours(OLD if outdated else A), HAND_MADE, *MEMBERS]},
        deployed=BEFORE if outdated else RIGHT,
        processes=[CREATING, process(800, devices=on_gpus(0))] if outdated else [],
        serving=serving(config="c0" if outdated else "c1"),
    )
    everything[facts.MACHINE], everything[facts.DOCKER], everything[facts.CURL] = MACHINE, DOCKER, not outdated
    everything[VLLM_UNIT] = VLLM
    everything[facts.images_fact([REFERENCE])] = {REFERENCE: not outdated}
    everything[facts.folder_fact("/m")] = Folder(not outdated, 1)
    for path in ("/opt/lodger", "/var/lib/lodger", "/etc/systemd/system", "/var/lib/docker"):
        everything[facts.disk_fact(path)] = facts.Disk(2**40, True)
    read = readings({fact: everything[fact] for fact in state.facts})
    state.missing(read)
    state.blockers(read)
    state.act(read)
    state.stops(read)
    state.touched(read)
    state.hopeless(read)
    state.progress(read)
    state.evidence(read)
    read = readings({fact: everything[fact] for fact in (*state.facts, *state.undo_facts)})
    state.undo(read, read)
    state.undone(read, read)
    state.undo_hopeless(read, read)
    state.evidence(read)


@pytest.mark.parametrize("state", [FIT, WeightsPresent("m", "/m", 1)])
def test_a_state_that_can_only_be_found_does_nothing(state: State) -> None:
    read = fit(curl=False)
    assert state.act(read) == []
    assert isinstance(state.undo(read, read), NoUndo)
