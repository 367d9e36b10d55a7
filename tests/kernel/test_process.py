"""Processes that are stopped, go on and end, and who made them: each is one row."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.kernel.probe import Parts
from agent.probes import process
from agent.tables import TABLES
from tests.kernel.conftest import Attached
from tests.patience import until

Attach = Callable[..., Attached]
_TABLE = TABLES["process_event"]
STOPPED, CONTINUED, KILLED, EXITED, FROZEN, THAWED = (
    _TABLE.code("kind", k) for k in ("stopped", "continued", "killed", "exited", "frozen", "thawed")
)
UNIFIED = next(
    (p for p in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if (p / "cgroup.procs").exists()), None
)
SLEEP = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"]


@contextlib.contextmanager
def sleepers(n: int, argv: Sequence[str] = SLEEP) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs that run by now."""
    with contextlib.ExitStack() as stack:
        some = [stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE)) for _ in range(n)]
        for one in some:
            stack.callback(one.kill)
            assert one.stdout is not None
            one.stdout.readline()
        yield some


def of(pids: Sequence[int]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda rows: rows[np.isin(rows["pid"], pids)]


def reported(attached: Attached, pids: Sequence[int], n: int) -> np.ndarray:
    return attached.wait("process_event", of(pids), lambda rows: len(rows) >= n)


def test_what_is_stopped_before_is_one_row_without_a_signal(attach: Attach) -> None:
    with sleepers(2) as (stopped, runs):
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitpid(stopped.pid, os.WUNTRACED)
        attached = attach("process")
        family = attached.loaded.families["process"]
        attached.extra += process.setup(family, attached.source, None, None, Parts())
        (row,) = reported(attached, [stopped.pid, runs.pid], 1)
        assert (row["pid"], row["kind"], row["signal"]) == (stopped.pid, STOPPED, NULL_I64)
        assert (row["parent_pid"], row["comm"][:6]) == (os.getpid(), b"python")


def test_each_stop_and_what_ends_it(attach: Attach) -> None:
    attached = attach("process")
    with sleepers(3) as some:
        pids = [one.pid for one in some]
        for _ in range(7):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
                os.waitpid(pid, os.WUNTRACED)
                os.kill(pid, signal.SIGCONT)
                os.waitpid(pid, os.WCONTINUED)
        time.sleep(0.2)  # until they have taken notice: before that, one that goes on may be reported twice
        for pid in pids:
            os.kill(pid, signal.SIGCONT)  # it runs: nothing to tell
        rows = reported(attached, pids, 42)
    assert len(rows) == 42
    for pid in pids:
        mine = rows[rows["pid"] == pid]
        assert mine["kind"].tolist() == [STOPPED, CONTINUED] * 7
        assert mine["signal"].tolist() == [signal.SIGSTOP, signal.SIGCONT] * 7
        assert (np.diff(mine["t_ns"]) > 0).all()
    assert set(rows["sender_pid"]) == {os.getpid()}
    assert set(rows["sender_comm"]) == {Path("/proc/self/comm").read_bytes().strip()}
    assert set(rows["exit_code"]) == {NULL_I64}
    assert attached.lost() == 0


def test_each_end_by_a_signal_and_who_sent_it(attach: Attach) -> None:
    attached = attach("process")
    numbers = [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL]
    with sleepers(5) as some:
        for one, number in zip(some, numbers, strict=True):
            one.send_signal(number)
        codes = [one.wait() for one in some]
        rows = reported(attached, [one.pid for one in some], 5)
    assert codes == [-n for n in numbers]
    assert len(rows) == 5
    by_pid = {int(row["pid"]): row for row in rows}
    for one, number in zip(some, numbers, strict=True):
        assert (by_pid[one.pid]["kind"], by_pid[one.pid]["signal"]) == (KILLED, number)
    assert set(rows["sender_pid"]) == {os.getpid()}
    assert attached.lost() == 0


def test_an_end_of_its_own_reports_its_status_and_who_asked(attach: Attach) -> None:
    attached = attach("process")
    asked = [
        sys.executable,
        "-S",
        "-c",
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); print(flush=True); time.sleep(60)",
    ]
    alone = [
        sys.executable,
        "-S",
        "-c",
        (
            "import sys, threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start();"
            " print(flush=True); time.sleep(1.2); sys.exit(7)"
        ),
    ]
    with (
        sleepers(1, asked) as (one,),
        sleepers(1, alone) as (two,),
        sleepers(1, [sys.executable, "-c", "print(flush=True)"]) as (short,),
    ):
        one.terminate()
        assert (one.wait(), two.wait(), short.wait()) == (3, 7, 0)
        rows = reported(attached, [one.pid, two.pid, short.pid], 2)
    assert sorted(rows["pid"]) == sorted([one.pid, two.pid])  # the short one is not reported
    first, second = rows[rows["pid"] == one.pid][0], rows[rows["pid"] == two.pid][0]
    assert (first["kind"], first["exit_code"], first["signal"], first["sender_pid"]) == (
        EXITED,
        3,
        signal.SIGTERM,
        os.getpid(),
    )
    assert (second["kind"], second["exit_code"], second["signal"], second["sender_pid"]) == (
        EXITED,
        7,
        NULL_I64,
        NULL_I64,
    )


def test_a_signal_that_a_program_takes_itself_stops_nothing(attach: Attach) -> None:
    attached = attach("process")
    takes = [
        sys.executable,
        "-S",
        "-c",
        "import signal, time; signal.signal(20, lambda *_: None); print(flush=True)\nwhile True: time.sleep(1)",
    ]
    with sleepers(1, takes) as (deaf,), sleepers(1) as (one,):
        for _ in range(5):
            deaf.send_signal(signal.SIGTSTP)
            time.sleep(0.02)
        one.send_signal(signal.SIGSTOP)
        rows = reported(attached, [deaf.pid, one.pid], 1)
    assert set(rows["pid"]) == {one.pid}


@contextlib.contextmanager
def to_freeze() -> Iterator[tuple[Path, int]]:
    """A cgroup with a process."""
    assert UNIFIED is not None
    place = UNIFIED / f"ts-frozen-{os.getpid()}"
    place.mkdir()
    try:
        with sleepers(1) as (one,):
            (place / "cgroup.procs").write_text(str(one.pid))
            yield place, one.pid
            (place / "cgroup.freeze").write_text("0")
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                place.rmdir()
                break
            time.sleep(0.1)


@pytest.mark.skipif(UNIFIED is None, reason="no cgroup version 2 here")
def test_what_is_frozen_before_is_one_row_without_a_sender(attach: Attach) -> None:
    with to_freeze() as (place, pid):
        (place / "cgroup.freeze").write_text("1")
        until(lambda: "frozen 1" in (place / "cgroup.events").read_text())
        attached = attach("process")
        family = attached.loaded.families["process"]
        attached.extra += process.setup(family, attached.source, None, None, Parts())
        (row,) = reported(attached, [pid], 1)
        assert (row["kind"], row["cgroup_id"], row["sender_comm"]) == (FROZEN, place.stat().st_ino, b"")


@pytest.mark.skipif(UNIFIED is None, reason="no cgroup version 2 here")
def test_a_frozen_cgroup_is_reported_with_who_froze_it(attach: Attach) -> None:
    attached = attach("process")
    with to_freeze() as (place, _):
        for _ in range(3):
            (place / "cgroup.freeze").write_text("1")
            (place / "cgroup.freeze").write_text("0")
        inode = place.stat().st_ino
        rows = attached.wait("process_event", lambda r: r[r["cgroup_id"] == inode], lambda r: len(r) >= 6)
    assert rows["kind"].tolist() == [FROZEN, THAWED] * 3
    assert set(rows["sender_pid"]) == {os.getpid()}
    assert set(rows["pid"]) == {NULL_I64}


@pytest.mark.parametrize(
    ("program", "kinds"), [("process_on_signal", {KILLED}), ("process_on_exit", {STOPPED, CONTINUED})]
)
def test_nothing_comes_of_what_is_detached(attach: Attach, program: str, kinds: set[int]) -> None:
    attached = attach("process")
    os.close(attached.loaded.families["process"].links.pop(program))
    with sleepers(1) as (one,):
        one.send_signal(signal.SIGSTOP)
        os.waitpid(one.pid, os.WUNTRACED)
        one.send_signal(signal.SIGCONT)
        one.kill()
        one.wait()
        rows = reported(attached, [one.pid], len(kinds))
    assert set(rows["kind"]) == kinds
    if kinds == {KILLED}:
        assert set(rows["sender_pid"]) == {NULL_I64}


def test_what_the_sender_is_to_the_process(attach: Attach) -> None:
    attached = attach("process")
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    by: dict[str, int] = {}
    for name in ("parent", "ancestor", "other"):
        with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as master:
            assert master.stdout is not None
            child = int(master.stdout.readline())
            if name == "parent":
                by[name] = master.pid
                master.kill()
                master.wait()
                os.kill(child, signal.SIGKILL)
                continue
            by[name] = child
            if name == "ancestor":
                os.kill(child, signal.SIGKILL)
            else:
                subprocess.run([sys.executable, "-S", "-c", f"import os; os.kill({child}, 9)"], check=True)
    rows = reported(attached, [*by.values()], len(by))
    names = {int(row["pid"]): _TABLE.by_name["sender_is"].word(int(row["sender_is"])) for row in rows}
    assert names == {pid: name for name, pid in by.items()}
