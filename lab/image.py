"""What twins are made of, built once on this machine and kept under MACHINE until something it is made from changes.

Docker images on this machine, each on the one before: `base` (a small Debian by debootstrap, from the mirror that the
machine's own apt uses), `os` (the packages of a lab host), `twin` (our files: world, units, GPU and driver) and, for
each driver that a twin starts with, `driver` (its packages installed by apt). And one store:
the container images that twins pull (engine, router), as a registry's folder, and beside it a folder for a new twin's
/var/lib/docker that holds only what its neighbours run.
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
RECIPES = HERE / "image"
RELEASE = "bookworm"
REGISTRY = "docker.m.daocloud.io"
# What systemd, dockerd and sshd need inside a twin. `--privileged` would ask for capabilities that a CI machine may lack.
_CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "SYS_NICE", "SYS_MODULE", "SYSLOG", "SYS_BOOT", "IPC_LOCK")
CONTAINER_RIGHTS = [
    "--cgroupns=private",
    *(f"--cap-add={name}" for name in _CAPABILITIES),
    *(f"--security-opt={what}=unconfined" for what in ("seccomp", "apparmor", "systempaths")),
]
_BASE_PACKAGES = "ca-certificates,python3,procps,curl"
_FILES = """
cp -rT /lab/image/twin /
chmod 440 /etc/sudoers.d/operator
install -Dt /usr/lib/twin/driver /lab/driver/inside/* /lab/gpu/nvidia_smi.py /lab/gpu/container_hook.py
mv /usr/lib/twin/world.py /usr/lib/twin/driver
# A script is compiled anew whenever it starts, a module once: what runs at every boot or is asked often is a module.
program() {
    printf '#!/usr/bin/python3 -IS\\nimport sys\\nsys.path.insert(0, "/usr/lib/twin/driver")\\n' > $1
    printf 'from %s import main\\nsys.exit(main())\\n' $2 >> $1
    chmod 755 $1
}
program /usr/lib/twin/world world
program /usr/lib/twin/driver/kernel kernel
program /usr/bin/nvidia-container-runtime-hook container_hook
for program in supervisorctl supervisord; do
    printf '#!/usr/bin/python3\\nimport sys\\nsys.path.insert(0, "/usr/lib/twin/setuptools")\\n' > /usr/bin/$program
    printf 'from supervisor.%s import main\\nsys.exit(main())\\n' $program >> /usr/bin/$program
done
python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/twin
# What systemd asks at every start and reload, and no container has.
cd /usr/lib/systemd/system-generators
rm -f *crypt* *debug* *getty* *gpt-auto* *hibernate* *integrity* *rc-local* *system-update* *verity* *sysv*
for program in dmesg lsmod modinfo modprobe rmmod; do
    for path in /usr/bin/$program /usr/sbin/$program; do [ ! -e $path ] || ln -sf /usr/lib/twin/driver/kernel $path; done
done
# Every boot asks for a dozen modules of others: those go to the real program without a start of Python.
mkdir /usr/lib/twin/real /usr/lib/twin/ours
ln -s /bin/kmod /usr/lib/twin/real/modprobe
ln -s /usr/lib/twin/driver/kernel /usr/lib/twin/ours/modprobe
rm /usr/sbin/modprobe
cat > /usr/sbin/modprobe <<'END'
#!/bin/sh
case "$*" in *nvidia*) exec /usr/lib/twin/ours/modprobe "$@" ;; esac
exec /usr/lib/twin/real/modprobe "$@"
END
chmod 755 /usr/sbin/modprobe
# Packages come from the driver's repository beside the twin's own files; no mirror is asked.
rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
/usr/lib/twin/driver/packages.py offer 545.23.06 575.51.03 580.95.05 580.126.09
systemctl enable -q twin-hardware twin-programs twin-neighbours unattended-upgrades ssh docker supervisor
"""


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
        target.mkdir(parents=True)
        for entry in (self.path / "docker").iterdir():
            run(["cp", "-al" if entry.name == "overlay2" else "-a", entry, target / entry.name])


def twin_image() -> str:
    """Return the name of the image that a twin runs, built if need be (about two minutes the first time)."""
    base = f"lodger-lab/base:{_base()}"
    os_image = f"lodger-lab/os:{digest(base, RECIPES / 'os.sh', RECIPES / 'packages')}"
    # dkms builds for the kernel of this machine, which twins share.
    parts = (_FILES, os.uname().release, RECIPES / "twin", HERE / "gpu", HERE / "driver" / "inside")
    twin = f"lodger-lab/twin:{digest(os_image, *parts)}"
    if _exists(twin):
        return twin
    with locked(MACHINE / "image.lock"):
        if not _exists(base) or not _archive().exists():
            _build_base(base)
        if not _exists(os_image):
            say("installing a lab host's packages (under a minute, once)")
            _commit(os_image, base, ["sh", "/lab/image/os.sh"], network="host")
        if not _exists(twin):
            _commit(twin, os_image, ["sh", "-ec", _FILES])
        _forget_old_images()
    return twin


def driver_image(twin: str, version: str) -> str:
    """Return the name of `twin` with a driver installed, built if need be (a few seconds)."""
    image = f"lodger-lab/driver:{version}-{twin.partition(':')[2]}"
    with locked(MACHINE / "image.lock"):
        if not _exists(image):
            say(f"installing driver {version} (some seconds, once)")
            _commit(image, twin, ["/usr/lib/twin/driver/packages.py", "install", version])
    return image


def store(twin: str) -> Store:
    """Return the store of container images, built if need be (some seconds when only the engine's code changed)."""
    stock = digest(_base(), *(RECIPES / name for name in ("router.lock", "stock.sh", "docker.sh")))
    path = MACHINE / "stores" / digest(stock, RECIPES / "engine.sh", HERE / "engine", HERE / "gpu" / "gpu_service.py")
    listing = path / "digests.json"
    if not listing.exists():
        with locked(MACHINE / "store.lock"):
            if not listing.exists():
                _build_store(path, MACHINE / "stock" / stock, twin)
    return Store(path, json.loads(listing.read_text()))


def _base() -> str:
    return digest(RELEASE, _BASE_PACKAGES, RECIPES / "base.sh")


def _archive() -> Path:
    """Return the base as a tar archive, from which images are made that share it."""
    return MACHINE / f"base-{_base()}.tar"


def _forget_old_images() -> None:
    """Remove all but the newest five of each kind of image; Docker keeps those that containers use."""
    for kind in ("driver", "twin", "os", "base"):
        listed = run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", f"lodger-lab/{kind}"]).stdout
        for old in listed.splitlines()[5:]:
            run(["docker", "rmi", old], check=False)


def _exists(image: str) -> bool:
    return run(["docker", "image", "inspect", image], check=False).returncode == 0


def _build_base(image: str) -> None:
    archive = _archive()
    for old in MACHINE.glob("base-*.tar"):
        old.unlink()
    mirrors = _debian_mirrors()
    if mirrors:
        say("making a Debian base with debootstrap (under a minute, once)")
        root = MACHINE / "base.partial"
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
        options = ["--variant=minbase", f"--include={_BASE_PACKAGES}", *([f"--keyring={keyring}"] if keyring.exists() else [])]
        run(["debootstrap", *options, RELEASE, root, mirrors[0][0]], timeout=900)
        (root / "etc/apt/sources.list").write_text("".join(f"deb {uri} {suite} main\n" for uri, suite in mirrors))
        # A machine that reaches its mirror through a proxy, or with dates unchecked, says so in apt's configuration.
        settings = run(["apt-config", "dump"]).stdout.splitlines()
        wanted = [f"{line}\n" for line in settings if line.startswith(("Acquire::http", "Acquire::Check"))]
        (root / "etc/apt/apt.conf.d/90machine").write_text("".join(wanted))
        run(["sh", RECIPES / "base.sh", root])
        run(["tar", "-C", root, "--numeric-owner", "-cf", archive, "."])
        shutil.rmtree(root)
    else:
        say(f"this machine's apt knows no Debian mirror; starting from the image debian:{RELEASE}")
        packages = _BASE_PACKAGES.replace(",", " ")
        script = f"apt-get update -q; apt-get install -qy --no-install-recommends {packages}; sh /lab/image/base.sh /"
        pulled = f"{image}-pulled"
        _commit(pulled, f"debian:{RELEASE}", ["sh", "-ec", script], network="host")
        container = run(["docker", "create", pulled]).stdout.strip()
        run(["docker", "export", "-o", archive, container])
        run(["docker", "rm", container])
    run(["docker", "import", archive, image])


def _debian_mirrors() -> list[tuple[str, str]]:
    """Return (address, suite) of the Debian archive and its security updates, as this machine's apt sources have them."""
    if not shutil.which("apt-get"):
        return []
    form = "$(LABEL)\t$(COMPONENT)\t$(REPO_URI)"
    listed = run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"], check=False).stdout
    found: dict[str, str] = {}
    for label, component, uri in (line.split("\t") for line in listed.splitlines()):
        if component == "main":
            found.setdefault(label, uri)
    suites = {"Debian": RELEASE, "Debian-Security": f"{RELEASE}-security"}
    return [(found[label], suite) for label, suite in suites.items() if label in found] if "Debian" in found else []


def _commit(image: str, parent: str, argv: list[str], *, network: str = "none") -> None:
    """Run a program in a container of `parent`, with the lab's folder at /lab, and keep what it left as `image`."""
    name = f"lodger-lab-build-{os.getpid()}"
    try:
        run(["docker", "run", "--name", name, "--network", network, "-v", f"{HERE}:/lab:ro", parent, *argv], timeout=900)
        run(["docker", "commit", name, image])
    finally:
        run(["docker", "rm", "-f", name], check=False)


def _build_store(path: Path, stock: Path, twin: str) -> None:
    """Build a store on the stock of images that do not change with the engine's code."""
    began = time.monotonic()
    if not stock.exists():
        say("building the images that twins pull: router, CUDA base (some seconds, once)")
        mounts = [f"{_archive()}:/base.tar:ro", f"{_router_packages()}:/router:ro"]
        _in_builder("stock.sh", twin, stock, None, mounts)
        for old in set(stock.parent.iterdir()) - {stock}:
            shutil.rmtree(old)
    say("building the engine's image")
    _in_builder("engine.sh", twin, path, stock, [])
    say(f"images built in {time.monotonic() - began:.0f} s")
    _forget_old_stores()


def _forget_old_stores() -> None:
    """Remove all but the newest stores and those from which some lab's registry serves."""
    label = "lodger-lab.store"
    used = run(["docker", "ps", "-a", "--filter", f"label={label}", "--format", f'{{{{.Label "{label}"}}}}']).stdout.split()
    stores = sorted((MACHINE / "stores").iterdir(), key=lambda path: path.stat().st_mtime)
    for old in stores[:-3]:
        if old.name not in used:
            shutil.rmtree(old)


def _router_packages() -> Path:
    """Return a folder with the real router and what it imports, as locked."""
    lock = RECIPES / "router.lock"
    target = MACHINE / f"router-{digest(lock)}"
    if not target.exists():
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        platforms = ["--platform=manylinux2014_x86_64", "--platform=manylinux_2_28_x86_64", "--python-version=3.11"]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", "--no-compile"]
        run([*pip, "--only-binary=:all:", *platforms, "--require-hashes", "-r", lock, "--target", partial])
        partial.rename(target)
    return target


def _in_builder(script: str, twin: str, result: Path, start: Path | None, mounts: Iterable[str]) -> None:
    """Run one of the recipes in a container with a Docker daemon of its own; its /store becomes `result`."""
    work = result.with_name(f"{result.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    if start is not None:
        Store(start, {}).new_disk(work / "docker")
        run(["cp", "-al", start / "registry", work / "registry"])
    name = f"lodger-lab-build-{os.getpid()}"
    volumes = [word for mount in [f"{work}:/store", f"{HERE}:/lab:ro", *mounts] for word in ("-v", mount)]
    options = ["--rm", "--network=none", "--tmpfs=/run", "-e", f"TWIN_CGROUP={name}", "--entrypoint=/usr/lib/twin/init"]
    try:
        run(["docker", "run", "--name", name, *CONTAINER_RIGHTS, *options, *volumes, twin, "run", "sh", f"/lab/image/{script}"])
    except LabError as error:
        log = work / "log"
        last = log.read_text(errors="replace").strip().splitlines()[-1] if log.exists() else str(error)
        raise LabError(f"{script} failed: {last}", f"its log is {log}") from error
    finally:
        run(["docker", "rm", "-f", name], check=False)
    work.rename(result)
