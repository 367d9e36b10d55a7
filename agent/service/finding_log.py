"""Each finding as a line on stderr, once when it is opened and once when it is closed: for the journal of a service."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agent.batch import Batch
from agent.common import host
from agent.common.duration import instant, span
from agent.common.printable import printable
from agent.common.sentence import pieces, text_of
from agent.log import INFO, NOTICE, WARNING, log_message
from agent.service.containers import of_process
from agent.tables import TABLES

_TABLE = TABLES["finding"]
_KEPT = 256  # closed findings that are remembered: their later rows are logged only if they reopen


class FindingLog:
    """A sink. wall: Unix ns of CLOCK_BOOTTIME ns, arrays of shape (n,)."""

    name = "finding log"

    def __init__(self, wall: Callable[[np.ndarray], np.ndarray]) -> None:
        self._wall = wall
        self._open: dict[
            bytes, bool
        ] = {}  # finding id -> whether it still is; no more than the correlator keeps open, and _KEPT

    def offer(self, batch: Batch) -> None:
        if batch.table != "finding":
            return
        for row in batch.rows:
            found, closed = bytes(row["finding_id"]), row["state"] == _TABLE.code("state", "closed")
            before = self._open.pop(found, None)
            if before is None or (not before and not closed):
                self._write(row, "opened" if before is None else "opened again")
            if closed and before is not False:
                self._write(row, "closed")
            self._open[found] = not closed
        for old in [f for f, still in self._open.items() if not still][:-_KEPT]:
            del self._open[old]

    def _culprit(self, row: np.void) -> dict[str, object]:
        """Its fields that are known."""
        pid = int(row["culprit_pid"])
        names: dict[str, object] = {name: printable(row[name]) for name in ("culprit_comm", "culprit_object")}
        if pid > 0:
            names |= {"culprit_pid": pid, "container_id": of_process(pid).decode()}
        return {name: value for name, value in names.items() if value}

    def losses(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """Nothing is kept open."""

    def _write(self, row: np.void, event: str) -> None:
        severity = _TABLE.by_name["severity"].names[row["severity"]]
        took = row["end_ns"] - row["start_ns"]
        lasted = f" after {span(took)}" if event == "closed" and not instant(took) else ""
        finding_id, sentence = (
            printable(row["finding_id"]),
            printable(text_of(pieces(bytes(row["sentence_parts"]), bytes(row["sentence"])), self._wall)),
        )
        level = INFO if event == "closed" else NOTICE if severity == "notice" else WARNING
        log_message(
            f"tickscope: finding {finding_id} {event}{lasted} ({severity}): {sentence}",
            level,
            event=f"finding_{event.replace(' ', '_')}",
            finding_id=finding_id,
            severity=severity,
            symptom=printable(row["symptom"]),
            subject=printable(row["subject"]),
            cause=printable(row["cause"]),
            confidence=float(row["confidence"]),
            sentence=sentence,
            host=host.name(),
            **self._culprit(row),
            start_ns=int(row["start_ns"]),
            end_ns=int(row["end_ns"]),
        )
