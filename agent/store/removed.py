"""Notes what retention removed. Segments are numbered from 1 on, so the oldest complete one shows whether some are
gone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agent.ask.window import Bound
from agent.columns import NULL_I64
from agent.common.sentence import text_of
from agent.store.frames import Head


def note(oldest: Head | None, since: Bound | None, wall: Callable[[str, np.ndarray], np.ndarray]) -> str | None:
    """A note if the query begins (``since``) before the oldest remaining rows, else None.

    oldest: of the oldest complete segment, None if none before it is missing. wall: boot id, CLOCK_BOOTTIME ns -> Unix
    ns, arrays of shape (n,); NULL_I64 if unknown, when the note is given in any case.
    """
    if oldest is None:
        return None
    start = np.array([oldest.created_ns], np.int64)
    if since is not None:
        if since.boot_id == oldest.boot_id:
            reaches = since.t_ns < oldest.created_ns
        else:
            begin = int(wall(oldest.boot_id, start)[0])
            reaches = since.wall_ns is not None and (begin == NULL_I64 or since.wall_ns < begin)
        if not reaches:
            return None
    removed = (
        "rows before ",
        oldest.created_ns,
        " were removed by retention (max_bytes, max_age_days), all but findings and their evidence",
    )
    return text_of(removed, lambda t: wall(oldest.boot_id, t))
