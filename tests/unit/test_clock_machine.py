"""Pauses, VMClock pages and clocksources. Pure, from made-up figures and bytes; a running VM is tests/vm."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from agent.clock.machine import Restored, Watcher, Work, paused, vm_life, work

SECOND = 1_000_000_000
CPUS = os.cpu_count() or 1
EARLIER, BEFORE = Work(0, 0, 0, 0), Work(SECOND, SECOND // 10, 0, 1_000)


def after(t_ns: int, busy_ns: int, switches: int, stolen_ns: int = 0) -> Work:
    return Work(t_ns, BEFORE.busy_ns + busy_ns, stolen_ns, BEFORE.switches + switches)


MINE, LATE = (SECOND + 100_000_000, 4 * SECOND), (SECOND + 200_000_000, 4 * SECOND + 2_000_000)


def test_nobody_ran() -> None:
    gap = paused(MINE, LATE, EARLIER, BEFORE, after(4 * SECOND, SECOND // 10, 150, SECOND))
    assert gap is not None
    assert abs(gap.size_ns - (MINE[1] - MINE[0])) <= gap.err_ns
    assert (gap.t_ns, gap.stolen_ns) == (MINE[1], SECOND)


@pytest.mark.parametrize(
    ("why", "mine", "late", "busy", "switches"),
    [
        ("others had the processors", MINE, LATE, 3 * SECOND * CPUS, 150),
        ("only we were stopped", MINE, LATE, SECOND // 10, 3_000),
        ("the watch was not late", MINE, (MINE[1], MINE[1] + 300_000_000), 0, 150),
        ("it was late at another time", MINE, (0, SECOND), 0, 150),
        ("too short to tell", (MINE[0], MINE[0] + 200_000_000), LATE, 0, 150),
    ],
)
def test_no_pause(why: str, mine: tuple[int, int], late: tuple[int, int], busy: int, switches: int) -> None:
    assert paused(mine, late, EARLIER, BEFORE, after(4 * SECOND, busy, switches)) is None, why


def test_proc_stat() -> None:
    tick = SECOND // os.sysconf("SC_CLK_TCK")
    text = b"cpu  10 20 30 40000 5 6 7 8 9 10\ncpu0 1 2 3\nintr 5 6\nctxt 777\nbtime 1\n"
    assert work(5, text) == Work(5, (10 + 20 + 30 + 6 + 7) * tick, 8 * tick, 777)
    here = work(0, Path("/proc/stat").read_bytes())
    assert here.busy_ns > 0
    assert here.switches > 0


def page(marker: int, sequence: int = 2, flags: int = 0, generation: int = 0, magic: int = 0x4B4C4356) -> bytes:
    """A VMClock page as linux/vmclock-abi.h lays it out."""
    head = struct.pack("<IIHBBIQQ", magic, 4096, 1, 1, 0, sequence, marker, flags)
    return (head.ljust(104, b"\xff") + struct.pack("<Q", generation)).ljust(4096, b"\0")


def test_vmclock_pages() -> None:
    assert vm_life(page(7)) == (7, 0)
    assert vm_life(page(7, generation=9)) == (7, 0)  # not said to be there
    assert vm_life(page(7, flags=1 << 8, generation=9)) == (7, 9)
    assert vm_life(page(7, sequence=3)) is None
    assert vm_life(page(7, magic=1)) is None
    assert vm_life(b"") is None


def test_a_restored_machine_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "vmclock"
    path.write_bytes(page(7))
    watcher = Watcher(0, os.open(path, os.O_RDONLY))
    assert watcher.restored() is None
    path.write_bytes(page(8, sequence=3))
    assert watcher.restored() is None  # still being written
    path.write_bytes(page(8, sequence=4))
    assert watcher.restored() == Restored("marker 7 > 8 generation 0 > 0")
    assert watcher.restored() is None
    watcher.close()


def test_no_vmclock_and_no_change_of_clocksource() -> None:
    watcher = Watcher(0, None)
    assert (
        watcher.clocksource
        == Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    )
    assert watcher.switched() is None
    assert watcher.restored() is None
    watcher.close()
