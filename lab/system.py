"""What the lab needs from the machine: a few programs, and a Docker daemon.

Programs are installed through apt when root on Debian or Ubuntu; elsewhere the refusal lists what is missing. A Docker daemon
that runs already is used; where there is none the lab starts its own under MACHINE, with a socket of its own, and stops it when
the last lab on the machine goes down. A daemon that was killed leaves its files behind; `ensure` starts it again over them.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from lab.run import MACHINE, PATIENCE, LabError, locked, run, say, wait_until

# program -> the Debian package that brings it
NEEDED = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "debootstrap": "debootstrap",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
}
DATA = MACHINE / "docker"
RUN = MACHINE / "run"
HOST = f"unix://{RUN / 'docker.sock'}"
PID_FILE = RUN / "dockerd.pid"
CONTAINERD_PID_FILE = RUN / "exec" / "containerd" / "containerd.pid"
LOG = MACHINE / "dockerd.log"
# Bridges between twins need no packet filter on the machine. Twins outlive a daemon that is killed; after everything was
# killed each lab's own `up` starts its twins, not the daemon, which would start those of every checkout.
DAEMON = [
    "dockerd",
    f"--data-root={DATA}",
    f"--exec-root={RUN / 'exec'}",
    f"--host={HOST}",
    f"--pidfile={PID_FILE}",
    "--bridge=none",
    "--iptables=false",
    "--ip6tables=false",
    "--live-restore",
    "--restart=false",
]


def ensure() -> None:
    """Make the machine ready for twins; silent when it is.

    Raises LabError when it cannot be made ready: not Linux, not root, no apt, or the daemon does not come up.
    """
    if sys.platform != "linux":
        raise LabError(
            "there is no lab on this machine: twins are Linux machines in containers that share its kernel",
            "run the lab on a Linux machine; every other task works from here",
        )
    if os.geteuid() != 0:
        raise LabError("the lab makes file systems and containers, which takes root on this machine", "run it as root")
    install(NEEDED)
    if _aim():
        return
    with locked(MACHINE / "dockerd.lock"):
        if not _answers():
            _start_daemon()


def install(needed: Mapping[str, str]) -> None:
    """Install what is missing of ``needed`` (program -> the Debian package that brings it); silent when nothing is.

    Raises LabError, naming the packages, where that takes another package manager or root.
    """
    missing = sorted({package for program, package in needed.items() if not shutil.which(program)})
    if not missing:
        return
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise LabError(f"these Debian packages or their like are missing: {', '.join(missing)}", "install them first")
    say(f"installing {', '.join(missing)} with apt")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], check=False, env=quiet)
    run(["apt-get", "install", "-qy", "--no-install-recommends", *missing], env=quiet)


def docker_runs() -> bool:
    """Say whether the lab's Docker daemon answers; start nothing."""
    return shutil.which("docker") is not None and _aim()


def stop_daemon_if_unused() -> None:
    """Stop the lab's own dockerd when no lab on the machine has a container or network left; never the machine's own."""
    if os.environ.get("DOCKER_HOST") != HOST:
        return
    with locked(MACHINE / "dockerd.lock"):
        networks = run(["docker", "network", "ls", "-q", "--filter", "type=custom"], check=False)
        containers = run(["docker", "ps", "-aq"], check=False)
        pid = daemon_pid()
        if pid is None or containers.returncode or containers.stdout.strip() or networks.stdout.strip():
            return
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: daemon_pid() is None, "the lab's dockerd stops")
        for line in Path("/proc/mounts").read_text().splitlines():
            mount = Path(line.split()[1])
            if mount == DATA or RUN in mount.parents:
                run(["umount", mount], check=False)
        shutil.rmtree(RUN)


def daemon_pid() -> int | None:
    """Return the process id of the lab's own dockerd, or None when it does not run."""
    return _pid(PID_FILE, b"dockerd")


def _pid(file: Path, program: bytes) -> int | None:
    try:
        pid = int(file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()  # empty for a zombie
    except (OSError, ValueError):
        return None
    return pid if command.split(b"\0")[0].endswith(program) else None


def _aim() -> bool:
    """Choose the daemon and say whether it answers: the machine's own, unless the lab has come to have its own."""
    os.environ.pop("DOCKER_CONTEXT", None)
    if not DATA.exists() and _answers():
        return True
    os.environ["DOCKER_HOST"] = HOST
    return _answers()


def _answers() -> bool:
    return run(["docker", "version", "--format", "{{.Server.Version}}"], check=False, timeout=PATIENCE).returncode == 0


def _start_daemon() -> None:
    say("starting a Docker daemon of the lab's own")
    RUN.mkdir(parents=True, exist_ok=True)
    # dockerd takes whatever process has a recorded number, a zombie even, for the daemon that it waits for.
    for file, program in ((PID_FILE, b"dockerd"), (CONTAINERD_PID_FILE, b"containerd")):
        if _pid(file, program) is None:
            file.unlink(missing_ok=True)
    with LOG.open("ab") as log:
        daemon = subprocess.Popen(DAEMON, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    wait_until(lambda: daemon.poll() is not None or _answers(), "dockerd answers", pause=0.2)
    if daemon.poll() is not None:
        last = LOG.read_text(errors="replace").strip().splitlines()[-1:]
        raise LabError(f"dockerd did not start: {' '.join(last)}", f"its log is {LOG}")
