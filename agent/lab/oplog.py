"""The workload's own logs as arrays."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

#: One operation. duration_ns is never negative; outcome: an index into ``Ops.outcomes``.
DTYPE = np.dtype([("start_ns", np.int64), ("duration_ns", np.int64), ("outcome", np.int16)])


class Ops:
    """The operations of one name of one program, in order of their end."""

    def __init__(self, rows: list[tuple[int, int, str]]) -> None:
        self.outcomes = sorted({row[2] for row in rows})
        number = {name: n for n, name in enumerate(self.outcomes)}
        self.rows = np.array([(start, duration, number[outcome]) for start, duration, outcome in rows], DTYPE)
        self.end_ns = self.rows["start_ns"] + self.rows["duration_ns"]

    def is_(self, *outcomes: str) -> np.ndarray:
        return np.isin(self.rows["outcome"], [n for n, name in enumerate(self.outcomes) if name in outcomes])


def read(directory: Path) -> Mapping[tuple[str, str], Ops]:
    """(program, operation) -> operations, of all logs in a directory. A truncated last line is left out: its writer was
    killed.
    """
    found: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for path in sorted([*directory.glob("*.ndjson"), *directory.glob("*.ndjson.gz")]):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        program = path.name.partition(".ndjson")[0]
        for line in text.splitlines(keepends=True):
            if line.endswith(b"\n"):
                start, duration, op, outcome = json.loads(line)
                found.setdefault((program, op), []).append((start, duration, outcome))
    return {key: Ops(rows) for key, rows in found.items()}


def pack(directory: Path) -> None:
    """Compresses the logs and removes empty ones."""
    for path in directory.glob("*.ndjson"):
        data = path.read_bytes()
        if data:
            path.with_suffix(".ndjson.gz").write_bytes(gzip.compress(data, 6, mtime=0))
        path.unlink()
