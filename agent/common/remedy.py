"""Remedies for a store that cannot be written or sealed."""

from __future__ import annotations

import errno
import os

#: For a file system that does not answer.
UNANSWERED = "if the file system is frozen, thaw it (fsfreeze --unfreeze MOUNTPOINT); else see the kernel log (dmesg)"


def of_write(error: OSError) -> str:
    """For a write that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space on the store's file system, or lower the store's max_bytes"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "chown -R tickscope:tickscope DIR, with the store's directory"
    if error.errno == errno.ENOENT:
        return "restart tickscope: the store's directory was removed"
    if error.errno == errno.EROFS:
        return "mount the store's file system read-write"
    return "see the kernel log (dmesg) for its disk, or use another directory: --store DIR"


def of_seal(reason: str) -> str:
    """For a sealer that failed, by its last line."""
    if "No module named" in reason:
        return "python3 -m pip install pyarrow (in the agent's environment)"
    if os.strerror(errno.ENOSPC) in reason or os.strerror(errno.EDQUOT) in reason:
        return "free space on the store's file system, or lower the store's max_bytes; tickscope retries every 30 s"
    if ".tsl: " in reason:
        return "move the damaged segment out of the store; the others are sealed"
    return "tickscope retries every 30 s; no rows are lost meanwhile"


def of_store(failure: OSError | None, sealing: str, damaged: str) -> tuple[str, str]:
    """(problem, remedy) of a store. failure: of the last write; sealing: the sealer's last line; damaged: why a batch
    could not be stored. Both empty if all is well.
    """
    if failure is not None:
        return f"cannot write: {failure.strerror}", of_write(failure)
    if sealing:
        return f"cannot seal: {sealing}", of_seal(sealing)
    return (
        (f"some rows cannot be stored: {damaged}", "report this as a bug; the other rows are stored")
        if damaged
        else ("", "")
    )
