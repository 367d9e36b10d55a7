"""The loop with sources, a filter and sinks that fail: what had come is kept, what may be lost is reported, and the
rest goes on.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.ask.window import this_boot
from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.common.clocks import boot_ns
from agent.common.pace import BEAT_NS, beat_after, interval_of, second_of
from agent.contracts import Finishing, Pending, Readable
from agent.correlate.correlator import Correlator
from agent.service.loop import Loop
from agent.store.hot import HotStore
from agent.store.query import Session
from agent.store.writer import Writer
from agent.tables import TABLES

S = 10**9


class Failing(Readable, Pending):
    """A source that yields one row a drain and then fails as long as it is ``broken``; it can also fail in its end."""

    def __init__(self, name: str = "failing", ends: str = "") -> None:
        self.name, self.ends, self.broken, self.closed = name, ends, True, False
        self.ours, self.theirs = socket.socketpair()

    def fds(self) -> list[int]:
        return [self.ours.fileno()] if self.ours.fileno() >= 0 else []

    def pending(self, now_ns: int) -> bool:
        return True

    def drain(self, now_ns: int) -> Iterator[Batch]:
        yield make("tcp_reset", 1, t_ns=now_ns, comm=self.name.encode())
        if self.broken:
            raise KeyError("gone wrong")

    def close(self) -> None:
        self.closed = True
        self.ours.close()
        self.theirs.close()
        if "close" in self.ends:
            raise OSError("cannot be closed")


class Ending(Failing, Finishing):
    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterable[Batch]:
        yield make("tcp_reset", 1, t_ns=now_ns, comm=self.name.encode())
        yield make("tcp_reset", 1, t_ns=now_ns, comm=self.name.encode())
        if "finish" in self.ends:
            raise KeyError("gone wrong at last")


class Kept:
    """A sink that keeps all."""

    name = "kept"

    def __init__(self, ends: str = "") -> None:
        self.batches: list[Batch] = []
        self.ends, self.closed = ends, False

    def offer(self, batch: Batch) -> None:
        self.batches.append(Batch(batch.table, batch.rows.copy()))

    def losses(self) -> dict[str, int]:
        return {"full": 3} if self.closed and self.ends else {}

    def close(self) -> None:
        self.closed = True
        if self.ends:
            raise OSError(self.ends)

    def rows(self, table: str) -> np.ndarray:
        return np.concatenate([TABLES[table].empty(0), *(b.rows for b in self.batches if b.table == table)])


def make_loop(path: Path, sources: list[Any], *sinks: Any) -> Loop:
    return Loop(sources, Writer(HotStore(path, this_boot(), "host", seal_command=())), Correlator(), list(sinks))


class Named:
    """A filter of a function."""

    name = "filter"

    def __init__(self, work: Callable[[Batch, int], Iterable[Batch]]) -> None:
        self.work = work

    def __call__(self, batch: Batch, now_ns: int) -> Iterable[Batch]:
        return self.work(batch, now_ns)


def unknown(rows: np.ndarray) -> list[tuple[str, bytes, int, int]]:
    stages = TABLES["loss"].by_name["stage"].names
    assert (rows["count"] == NULL_I64).all()
    return [(stages[r["stage"]], r["source"], int(r["from_ns"]), int(r["to_ns"])) for r in rows]


def test_beats_fall_on_the_ends_of_seconds_and_of_the_kernel_s_intervals() -> None:
    beats = [12 * S + 345_678_901]
    while len(beats) <= 20:
        beats.append(beat_after(beats[-1] + BEAT_NS // 2))
    assert np.diff(beats[1:]).tolist() == [S // 5] * 19
    assert {at % S for at in beats[1:]} == {100_000_000, 300_000_000, 500_000_000, 700_000_000, 900_000_000}
    ends = [after for before, after in pairwise(beats) if interval_of(after) > interval_of(before)]
    judged = [after for before, after in pairwise(beats) if second_of(after) > second_of(before)]
    assert {at % S for at in ends} == {900_000_000} and {at % S for at in judged} == {300_000_000}


def test_what_came_before_a_failure_is_kept_and_the_rest_is_a_loss_of_unknown_size(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad, good, kept = Failing(), Failing("good"), Kept()
    good.broken = bad.broken = False
    loop = make_loop(tmp_path, [bad, good], kept)
    start = boot_ns()
    loop.step(start)
    bad.broken = True
    loop.step(start + 1)
    bad.broken = False
    loop.step(start + 2)
    assert kept.rows("tcp_reset")["comm"].tolist() == [b"failing", b"good"] * 3
    assert unknown(kept.rows("loss")) == [("intake", b"failing", start, start + 1)]
    assert loop.lost_unknown == {("intake", "failing")}
    assert loop.failures == {"failing": "KeyError: 'gone wrong'"}
    assert "tickscope: failing: KeyError" in capfd.readouterr().err
    loop.finish()
    with Session(tmp_path, ["loss"]) as session:
        assert session.run("SELECT stage, source, count FROM loss").rows == [("intake", "failing", None)]


def test_a_source_that_is_left_out_is_a_loss_as_long_as_the_agent_runs(tmp_path: Path) -> None:
    bad, good, kept = Failing(), Failing("good"), Kept()
    good.broken = False
    loop = make_loop(tmp_path, [bad, good], kept)
    start = boot_ns()
    for turn in range(8):
        loop.step(start + turn)
    assert [s.name for s in loop.sources] == ["good"]
    assert (bad.closed, good.closed) == (True, False)
    assert [k.data for k in loop.selector.get_map().values()] == [good]
    reported = unknown(kept.rows("loss"))
    assert [(from_ns, to_ns) for _, _, from_ns, to_ns in reported[1:]] == [(start + i, start + i + 1) for i in range(4)]
    gone = start + 4
    loop.step(gone + 10 * S)
    loop.step(gone + 11 * S)
    assert unknown(kept.rows("loss"))[5:] == [("intake", b"failing", gone, gone + 10 * S)]
    loop.faults._whole_ns["failing"] = gone
    loop.finish()
    (last,) = unknown(kept.rows("loss")[6:7])
    assert last[:3] == ("intake", b"failing", gone)


def test_a_source_whose_descriptors_went_with_it_is_left_out_too(tmp_path: Path) -> None:
    bad = Failing()
    loop = make_loop(tmp_path, [bad])
    bad.close()
    for turn in range(6):
        loop.step(boot_ns() + turn)
    assert not loop.sources
    assert not loop.selector.get_map()
    loop.finish()


def test_a_filter_that_fails_costs_no_rows_and_is_left_out_in_the_end(tmp_path: Path) -> None:
    source, kept = Failing(), Kept()
    source.broken = False
    loop = make_loop(tmp_path, [source], kept)
    asked = []

    def broken(batch: Batch, now_ns: int) -> Iterable[Batch]:
        asked.append(now_ns)
        yield Batch(batch.table, batch.rows)
        raise OSError(7, "Argument list too long")

    loop.filters.append(Named(broken))
    for turn in range(7):
        loop.step(boot_ns() + turn)
    loop.finish()
    assert len(asked) == 5
    assert len(kept.rows("tcp_reset")) == 8
    assert loop.failures == {"filter of tcp_reset": "OSError: [Errno 7] Argument list too long"}


def test_a_filter_sees_what_the_one_before_let_through(tmp_path: Path) -> None:
    source, kept = Failing(), Kept()
    source.broken = False
    loop = make_loop(tmp_path, [source], kept)

    def doubled(batch: Batch, now_ns: int) -> Iterable[Batch]:
        return (batch, Batch("tcp_close", TABLES["tcp_close"].empty(len(batch.rows))))

    def no_resets(batch: Batch, now_ns: int) -> Iterable[Batch]:
        return (batch,) if batch.table != "tcp_reset" else ()

    loop.filters += [Named(doubled), Named(no_resets)]
    loop.step(boot_ns())
    assert (len(kept.rows("tcp_close")), len(kept.rows("tcp_reset"))) == (1, 0)
    loop.finish()


def test_a_filter_that_fails_at_the_end_does_not_stop_it(tmp_path: Path) -> None:
    source, kept = Ending(), Kept()
    loop = make_loop(tmp_path, [source], kept)

    def broken(batch: Batch, now_ns: int) -> Iterable[Batch]:
        raise OSError(7, "Argument list too long")

    loop.filters.append(Named(broken))
    loop.finish()
    assert len(kept.rows("tcp_reset")) == 2
    assert source.closed
    assert kept.closed


def test_the_end_of_one_that_fails_does_not_cost_the_others_or_the_store(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = Ending("first", "finish close"), Ending("second")
    kept, beside = Kept("cannot end"), Kept("cannot end either")
    beside.name = "beside"
    loop = make_loop(tmp_path, [first, second], kept)
    loop.closing.append(beside)
    loop.finish()
    assert first.closed and second.closed and kept.closed and beside.closed
    assert loop.failures == {
        "first": "OSError: cannot be closed",
        "kept": "OSError: cannot end",
        "beside": "OSError: cannot end either",
    }
    assert "gone wrong at last" in capfd.readouterr().err
    HotStore(
        tmp_path, this_boot(), "host", seal_command=()
    ).close()  # its lock is free, and no segment of it was left open
    with Session(tmp_path, ["loss", "tcp_reset"]) as session:
        assert session.run("SELECT comm, count(*) FROM tcp_reset GROUP BY comm ORDER BY comm").rows == [
            ("first", 2),
            ("second", 2),
        ]
        assert session.run("SELECT stage, source, count FROM loss ORDER BY stage").rows == [
            ("export", "kept full", 3),
            ("intake", "first", None),
        ]


class Deaf(Readable):
    """A source whose descriptor is always readable, and never read."""

    name = "deaf"

    def __init__(self, yields: bool) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.send(b"x")
        self.turns, self.yields = 0, yields

    def fds(self) -> list[int]:
        return [self.ours.fileno()]

    def drain(self, now_ns: int) -> Iterable[Batch]:
        self.turns += 1
        return [make("tcp_reset", 1, t_ns=now_ns, comm=b"deaf")] if self.yields else []

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.mark.parametrize("yields", [False, True])
def test_what_is_readable_and_never_read_does_not_spin(tmp_path: Path, yields: bool) -> None:
    deaf = Deaf(yields)
    loop = make_loop(tmp_path, [deaf])
    loop.run(boot_ns() + S)
    loop.finish()
    assert deaf.turns <= 20 + (200 if yields else 100) * 1.1
