"""What the lab needs from the machine: a few programs, and a Docker daemon.

Programs are installed through apt when root on Debian or Ubuntu; elsewhere the refusal lists what is missing. A Docker daemon that
runs already is used; where there is none the lab starts its own under MACHINE, with a socket of its own, and stops it when
the last lab on the machine goes down. A daemon that was killed leaves its files behind; `ensure` starts it again over them.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from lab.run import MACHINE, LabError, locked, run, say, wait_until

# program -> the Debian package that brings it
NEEDED = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "debootstrap": "debootstrap",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
}
SOCKET = MACHINE / "run" / "docker.sock"
DAEMON = ["dockerd", "--data-root", str(MACHINE / "docker"), "--exec-root", str(MACHINE / "run" / "exec"), "--host", f"unix://{SOCKET}",
          "--pidfile", str(MACHINE / "run" / "dockerd.pid"), "--bridge=none", "--iptables=false", "--ip6tables=false", "--live-restore"]  # fmt: skip


def ensure() -> None:
    """Make the machine ready for twins; silent when it is.

    Raises LabError when it cannot be made ready: not root, no apt, or the daemon does not come up.
    """
    if os.geteuid() != 0:
        raise LabError(
            "the lab needs root on this machine: it makes file systems and containers", "run it with sudo, or as root"
        )
    missing = sorted({package for program, package in NEEDED.items() if not shutil.which(program)})
    if missing:
        _install(missing)
    os.environ.pop("DOCKER_CONTEXT", None)
    if _answers(None):
        return
    os.environ["DOCKER_HOST"] = f"unix://{SOCKET}"
    if not _answers(SOCKET):
        with locked(MACHINE / "dockerd.lock"):
            if not _answers(SOCKET):
                _start_daemon()


def stop_daemon_if_unused() -> None:
    """Stop the lab's own dockerd when no lab on the machine has a container or network left; never the machine's own."""
    if os.environ.get("DOCKER_HOST") != f"unix://{SOCKET}" or not _answers(SOCKET):
        return
    with locked(MACHINE / "dockerd.lock"):
        left = run(["docker", "ps", "-aq"]).stdout + run(["docker", "network", "ls", "-q", "--filter", "type=custom"]).stdout
        pid = _daemon_pid()
        if left.strip() or pid is None:
            return
        os.kill(pid, 15)
        wait_until(lambda: _daemon_pid() is None, "the lab's dockerd stops", 30)
        run(["umount", "-R", MACHINE / "run" / "exec" / "netns"], check=False)
        shutil.rmtree(MACHINE / "run", ignore_errors=True)


def docker_runs() -> bool:
    """Say whether a Docker daemon answers now, the machine's own or the lab's, and aim at it; start nothing."""
    if not shutil.which("docker"):
        return False
    if _answers(None):
        return True
    os.environ["DOCKER_HOST"] = f"unix://{SOCKET}"
    return _answers(SOCKET)


def _answers(socket: Path | None) -> bool:
    env = {} if socket is None else {"DOCKER_HOST": f"unix://{socket}"}
    return run(["docker", "version", "--format", "{{.Server.Version}}"], check=False, env=env, timeout=20).returncode == 0


def _daemon_pid() -> int | None:
    try:
        pid = int((MACHINE / "run" / "dockerd.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if command.split(b"\0")[0].endswith(b"dockerd") else None


def _start_daemon() -> None:
    say("starting a Docker daemon of the lab's own")
    log = MACHINE / "dockerd.log"
    (MACHINE / "run").mkdir(parents=True, exist_ok=True)
    if _daemon_pid() is None:
        (MACHINE / "run" / "dockerd.pid").unlink(missing_ok=True)
        with log.open("ab") as out:
            daemon = subprocess.Popen(DAEMON, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        ended: Callable[[], bool] = lambda: daemon.poll() is not None  # noqa: E731  # one of two short conditions
    else:
        ended = lambda: _daemon_pid() is None  # noqa: E731  # the other
    wait_until(lambda: ended() or _answers(SOCKET), "dockerd answers", 60, pause=0.2)
    if ended():
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise LabError(f"dockerd did not start: {' '.join(last)}", f"its log is {log}")


def _install(packages: list[str]) -> None:
    if not shutil.which("apt-get"):
        raise LabError(
            f"the lab needs these Debian packages or their like: {', '.join(packages)}", "install them, then run this again"
        )
    say(f"installing {', '.join(packages)} with apt")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], check=False, env=quiet)
    run(["apt-get", "install", "-qy", "--no-install-recommends", *packages], env=quiet)
