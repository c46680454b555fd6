"""What twins are made of, built once on this machine and kept under MACHINE until something it is made from changes.

Three Docker images on this machine, each on the one before: `base` (a small Debian by debootstrap, from the mirror that the machine's own apt
uses), `os` (the packages of a lab host) and `twin` (our files: simulated GPU, world, units). And one store: the container images that twins pull
(engine, router), in the form of a registry's folder, beside a folder for a twin's /var/lib/docker that holds only what its neighbours run.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.run import CHECKOUT, MACHINE, LabError, digest, locked, run, say

HERE = CHECKOUT / "lab"
RELEASE = "bookworm"
REGISTRY = "docker.m.daocloud.io"
# What systemd, dockerd and sshd need inside a twin. `--privileged` would ask for capabilities that a CI machine may lack.
CONTAINER_RIGHTS = [
    "--cgroupns=private",
    *(f"--cap-add={name}" for name in ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "SYS_NICE", "SYS_MODULE", "SYSLOG", "SYS_BOOT", "IPC_LOCK")),
    *(f"--security-opt={what}=unconfined" for what in ("seccomp", "apparmor", "systempaths")),
]  # fmt: skip


@dataclass(frozen=True)
class Store:
    """The container images that twins can pull, and the Docker folder a new twin starts with."""

    path: Path
    digests: dict[str, str]  # repository:tag, without the registry's name -> sha256:...

    @property
    def registry(self) -> Path:
        """The registry's folder."""
        return self.path / "registry"

    def new_disk(self, target: Path) -> None:
        """Make `target` a fresh /var/lib/docker; layers are hard links, for overlayfs never writes to a lower folder."""
        source = self.path / "docker"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir()
        for entry in source.iterdir():
            run(["cp", "-al" if entry.name == "overlay2" else "-a", entry, target / entry.name])


def twin_image() -> str:
    """Return the name of the image that a twin runs, built if need be (about two minutes the first time)."""
    base = f"lodger-lab/base:{digest(RELEASE, _BASE_RECIPE)}"
    os_image = f"lodger-lab/os:{digest(base, HERE / 'image' / 'os.sh', HERE / 'image' / 'packages')}"
    files = [HERE / "image" / "twin", HERE / "gpu"]
    twin = f"lodger-lab/twin:{digest(os_image, *files)}"
    if _exists(twin):
        return twin
    with locked(MACHINE / "image.lock"):
        if not _exists(base):
            _build_base(base)
        if not _exists(os_image):
            say("installing a lab host's packages (about a minute, once)")
            _commit(os_image, base, ["sh", "/lab/os.sh"], mounts=[f"{HERE / 'image'}:/lab:ro"], network="host")
        if not _exists(twin):
            say("adding the simulated GPU and the twin's world")
            programs = "cd /lab/gpu && install nvidia-smi nvidia-container-runtime-hook /usr/bin/ && install gpu_service.py /usr/lib/twin/"
            units = "systemctl enable -q twin-hardware twin-neighbours ssh docker supervisor"
            script = f"cp -rT /lab/image/twin / && chmod 440 /etc/sudoers.d/operator && {programs} && {units}"
            _commit(twin, os_image, ["sh", "-ec", script], mounts=[f"{HERE}:/lab:ro"])
    return twin


def store(twin: str) -> Store:
    """Return the store of container images, built if need be (some seconds when only the engine's code changed)."""
    inputs = [HERE / "image" / "router.lock", HERE / "image" / "store.sh", HERE / "engine", HERE / "gpu" / "gpu_service.py"]
    path = MACHINE / "stores" / digest(_BASE_RECIPE, *inputs)
    listing = path / "digests.json"
    if not listing.exists():
        with locked(MACHINE / "store.lock"):
            if not listing.exists():
                _build_store(path, twin)
    return Store(path, json.loads(listing.read_text()))


_BASE_RECIPE = """
set -eu
root=$1
cd "$root"
printf 'path-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/info/*\npath-exclude=/usr/share/locale/*
path-include=/usr/share/locale/de/*\npath-include=/usr/share/locale/zh_CN/*\npath-include=/usr/share/locale/locale.alias\n' > etc/dpkg/dpkg.cfg.d/slim
find usr/share/locale -mindepth 1 -maxdepth 1 -type d ! -name de ! -name zh_CN -exec rm -r {} +
rm -rf usr/share/doc/* usr/share/man/* usr/share/info/* var/cache/apt/*.bin var/cache/apt/archives/*.deb var/lib/apt/lists/* var/log/*
find usr -name __pycache__ -prune -exec rm -r {} +
"""
_BASE_PACKAGES = "ca-certificates,python3,procps,curl"


def _exists(image: str) -> bool:
    return run(["docker", "image", "inspect", image], check=False).returncode == 0


def _build_base(image: str) -> None:
    archive = MACHINE / "base.tar"
    mirrors = _debian_mirrors()
    if mirrors:
        say("making a Debian base with debootstrap (under a minute, once)")
        root = MACHINE / "base.partial"
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
        keys = [f"--keyring={keyring}"] if keyring.exists() else []
        run(
            ["debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}", *keys, RELEASE, root, mirrors[0][0]],
            timeout=900,
        )
        (root / "etc/apt/sources.list").write_text("".join(f"deb {uri} {suite} main\n" for uri, suite in mirrors))
        # A machine that reaches its mirror through a proxy, or with dates unchecked, says so in apt's configuration.
        settings = [
            line
            for line in run(["apt-config", "dump"]).stdout.splitlines()
            if line.startswith(("Acquire::http", "Acquire::Check"))
        ]
        (root / "etc/apt/apt.conf.d/90machine").write_text("".join(f"{line}\n" for line in settings))
        run(["sh", "-c", _BASE_RECIPE, "sh", root])
        run(["tar", "-C", root, "--numeric-owner", "-cf", archive, "."])
        shutil.rmtree(root)
    else:
        say(f"this machine's apt knows no Debian mirror; starting from the image debian:{RELEASE}")
        script = f"apt-get update -q && apt-get install -qy --no-install-recommends {_BASE_PACKAGES.replace(',', ' ')}"
        _commit(image + "-pulled", f"debian:{RELEASE}", ["sh", "-ec", f"{script}; {_BASE_RECIPE}", "sh", "/"], network="host")
        container = run(["docker", "create", image + "-pulled"]).stdout.strip()
        run(["docker", "export", "-o", archive, container])
        run(["docker", "rm", container])
    run(["docker", "import", archive, image])


def _debian_mirrors() -> list[tuple[str, str]]:
    """Return (address, suite) of the Debian archive and its security updates, as this machine's apt sources have them."""
    if not shutil.which("apt-get"):
        return []
    form = "$(LABEL)\t$(COMPONENT)\t$(REPO_URI)"
    listed = run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"], check=False).stdout.splitlines()
    found = {}
    for line in listed:
        label, component, uri = line.split("\t")
        if component == "main" and label in ("Debian", "Debian-Security"):
            found.setdefault(label, uri)
    suites = {"Debian": RELEASE, "Debian-Security": f"{RELEASE}-security"}
    return [(found[label], suite) for label, suite in suites.items() if label in found] if "Debian" in found else []


def _commit(
    image: str,
    parent: str,
    argv: list[str],
    *,
    mounts: Iterable[str] = (),
    network: str = "none",
) -> None:
    """Run a program in a container of `parent` and keep what it left as `image`."""
    name = f"lodger-lab-build-{os.getpid()}"
    volumes = [word for mount in mounts for word in ("-v", mount)]
    try:
        run(["docker", "run", "--name", name, "--network", network, "--user", "0", *volumes, parent, *argv], timeout=900)
        run(["docker", "commit", name, image])
    finally:
        run(["docker", "rm", "-f", name], check=False)


def _build_store(path: Path, twin: str) -> None:
    say("building the images that twins pull: engine, router (some seconds)")
    began = time.monotonic()
    work = path.with_name(path.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    python = MACHINE / f"router-{digest(HERE / 'image' / 'router.lock')}"
    if not python.exists():
        unfinished = python.with_name(python.name + ".partial")
        shutil.rmtree(unfinished, ignore_errors=True)
        lock = ["--require-hashes", "-r", HERE / "image" / "router.lock"]
        system = [
            "--platform=manylinux2014_x86_64",
            "--platform=manylinux_2_28_x86_64",
            "--python-version=3.11",
            "--only-binary=:all:",
        ]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        run([*pip, "install", "-q", "--no-deps", "--no-compile", "--target", unfinished, *system, *lock])
        unfinished.rename(python)
    name = f"lodger-lab-store-{os.getpid()}"
    mounts = [f"{work}:/store", f"{MACHINE / 'base.tar'}:/base.tar:ro", f"{HERE}:/lab:ro", f"{python}:/router:ro"]
    volumes = [word for mount in mounts for word in ("-v", mount)]
    try:
        run(["docker", "run", "--rm", "--name", name, "--network=none", *CONTAINER_RIGHTS, "--tmpfs=/run", "-e", f"TWIN_CGROUP={name}",
             *volumes, "--entrypoint=/usr/lib/twin/init", twin, "run", "/bin/sh", "/lab/image/store.sh"], timeout=300)  # fmt: skip
    except LabError:
        log = work / "log"
        if log.exists():
            raise LabError(
                f"the store of images could not be built: {log.read_text().strip().splitlines()[-1]}", f"see {log}"
            ) from None
        raise
    finally:
        run(["docker", "rm", "-f", name], check=False)
    work.rename(path)
    say(f"images built in {time.monotonic() - began:.0f} s")
