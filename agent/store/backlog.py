"""Rows that wait to be stored, in order of arrival. Bounded: the oldest rows are dropped, counted and reported."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from agent.batch import Batch, Loss, losses
from agent.store.outage import Lost

#: A batch, or a watermark (CLOCK_BOOTTIME ns) that the correlator reached after the batches before it.
Entry = Batch | int
#: Memory of an entry beside its rows.
_EACH_BYTES = 256


def size(entry: Entry) -> int:
    """Approximate bytes of memory."""
    return _EACH_BYTES + (entry.rows.nbytes if isinstance(entry, Batch) else 0)


class Backlog:
    """dropped: rows by table since the start. lost: dropped rows without a ``loss`` row yet."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.dropped: Counter[str] = Counter()
        self.lost: dict[str, Lost] = {}
        self._bytes = 0

    @property
    def batches(self) -> list[Batch]:
        return [entry for entry in self.entries if isinstance(entry, Batch)]

    @property
    def rows(self) -> int:
        return sum(len(batch.rows) for batch in self.batches)

    def hold(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.entries.append(entry)
            self._bytes += size(entry)

    def trim(self, most_bytes: int) -> None:
        """Drops the oldest entries until the rest fits."""
        while self._bytes > most_bytes:
            oldest = self.entries.popleft()
            self._bytes -= size(oldest)
            if isinstance(oldest, Batch):
                self.drop(oldest)

    def drop(self, batch: Batch) -> None:
        """Counts rows that are lost."""
        times = batch.rows["t_ns"]
        self.miss({batch.table: (len(batch.rows), int(times.min()), int(times.max()))})

    def miss(self, lost: Mapping[str, Lost]) -> None:
        """Counts rows that were lost elsewhere."""
        for table, (count, start, end) in lost.items():
            before, first, last = self.lost.get(table, (0, start, end))
            self.lost[table] = before + count, min(first, start), max(last, end)
            self.dropped[table] += count

    def unreported(self) -> list[Batch]:
        """Loss rows for the rows dropped since writing failed."""
        return [losses("store", *(Loss(table, *lost) for table, lost in self.lost.items()))] if self.lost else []

    def take(self) -> list[Entry]:
        """Removes and returns all waiting entries."""
        taken, self._bytes = list(self.entries), 0
        self.entries.clear()
        return taken
