"""A store with the rows of a kept recording of the laboratory, and the findings of its replay."""

from __future__ import annotations

import lzma
import tempfile
from pathlib import Path

from agent.batch import Batch, make
from agent.clock.settings import jump_threshold_ns
from agent.columns import NULL_I64
from agent.correlate.correlator import Correlator
from agent.correlate.thresholds import with_threshold
from agent.store.frames import FrameKind
from agent.store.hot import HotStore
from agent.store.recording import Recording

KEPT = Path(__file__).parent / "unit" / "data" / "lab"
#: CLOCK_REALTIME at boot, Unix ns: 2026-11-20 09:13:20 UTC.
BOOTED_NS = 1_795_166_000 * 10**9


def fill(session: str, path: Path) -> None:
    """session: a directory of ``KEPT``. Wall times are those of a host that was booted at ``BOOTED_NS``."""
    with tempfile.NamedTemporaryFile(suffix=".rec") as file:
        file.write(lzma.decompress((KEPT / session / "recording.tsr.xz").read_bytes()))
        file.flush()
        recording = Recording(file.name)
        store = HotStore(path, recording.head.boot_id, "node7", seal_command=())
        correlator = Correlator(with_threshold(jump_threshold_ns("all")))
        moved_ns = 0
        wall = {"real_mono_ns": BOOTED_NS, "boot_mono_ns": 0, "err_ns": 1000, "cut": 1}
        store.append([make("clock_offset", 1, t_ns=1, **wall)])
        for frame in recording:
            if frame.kind == FrameKind.ROWS:
                batch = Batch(frame.table, frame.rows.copy())
                store.append([batch])
                correlator.feed(batch)
                for row in frame.rows if frame.table == "clock_change" else ():
                    if row["size_ns"] != NULL_I64 and row["ret"] >= 0:
                        moved_ns += int(row["size_ns"])
                        moved = {**wall, "t_ns": row["t_ns"], "real_mono_ns": BOOTED_NS + moved_ns}
                        store.append([make("clock_offset", 1, **moved)])
            elif frame.kind == FrameKind.TICK:
                store.append([Batch(*made) for made in correlator.advance(frame.t_ns)])
        store.close()
