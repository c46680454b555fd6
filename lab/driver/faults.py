"""What can go wrong with a twin's driver and hardware, switched on and off from outside.

A fault is a file below /var/lib/twin/faults: it lasts over a reboot, and no snapshot of the judge sees it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from lab.run import wait_until
from lab.twin import Twin

FOLDER = "/var/lib/twin/faults"
# Each fault, what it does, and the meaning of its value.
KINDS = {
    "clock-skew": "`date` is that many seconds ahead, or behind",
    "dkms-build-fails": "a dkms build of the driver version that is the value, or of any, ends with exit 10",
    "ecc-errors": "nvidia-smi counts so many uncorrected memory errors: GPU=COUNT,...",
    "kernel-log": "the kernel's log has this line besides",
    "narrow-link": "a GPU's PCIe link has fewer lanes than it could: GPU=LANES,...",
    "nvlink-bridges": "NVLink bridges join pairs of GPUs: GPU-GPU,... with the lower number first",
    "phantom-user": "the module nvidia stays in use, and no process explains it",
    "refused-version": "the kernel does not take modules of the driver version that is the value",
    "slow-preinst": "every NVIDIA package takes that many seconds before it is unpacked",
    "slow-postinst": "every NVIDIA package takes that many seconds when it is configured",
    "slow-prerm": "every NVIDIA package takes that many seconds before it is removed",
    "slow-dkms-build": "a dkms build takes that many seconds (0.5)",
    "slow-modprobe": "loading takes that many seconds a module (0.1)",
    "slow-rmmod": "unloading takes that many seconds a module (0.1)",
    "throttled": "something besides idleness keeps a GPU's clocks down: GPU=REASONS,... as nvidia-smi's bits, such as 0x40",
}
_LOCK = """
import fcntl, time
held = [open(path, "w") for path in ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock")]
for file in held:
    fcntl.lockf(file, fcntl.LOCK_EX)
time.sleep(3600)
"""
_LOCKING = "unattended-upgrade"


def switch_on(twin: Twin, name: str, value: str | float = "") -> None:
    """Switch a fault on, or give it another value. Raises ValueError for one that there is not."""
    if name not in KINDS:
        raise ValueError(f"no fault {name!r}; there are: {', '.join(KINDS)}")
    twin.write(f"{FOLDER}/{name}", f"{value}\n")


def xid(twin: Twin, gpu: int, number: int, text: str) -> None:
    """Have the driver complain of a GPU in the kernel's log."""
    switch_on(twin, "kernel-log", f"NVRM: Xid (PCI:0000:{gpu + 1:02x}:00): {number}, pid='<unknown>', name=<unknown>, {text}")


def switch_off(twin: Twin, name: str = "") -> None:
    """Switch a fault off, or all of them."""
    twin.exec(f"rm -f {FOLDER}/{name or '*'}")


def remove_headers(twin: Twin) -> None:
    """Take the headers of the running kernel away, as an upgrade to another kernel and `apt-get autoremove` do.

    `apt-get install linux-headers-$(uname -r)` brings them back.
    """
    twin.exec("apt-get purge -qy linux-headers-$(uname -r)")


@contextmanager
def dpkg_locked(twin: Twin) -> Iterator[None]:
    """Hold dpkg's lock while the block runs, as an unattended upgrade does."""
    asked = ["systemd-run", "-q", "--collect", f"--unit={_LOCKING}", "python3", "-c", _LOCK]
    twin.exec(asked)
    try:
        inode = twin.exec("stat -c %i /var/lib/dpkg/lock").stdout.strip()
        wait_until(lambda: f":{inode} " in twin.exec("cat /proc/locks").stdout, "dpkg's lock is taken")
        yield
    finally:
        twin.exec(["systemctl", "stop", _LOCKING], check=False)
