"""What happens to findings, as texts for people and logs: opened, changed, closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from agent.batch import Batch
from agent.common import host
from agent.common.duration import instant, span
from agent.common.places import PLACES
from agent.common.printable import printable
from agent.common.sentence import ToWall, pieces, text_of
from agent.log import INFO, NOTICE, WARNING
from agent.tables import TABLES

_TABLE = TABLES["finding"]
_KEPT = 256  # closed findings that are remembered: their later rows are events only if they reopen
OPENED, REOPENED, CHANGED, CLOSED = "opened", "opened_again", "changed", "closed"
Fields = dict[str, str | int | float]


class FindingEvent(NamedTuple):
    """event: opened, opened_again, changed or closed. fields: of the finding, by column, and ``host``; control
    characters in its texts are escaped. Unknown values are left out.
    """

    event: str
    fields: Fields

    @property
    def message(self) -> str:
        """One line."""
        took = int(self.fields["end_ns"]) - int(self.fields["start_ns"])
        lasted = f" after {span(took)}" if self.event == CLOSED and not instant(took) else ""
        event = self.event.replace("_", " ")
        return f"finding {self.text('finding_id')} {event}{lasted} ({self.text('severity')}): {self.text('sentence')}"

    @property
    def level(self) -> int:
        """The priority, as in syslog(3)."""
        return INFO if self.event == CLOSED else NOTICE if self.text("severity") == "notice" else WARNING

    def text(self, name: str) -> str:
        """A field; empty if it is not known."""
        return str(self.fields.get(name, ""))


class FindingEvents:
    """Events from rows of ``finding``. wall: Unix ns of CLOCK_BOOTTIME ns, arrays of shape (n,). severities: a finding
    opens once it has one of these.
    """

    def __init__(self, wall: ToWall, severities: tuple[str, ...] = ("notice", "alarm")) -> None:
        self._wall, self._severities = wall, severities
        #: finding id -> whether it is open; no more than the correlator keeps open, and _KEPT
        self._open: dict[bytes, bool] = {}

    def of(self, batch: Batch) -> Iterator[FindingEvent]:
        """Two of a finding that has already closed when it is first seen."""
        if batch.table != "finding":
            return
        for row in batch.rows:
            found, closed = bytes(row["finding_id"]), row["state"] == _TABLE.code("state", "closed")
            before = self._open.pop(found, None)
            if before is None and _severity(row) not in self._severities:
                continue
            self._open[found] = not closed
            happened = [OPENED] if before is None else [REOPENED] if not before and not closed else []
            happened += [CLOSED] if closed and before is not False else []
            happened += [CHANGED] if not closed and before else []
            if happened:
                fields = self._fields(row)
                yield from (FindingEvent(event, fields) for event in happened)
        for old in [f for f, still in self._open.items() if not still][:-_KEPT]:
            del self._open[old]

    def _fields(self, row: np.void) -> Fields:
        sentence = text_of(pieces(bytes(row["sentence_parts"]), bytes(row["sentence"])), self._wall)
        fields: Fields = {
            "finding_id": printable(row["finding_id"]),
            "severity": _severity(row),
            "symptom": printable(row["symptom"]),
            "subject": printable(row["subject"]),
            "cause": printable(row["cause"]),
            "confidence": float(row["confidence"]),
            "sentence": printable(sentence),
            "host": host.name(),
        }
        pid = int(row["culprit_pid"])
        known: Fields = {name: printable(row[name]) for name in ("cause_detail", "culprit_comm", "culprit_object")}
        known |= {"culprit_pid": pid} if pid > 0 else {}
        known |= {name: printable(row[name]) for name in PLACES}
        fields |= {name: value for name, value in known.items() if value}
        return fields | {"start_ns": int(row["start_ns"]), "end_ns": int(row["end_ns"])}


def _severity(row: np.void) -> str:
    return _TABLE.by_name["severity"].word(int(row["severity"]))
