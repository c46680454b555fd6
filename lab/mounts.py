"""A network mount whose server is gone: a FUSE file system that nobody serves, mounted into a twin from outside."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from lab.run import run, wait_until
from lab.twin import Twin

# The mount lives as long as somebody has its end of /dev/fuse open. Twins have no such device, so it is opened out here.
_MOUNT = """
exec 9<>/dev/fuse
exec nsenter -t "$1" -m -- sh -c 'mkdir -p "$2" &&
    mount -i -t "fuse.$0" -o fd=9,rootmode=40000,user_id=0,group_id=0,allow_other "$1" "$2" && exec sleep 3600' "$4" "$2" "$3"
"""


@contextmanager
def dead_mount(twin: Twin, where: str, source: str, *, kind: str = "glusterfs", hangs: bool = True) -> Iterator[None]:
    """Have a mount at `where` while the block runs: one that never answers, or one whose client has died (ENOTCONN)."""
    pid = run(["docker", "inspect", "-f", "{{.State.Pid}}", twin.container]).stdout.strip()
    client = subprocess.Popen(["sh", "-ec", _MOUNT, "sh", pid, source, where, kind])
    try:
        wait_until(lambda: f" {where} " in twin.exec("cat /proc/mounts").stdout, f"{where} is mounted")
        if not hangs:
            client.kill()
            client.wait()
        yield
    finally:
        client.kill()
        client.wait()
        twin.exec(["umount", "-l", where])
        active = f"systemctl -q is-active $(systemd-escape -p --suffix=mount {where})"
        wait_until(lambda: twin.exec(active, check=False).returncode != 0, f"the unit of {where} is gone")
        twin.exec(["rmdir", where], check=False)
