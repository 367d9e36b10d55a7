"""A program that writes a journal and syncs each entry."""

from __future__ import annotations

import os
import time
from pathlib import Path


def sync_files(directory: Path) -> None:
    """Five entries a second; the journal starts anew at 1 MiB."""
    with (directory / "journal").open("wb", buffering=0) as journal:
        while True:
            journal.write(os.urandom(4096))
            os.fsync(journal.fileno())
            if journal.tell() >= 1 << 20:
                journal.truncate(0)
                journal.seek(0)
            time.sleep(0.2)
