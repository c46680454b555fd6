"""Docker, its Compose and GPU toolkit; and a container with all GPUs, where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from lodger.checks.doctor.finding import error_finding, note_finding, ok_finding, warning_finding
from lodger.checks.doctor.reading import GpuContainerCheck, HostReading, fit
from lodger.checks.doctor.report import DoctorFinding
from lodger.host import facts
from lodger.host.command import Command, quote
from lodger.host.facts import health
from lodger.host.facts.docker import HOST_LABEL
from lodger.inventory import Fleet, Host


def tools(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that Docker, Compose, the container toolkit and curl are there."""
    found = fit(at.host).tools(at.read)
    for blocker in found:
        yield error_finding(blocker.what, blocker.cause, blocker.hint)
    if not found:
        docker = at.read[facts.DOCKER]
        yield ok_finding("Docker can give GPUs to containers", f"Docker {docker.server}, Compose {docker.compose}")


def probe(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that a container with all GPUs runs (only with --probe)."""
    ran = at.probe
    if ran is None:
        return
    if not ran.image:
        yield note_finding("nothing was probed: no worker's image has a digest", "", "./ops pin")
        return
    last = (ran.said.strip().splitlines() or ["it printed nothing"])[-1]
    if ran.absent:
        yield warning_finding(
            "nothing was probed: the image is not on the host",
            ran.image,
            f"./ops deploy --host {at.host.name} pulls it; then run this again",
        )
    elif ran.code == health.KILLED:
        yield error_finding(
            "a GPU container hangs",
            f"no end within {PROBE_PATIENCE:.0f} s: {last}",
            "see what `log` and `driver` found; then check Docker and its container toolkit",
        )
    elif ran.code:
        yield error_finding("a GPU container does not run", last, _CONFIGURE)
    else:
        seen = len([line for line in ran.said.splitlines() if line[:1].isdigit()])
        if seen != at.host.gpus.count:
            measured = f"{seen} in the container, the inventory says {at.host.gpus.count}"
            yield error_finding(
                "a GPU container does not see all GPUs",
                measured,
                "see what `gpus` found; then check the configuration of the container toolkit",
            )
        else:
            yield ok_finding("a GPU container runs and sees all GPUs", f"{seen}, in {ran.image}")


# ---------------------------------------------------------------- a container with GPUs

PROBE_PATIENCE = 90.0  # seconds: the first GPU container after a boot also waits for the driver to start
_CONFIGURE = "nvidia-ctk runtime configure --runtime=docker; then restart Docker when its containers can be stopped"


def probing(fleet: Fleet, host: Host) -> Command | None:
    """Return the command that runs a container with all GPUs and removes it, None when no worker's image is pinned.

    It pulls nothing and has no network. The host removes it even when the connection is lost.
    """
    image = next((fleet.images[fleet.pools[worker.pool].image] for worker in host.workers.values()), None)
    if image is None or image.digest is None:
        return None
    reference = quote([image.reference])
    ask = "--query-gpu=index,name,driver_version --format=csv,noheader"
    script = f"""image={reference} name=lodger-probe-$$
docker image inspect "$image" >/dev/null 2>&1 || {{ echo absent; exit 0; }}
trap 'docker rm -f "$name" >/dev/null 2>&1' EXIT
trap 'exit 129' HUP INT TERM
echo ran
timeout -s KILL {PROBE_PATIENCE:g} docker run --rm --name "$name" --label {HOST_LABEL}={host.name} --pull never \\
    --network none --gpus all --entrypoint nvidia-smi "$image" {ask} 2>&1 </dev/null &
wait $!
echo "code=$?\""""
    return Command(script, why="run a GPU container", timeout=PROBE_PATIENCE + 30)


def probed(fleet: Fleet, host: Host, text: str) -> GpuContainerCheck:
    """Return what the output of :func:`probing` says."""
    image = fleet.images[next(fleet.pools[worker.pool].image for worker in host.workers.values())].reference
    said, _, code = text.removeprefix("ran\n").rpartition("code=")
    if text.strip() == "absent":
        return GpuContainerCheck(image, 0, "", absent=True)
    return GpuContainerCheck(image, int(code), said) if code.strip().isdigit() else GpuContainerCheck(image, 1, text)
