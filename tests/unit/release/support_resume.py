"""A host in a folder, for what brings a worker back."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lodger.release.pauses import Pause
from lodger.states.worker_pause import AutoResume
from tests.unit.readings import HOST
from tests.unit.states.support_pauses import PLACES, TODAY, A


class Stage:
    """A host in a folder: /proc, /var/lib/lodger and the programs that the script calls; what they were told is in ``log``."""

    def __init__(self, folder: Path, way: AutoResume, *, until: str = "2020-01-01 00:00") -> None:
        self.root = folder
        for name in ("proc", "bin", "var/lib/lodger/paused", "var/lib/lodger/returns", "etc/motd.d", "etc/systemd/system"):
            (folder / name).mkdir(parents=True)
        self.record, self.motd = folder / PLACES.record[1:], folder / PLACES.motd[1:]
        self.lock, self.log = folder / "var/lib/lodger/lock", folder / "log"
        self.pause = Pause("a", A.gpus, "wang", TODAY, until)
        files = way.files(A, self.pause)
        script = files[PLACES.script]
        for path in ("/proc/", "/var/lib/lodger", "/etc/motd.d", "/etc/systemd/system"):
            script = script.replace(path, f"{folder}{path}")
        (folder / "script").write_text(
            script.replace("sleep 60", "sleep 0.2").replace("pause=60", "pause=0.2").replace("pause=5", "pause=0.2")
        )
        self.record.write_text(self.pause.text)
        self.motd.write_text(self.pause.motd)
        for path in PLACES.way_back:
            (folder / path[1:]).write_text("")
        self.log.write_text("")
        self.program("systemctl", f'echo "systemctl $*" >> {self.log}')
        self.program("curl", f'echo "curl $*" >> {self.log}; case "$*" in *http_code*) printf 200;; esac')
        self.program(
            "docker", 'case "$*" in *RestartCount*|*State.Running*) echo "cid|true|host||$HOST_NAME|c1|30000|/health";; esac'
        )
        self.program("supervisorctl", "exit 0")
        self.program("journalctl", "exit 0")

    def program(self, name: str, body: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def holder(self, pid: int, command: str, cgroup: str = "/user.slice", gpu: int = 0, parent: int = 1) -> None:
        proc = self.root / "proc" / str(pid)
        (proc / "fd").mkdir(parents=True)
        (proc / "fd/3").symlink_to(f"/dev/nvidia{gpu}")
        (proc / "cmdline").write_text(command.replace(" ", "\0"))
        (proc / "cgroup").write_text(f"0::{cgroup}\n")
        (proc / "status").write_text(f"Name:\tx\nPPid:\t{parent}\n")

    def runs(self, pid: int, program: str, uid: int, namespace: str = "the host's") -> None:
        """Say which program a holder runs, whose it is, and in which mount namespace."""
        (self.root / f"proc/{pid}/exe").symlink_to(program)
        with (self.root / f"proc/{pid}/status").open("a") as status:
            status.write(f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        for name, where in ((str(pid), namespace), ("self", "the host's")):
            (self.root / f"proc/{name}/ns").mkdir(parents=True)
            (self.root / where).touch()
            (self.root / f"proc/{name}/ns/mnt").symlink_to(self.root / where)

    def gone(self, pid: int) -> None:
        (self.root / "proc" / str(pid) / "fd/3").unlink()

    def start(self) -> subprocess.Popen[str]:
        env = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "HOST_NAME": HOST}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            ["sh", str(self.root / "script")], env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def waits(self) -> str:
        return Pause.load("a", self.record.read_text()).waits_for if self.record.exists() else ""

    def others(self) -> str:
        """Return whom the script sees on the GPUs beside the worker and who may be there; it starts nothing."""
        text = (self.root / "script").read_text()
        body, main, _ = text.rpartition("\nmain\n")
        assert main
        env = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "HOST_NAME": HOST}
        return subprocess.run(
            ["sh", "-c", f"{body}\nholders"], env=env, capture_output=True, text=True, check=True, timeout=20
        ).stdout
