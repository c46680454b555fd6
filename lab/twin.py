"""One twin: a container that boots systemd and has an address, keys, a machine-id and a disk of its own."""

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import inside
from lab.image import CONTAINER_RIGHTS
from lab.run import PATIENCE, LabError, run, wait_until

USER = "operator"
# Asked inside the twin until true: is systemd done with the boot, and do the services run that the lab promises? What is
# deployed there is not asked for. With --wait systemd would be waited for for ever by who comes too early to hear of its end.
_READY = """
ready() {
    case $(systemctl is-system-running 2>/dev/null) in running | degraded) ;; *) return 1 ;; esac
    [ -e /var/lib/twin/settled ] && systemctl -q is-active ssh docker supervisor && ! supervisorctl status | grep -q STARTING
}
for _ in $(seq 5000); do
    ! ready || exit 0
    sleep 0.1
done
systemctl --no-legend list-units --failed
systemctl --no-legend list-jobs
exit 1
"""


@dataclass(frozen=True)
class File:
    """A file to lay into a twin; a symbolic link when `link` is set."""

    text: str = ""
    mode: int = 0o644
    link: str = ""


@dataclass(frozen=True)
class Twin:
    """A handle on one twin. Its methods are the lab's own door: they go through Docker, never through the product's SSH."""

    name: str  # the host's name in the inventory
    container: str
    network: str
    address: str
    identity_file: Path
    known_hosts_file: Path
    machine_id: str

    def exec(
        self,
        argv: Sequence[str] | str,
        *,
        check: bool = True,
        stdin: str = "",
        user: str = "root",
        timeout: float = PATIENCE,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program (or, given a text, a shell script) inside the twin and return its output.

        Raises LabError when it fails, unless `check` is off, or when it outlives `timeout` seconds.
        """
        words = ["sh", "-c", argv] if isinstance(argv, str) else list(argv)
        return inside.run(self.container, self.name, words, check=check, stdin=stdin, user=user, timeout=timeout)

    def ssh(self) -> list[str]:
        """Return the command line that logs in as the operator, strict about the host's key."""
        options = [
            f"IdentityFile={self.identity_file}",
            "IdentitiesOnly=yes",
            f"UserKnownHostsFile={self.known_hosts_file}",
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=yes",
        ]
        return ["ssh", "-F", "/dev/null", *(word for option in options for word in ("-o", option)), f"{USER}@{self.address}"]

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """Write a file inside the twin, folders included."""
        self.exec(["sh", "-ec", 'mkdir -p "${1%/*}"; cat > "$1"; chmod "$2" "$1"', "sh", path, mode], stdin=text)

    def clock(self, factor: float) -> None:
        """Make simulated engines run `factor` times faster than real ones, now and after the next boots."""
        self.exec("tee /run/gpu-sim/clock > /var/lib/twin/clock", stdin=f"{factor}\n")

    def faults(self, faults: Sequence[Mapping[str, object]]) -> None:
        """Set what simulated engines act out (form: lab/engine/README.md); an empty list ends it."""
        self.write("/run/gpu-sim/faults.json", json.dumps(list(faults)))

    def install_driver(self, version: str) -> None:
        """Make this the twin of a host that has had another driver all along, and reboot it."""
        self.exec(["/usr/lib/twin/driver/packages.py", "install", version])
        self.reboot()

    def wait_ready(self) -> None:
        """Wait until systemd has nothing left to start and the lab's own services run."""
        asked = self.exec(_READY, check=False, timeout=2 * PATIENCE)
        if asked.returncode:
            failed = asked.stdout.strip() or asked.stderr.strip() or "no unit has failed"
            raise LabError(f"{self.name} does not come up: {failed}", f"look at it with lab.shell --host {self.name}")

    def reboot(self, *, wait: bool = True) -> None:
        """Reboot in good order, as `systemctl reboot` does; wait until everything is back."""
        before = self._inspect("{{.State.StartedAt}}")
        self.exec(["systemctl", "reboot"], check=False)
        rebooted = lambda: self.state() == "running" and self._inspect("{{.State.StartedAt}}") != before  # noqa: E731  read once, by wait_until
        wait_until(rebooted, f"{self.name} reboots")
        if wait:
            self.wait_ready()

    def kill(self) -> None:
        """Cut the power; the twin stays off until `start`."""
        run(["docker", "kill", self.container])

    def start(self) -> None:
        """Switch on, and wait until everything is back."""
        run(["docker", "start", self.container])
        self.wait_ready()

    def pause(self) -> None:
        """Freeze every process: connections stay open and nothing answers."""
        run(["docker", "pause", self.container])

    def unpause(self) -> None:
        """Let the processes go on."""
        run(["docker", "unpause", self.container])

    def cut_network(self) -> None:
        """Take the twin off the network: packets get lost, connections are not closed."""
        self.exec(["ip", "link", "set", "eth0", "down"])

    def restore_network(self) -> None:
        """Put the twin back on the network."""
        self.exec(["ip", "link", "set", "eth0", "up"])

    @contextmanager
    def without_network(self) -> Iterator[None]:
        """Take the twin off the network while the block runs."""
        self.cut_network()
        try:
            yield
        finally:
            self.restore_network()

    def state(self) -> str:
        """Return the container's state: running, paused, exited, ... or absent."""
        return self._inspect("{{.State.Status}}") or "absent"

    def label(self, name: str) -> str:
        """Return one of the container's labels, or nothing when there is no such label or no container."""
        return self._inspect(f'{{{{index .Config.Labels "{name}"}}}}')

    def create(
        self,
        image: str,
        *,
        disk: Path,
        labels: Mapping[str, str],
        names: Mapping[str, str],
        files: Mapping[str, File],
    ) -> None:
        """Make the container; it must not exist. `names` are other machines' addresses, `files` what it finds at first boot."""
        options = [
            f"--name={self.container}",
            f"--hostname={self.name}",
            f"--network={self.network}",
            f"--ip={self.address}",
            "--tmpfs=/run",
            "--tmpfs=/tmp",
            "--restart=unless-stopped",
            "--stop-signal=SIGRTMIN+3",
            "--env=container=docker",
            f"--env=TWIN_CGROUP={self.container}",
            f"--volume={disk}:/var/lib/docker",
            *(f"--label={key}={value}" for key, value in labels.items()),
            *(f"--add-host={name}:{address}" for name, address in names.items()),
        ]
        run(["docker", "create", *options, *CONTAINER_RIGHTS, "--entrypoint=/usr/lib/twin/init", image])
        machine_id = {"/etc/machine-id": File(f"{self.machine_id}\n", 0o444)}
        run(["docker", "cp", "-", f"{self.container}:/"], stdin=_archive({**files, **machine_id}))

    def _inspect(self, form: str) -> str:
        return run(["docker", "inspect", "-f", form, self.container], check=False).stdout.strip()


def _archive(files: Mapping[str, File]) -> bytes:
    """Pack files into a tar archive; missing folders on their way are made."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, file in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.mode, entry.mtime = file.mode, 1_700_000_000
            body = file.text.encode()
            if file.link:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.link
            else:
                entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    return out.getvalue()
