"""A part that fails: the loop goes on, the rows are stored, and what it cost is reported; one that fails again and
again is left out.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.common.clocks import boot_ns
from agent.common.faults import IN_A_ROW, Faults
from agent.common.host import boot_id as this_boot
from agent.correlate.correlator import Correlator
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import Loaded
from agent.kernel.probe import Ring
from agent.kernel.wire_structs import Wire, wire_records
from agent.service.control import Control, ask
from agent.service.loop import Loop
from agent.store.hot import HotStore
from agent.store.query import Session
from agent.store.writer import Writer
from tests.lab import sockets
from tests.unit.test_loop import Failing, Kept, make_loop


def steady(name: str = "steady") -> Failing:
    """A source of one row a drain."""
    source = Failing(name)
    source.broken = False
    return source


def stored(path: Path, table: str = "tcp_reset") -> int:
    with Session(path, [table]) as session:
        return int(session.run(f"SELECT count(*) FROM {table}").rows[0][0])


class BrokenCorrelator(Correlator):
    """Fails at what it is given, in ``feed`` or in ``advancing``."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.calls = where, 0

    def feed(self, batch: Batch) -> None:
        self._fail("feed")
        super().feed(batch)

    def advancing(self, watermark_ns: int) -> Iterator[list[Batch]]:
        self._fail("advance")
        return super().advancing(watermark_ns)

    def _fail(self, where: str) -> None:
        if where == self.where:
            self.calls += 1
            raise IndexError(f"broken {where}")


@pytest.mark.parametrize(("where", "calls", "unevaluated"), [("feed", IN_A_ROW, 20), ("advance", IN_A_ROW, 42)])
def test_a_correlator_that_fails_costs_findings_and_no_rows(
    tmp_path: Path, where: str, calls: int, unevaluated: int
) -> None:
    source, correlator = steady(), BrokenCorrelator(where)
    loop = Loop([source], Writer(HotStore(tmp_path, this_boot(), "host", seal_command=())), correlator, [])
    now = boot_ns()
    for turn in range(19):
        loop.step(now + turn * 10**9)
    assert list(loop.failures.values()) == [f"IndexError: broken {where}"]
    assert loop.unevaluated()["faults"] >= IN_A_ROW
    loop.finish()
    assert stored(tmp_path) == 20
    assert correlator.calls <= calls
    assert loop.unevaluated()["faults"] <= unevaluated


def test_a_sink_that_fails_is_left_out_and_every_row_that_it_missed_is_a_loss(tmp_path: Path) -> None:
    class Bad(Kept):
        name = "bad"

        def offer(self, batch: Batch) -> None:
            super().offer(batch)
            raise ValueError("no")

    bad, good = Bad(), Kept()
    loop = make_loop(tmp_path, [steady()], bad, good)
    now = boot_ns()
    for turn in range(9):
        loop.step(now + turn)
    assert len(good.rows("tcp_reset")) == 9
    assert len(bad.batches) == IN_A_ROW
    assert loop.faults.out("bad") and not loop.faults.out("kept")
    loop.finish()
    assert loop.lost["export", "bad failed"] >= 10  # the last loss row itself comes after the count
    assert stored(tmp_path) == 10


def test_a_callback_a_second_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    loop, called = make_loop(tmp_path, [steady()]), []

    def broken(now_ns: int) -> None:
        called.append("broken")
        raise OSError(5, "Input/output error")

    loop.each_second += [broken, lambda now_ns: called.append("fine")]
    now = boot_ns()
    for second in range(8):
        loop.step(now + second * 10**9)
    assert (called.count("broken"), called.count("fine")) == (IN_A_ROW, 8)
    loop.finish()


def test_a_readable_socket_whose_callback_fails_is_left_out(tmp_path: Path) -> None:
    loop, ours = make_loop(tmp_path, []), socket.socketpair()
    ours[1].send(b"x")
    called = []

    def broken() -> None:
        called.append(1)
        raise KeyError("unread")

    loop.on_readable(ours[0], broken)
    loop.run(boot_ns() + 200_000_000)
    assert len(called) == IN_A_ROW
    assert not loop.selector.get_map()
    loop.finish()
    for one in ours:
        one.close()


def test_a_request_that_cannot_be_answered_reports_why_and_the_next_is_answered(tmp_path: Path) -> None:
    def broken() -> dict[str, object]:
        raise ZeroDivisionError("status")

    path = tmp_path / "control.sock"
    control = Control(
        sockets.directory(path).listen(path.name, 0o660, socket.SOCK_STREAM, 4),
        {"status": broken, "twice": lambda: {"a": {1, 2}, "b": object()}, "fine": lambda: {"pid": 7}},
    )
    for request, wanted in (("status", "ZeroDivisionError: status"), ("fine", '{"pid": 7}'), ("twice", '"a"')):
        assert wanted in control._document(request).decode()
    assert set(json.loads(control._document("status"))) == {"error"}
    control.close()
    with pytest.raises(Exception, match="no agent answers"):
        ask(str(tmp_path), "status")


def test_one_batch_that_cannot_be_stored_does_not_cost_the_others(tmp_path: Path) -> None:
    store = HotStore(tmp_path, this_boot(), "host", seal_command=())
    odd = Batch("tcp_reset", np.zeros(3, [("t_ns", "<i8"), ("odd", object)]))
    odd.rows["t_ns"] = 5
    store.append([make("tcp_reset", 2, t_ns=3), odd, make("tcp_reset", 4, t_ns=7)], tick_ns=8)
    assert store.losses() == {"tcp_reset": 3}
    assert "cannot be stored: tcp_reset: " in str(store.state()["reason"])
    store.append([make("tcp_reset", 1, t_ns=9)])
    store.close()
    assert stored(tmp_path) == 7
    with Session(tmp_path, ["loss"]) as session:
        assert session.run("SELECT stage, source, count, from_ns, to_ns FROM loss").rows == [
            ("store", "tcp_reset", 3, 5, 5)
        ]


def test_it_may_also_wait_for_a_disk_with_the_others(tmp_path: Path) -> None:
    store = HotStore(tmp_path, this_boot(), "host", seal_command=())
    store._fail(OSError(28, "No space left on device"))
    odd = Batch("tcp_reset", np.zeros(3, [("t_ns", "<i8"), ("odd", object)]))
    store.append([make("tcp_reset", 2, t_ns=3), odd, make("tcp_reset", 4, t_ns=7)])
    store._retry_at = 0
    store.append([])
    store.close()
    assert stored(tmp_path) == 6


def test_what_fails_now_and_then_is_counted_and_not_reported_each_time(capfd: pytest.CaptureFixture[str]) -> None:
    faults = Faults()

    def work(fails: Any) -> int:
        if fails:
            raise RuntimeError("\x1b[31mnow")
        return 1

    assert [faults.attempt("part", work, n % 2, otherwise=0) for n in range(40)] == [1, 0] * 20
    assert faults.counts == {"part": 20}
    assert not faults.out("part")
    assert capfd.readouterr().err == "tickscope: part: RuntimeError: \\x1b[31mnow\n"


class Subscribing(Failing):
    """Takes records of a ring, and fails at each drain."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.held: list[np.ndarray] = []

    def feed(self, records: np.ndarray) -> None:
        self.held.append(records)


class Full:
    """A ring that always has records."""

    refusal: OSError | None = None

    def drain(self) -> np.ndarray:
        return np.zeros(7, "<u8")


class Refused(Full):
    """A ring that cannot be mapped."""

    refusal = OSError(24, "Too many open files")

    def drain(self) -> np.ndarray:
        return np.zeros(0, "<u8")


def test_a_ring_without_a_descriptor_is_counted_and_not_left_out() -> None:
    kernel, taken = KernelSource(Loaded({}, Wire(), [])), list[np.ndarray]()
    kernel.subscribe("ring", taken.append)
    ring = Ring("ring", "record", wire_records)
    readers: list[Any] = [*[Refused()] * (2 * IN_A_ROW), Full()]
    for reader in readers:
        assert not [*kernel._part("ring", partial(kernel._read_ring, ring, reader), boot_ns())]
    assert (kernel.faults.counts["ring"], kernel.faults.out("ring"), len(taken)) == (2 * IN_A_ROW, False, 1)


def test_a_source_that_is_left_out_is_given_no_more_records(tmp_path: Path) -> None:
    kernel, broken, whole = KernelSource(Loaded({}, Wire(), [])), Subscribing("broken"), Subscribing("whole")
    whole.broken = False
    loop = make_loop(tmp_path, [broken, whole])
    loop.removed.append(kernel.unsubscribe)
    kernel.subscribe("ring", broken.feed)
    kernel.subscribe("ring", whole.feed)
    ring = Ring("ring", "record", wire_records)
    for turn in range(10):
        assert list(kernel._read_ring(ring, Full())) == []  # type: ignore[arg-type]
        loop.step(boot_ns() + turn)
    assert (len(broken.held), len(whole.held)) == (IN_A_ROW, 10)
    assert not kernel.faults.failures
    loop.finish()
