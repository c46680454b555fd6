"""One twin: a container that boots systemd and has an address, keys, a machine-id and a disk of its own."""

import io
import json
import subprocess
import tarfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.image import CONTAINER_RIGHTS, Store
from lab.run import LabError, run, wait_until
from lab.world import File, World

USER = "operator"
# One question, asked inside the twin until it is answered: is everything up that is up on such a host?
_READY = """
for _ in $(seq 300); do
    if [ -e /var/lib/twin/settled ] && systemctl -q is-active ssh docker supervisor && [ -z "$(systemctl list-jobs --no-legend | grep -v timer)" ] &&
        [ -z "$(docker ps -q --filter status=restarting)" ] && ! supervisorctl status | grep -q STARTING; then exit 0; fi
    sleep 0.1
done
systemctl --failed --no-legend; systemctl list-jobs --no-legend; exit 1
"""


@dataclass(frozen=True)
class Twin:
    """A handle on one twin. Its methods are the lab's own door: they go through Docker, never through the product's SSH."""

    name: str  # the host's name in the inventory
    container: str
    address: str
    network: str
    identity_file: Path
    known_hosts_file: Path
    machine_id: str

    def exec(
        self,
        argv: Sequence[str] | str,
        *,
        check: bool = True,
        stdin: str | None = None,
        user: str = "root",
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program (or, given a text, a shell script) inside the twin and return its output."""
        words = ["sh", "-c", argv] if isinstance(argv, str) else list(argv)
        flags = ["-i"] if stdin is not None else []
        return run(["docker", "exec", *flags, "-u", user, self.container, *words], check=check, stdin=stdin, timeout=timeout)

    def ssh(self) -> list[str]:
        """Return the command line that logs in as the operator, strict about the host's key."""
        options = {"IdentityFile": self.identity_file, "IdentitiesOnly": "yes", "UserKnownHostsFile": self.known_hosts_file,
                   "GlobalKnownHostsFile": "/dev/null", "StrictHostKeyChecking": "yes"}  # fmt: skip
        return [
            "ssh",
            "-F",
            "/dev/null",
            *(w for k, v in options.items() for w in ("-o", f"{k}={v}")),
            f"{USER}@{self.address}",
        ]

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """Write a file inside the twin."""
        self.exec(f'mkdir -p "$(dirname "$0")" && cat > "$0" && chmod {mode} "$0"'.replace("$0", path), stdin=text)

    def clock(self, factor: float) -> None:
        """Make simulated engines started from now on run `factor` times faster than real ones."""
        self.write("/run/gpu-sim/clock", f"{factor}\n")

    def faults(self, faults: object) -> None:
        """Set the list of faults that simulated engines act out (form: lab/engine/README.md); an empty list clears it."""
        self.write("/run/gpu-sim/faults.json", json.dumps(faults))

    def wait_ready(self, timeout: float = 60) -> None:
        """Wait until systemd has nothing left to start and the neighbours run."""
        wait_until(
            lambda: self.exec("systemctl is-system-running --wait", check=False).stdout.strip() in ("running", "degraded"),
            f"{self.name} boots",
            timeout,
        )
        asked = self.exec(_READY, check=False, timeout=timeout)
        if asked.returncode:
            raise LabError(
                f"{self.name} is not ready: {asked.stdout.strip() or asked.stderr.strip()}",
                f"look at it with lab.shell --host {self.name}",
            )

    def reboot(self) -> None:
        """Reboot in good order, as `systemctl reboot` does, and wait until everything is back."""
        before = self._started()
        self.exec(["systemctl", "reboot"], check=False)
        wait_until(lambda: self.running() and self._started() != before, f"{self.name} reboots", 60)
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
        """Take the twin off the network; packets to it get lost, connections are not closed."""
        self.exec(["ip", "link", "set", "eth0", "down"])

    def restore_network(self) -> None:
        """Put the twin back on the network."""
        self.exec(["ip", "link", "set", "eth0", "up"])

    def running(self) -> bool:
        """Say whether the container runs (it may be paused)."""
        return run(["docker", "inspect", "-f", "{{.State.Running}}", self.container], check=False).stdout.strip() == "true"

    def _started(self) -> str:
        return run(["docker", "inspect", "-f", "{{.State.StartedAt}}", self.container], check=False).stdout


def create(
    twin: Twin,
    image: str,
    store: Store,
    world: World,
    disk: Path,
    extra: Mapping[str, File],
    flags: Sequence[str],
    hosts: Mapping[str, str],
) -> None:
    """Make the twin's container and disk; nothing of either may exist yet."""
    store.new_disk(disk)
    run(["docker", "create", "--name", twin.container, "--hostname", twin.name, "--network", twin.network, "--ip", twin.address, *CONTAINER_RIGHTS,
         "--tmpfs=/run", "--tmpfs=/tmp", "--restart=unless-stopped", "--stop-signal=SIGRTMIN+3", "-e", f"TWIN_CGROUP={twin.container}", "-e", "container=docker",
         *(f"--add-host={name}:{address}" for name, address in hosts.items()), "-v", f"{disk}:/var/lib/docker", *flags, "--entrypoint=/usr/lib/twin/init", image])  # fmt: skip
    files = {
        **world.files,
        **extra,
        "/etc/twin.json": File(json.dumps(world.spec), 0o600),
        "/etc/machine-id": File(twin.machine_id + "\n", 0o444),
    }
    run(["docker", "cp", "-", f"{twin.container}:/"], stdin=_archive(files))


def machine_id(lab: str, name: str) -> str:
    """Return the machine-id of a lab's twin: the same after every reset."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"{lab}/{name}").hex


def _archive(files: Mapping[str, File]) -> bytes:
    """Pack files into a tar archive; folders on the way are left to what is there."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, file in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.mode, entry.uid, entry.mtime = file.mode, file.owner, 1_700_000_000
            if file.link:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.link
                tar.addfile(entry)
            else:
                body = file.text.encode()
                entry.size = len(body)
                tar.addfile(entry, io.BytesIO(body))
    return out.getvalue()
