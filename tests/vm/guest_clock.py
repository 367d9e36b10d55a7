"""The table of clock events: scripted, one after another, each found once, of the right kind, by the right actor, as
big as it was.

Runs inside a VM only (tests/vm/test_clock.py starts it); it moves the clock by hours. Programs are forked, not started:
emulation is slow.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.clock import sample, timex
from agent.columns import NULL_I64
from agent.tables import TABLES
from tests.kernel.clock_rig import PROLOGUE, Rig
from tests.vm import chrony

if "lowerdir=/lower,upperdir=/rw/upper" not in Path("/proc/self/mounts").read_text():
    pytest.skip("moves the clock by hours: only in a VM of tests/vm", allow_module_level=True)

US, MS, S = 1_000, 1_000_000, 1_000_000_000
KIND = TABLES["clock_change"].by_name["kind"]
#: What each of these looks like to the kernel: glibc has its own idea of which call to make.
VIA = {
    "clock_settime": "clock_settime",
    "settimeofday": "clock_settime",
    "adjtimex": "clock_adjtime",
    "clock_adjtime": "clock_adjtime",
    "raw_clock_settime": "clock_settime",
    "raw_settimeofday": "settimeofday",
    "raw_adjtimex": "adjtimex",
    "raw_clock_adjtime": "clock_adjtime",
}
MAXIMUM_ERR_NS = 50 * US

HELPERS = """
def gap():
    reads = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(9)]
    return min((b - a, r - (a + b) // 2) for a, r, b in reads)[::-1]
def moved(how, by):
    before = gap()
    assert step(how, by) >= 0, os.strerror(ctypes.get_errno())
    after = gap()
    print(after[0] - before[0], (after[1] + before[1]) // 2 + 2)
def adjust(**fields):
    assert libc.clock_adjtime(0, timex(**fields)) >= 0, os.strerror(ctypes.get_errno())
def now():
    t = timex(); libc.clock_adjtime(0, t); return struct.unpack(TIMEX, t.raw)
STATUS, FREQUENCY, TICK, TAI, MAXERROR, OFFSET, NANO = 0x10, 2, 0x4000, 0x80, 4, 1, 0x2000
"""


@dataclass
class Row:
    """What a row must be. size: in ns, or None for what the program measured. by: the program, or nobody seen."""

    kind: str
    via: str = "none"
    size: int | None = 0
    by: bool = True
    ret: int | None = 0
    modes: str | None = None
    ppb: tuple[int, int] | None = None
    requested: int | None = None


@dataclass
class Event:
    """code runs in a child, with HELPERS; wait_s: how long what follows may take."""

    name: str
    code: str
    rows: list[Row] = field(default_factory=list)
    wait_s: float = 0.5

    def __str__(self) -> str:
        return self.name


def steps() -> Iterator[Event]:
    """Each call, both directions, three sizes each (CI: one): of all from 1 us to 1 h."""
    sizes = [3600 * S, US, 10 * US, 100 * US, MS, 10 * MS, 500 * MS, S, 60 * S]
    for i, (how, via) in enumerate(VIA.items()):
        for j in range(int(os.environ.get("TICKSCOPE_TEST_CLOCK_SIZES", "3"))):
            size = sizes[(i + 3 * j) % len(sizes)]
            for by in (size, -size):
                exact = by if "adjtime" in how else None
                yield Event(f"{how} {by} ns", f"moved({how!r}, {by})", [Row("step", via, exact)])


def rates() -> Iterator[Event]:
    """Frequency corrections and, above what those may be (500 ppm), slews by tick; each set and undone."""
    for ppm in (1, -1, 10, 100, -499):
        code = f"adjust(modes=FREQUENCY, freq={ppm << 16}); time.sleep(0.2); adjust(modes=FREQUENCY, freq=0)"
        yield Event(
            f"frequency {ppm} ppm",
            code,
            [
                Row("frequency", "clock_adjtime", ppb=(0, ppm * 1000)),
                Row("frequency", "clock_adjtime", ppb=(ppm * 1000, 0)),
            ],
        )
    for tick in (10_010, 9_900, 10_800, 9_200):
        ppb = (tick - 10_000) * 100_000
        code = (
            f"adjust(modes=TICK | FREQUENCY, tick={tick}, freq=0); time.sleep(0.2); adjust(modes=TICK | FREQUENCY,"
            " tick=10_000, freq=0)"
        )
        yield Event(
            f"slew {ppb // 1000} ppm",
            code,
            [Row("slew", "clock_adjtime", ppb=(0, ppb)), Row("slew", "clock_adjtime", ppb=(ppb, 0))],
        )


def leap(name: str, flag: int, size: int) -> list[Event]:
    """maxerror is reset, or the kernel says within a second that it is not synchronised."""
    day = "(time.time_ns() // 10**9 // 86400 + 1) * 86400 * 10**9"
    return [
        Event(
            f"to the day's end for a leap second {name}",
            f"before = gap(); assert libc.clock_settime(0, pair({day} - 8 * 10**9, 1)) == 0\n"
            "after = gap(); print(after[0] - before[0], (after[1] + before[1]) // 2 + 2)",
            [Row("step", "clock_settime", None)],
        ),
        Event(
            f"arming a leap second {name}",
            f"adjust(modes=STATUS | MAXERROR, status={flag})",
            [Row("leap", "clock_adjtime", modes=f"MAXERROR|STATUS {'+INS' if flag == 0x10 else '+DEL'} -UNSYNC")],
        ),
        Event(f"a leap second {name}", "time.sleep(9)", [Row("leap", size=size, by=False, ret=None)], wait_s=2),
        Event(
            f"disarming a leap second {name}",
            "adjust(modes=STATUS, status=0x40)",
            [Row("leap", "clock_adjtime")],
            wait_s=2.5,
        ),  # the kernel forgets the last leap second at a second's begin, and takes no other before
    ]


BURST = "for i in range(20): moved('raw_clock_adjtime', 10**6 * (i + 1) * (-1) ** i); time.sleep(0.1)"
LOAD = """
spinning = []
for _ in range(4):
    spinning.append(os.fork())
    while not spinning[-1]: pass
time.sleep(1)
for by in (7_000_000, -7_000_000): moved("clock_adjtime", by)
for pid in spinning: os.kill(pid, 9); os.waitpid(pid, 0)
"""
SMEAR = "for ppm in (*range(2, 22, 2), *range(18, -2, -2)): adjust(modes=FREQUENCY, freq=ppm << 16); time.sleep(0.05)"
REFUSED = """
os.setuid(65534)
for how in ("clock_settime", "settimeofday", "raw_adjtimex", "clock_adjtime"): assert step(how, 10**9) == -1
assert libc.adjtimex(timex(FREQUENCY, freq=1 << 16)) == -1
assert libc.adjtime(struct.pack("<qq", 0, 7), None) == -1
"""
READS = (
    "for _ in range(23): libc.adjtimex(timex()); libc.clock_adjtime(0, timex()); libc.adjtime(None,"
    " ctypes.create_string_buffer(16)); time.time()"
)
ADJTIME = (
    "assert libc.adjtime(struct.pack('<qq', 0, {}), None) == 0; time.sleep(0.1); assert libc.adjtime(struct.pack('<qq',"
    " 0, 0), None) == 0"
)
PHASE = (
    "adjust(modes=OFFSET | NANO | STATUS, offset={}, status=0x41); adjust(modes=OFFSET | STATUS, offset=0,"
    " status=0x41); adjust(modes=STATUS, status=0x40)"
)
CURRENT = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

SMEARED = [
    p
    for a, b in zip([0, *range(2, 22, 2), *range(18, -2, -2)], [*range(2, 22, 2), *range(18, -2, -2)], strict=False)
    for p in [(a * 1000, b * 1000)]
]

EVENTS = [
    *steps(),
    *rates(),
    Event(
        "a burst, ten a second", BURST, [Row("step", "clock_adjtime", 10**6 * (i + 1) * (-1) ** i) for i in range(20)]
    ),
    Event("under heavy load", LOAD, [Row("step", "clock_adjtime", s) for s in (7 * MS, -7 * MS)]),
    Event(
        "adjtime forward",
        ADJTIME.format(7000),
        [Row("slew", "clock_adjtime", requested=7 * MS), Row("slew", "clock_adjtime", requested=0)],
    ),
    Event(
        "adjtime backward",
        ADJTIME.format(-7000),
        [Row("slew", "clock_adjtime", requested=-7 * MS), Row("slew", "clock_adjtime", requested=0)],
    ),
    Event(
        "ADJ_OFFSET",
        PHASE.format(300_000),
        [Row("slew", "clock_adjtime", requested=300_000), Row("slew", "clock_adjtime", requested=0)],
    ),
    Event("a smear", SMEAR, [Row("frequency", "clock_adjtime", ppb=p) for p in SMEARED]),
    Event("TAI offset 37 s", "adjust(modes=TAI, constant=37)", [Row("tai", "clock_adjtime", requested=37 * S)]),
    Event("TAI offset 36 s", "adjust(modes=TAI, constant=36)", [Row("tai", "clock_adjtime", requested=36 * S)]),
    *leap("inserted", 0x10, -S),
    *leap("deleted", 0x20, S),
    Event(
        "synchronised",
        "adjust(modes=STATUS | MAXERROR, status=0)",
        [Row("unsync", "clock_adjtime", modes="MAXERROR|STATUS -UNSYNC")],
    ),
    Event("a status that changes nothing", "adjust(modes=STATUS, status=0); adjust(modes=MAXERROR)"),
    Event(
        "synchronisation lost",
        "adjust(modes=STATUS, status=0x40)",
        [Row("unsync", "clock_adjtime", modes="STATUS +UNSYNC")],
    ),
    Event(
        "refused to nobody",
        REFUSED,
        [
            *[Row("step", VIA[h], ret=-1) for h in ("clock_settime", "settimeofday", "raw_adjtimex", "clock_adjtime")],
            Row("frequency", "clock_adjtime", ret=-1),
            Row("slew", "clock_adjtime", ret=-1),
        ],
    ),
    Event("reads", READS),
    Event(
        "another clocksource",
        f"open({CURRENT!r}, 'w').write('acpi_pm')",
        [Row("clocksource", by=False, ret=None, modes="tsc > acpi_pm")],
        wait_s=3,
    ),
    Event(
        "and back",
        f"open({CURRENT!r}, 'w').write('tsc')",
        [Row("clocksource", by=False, ret=None, modes="acpi_pm > tsc")],
        wait_s=3,
    ),
]

LOST_SLOWLY = (
    "t = bytearray(timex(MAXERROR | STATUS).raw); struct.pack_into('<q', t, 24, 15_999_900); libc.clock_adjtime(0,"
    " bytes(t))"
)
#: What is seen of the same without any kernel program, nor anybody's name; once a second.
UNSEEN = [
    Event(
        "an unseen step", "moved('clock_settime', 7 * 10**9)", [Row("step", size=None, by=False, ret=None)], wait_s=2
    ),
    Event(
        "an unseen frequency",
        "adjust(modes=FREQUENCY, freq=1 << 16)",
        [Row("frequency", by=False, ret=None, ppb=(0, 1000))],
        wait_s=2.5,
    ),
    Event(
        "and its end",
        "adjust(modes=FREQUENCY, freq=0)",
        [Row("frequency", by=False, ret=None, ppb=(1000, 0))],
        wait_s=2.5,
    ),
    Event(
        "an unseen adjtime",
        ADJTIME.split(";", maxsplit=1)[0].format(9_000),
        [Row("slew", by=False, ret=None)],
        wait_s=2.5,
    ),
    Event("its end by itself", ADJTIME.split(";", maxsplit=1)[0].format(0), wait_s=2.5),
    Event(
        "an unseen TAI offset",
        "adjust(modes=TAI, constant=35)",
        [Row("tai", by=False, ret=None, requested=35 * S)],
        wait_s=2.5,
    ),
    Event(
        "unseen synchronisation",
        "adjust(modes=STATUS | MAXERROR, status=0)",
        [Row("unsync", by=False, ret=None, modes="-UNSYNC")],
        wait_s=2.5,
    ),
    Event(
        "maxerror over 16 s: the kernel's own flag",
        LOST_SLOWLY,
        [Row("unsync", by=False, ret=None, modes="+UNSYNC")],
        wait_s=4,
    ),
]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Rig]]:
    """The rig with or without kernel programs; the one before is closed, for only one may run."""
    made: dict[bool, Rig] = {}

    def get(probes: bool) -> Rig:
        if probes not in made:
            for other in made.values():
                stop(other)
            made.clear()
            made[probes] = Rig(tmp_path_factory.mktemp("rig"), probes=probes)
        return made[probes]

    yield get
    for other in made.values():
        stop(other)


def stop(rig: Rig) -> None:
    """Without putting the clock back."""
    rig.subscriber.close()
    for source in reversed(rig.sources):
        source.close()  # type: ignore[attr-defined]
    rig.attacher.close()
    rig.watch.close()


ERRORS: list[int] = []


def play(rig: Rig, event: Event) -> tuple[int, np.ndarray, list[list[int]]]:
    """Runs it; the child's pid, the rows that came of it, and what it printed. Short pauses of an emulated machine are
    real, but not ours.
    """
    before = len(rig.rows())
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.dup2(writing, 1)
            sys.stdout = os.fdopen(1, "w")
            exec(PROLOGUE + HELPERS + event.code, {"__name__": "__main__"})
            sys.stdout.flush()
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    while True:
        rig.pump()
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.005)
    with os.fdopen(reading) as pipe:
        printed = [[int(x) for x in line.split()] for line in pipe]
    assert status == 0, event.name
    rig.settle(event.wait_s)
    rows = rig.rows()[before:]
    pause = rows["kind"] == KIND.names.index("pause")
    return pid, rows[~pause], printed


def check(rig: Rig, event: Event) -> None:
    compare(rig, *play(rig, event), event.rows)


def compare(rig: Rig, pid: int, rows: np.ndarray, printed: list[list[int]], wanted_rows: list[Row]) -> None:
    seen = [(KIND.names[r["kind"]], r["via"].decode(), int(r["pid"]) == pid) for r in rows]
    assert seen == [(w.kind, w.via, w.by) for w in wanted_rows], rows
    measured = iter(printed)
    for row, wanted in zip(rows, wanted_rows, strict=True):
        ERRORS.append(int(row["err_ns"]))
        truth, slack = (wanted.size, 0) if wanted.size is not None else next(measured)
        assert abs(int(row["size_ns"]) - truth) <= row["err_ns"] + slack, (row, truth, slack)
        assert wanted.by == (row["pid"] != NULL_I64)
        for name, value in (("ret", wanted.ret), ("requested_ns", wanted.requested)):
            assert value is None or row[name] == value, row
        assert wanted.modes is None or row["modes"].decode() == wanted.modes, row
        if wanted.ppb is not None:
            assert (row["freq_before_ppb"], row["freq_after_ppb"]) == wanted.ppb
    assert rig.lost() == 0


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_event(make: Callable[[bool], Rig], event: Event) -> None:
    check(make(True), event)


def follow(rig: Rig, home: Path, ahead_ns: int, settings: str, near_ns: int) -> tuple[np.ndarray, str]:
    """A chronyd follows a server until it is that near, and ends; what it did is reported, call by call, once. Its rows
    and its log.
    """
    program = shutil.which("chronyd")
    assert program
    before, state = len(rig.rows()), timex.read()
    with chrony.Server(ahead_ns) as server, chrony.Calls() as calls:
        daemon, log = chrony.start(program, home, server.port, settings)
        try:
            end = time.monotonic() + 120
            while abs(server.time_ns() - time.time_ns()) > near_ns:
                assert daemon.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                rig.settle(0.1)
            rig.settle(2)
        finally:
            daemon.terminate()
            daemon.wait()
        rig.settle(1)
        made = calls.of(daemon.pid)
    rows = rig.rows()[before:]
    rows = rows[rows["kind"] != KIND.names.index("pause")]
    play(
        rig,
        Event("as it was", "adjust(modes=TICK | FREQUENCY, tick=10_000, freq=0); adjust(modes=STATUS, status=0x40)"),
    )
    wanted = [
        Row(kind, "clock_adjtime", size=asked or 0 if kind == "step" else 0, ppb=ppb, requested=asked)
        for kind, asked, ppb in chrony.changes(made, state)
    ]
    compare(rig, daemon.pid, rows, [], wanted)
    assert set(rows["comm"]) == {b"chronyd"}
    return rows, log.read_text()


def test_chronyd_steps(make: Callable[[bool], Rig], tmp_path: Path) -> None:
    rig, before = make(True), sample.read()
    rig.notices()
    rows, log = follow(rig, tmp_path, 2_345_678_901, "makestep 0.1 3", 100 * MS)
    after = sample.read()
    steps = rows[(rows["kind"] == KIND.names.index("step")) & (rows["size_ns"] != 0)]
    (output,) = re.findall(r"clock was stepped by (-?[\d.]+) seconds", log)
    assert len(steps) == 1
    (notice,) = rig.notices()
    assert notice["actor"] == {"pid": steps["pid"][0], "comm": "chronyd"}
    assert abs(int(steps["size_ns"][0]) - float(output) * S) <= steps["err_ns"][0] + 500
    assert (
        abs(after.real_mono_ns - before.real_mono_ns - int(steps["size_ns"][0]))
        <= steps["err_ns"][0] + before.err_ns + after.err_ns
    )


def test_chronyd_slews(make: Callable[[bool], Rig], tmp_path: Path) -> None:
    rig, before = make(True), sample.read()
    rig.notices()
    rows, _ = follow(rig, tmp_path, 80 * MS, "", 10 * MS)
    after = sample.read()
    assert "slew" in {
        KIND.names[r["kind"]] for r in rows if r["requested_ns"] == NULL_I64
    }  # by tick and frequency, faster than 500 ppm
    assert not rows["size_ns"].any()
    assert rig.notices() == []
    assert abs(after.real_mono_ns - before.real_mono_ns) <= before.err_ns + after.err_ns
    assert after.mono_raw_ns - before.mono_raw_ns > 50 * MS


def test_enough_events() -> None:
    assert len(EVENTS) + len(UNSEEN) >= 40


def test_a_stopped_vm_is_a_pause(make: Callable[[bool], Rig]) -> None:
    """Its emulator stopped and continued: the clocks went on, and nobody ran. tests/vm/machine.py reads the console."""
    rig, before = make(True), len(make(True).rows())
    rig.settle(3)
    Path("/dev/ttyS0").write_text("tickscope test: stop me\n")
    pauses: Any = []
    for _ in range(20):
        rig.settle(1)
        rows = rig.rows()[before:]
        pauses = rows[(rows["kind"] == KIND.names.index("pause")) & (rows["size_ns"] > 2 * S)]
        if len(pauses):
            break
    assert len(pauses) == 1, rig.rows()[before:]
    assert abs(int(pauses["size_ns"][0]) - 3 * S) < S  # three seconds by the stopper's own clock
    assert pauses["pid"][0] == NULL_I64


def test_quiet_is_quiet(make: Callable[[bool], Rig]) -> None:
    rig, before = make(True), len(make(True).rows())
    rig.settle(float(os.environ.get("TICKSCOPE_TEST_QUIET_S", "20")))
    assert [KIND.names[k] for k in rig.rows()[before:]["kind"] if KIND.names[k] != "pause"] == []


@pytest.mark.parametrize("event", UNSEEN, ids=str)
def test_event_without_programs(make: Callable[[bool], Rig], event: Event) -> None:
    check(make(False), event)


def test_stated_errors() -> None:
    assert np.percentile(ERRORS, 99) <= MAXIMUM_ERR_NS, sorted(ERRORS)[-9:]
