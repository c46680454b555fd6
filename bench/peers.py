"""The peers of a deploy: pyinfra, Ansible without and with Mitogen, and one ssh command. Each keeps the same files and units.

They are installed from bench/requirements.lock, on first use, into an environment of their own: nothing of them is in .venv.
Each is set up as somebody would who wants it fast, and connects anew in every run, as Lodger does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.whole import Side, once
from lodger import checkout
from lodger.errors import UsageError
from lodger.host import paths
from lodger.host.ssh_open import resolve
from lodger.inventory import Host
from lodger.release.service import File, Release

HERE = Path(__file__).resolve().parent
LOCK = HERE / "requirements.lock"
# Ansible insists on UTF-8. Modules that Lodger was told to use are none of theirs.
_PLAIN = {"LC_ALL": "C.UTF-8", "PYTHONPATH": ""}


@dataclass(frozen=True)
class Target:
    """A host as every side reaches it: directly, as ``user``, with one key and one file of known hosts."""

    name: str
    address: str
    port: str
    user: str
    key: str
    known_hosts: str

    @staticmethod
    def of(host: Host) -> Target:
        """Return what OpenSSH's settings say of ``host``; raise UsageError where not every side could use them."""
        settings = resolve(host)
        one = {name: values[0] for name, values in settings.items()}
        keys = [str(path) for name in settings.get("identityfile", []) if (path := Path(name).expanduser()).exists()]
        known = [Path(name).expanduser() for name in shlex.split(one.get("userknownhostsfile", ""))]
        found = next((str(path) for path in known if path.exists()), "")
        if not keys or not found or {one.get("proxyjump", "none"), one.get("proxycommand", "none")} != {"none"}:
            hint = "./ops lab bench.deploy --host NAME runs it on a twin"
            raise UsageError("bench.deploy needs a key file, a known_hosts file and no jump host", host=host.name, hint=hint)
        return Target(host.name, one["hostname"], one["port"], one["user"], keys[0], found)

    @property
    def options(self) -> list[str]:
        """The options of OpenSSH's client that say the same."""
        known = f'UserKnownHostsFile="{self.known_hosts}"'
        return ["-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", known, "-i", self.key, "-p", self.port]

    def ssh(self, *command: str) -> list[str]:
        """Return the command line that runs ``command`` there, over a connection of its own."""
        return ["ssh", "-o", "ControlPath=none", *self.options, f"{self.user}@{self.address}", *command]

    def ask(self, script: str) -> str:
        """Return what a script prints that runs there as root; raise LodgerError when it fails."""
        return once(Side("the benchmark's own look at the host", self.ssh("sudo", "-n", "--", "sh", "-s"), script))[1].stdout


@dataclass(frozen=True)
class Wanted:
    """What the peers keep: files with their whole paths, and units that are enabled and run."""

    files: tuple[File, ...]
    units: tuple[str, ...]

    @staticmethod
    def of(release: Release, manifest: str) -> Wanted:
        """Return what a deploy of ``release`` leaves; ``manifest`` is the one on the host, which may name an older revision."""
        folder = f"{paths.RELEASES}/{release.id}"
        files = [File(f"{folder}/{file.path}", file.content, file.mode) for file in release.files]
        installed = [
            File(f"{paths.UNITS}/{file.path.removeprefix('units/')}", file.content, file.mode)
            for file in release.files
            if file.path.startswith("units/")
        ]
        units = tuple(service.unit for service in release.services)
        return Wanted((*files, File(f"{folder}/manifest.json", manifest), *installed), units)

    def seen(self) -> str:
        """Return a script that prints what shows that somebody was at them: inode, times and owner of files, runs of units."""
        names = shlex.join(file.path for file in self.files)
        show = shlex.join(["systemctl", "show", "-p", "Id,InvocationID,ActiveState,UnitFileState,NRestarts", *self.units])
        return f"stat -c '%n %i %U %G %a %s %y %z' {names} && {show}"


# ---------------------------------------------------------------- their environment


def environment() -> Path:
    """Return the folder with the peers' programs, installed from the lock when it, or this Python, is another one."""
    folder = checkout.ROOT / ".lab" / "bench-venv"
    stamp = folder / ".made-from"
    made_from = f"{hashlib.sha256(LOCK.read_bytes()).hexdigest()} {sys.version}\n"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != made_from:
        sys.stderr.write(f"  making {folder} from {LOCK}\n")
        shutil.rmtree(folder, ignore_errors=True)
        once(Side("making their environment", [sys.executable, "-m", "venv", str(folder)]))
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
        once(Side("installing the peers", [*pip, "--require-hashes", "-r", str(LOCK)]))
        stamp.write_text(made_from, encoding="utf-8")
    return folder / "bin"


def versions(lock: str) -> dict[str, str]:
    """Return name -> version of what a lock file pins."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))


# ---------------------------------------------------------------- what they run


def sides(target: Target, wanted: Wanted, folder: Path, remote: str) -> list[Side]:
    """Return the peers, with their files in ``folder``; ``remote`` is where on the host Ansible may keep temporary files."""
    programs, pinned = environment(), versions(LOCK.read_text(encoding="utf-8"))
    told = _told(target, wanted, folder)
    control = folder / "control"
    ansible = {
        "ANSIBLE_CONFIG": str(HERE / "ansible.cfg"),
        "ANSIBLE_HOME": str(folder / "ansible"),
        "ANSIBLE_REMOTE_TMP": remote,
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(control),
        "ANSIBLE_NOCOLOR": "1",
        **_PLAIN,
    }
    strategies = next(programs.parent.glob("lib/python*/site-packages/ansible_mitogen/plugins/strategy"))
    mitogen = {**ansible, "ANSIBLE_STRATEGY": "mitogen_linear", "ANSIBLE_STRATEGY_PLUGINS": str(strategies)}
    playbook = [str(programs / "ansible-playbook"), "-i", f"{target.name},", "-e", f"@{told}", str(HERE / "playbook.yml")]
    core = f"ansible-core {pinned['ansible-core']}"
    return [
        Side(
            f"pyinfra {pinned['pyinfra']}",
            [str(programs / "pyinfra"), target.name, str(HERE / "pyinfra_deploy.py"), "-y", *_pyinfra(target)],
            environment={"BENCH_WANTED": str(told), **_PLAIN},
            changed=lambda done: pyinfra_changed(done.stderr),
        ),
        Side(
            core,
            playbook,
            environment=ansible,
            changed=lambda done: ansible_changed(done.stdout),
            after=lambda: _hang_up(target, control),
        ),
        Side(
            f"{core}, Mitogen {pinned['mitogen']}",
            playbook,
            environment=mitogen,
            changed=lambda done: ansible_changed(done.stdout),
        ),
        Side(
            "plain ssh, one command",
            target.ssh("sudo", "-n", "--", "sh", "-s"),
            stdin=script(wanted),
            changed=lambda done: ssh_changed(done.stdout),
        ),
    ]


def _told(target: Target, wanted: Wanted, folder: Path) -> Path:
    """Write what Ansible and pyinfra are to keep, and how Ansible gets there; return the file."""
    files = []
    for number, file in enumerate(wanted.files):
        source = folder / f"{number}-{Path(file.path).name}"
        source.write_text(file.content, encoding="utf-8")
        files.append({"source": str(source), "path": file.path, "mode": f"{file.mode:04o}"})
    told = {
        "wanted_files": files,
        "wanted_units": wanted.units,
        "ansible_host": target.address,
        "ansible_port": int(target.port),
        "ansible_user": target.user,
        "ansible_ssh_private_key_file": target.key,
        "ansible_ssh_common_args": f"-o IdentitiesOnly=yes -o UserKnownHostsFile={shlex.quote(target.known_hosts)}",
    }
    path = folder / "wanted.json"
    path.write_text(json.dumps(told), encoding="utf-8")
    return path


def _pyinfra(target: Target) -> list[str]:
    data = {
        "ssh_hostname": target.address,
        "ssh_known_hosts_file": target.known_hosts,
        "ssh_strict_host_key_checking": "yes",
    }
    said = [word for name, value in data.items() for word in ("--data", f"{name}={value}")]
    return ["--ssh-user", target.user, "--ssh-port", target.port, "--ssh-key", target.key, *said]


def _hang_up(target: Target, control: Path) -> None:
    """End the connections that Ansible has left open for its next run: no side is to find one."""
    for path in control.iterdir():
        argv = ["ssh", "-O", "exit", "-o", f"ControlPath={path}", target.address]
        subprocess.run(argv, capture_output=True, timeout=30, check=False)


def script(wanted: Wanted) -> str:
    """Return the script that keeps files and units with nothing but a shell."""
    calls = [
        shlex.join(["keep", file.path, f"{file.mode:04o}", base64.b64encode(file.content.encode()).decode()])
        for file in wanted.files
    ]
    calls += [shlex.join(["serve", unit]) for unit in wanted.units]
    return "\n".join([(HERE / "keep.sh").read_text(encoding="utf-8"), *calls, 'echo "changed=$changed"', ""])


# ---------------------------------------------------------------- what they say they changed


def pyinfra_changed(text: str) -> int:
    """Return how many operations of pyinfra changed something: the second figure of its grand total."""
    found = re.search(r"^\s*Grand total((?:\s+(?:\d+|-)){4})\s*$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"no grand total in: {text.strip()[-300:]}")
    return int(found[1].split()[1].replace("-", "0"))


def ansible_changed(text: str) -> int:
    """Return how many tasks of a playbook changed something, by its recap."""
    found = re.findall(r"^\S+\s+: ok=\d+\s+changed=(\d+)\b", text, re.MULTILINE)
    if not found:
        raise ValueError(f"no recap in: {text.strip()[-300:]}")
    return sum(map(int, found))


def ssh_changed(text: str) -> int:
    """Return what the script of :func:`script` counted."""
    found = re.search(r"^changed=(\d+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"no count in: {text.strip()[-300:]}")
    return int(found[1])
