"""The clock as a source: samples of the offsets and clock changes, one row each. Keeps the live offset history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from agent.batch import Batch
from agent.clock import sample, timex
from agent.clock.calls import NOISE_NS
from agent.clock.change import Change
from agent.clock.history import History
from agent.clock.join import Join
from agent.clock.machine import PAUSE_NS, Watcher
from agent.clock.missed_notices import MissedNotices
from agent.clock.slope import Slope
from agent.columns import NULL_I64
from agent.contracts import Pending, Readable, Stating
from agent.kernel.wire_structs import decode
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.clock.last import LastReading
    from agent.clock.watch_process import WatchProcess

SAMPLE_NS = 1_000_000_000
#: A sample without a change becomes a row at this interval.
ROW_NS = 10_000_000_000
_DRIFT_SAMPLES = 128
#: Length of the live history, which dates exported rows. The store keeps all of it, for the commands.
MOST_SEGMENTS = 1024
_COMPACT_ROWS = 4 * MOST_SEGMENTS
#: The watch reports a pause this soon after the agent has noticed its own.
_REPORT_NS = 1_000_000_000


class ClockSource(Stating, Readable, Pending):
    """Implements ``agent.contracts.Source``. Without kernel programs it works too, but steps have no actor.

    history: gets every sample and step. last: the reading that an earlier agent stored; None if nothing stores it.
    Raises OSError if the clocks cannot be read.
    """

    name = "clock"

    def __init__(self, watch: WatchProcess, history: History, last: LastReading | None = None) -> None:
        self._watch, self.history, self._last = watch, history, last
        reading, state = sample.read(), timex.read()
        self._missed = missed(last.earlier, reading, state) if last is not None and last.earlier is not None else []
        self._join = Join(reading, state)
        self._sampled_ns = self._row_ns = reading.t_ns
        #: For the next ``drain``, when all earlier kernel records have arrived.
        self._taken: tuple[sample.Reading, timex.Timex] | None = None
        self._drift = np.zeros((_DRIFT_SAMPLES, 2), np.int64)
        self._samples = 0
        self._reported: object = None
        self._slope = Slope()
        self._missed_notices = MissedNotices(watch.outages)
        self._machine = Watcher(reading.t_ns, watch.vmclock, watch.host_clock)
        self._ran_ns = reading.t_ns
        self._gap: tuple[int, int] | None = None
        #: Whether a time daemon of this host reports that it keeps the clock. chrony without rtcsync does not set the
        #: kernel's flag.
        self.daemon_synchronised: Callable[[], bool] = lambda: False
        self._first = [sample.row(reading, state, cut=False, synchronised=state.synchronised)]
        history.append(self._first[0])
        self._count(reading)

    def on_events(self, records: np.ndarray) -> None:
        """Takes records of ``struct clock_event``."""
        self._join.feed(records)

    def fds(self) -> list[int]:
        """The watch's socket, so that a step wakes the loop."""
        return [self._watch.sock.fileno()]

    def pending(self, now_ns: int) -> bool:
        self._note_gap(now_ns)
        return bool(self._join.pending or self._gap)

    def _note_gap(self, now_ns: int) -> None:
        """Notes when this process could not run."""
        if now_ns - self._ran_ns >= PAUSE_NS:
            self._gap = (self._ran_ns, now_ns)
        self._ran_ns = now_ns

    def drain(self, now_ns: int) -> Iterator[Batch]:
        if self._first:
            yield Batch("clock_offset", self._first.pop())
            if self._missed:
                yield Batch("clock_change", to_rows(self._missed))
            if self._last is not None:
                self._last.keep(self._join.reading)
        for message in self._watch.messages():
            self._join.hint(message.t_ns, message.real_mono_after_ns)
            self._missed_notices.note(message)
            self._sampled_ns = 0
        self._note_gap(now_ns)
        due = now_ns - self._sampled_ns >= SAMPLE_NS
        if not due and not self._join.pending and not self._gap:
            return
        taken, self._taken = self._taken, None
        if self._join.pending and taken is None:
            self._taken = sample.read(), timex.read()
            return
        reading, state = taken or (sample.read(), timex.read())
        changes = self._join.settle(reading, state)
        changes += self._pauses(now_ns, any(c.kind == "suspend" for c in changes))
        if changes:
            self._slope.skip()
        cuts = [self._cut(c, reading, state) for c in changes if c.size_ns and c.kind in ("step", "leap")]
        rows = cuts
        if due and not self._join.pending:  # else the cause of a step is still open
            self._sampled_ns = reading.t_ns
            changes += self._checked_changes(reading, state)
            rows = cuts + self._sample(reading, state)
            self.history.watched(reading.t_ns)
        if rows:
            self.history.append(np.concatenate(rows))
            if len(self.history) > _COMPACT_ROWS:
                self.history.compact(MOST_SEGMENTS)
            yield Batch("clock_offset", np.concatenate(rows))
        if self._join.pending:
            self._taken = sample.read(), timex.read()
        elif self._last is not None:
            self._last.keep(reading)
        if changes:
            yield Batch("clock_change", to_rows(changes))
            yield from self._missed_notices.losses(changes, now_ns)

    def _pauses(self, now_ns: int, slept: bool) -> list[Change]:
        """A pause of the machine, once both the watch and this process have noticed that they could not run. slept: the
        machine was suspended.
        """
        late, gap = self._watch.late(), self._gap
        if gap is None or slept or now_ns - gap[1] > _REPORT_NS:
            self._gap = None
            return []
        for one in late:
            found = self._machine.paused(now_ns, gap, one)
            if found is not None:
                self._gap = None
                stolen = f"stolen={found.stolen_ns // 1_000_000}ms" if found.stolen_ns else ""
                return [Change(found.t_ns, "pause", size_ns=found.size_ns, err_ns=found.err_ns, modes=stolen)]
        return []

    def _checked_changes(self, reading: sample.Reading, state: timex.Timex) -> list[Change]:
        """Changes that are checked for once a second: another clocksource, a restored machine, an unexplained rate."""
        found, t_ns = [], reading.t_ns
        if self._gap is None:
            self._machine.check(t_ns)
        if (sources := self._machine.switched()) is not None:
            found.append(self._still(t_ns, "clocksource", " > ".join(sources), reading, state))
        if (restored := self._machine.restored()) is not None:
            found.append(self._still(t_ns, "restore", restored.how, reading, state))
            found[-1].size_ns, found[-1].err_ns = restored.size_ns, restored.err_ns or reading.err_ns
        if found:
            self._slope.skip()
        explained = None if state.offset_ns or state.adjust_ns else state.freq_ppb
        bend = self._slope.add(t_ns, reading.mono_raw_ns, reading.err_ns, explained)
        if bend is not None:
            row = self._still(bend.t_ns, "frequency", "", reading, state)
            row.freq_before_ppb, row.freq_after_ppb = bend.before_ppb, bend.after_ppb
            found.append(row)
        return found

    @staticmethod
    def _still(t_ns: int, kind: str, modes: str, reading: sample.Reading, state: timex.Timex) -> Change:
        """A row for a change that did not move REALTIME."""
        return Change(
            t_ns,
            kind,
            modes=modes,
            size_ns=0,
            err_ns=reading.err_ns,
            real_mono_before_ns=reading.real_mono_ns,
            real_mono_after_ns=reading.real_mono_ns,
            freq_before_ppb=state.freq_ppb,
            freq_after_ppb=state.freq_ppb,
        )

    def _cut(self, change: Change, reading: sample.Reading, state: timex.Timex) -> np.ndarray:
        assert change.real_mono_after_ns is not None
        at = reading._replace(t_ns=change.t_ns, real_mono_ns=change.real_mono_after_ns, err_ns=change.cut_err_ns)
        row = sample.row(at, state, cut=True, synchronised=self._synchronised(state))
        row["mono_raw_ns"] = row["tai_mono_ns"] = NULL_I64
        return row

    def _sample(self, reading: sample.Reading, state: timex.Timex) -> list[np.ndarray]:
        """The sample as a row, if something changed or a row is due."""
        self._count(reading)
        synchronised = self._synchronised(state)
        reported = (*state.discipline, synchronised, reading.boot_mono_ns // 1_000_000)
        if reported == self._reported and reading.t_ns - self._row_ns < ROW_NS:
            return []
        self._reported, self._row_ns = reported, reading.t_ns
        return [sample.row(reading, state, cut=False, synchronised=synchronised)]

    def _synchronised(self, state: timex.Timex) -> bool:
        return state.synchronised or self.daemon_synchronised()

    def _count(self, reading: sample.Reading) -> None:
        self._drift[self._samples % _DRIFT_SAMPLES] = reading.t_ns, reading.mono_raw_ns
        self._samples += 1

    def drift_ppb(self) -> float:
        """Rate of REALTIME against MONOTONIC_RAW over the last two minutes, without steps, in ppb; NaN before the
        second sample.
        """
        n = min(self._samples, _DRIFT_SAMPLES)
        window = np.roll(self._drift[:n], -(self._samples % n) if self._samples > n else 0, axis=0)
        return sample.drift_ppb(window[:, 0], window[:, 1])

    def state(self) -> dict[str, object]:
        """For ``status``: offsets, drift, the discipline."""
        reading, state = self._join.reading, self._join.timex
        drift, synchronised = self.drift_ppb(), self._synchronised(state)
        return {
            **reading._asdict(),
            "drift_ppb": None if np.isnan(drift) else round(drift),
            "freq_ppb": state.freq_ppb,
            "synchronised": synchronised,
            "ntp_offset_ns": state.offset_ns,
            "leap_indicator": state.leap_indicator(synchronised),
            "maxerror_us": state.maxerror_us,
            "esterror_us": state.esterror_us,
            "tai_s": state.tai_s,
            "segments": len(self.history.segments.start_ns),
            "segments_forgotten": self.history.forgotten,
            "late_records": self._join.late,
            **self._watch.state(),
        }

    def close(self) -> None:
        """Does nothing: the agent closes the watch and the history."""
        self._machine.close()
        if self._last is not None:
            self._last.close()


def missed(earlier: sample.Reading, now: sample.Reading, state: timex.Timex) -> list[Change]:
    """The step or leap second between two readings of one boot, dated at the later one. ``modes`` and ``unwatched_ns``
    give the time without a watch.
    """
    size, err = now.real_boot_ns - earlier.real_boot_ns, earlier.err_ns + now.err_ns
    if now.t_ns < earlier.t_ns or abs(size) <= err + NOISE_NS:
        return []
    shift = (
        now.tai_mono_ns - now.boot_mono_ns - (earlier.tai_mono_ns - earlier.boot_mono_ns)
    )  # of TAI, which a leap second does not move
    leapt = abs(abs(size) - 10**9) <= err + NOISE_NS and abs(shift) <= err + NOISE_NS
    after = now.real_mono_ns
    return [
        Change(
            now.t_ns,
            "leap" if leapt else "step",
            modes=f"unwatched={(now.t_ns - earlier.t_ns) / 1e9:.1f}s",
            size_ns=size,
            err_ns=err,
            real_mono_before_ns=after - size,
            real_mono_after_ns=after,
            freq_before_ppb=state.freq_ppb,
            freq_after_ppb=state.freq_ppb,
            unwatched_ns=now.t_ns - earlier.t_ns,
        )
    ]


def to_rows(changes: Iterable[Change]) -> np.ndarray:
    """Rows of ``clock_change``."""
    table = TABLES["clock_change"]
    parts = []
    for change in changes:
        row = table.empty(1) if change.record is None else decode(change.record.reshape(1), "clock_change").rows
        row["t_ns"], row["kind"], row["via"], row["modes"] = (
            change.t_ns,
            table.code("kind", change.kind),
            change.via.encode(),
            change.modes.encode(),
        )
        for name in (
            "requested_ns",
            "size_ns",
            "err_ns",
            "real_mono_before_ns",
            "real_mono_after_ns",
            "freq_before_ppb",
            "freq_after_ppb",
            "ret",
            "unwatched_ns",
        ):
            value = getattr(change, name)
            row[name] = NULL_I64 if value is None else value
        if change.size_ns and change.kind in ("step", "leap") and (change.ret or 0) >= 0:
            row["direction"] = table.code("direction", "forward" if change.size_ns > 0 else "backward")
        parts.append(row)
    return np.concatenate(parts)
