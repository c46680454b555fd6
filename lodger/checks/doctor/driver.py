"""The NVIDIA driver: loaded, installed, built for the kernel, held."""

from __future__ import annotations

from collections.abc import Iterator

from lodger.checks.doctor.finding import error_finding, note_finding, ok_finding, span, warning_finding
from lodger.checks.doctor.reading import HostReading, images_of
from lodger.checks.doctor.report import DoctorFinding
from lodger.engines import engine_in
from lodger.host import facts
from lodger.host.facts import health, packages
from lodger.host.nvidia import cuda_of_driver, version_key


def driver(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that the driver works, is the declared one, and runs the images' CUDA."""
    found, host = at.read[facts.DRIVER], at.host
    upgrade = f"./ops runbook driver-upgrade --host {host.name}"
    if "not found" in found.complaint and "nvidia-smi" in found.complaint:
        measured = f"the kernel has {found.loaded or 'no NVIDIA module'}"
        yield error_finding("nvidia-smi is not installed", measured, f"install driver {host.driver}: {upgrade}")
        return
    if "version mismatch" in found.complaint:
        measured = f"the kernel has {found.loaded}, the library is {at.read[health.ON_DISK].library or 'missing'}"
        todo = f"an upgrade was cut off: {upgrade} finishes it without a reboot; or reboot; then hold the packages"
        yield error_finding("the loaded driver and its library differ", measured, todo)
        return
    if found.complaint:
        yield error_finding(
            "nvidia-smi does not work", found.complaint, "repair the driver; `module`, `installed` and `log` may show why"
        )
        return
    if found.loaded != host.driver:
        measured = f"{found.loaded or 'no module'} is loaded, the inventory says {host.driver}"
        yield error_finding("the driver is not the declared one", measured, f"{upgrade}, or correct `driver:`")
    newest, well = cuda_of_driver(found.loaded) if found.loaded else "", found.loaded == host.driver
    for image in images_of(at.fleet, host).values():
        needs = engine_in(image).cuda(image)
        if needs and newest and version_key(newest) < version_key(needs):
            measured = f"driver {found.loaded} runs CUDA up to {newest}, image {image.name} is built on {needs}"
            well = False
            todo = "upgrade the driver, or pin an image with an older CUDA"
            yield error_finding("the image's CUDA is too new for the driver", measured, todo)
    if well:
        yield ok_finding("module, library and nvidia-smi agree on the declared driver", f"{found.loaded}, CUDA up to {newest}")


def boot(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that the loaded driver is the installed one: a driver installed after the boot is loaded by the next boot."""
    loaded, disk = at.driver.loaded, at.read[health.ON_DISK]
    if not loaded or not disk.module:
        return
    age = disk.changed - disk.booted
    came = f"which came {span(age)} after the boot" if age > 0 else f"which was there {span(-age)} before the boot"
    measured = f"{loaded} is loaded, {disk.module} is on disk, {came}"
    if loaded != disk.module:
        todo = f"the next boot will change the driver: ./ops runbook driver-upgrade --host {at.host.name}, or plan a reboot"
        yield warning_finding("the loaded driver is not the installed one", measured, todo)
    else:
        yield ok_finding("the loaded driver is the installed one", measured)


def module(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that the driver's module is built for the running kernel, and can be built again."""
    kernel, disk = at.read[packages.KERNEL], at.read[health.ON_DISK]
    headers = f"linux-headers-{kernel.release}"
    measured = f"kernel {kernel.release}, dkms built {', '.join(kernel.built) or 'nothing'} for it"
    if not disk.module and not kernel.built:
        late = ": the next boot has no GPU" if at.driver.loaded else ""
        todo = f"apt-get install {headers}, then dkms autoinstall; /var/lib/dkms/nvidia/*/build/make.log says why a build fails"
        yield error_finding(f"no NVIDIA module is built for the running kernel{late}", measured, todo)
    elif kernel.built and not kernel.headers:
        yield warning_finding(
            "the running kernel's headers are missing",
            measured,
            f"no other driver can be built without them: apt-get install {headers}",
        )
    else:
        yield ok_finding("the module is built for the running kernel", f"{measured}; {disk.module or 'no module'} on disk")


def installed(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that dpkg has no unfinished work, and that no unattended upgrade changes the driver."""
    dpkg = at.read[packages.DPKG]
    if not dpkg.packages and "not found" in dpkg.complaint:
        yield note_finding(
            "this is not Debian or Ubuntu: the driver's packages are unknown",
            dpkg.complaint,
            "see that nothing upgrades the driver",
        )
        return
    if dpkg.complaint:
        todo = "an installation was cut off; when nobody else installs packages: dpkg --configure -a && apt-get -f install"
        yield error_finding("dpkg has unfinished work", dpkg.complaint[:400], todo)
    if dpkg.busy:
        yield note_finding("somebody is installing packages now", dpkg.busy, "wait for it before a driver upgrade")
    held_by_us = packages.stack(at.driver.loaded or "")
    stack = [one for one in dpkg.packages.values() if one.well and one.name in held_by_us]
    loose = [one.name for one in stack if not one.held]
    if loose:
        measured = f"not held: {', '.join(loose)}"
        todo = f"apt-mark hold {' '.join(loose)}: otherwise an unattended upgrade leaves a library that does not fit the module"
        yield note_finding("an unattended upgrade may change the driver", measured, todo)
    if not dpkg.complaint:
        yield ok_finding("dpkg has no unfinished work", ", ".join(f"{one.name} {one.version}" for one in stack))
