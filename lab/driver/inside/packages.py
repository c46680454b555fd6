#!/usr/bin/python3
"""NVIDIA's driver packages, of the real names and relations, made with dpkg-deb, and a repository of them for apt.

    packages.py offer VERSION ...   make the packages of these drivers and have apt know them
    packages.py install VERSION     make this a machine that has had this driver all along (what is loaded is not touched)

All branches' nvidia-compute-utils bring nvidia-powerd and a persistence daemon. They do not declare that they exclude each
other, so apt installs a later one beside an older one, and dpkg trips over the file that both bring. A machine with a driver
older than 580 has its nvidia-compute-utils; one with a later driver has only the packages of a headless compute stack.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = Path("/usr/lib/twin/apt")
SOURCE = Path("/etc/apt/sources.list.d/nvidia-driver.list")
RELEASE = os.uname().release
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
MODULES = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm")
_MADE = 1_768_204_197  # modification time of all that the packages bring
_NEW_LAYOUT = 560  # the branch from which nvidia-utils recommends nvidia-compute-utils
_HEADLESS = 580  # the branch from which machines do without nvidia-compute-utils
_STEP = 'f=/var/lib/twin/faults/slow-{0}; [ ! -e $f ] || sleep "$(cat $f)"\n'
_UNIT = """[Unit]
Description=NVIDIA Persistence Daemon

[Service]
ExecStart={0} --verbose

[Install]
WantedBy=multi-user.target
"""

# A script is compiled anew whenever it starts, a module once: a program that is asked often only calls its module.
_PROGRAM = """#!/usr/bin/python3 -IS
import sys
sys.path.insert(0, {folder!r})
import {module}
{more}sys.exit({module}.main())
"""
_START = """if [ "$1" = configure ]; then
    systemctl -q enable nvidia-persistenced.service
    [ ! -d /run/systemd/system ] || { systemctl daemon-reload; systemctl restart nvidia-persistenced.service; } || true
fi
"""
_STOP = """if [ "$1" = remove ]; then
    [ ! -d /run/systemd/system ] || systemctl stop nvidia-persistenced.service || true
    systemctl -q disable nvidia-persistenced.service
fi
"""
_RELOAD = "[ ! -d /run/systemd/system ] || systemctl daemon-reload || true\n"


@dataclass(frozen=True)
class File:
    """What a package brings: a text, executable or not, or a symbolic link."""

    text: str = ""
    executable: bool = False
    link: str = ""


@dataclass(frozen=True)
class Package:
    """A package: control fields besides the usual ones, files by path, maintainer scripts by name."""

    name: str
    version: str
    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    architecture: str = "amd64"
    description: str = "NVIDIA driver"


def branch(version: str) -> int:
    """Return the branch of a driver version."""
    return int(version.partition(".")[0])


def revision(version: str) -> str:
    """Return the version that a driver's packages have."""
    return f"{version}-0ubuntu1"


def one_at_a_time(*names: str) -> dict[str, str]:
    """Return the relations by which packages of two branches exclude each other."""
    listed = ", ".join(names)
    return {"Provides": listed, "Conflicts": listed, "Replaces": listed}


def common() -> list[Package]:
    """Return what is needed besides a driver: dkms, and the headers of the running kernel."""
    source = f"/usr/src/linux-headers-{RELEASE}"
    dkms = {
        "/usr/sbin/dkms": File(_PROGRAM.format(folder=str(HERE), module="dkms", more=""), executable=True),
        "/usr/lib/dkms/common.postinst": File((HERE / "common.postinst").read_text(), executable=True),
    }
    headers = {
        f"{source}/Makefile": File(f"# {RELEASE}\n"),
        f"/usr/lib/modules/{RELEASE}/build": File(link=source),
    }
    return [
        Package(
            "dkms",
            "3.0.11-1ubuntu13",
            {"Depends": "python3"},
            dkms,
            architecture="all",
            description="Dynamic Kernel Module System (DKMS)",
        ),
        Package(
            f"linux-headers-{RELEASE.lower().replace('_', '-')}",
            "1",
            files=headers,
            description=f"Header files for Linux {RELEASE}",
        ),
    ]


def driver(version: str) -> list[Package]:
    """Return the packages of a driver."""
    number, full, later = branch(version), revision(version), branch(version) >= _NEW_LAYOUT
    same = f"(= {full})"

    def package(name: str, fields: dict[str, str], files: dict[str, File], scripts: dict[str, str] | None = None) -> Package:
        return Package(f"{name}-{number}", full, fields, files, scripts or {})

    conf = f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL="yes"\n' + "".join(
        f'BUILT_MODULE_NAME[{n}]="{name}"\nDEST_MODULE_LOCATION[{n}]="/kernel/drivers/char/drm"\n'
        for n, name in enumerate(MODULES)
    )
    rules = 'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="/sbin/modprobe -a nvidia-modeset nvidia-drm nvidia-uvm"\n'
    libraries = {}
    for name in ("libnvidia-ml.so", "libcuda.so"):
        libraries[f"{LIBRARIES}/{name}.{version}"] = File(f"{name} {version}\n")
        libraries[f"{LIBRARIES}/{name}.1"] = File(link=f"{name}.{version}")
    smi = _PROGRAM.format(folder=str(HERE), module="nvidia_smi", more=f"nvidia_smi.VERSION = {version!r}\n")
    # 560 and later keep the daemon elsewhere; nvidia-powerd is where it always was.
    daemon = "/usr/libexec/nvidia-persistenced" if later else "/usr/bin/nvidia-persistenced"
    services = {
        daemon: File((HERE / "persistenced.py").read_text().replace("@VERSION@", version), executable=True),
        "/usr/bin/nvidia-powerd": File(f"#!/bin/sh\necho nvidia-powerd {version}\n", executable=True),
        "/usr/lib/systemd/system/nvidia-persistenced.service": File(_UNIT.format(daemon)),
    }
    stack = ("nvidia-dkms", "nvidia-kernel-common", "nvidia-kernel-source", "libnvidia-compute", "nvidia-utils")
    whole = [
        f"{name}-{number} {same}" for name in (*stack, "nvidia-compute-utils", "libnvidia-gl", "xserver-xorg-video-nvidia")
    ]
    return [
        package(
            "nvidia-kernel-source",
            one_at_a_time("nvidia-kernel-source"),
            {f"/usr/src/nvidia-{version}/dkms.conf": File(conf), f"/usr/src/nvidia-{version}/Makefile": File("modules:\n")},
        ),
        package(
            "nvidia-kernel-common",
            one_at_a_time("nvidia-kernel-common"),
            {"/usr/lib/udev/rules.d/71-nvidia.rules": File(rules)},
        ),
        package(
            "nvidia-dkms",
            {
                "Depends": f"nvidia-kernel-common-{number} {same}, nvidia-kernel-source-{number} {same}, dkms",
                **one_at_a_time("nvidia-dkms-kernel"),
            },
            {},
            {
                "postinst": f'[ "$1" != configure ] || /usr/lib/dkms/common.postinst nvidia {version}\n',
                "prerm": f'echo "Removing all DKMS Modules"\n[ -z "$(dkms status -m nvidia -v {version})" ] || '
                f"dkms remove -m nvidia -v {version} --all >/dev/null\necho Done.\n",
            },
        ),
        package("libnvidia-compute", one_at_a_time("libnvidia-compute", "libnvidia-ml1", "libcuda1"), libraries),
        package(
            "nvidia-utils",
            {
                "Depends": f"libnvidia-compute-{number} {same}",
                **({"Recommends": f"nvidia-compute-utils-{number}"} if later else {}),
                **one_at_a_time("nvidia-utils"),
            },
            {"/usr/bin/nvidia-smi": File(smi, executable=True)},
        ),
        package(
            "nvidia-compute-utils",
            {"Depends": "libnvidia-ml1", "Provides": "nvidia-persistenced"},
            services,
            {"postinst": _START, "prerm": _STOP, "postrm": _RELOAD},
        ),
        # What no headless machine needs, and what an older release's X server cannot give.
        package("libnvidia-gl", {"Depends": "libnvidia-egl-gbm1 (>= 1:1.1.2)", **one_at_a_time("libnvidia-gl")}, {}),
        package(
            "xserver-xorg-video-nvidia", {"Depends": "xorg-video-abi-26", **one_at_a_time("xserver-xorg-video-nvidia")}, {}
        ),
        package("nvidia-driver", {"Depends": ", ".join(whole), **one_at_a_time("nvidia-driver-binary")}, {}),
    ]


def build(package: Package) -> None:
    """Make a package file in the repository."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        for path, file in package.files.items():
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.link:
                target.symlink_to(file.link)
            else:
                target.write_text(file.text)
                target.chmod(0o755 if file.executable else 0o644)
        control = root / "DEBIAN"
        control.mkdir()
        fields = {
            "Package": package.name,
            "Version": package.version,
            "Architecture": package.architecture,
            "Maintainer": "The lab <root@localhost>",
            "Section": "restricted/misc",
            "Priority": "optional",
            **package.fields,
            "Description": package.description,
        }
        (control / "control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
        for name in {"preinst", "postinst", "prerm", *package.scripts}:
            script = control / name
            script.write_text("#!/bin/sh\nset -e\n" + _STEP.format(name) + package.scripts.get(name, ""))
            script.chmod(0o755)
        for entry in root.rglob("*"):
            os.utime(entry, (_MADE, _MADE), follow_symlinks=False)
        run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", root, REPOSITORY)


def run(*argv: str | Path, check: bool = True) -> str:
    """Run a program quietly; what it said is shown when it fails."""
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    )
    if check and done.returncode:
        sys.exit(f"{' '.join(map(str, argv))}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def index() -> None:
    """Write the repository's index and have apt read it."""
    entries = []
    for deb in sorted(REPOSITORY.glob("*.deb")):
        body = deb.read_bytes()
        more = f"Filename: ./{deb.name}\nSize: {len(body)}\nSHA256: {hashlib.sha256(body).hexdigest()}\n"
        entries.append(run("dpkg-deb", "-f", deb) + more)
    text = "\n".join(entries)
    (REPOSITORY / "Packages").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    listed = f" {digest} {len(text.encode())} Packages\n"
    release = f"Origin: NVIDIA\nLabel: NVIDIA\nSuite: stable\nArchitectures: amd64\nSHA256:\n{listed}"
    (REPOSITORY / "Release").write_text(release)
    SOURCE.write_text(f"deb [trusted=yes] copy:{REPOSITORY}/ ./\n")
    run("apt-get", "update", "-q")


def offer(versions: Iterable[str]) -> None:
    """Make the packages of drivers, unless the repository has them."""
    REPOSITORY.mkdir(parents=True, exist_ok=True)
    wanted = [*common(), *(package for version in versions for package in driver(version))]
    for package in wanted:
        if not (REPOSITORY / f"{package.name}_{package.version}_{package.architecture}.deb").exists():
            build(package)
    index()


def install(version: str) -> None:
    """Remove any driver and install this one, as if there had never been another."""
    offer([version])
    listed = run("dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\n", "*nvidia*", check=False).splitlines()
    there = [line[3:] for line in listed if line[1] != "n"]
    if there:
        run("dpkg", "--purge", "--force-depends", *there)
    number, full = branch(version), revision(version)
    names = ["nvidia-dkms", "nvidia-kernel-source", "nvidia-kernel-common", "libnvidia-compute", "nvidia-utils"]
    if number < _HEADLESS:
        names.append("nvidia-compute-utils")
    wanted = [f"{name}-{number}={full}" for name in names]
    run("apt-get", "install", "-qy", "--no-install-recommends", *(package.name for package in common()), *wanted)
    archives = Path("/var/cache/apt/archives")
    for deb in archives.glob("*.deb"):
        deb.unlink()
    shutil.rmtree(archives / "partial", ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1] == "offer":
        offer(sys.argv[2:])
    else:
        install(sys.argv[2])
