#!/usr/bin/python3
"""The simulated dkms 3: the same verbs, tree, messages and exit codes; its build writes a small file in place of a module.

dkms status|add|build|install|uninstall|remove|autoinstall [-m NAME] [-v VERSION] [-k KERNEL] [--all], or NAME/VERSION
"""

import argparse
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import NoReturn

TREE = Path("/var/lib/dkms")
SOURCES = Path("/usr/src")
FAULTS = Path("/var/lib/twin/faults")
ARCH = "x86_64"
_USUAL_SECONDS = 0.5  # that a build takes


def fail(code: int, *lines: str) -> NoReturn:
    """End with dkms' own way of saying why."""
    print(f"Error! {lines[0]}", *lines[1:], sep="\n", file=sys.stderr)
    sys.exit(code)


def _fault(name: str, default: str) -> str:
    """Return a fault's value, `default` if it is switched on without one, or nothing."""
    file = FAULTS / name
    return (file.read_text().strip() or default) if file.exists() else ""


class Build:
    """One module in one version for one kernel."""

    def __init__(self, name: str, version: str, kernel: str) -> None:
        self.name, self.version, self.kernel = name, version, kernel
        self.top = TREE / name / version
        self.result = self.top / kernel / ARCH
        self.link = TREE / name / f"kernel-{kernel}-{ARCH}"
        self.target = Path(f"/lib/modules/{kernel}/updates/dkms")

    def added(self) -> bool:
        """Whether the tree has it."""
        return (self.top / "source").is_symlink()

    def built(self) -> bool:
        """Whether its modules are there to be installed."""
        return (self.result / "module").is_dir()

    def installed(self) -> bool:
        """Whether the kernel would load it."""
        return self.link.is_symlink() and str(self.link.readlink()).startswith(f"{self.version}/")

    def modules(self) -> list[str]:
        """Return the modules' names, as its dkms.conf lists them."""
        found: list[str] = re.findall(r'BUILT_MODULE_NAME\[\d+\]="(.*?)"', (self.top / "source" / "dkms.conf").read_text())
        return found

    def add(self) -> None:
        """Take the sources in."""
        source = SOURCES / f"{self.name}-{self.version}"
        if self.added():
            combo = "You cannot add the same module/version combo more than once."
            fail(3, f"DKMS tree already contains: {self.name}/{self.version}", combo)
        if not (source / "dkms.conf").exists():
            fail(2, "Could not find module source directory.", f"Directory: {source} does not exist.")
        print(f"Creating symlink {self.top}/source -> {source}")
        self.top.mkdir(parents=True, exist_ok=True)
        (self.top / "source").symlink_to(source)

    def build(self) -> None:
        """Build for the kernel, whose headers must be there."""
        if not self.added():
            self.add()
        if self.built():
            said = f"Module {self.name}/{self.version} already built for kernel {self.kernel} ({ARCH}), skip."
            print(f"{said} You may override by specifying --force.")
            return
        headers = f"/lib/modules/{self.kernel}/build"
        if not Path(headers).exists():
            fail(
                21,
                f"Your kernel headers for kernel {self.kernel} cannot be found at {headers} or "
                f"/lib/modules/{self.kernel}/source.",
                f"Please install the linux-headers-{self.kernel} package or use the --kernelsourcedir option to tell DKMS "
                "where it's located.",
            )
        print("Building module:\nCleaning build area...")
        print(f"'make' -j2 NV_EXCLUDE_BUILD_MODULES='' KERNEL_UNAME={self.kernel} modules")
        sys.stdout.flush()
        log = self.top / "build" / "make.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"DKMS make.log for {self.name}-{self.version} for kernel {self.kernel} ({ARCH})\n")
        time.sleep(float(_fault("slow-dkms-build", "") or _USUAL_SECONDS))
        if self.version in _fault("dkms-build-fails", self.version):
            with log.open("a") as out:
                out.write("nvidia/nv-mmap.c:318:5: error: implicit declaration of function 'vm_flags_set'\nmake: *** Error 2\n")
            fail(
                10,
                f"Bad return status for module build on kernel: {self.kernel} ({ARCH})",
                f"Consult {log} for more information.",
            )
        partial = self.result / "module.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for module in self.modules():
            needs = {"nvidia": "", "nvidia-drm": "nvidia-modeset"}.get(module, "nvidia")
            facts = {
                "version": self.version,
                "license": "NVIDIA",
                "depends": needs,
                "name": module.replace("-", "_"),
                "vermagic": f"{self.kernel} SMP preempt mod_unload",
            }
            (partial / f"{module}.ko").write_text("".join(f"{key}={value}\n" for key, value in facts.items()))
        partial.rename(self.result / "module")
        shutil.rmtree(log.parent)
        print("Cleaning build area...")

    def install(self) -> None:
        """Put the built modules where the kernel finds them, in place of another version's."""
        if not self.built():
            self.build()
        if self.installed():
            print(f"Module {self.name}/{self.version} already installed on kernel {self.kernel} ({ARCH}), skip.")
            return
        self.target.mkdir(parents=True, exist_ok=True)
        for module in self.modules():
            print(
                f"\n{module}.ko:\nRunning module version sanity check.\n - Original module\n"
                "   - No original module exists within this kernel\n - Installation\n"
                f"   - Installing to {self.target}/"
            )
            shutil.copy(self.result / "module" / f"{module}.ko", self.target / f"{module}.ko")
        beside = self.link.with_suffix(".new")
        beside.unlink(missing_ok=True)
        beside.symlink_to(f"{self.version}/{self.kernel}/{ARCH}")
        beside.replace(self.link)
        print("depmod...")

    def uninstall(self) -> None:
        """Take the installed modules away; the built ones stay."""
        print(f"Module {self.name}-{self.version} for kernel {self.kernel} ({ARCH}).")
        if not self.installed():
            print("This module version was INACTIVE for this kernel.")
            return
        print("Before uninstall, this module version was ACTIVE on this kernel.")
        self.link.unlink()
        for module in self.modules():
            print(
                f"\n{module}.ko:\n - Uninstallation\n   - Deleting from: {self.target}/\n - Original module\n"
                "   - No original module was found for this module on this kernel.\n"
                "   - Use the dkms install command to reinstall any previous module version."
            )
            (self.target / f"{module}.ko").unlink(missing_ok=True)
        print("depmod...")

    def remove(self) -> None:
        """Forget it, installed modules and all."""
        if not self.added():
            fail(3, f"There are no instances of module: {self.name}", f"{self.version} located in the DKMS tree.")
        if self.built():
            self.uninstall()
        print(f"Deleting module {self.name}-{self.version} completely from the DKMS tree.")
        shutil.rmtree(self.top)

    def status(self) -> str:
        """Return its line of `dkms status`."""
        if self.installed():
            return f"{self.name}/{self.version}, {self.kernel}, {ARCH}: installed"
        return (
            f"{self.name}/{self.version}, {self.kernel}, {ARCH}: built"
            if self.built()
            else f"{self.name}/{self.version}: added"
        )


def known(kernel: str) -> list[Build]:
    """Return what the tree holds."""
    return [Build(path.parent.parent.name, path.parent.name, kernel) for path in sorted(TREE.glob("*/*/source"))]


def main() -> None:
    """Parse as dkms does, and act."""
    parse = argparse.ArgumentParser(prog="dkms", add_help=False)
    parse.add_argument("action")
    parse.add_argument("module", nargs="?", default="")
    parse.add_argument("-m", dest="name", default="")
    parse.add_argument("-v", dest="version", default="")
    parse.add_argument("-k", dest="kernel", default=os.uname().release)
    parse.add_argument("-a", "--arch", default=ARCH)
    for flag in ("--all", "--force", "-q"):
        parse.add_argument(flag, action="store_true")
    options = parse.parse_args()
    name, _, version = options.module.partition("/")
    name, version = options.name or name, options.version or version
    if options.action == "status":
        for build in known(options.kernel):
            if name in {"", build.name} and version in {"", build.version}:
                print(build.status())
        return
    if os.geteuid() != 0:
        fail(1, "You must be root to use this command.")
    if options.action == "autoinstall":
        for build in known(options.kernel):
            build.install()
        return
    actions = {"add", "build", "install", "uninstall", "remove"}
    if options.action not in actions:
        fail(1, f"Unknown action specified: {options.action}")
    if not (name and version):
        fail(1, "Arguments <module> and <module-version> are not specified.")
    act = getattr(Build(name, version, options.kernel), options.action)
    act()


if __name__ == "__main__":
    main()
