"""What an upgrade of the driver may change on a twin; everything else is as foreign as ever."""

import re

_MAY = {
    "package": r"(lib)?nvidia-(kernel-source|kernel-common|dkms|compute|utils|compute-utils)-\d{3}",
    "unit": r"nvidia-persistenced\.service",
    "gpu": r"/system\.slice/nvidia-persistenced\.service",
    "file": r"/usr/bin/nvidia-(smi|powerd|persistenced)"
    r"|/usr/lib/systemd/system/nvidia-persistenced\.service"
    r"|/etc/systemd/system/multi-user\.target\.wants/nvidia-persistenced\.service",
}


def of_an_upgrade(kind: str, name: str) -> bool:
    """Say whether a thing is the driver's own: for `judge.difference(..., expected=of_an_upgrade)`."""
    return kind in _MAY and re.fullmatch(_MAY[kind], name) is not None
