"""Names of a disk and of the devices on it: a limit may be set on one, and system calls wait for the other."""

from __future__ import annotations

import os
from pathlib import Path

_SYS = Path("/sys/dev/block")
_DEEP = 3


def names(device: str, tree: Path = _SYS) -> str:
    """The name of the device major:minor, and those of the devices built on it or on a part of it (LVM, encryption,
    RAID). Empty if unknown.
    """
    try:
        disk = Path(os.path.realpath(tree / device, strict=True))
    except OSError:
        return ""
    found, level = [disk.name], [disk]
    for _ in range(_DEEP):
        level = [
            Path(os.path.realpath(held)) for one in level for held in (*one.glob("holders/*"), *one.glob("*/holders/*"))
        ]
        found += sorted(one.name for one in level)
    return " ".join(dict.fromkeys(found))
