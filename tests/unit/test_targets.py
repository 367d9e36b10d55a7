"""Which files the processes of this host have mapped, by the real helper: what is known of them while it cannot be
asked, and what is asked for again.
"""

from __future__ import annotations

import mmap
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent.common.fairness import Budget
from agent.kernel import helper as server
from agent.kernel.helper_client import start
from agent.kernel.kernel_source import KernelSource
from agent.kernel.limits import INSPECTION_PART, LONGEST_S, MAPPINGS_A_FILE
from agent.kernel.loaded_families import Loaded
from agent.kernel.steps import Done, Steps, at_once, run
from agent.kernel.wire_structs import Wire
from agent.posix.child import fork
from agent.probes.exec import STARTED
from agent.targets.asked import HOST, ProbeRequest, Target
from agent.targets.targets import Targets
from agent.targets.writes import Writes
from tests.patience import PATIENCE, until

NOBODY = 65534
#: Maps a page of a file as code for each line "TIMES PATH", or grows by a megabyte for an empty one. It handles what a
#: Go runtime does.
MAPPER = f"""
import ctypes, os, signal, sys
for number in signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGURG: signal.signal(number, print)
mmap = ctypes.CDLL(None).mmap
mmap.argtypes, mmap.restype = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long], ctypes.c_void_p
kept = []
for line in sys.stdin:
    times, _, path = line.strip().partition(" ")
    if path:
        fd = os.open(path, os.O_RDONLY)
        for _ in range(int(times)): mmap(None, 4096, {mmap.PROT_READ | mmap.PROT_EXEC}, {mmap.MAP_PRIVATE}, fd, 0)
    else:
        kept.append(bytes(1 << 20))
    print("done", flush=True)
"""
#: The scans see the whole host, and so what another process that runs these tests maps.
NAME = f"libtried{os.getpid()}x"


class Program:
    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child

    def do(self, line: str = "") -> None:
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()
        assert self.child.stdout.readline() == "done\n"

    def maps(self, path: Path, times: int = 1) -> None:
        self.do(f"{times} {path}")


class Rig:
    """Libraries by the name NAME are asked for; nothing is loaded into the kernel. errors: what attaching fails
    with next.
    """

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.cost_s = 0.0
        self.offered: list[str] = []
        self.live: list[str] = []
        self.helper = start(fork("helper", server.serve), NOBODY, NOBODY, "")
        self.targets = Targets(self.helper, KernelSource(Loaded({}, Wire(), [])), linker_cache="/nonexistent")
        self.targets.library(
            rb"%s\d*\.so" % NAME.encode(), ProbeRequest("functions", self._found, "test", {"names": []})
        )
        self.targets.start()

    def _found(self, target: Target, analysis: object) -> Steps[Any]:
        del analysis
        self.offered.append(target.path)
        time.sleep(self.cost_s)
        yield at_once(lambda: None)
        if self.errors:
            raise self.errors.pop(0)
        self.live.append(target.path)
        return SimpleNamespace(close=lambda: self.live.remove(target.path))

    def turn(self) -> None:
        self.targets.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def scan(self) -> None:
        """A full one, to its end."""
        self.targets._full_ns = 1
        self.turn()
        self.until(lambda: self.helper.silent or self.targets._quiet())

    def until(self, done: Callable[[], Any]) -> None:
        until(done, 20, 0.005, turn=self.turn)

    def close(self) -> None:
        self.targets.close()
        if self.helper.alive:
            os.kill(self.helper.pid, signal.SIGCONT)
        self.helper.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    one = Rig()
    yield one
    one.close()


@contextmanager
def running(uid: int = 0) -> Iterator[Program]:
    with subprocess.Popen(
        [sys.executable, "-c", MAPPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=uid
    ) as child:
        yield Program(child)
        child.communicate()


@pytest.fixture
def program() -> Iterator[Program]:
    with running() as one:
        yield one


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return Path(shutil.copy("/bin/true", tmp_path / f"{NAME}.so"))


def test_what_could_not_be_attached_is_tried_again_by_the_next_scan(rig: Rig, program: Program, library: Path) -> None:
    """Also if the process stays as large as it is."""
    rig.errors = [TimeoutError(110, "Connection timed out"), TimeoutError(110, "Connection timed out")]
    program.maps(library)
    for tried in (1, 2, 3, 3):
        rig.scan()
        assert len(rig.offered) == tried
    assert rig.live == [str(library)]
    assert rig.targets.unprobed_programs.reported() == []


def test_what_has_its_probes_keeps_them_when_the_helper_is_gone(rig: Rig, program: Program, library: Path) -> None:
    program.maps(library)
    rig.scan()
    assert rig.live == [str(library)]
    os.kill(rig.helper.pid, signal.SIGKILL)
    for _ in range(4):
        program.do()
        rig.scan()
    assert not rig.helper.alive
    assert rig.live == [str(library)]


def test_what_has_its_probes_keeps_them_while_scans_fail(
    rig: Rig, program: Program, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helper is stopped again and again, just when the process has grown."""
    monkeypatch.setattr("agent.kernel.helper_client.DEADLINE_S", 0.05)
    program.maps(library)
    rig.scan()
    assert rig.live == [str(library)]
    for _ in range(4):
        program.do()
        os.kill(rig.helper.pid, signal.SIGSTOP)
        rig.targets._full_ns = 1
        rig.until(lambda: rig.helper.silent)
        os.kill(rig.helper.pid, signal.SIGCONT)
        rig.until(lambda: not rig.helper.silent)
        assert rig.live == [str(library)]
    rig.scan()
    assert rig.offered == [str(library)]


def test_nothing_turns_or_grows_while_the_helper_is_silent(
    rig: Rig, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.kernel.helper_client.DEADLINE_S", 0.05)
    os.kill(rig.helper.pid, signal.SIGSTOP)
    program.do()
    rig.targets._full_ns = 1
    rig.until(lambda: rig.helper.silent)
    for _ in range(3):
        rig.targets._full_ns = 1
        rig.turn()
    assert len(rig.targets._scan) < 2 * len([name for name in os.listdir("/proc") if name.isdigit()])
    waiting, turns, end = select.poll(), 0, time.monotonic() + 1
    for fd in rig.targets.fds():
        waiting.register(fd, select.POLLIN)
    while time.monotonic() < end:
        waiting.poll(1000)
        rig.turn()
        turns += 1
    assert turns < 15


def test_a_file_that_is_written_to_loses_its_probes_at_once_and_gets_others(
    rig: Rig, program: Program, library: Path
) -> None:
    """Else breakpoints would be put where its former content had instructions. One that is replaced by renaming keeps
    them: those who run it have the former one.
    """
    program.maps(library)
    rig.scan()
    assert rig.live == [str(library)]
    with library.open("ab") as file:
        file.write(b"another")
    assert select.select(rig.targets.files.writes.fds(), [], [], 5)[0]
    rig.turn()
    assert rig.live == []
    rig.scan()
    assert rig.live == [str(library)]
    shutil.copy("/bin/true", library.with_name("next"))
    library.with_name("next").rename(library)
    rig.turn()
    assert len(rig.live) == 1


def test_a_file_that_is_written_to_while_it_is_examined_gets_no_probes(rig: Rig, library: Path) -> None:
    """The next scan looks at it anew."""
    done: list[object] = []
    with library.open("r+b") as file:
        ask = ProbeRequest("functions", rig._found, "test", {"names": []})
        run(rig.targets.files.offer(HOST, str(library), file.fileno(), [], [ask]), lambda *end: done.append(end))
        os.pwrite(file.fileno(), b"another", library.stat().st_size)
        rig.until(lambda: done)
    assert rig.offered == []


def test_who_finds_nothing_in_a_file_leaves_others_theirs_to_hear_of_it(rig: Rig, library: Path) -> None:
    """Two who ask at one time: the first goes away empty while the second still gets its probes."""
    held: list[Done] = []

    def nothing(_target: Target, _analysis: object) -> Steps[None]:
        yield held.append

    def something(target: Target, analysis: object) -> Steps[Any]:
        yield held.append
        return (yield from rig._found(target, analysis))

    with library.open("r+b") as file:
        for found in (nothing, something):
            ask = ProbeRequest("functions", found, "test", {"names": []})
            run(rig.targets.files.offer(HOST, str(library), file.fileno(), [], [ask]), lambda *_: None)
        rig.until(lambda: len(held) == 2)
        for done in held:
            done(None, None)
        rig.until(lambda: rig.live)
        os.pwrite(file.fileno(), b"another", 0)
        rig.turn()
    assert rig.live == []


def test_who_writes_on_and_on_hides_no_other_write(tmp_path: Path) -> None:
    """The kernel keeps 16,384 of them, alike ones in a row as one; and who hears of them is not kept hearing."""
    writes = Writes()
    with ExitStack() as stack:
        first, second, third = (stack.enter_context((tmp_path / name).open("w+b", 0)) for name in "abc")
        numbers = {writes.watch(file.fileno()) for file in (first, second, third)}
        for _ in range(9000):
            first.write(b"x")
            second.write(b"x")
        third.write(b"x")
        assert writes.read_events() == numbers
        first.write(b"x")
        assert writes.read_events() == set()
    writes.close()


def test_what_is_reported_of_a_process_is_what_its_last_scan_left_out(
    rig: Rig, program: Program, library: Path
) -> None:
    """However often a file that is mapped too often changes its name."""
    program.maps(library, MAPPINGS_A_FILE + 1)
    for number in range(3):
        library = library.rename(library.with_name(f"{NAME}{number}.so"))
        program.do()
        rig.scan()
        (reported,) = rig.targets.unprobed_programs.reported()
        assert str(reported["reason"]).startswith(str(library))


def test_of_more_libraries_than_are_checked_those_that_are_asked_for_come_first(
    rig: Rig, program: Program, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process all of whose libraries are looked at, wherever in its memory they are."""
    monkeypatch.setattr("agent.targets.processes.ALL_FILES_A_PROCESS", 2)
    rig.targets.mapped(
        lambda pid: pid == program.child.pid, ProbeRequest("functions", rig._found, "test", {"names": []})
    )
    others = [Path(shutil.copy("/bin/true", library.with_name(f"libother{n}.so"))) for n in range(4)]
    for one in (*others[:2], library, *others[2:]):
        program.maps(one)
    rig.scan()
    assert str(library) in rig.live
    (reported,) = rig.targets.unprobed_programs.reported()
    assert str(reported["reason"]).endswith("maps more libraries than are scanned in one process (2)")


def test_a_user_who_stalls_the_helper_pays_for_all_of_that_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.kernel.helper_client.DEADLINE_S", 0.05)
    rig.targets._budget = Budget(INSPECTION_PART, 0.4, root=False)
    with running(1001) as program:
        rig.until(rig.targets._quiet)
        os.kill(rig.helper.pid, signal.SIGSTOP)
        program.do()
        rig.targets.again(program.child.pid)
        rig.until(lambda: rig.helper.silent)
        time.sleep(0.5)
        os.kill(rig.helper.pid, signal.SIGCONT)
        rig.until(lambda: not rig.helper.silent)
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert -LONGEST_S <= rig.targets._budget.left(1001, now_ns) < -0.3


def test_a_user_whose_looks_take_long_waits_and_the_others_do_not(rig: Rig, library: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        os.chmod(folder, 0o755)
        slow, late, other = (Path(shutil.copy("/bin/true", f"{folder}/{NAME}{number}.so")) for number in (1, 2, 3))
        rig.targets._budget = Budget(0.4, 0.4, root=False)
        stack.enter_context(running(1001)).maps(slow)
        rig.cost_s = 0.25 * PATIENCE
        rig.targets._full_ns = 1
        rig.until(lambda: rig.live)
        rig.cost_s = 0
        for uid, path in ((1001, late), (1002, other), (0, library)):
            stack.enter_context(running(uid)).maps(path)
        rig.targets._scan.extend(rig.targets._pids())
        rig.until(lambda: len(rig.live) == 4)
        assert rig.live[0] == str(slow) and rig.live[-1] == str(late)


def test_looks_for_which_there_is_no_place_are_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.targets.targets.SCANS_WAITING", 2)
    started = np.zeros(5, STARTED)
    started["pid"] = range(1 << 30, (1 << 30) + 5)
    rig.targets.on_exec(started)
    assert rig.targets.analysis()["scans_dropped"] == 3
