"""What a disk is called, and what lies on it: limits are set on one, and calls wait for the other."""

from __future__ import annotations

import os
from pathlib import Path

_SYS = Path("/sys/dev/block")
_DEEP = 3


def names(device: str, tree: Path = _SYS) -> str:
    """Of major:minor: its name, and those of the devices that are made of it or of a part of it (LVM, encryption,
    RAID). Empty where that is not known.
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
