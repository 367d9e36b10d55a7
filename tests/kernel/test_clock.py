"""Steps, frequency changes and attempts of real programs: each one row, with the right actor, call, sign and size."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.clock import timex
from agent.clock.watch import SLEEPERS
from agent.columns import NULL_I64
from agent.tables import TABLES
from tests.kernel.clock_rig import Rig
from tests.patience import COARSE, PATIENCE

EPERM = -1


pytestmark = pytest.mark.usefixtures("own_clock")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    one = Rig(tmp_path)
    yield one
    one.close()


def kinds(rows: np.ndarray) -> list[str]:
    return [TABLES["clock_change"].by_name["kind"].names[k] for k in rows["kind"]]


#: 23 steps, pausing sys.argv[3] seconds. Prints how REALTIME - MONOTONIC differs around each, as the program itself
#: sees it, how well it does, and when.
STEPS = """
how, size, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
def gap():
    reads = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    width, offset = min((b - a, r - (a + b) // 2) for a, r, b in reads)
    return offset, width // 2
for i in range(23):
    (before, err), start = gap(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert step(how, -size if i % 2 else size) >= 0, os.strerror(ctypes.get_errno())
    end = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    after, more = gap()
    print(after - before, err + more, start, end)
    time.sleep(pause)
step("clock_adjtime", base - gap()[0])
"""


def well_known(rig: Rig, rows: np.ndarray, truth: np.ndarray) -> bool:
    """Whether the stated errors of 23 steps and their undoing are small: readings in the kernel, else as long as the
    calls took (before 6.1).
    """
    if rig.loaded.words["FUNC_ktime_get_tai_ns"]:
        return bool((rows["err_ns"] <= 5_000 * COARSE).all())
    took = truth[:, 3] - truth[:, 2] + 150_000
    return bool((rows["err_ns"][:23] <= took + np.concatenate([took[:1], took[:-1]])).all())


@pytest.mark.parametrize(
    ("how", "via"),
    [
        ("clock_settime", "clock_settime"),
        ("settimeofday", "clock_settime"),
        ("adjtimex", "clock_adjtime"),
        ("clock_adjtime", "clock_adjtime"),
        ("raw_clock_settime", "clock_settime"),
        ("raw_settimeofday", "settimeofday"),
        ("raw_adjtimex", "adjtimex"),
        ("raw_clock_adjtime", "clock_adjtime"),
    ],
)
def test_every_step_once_with_actor_call_sign_and_size(rig: Rig, how: str, via: str) -> None:
    pid, out = rig.python(STEPS, how, str(200_000 * COARSE), str(0.002 * COARSE))
    truth = np.array([line.split() for line in out.splitlines()], np.int64)
    rows = rig.of(pid)
    assert len(rows) == 24  # the undoing is one
    assert kinds(rows) == ["step"] * 24
    assert set(rows["via"][:23].tolist()) == {via.encode()}
    assert set(rows["comm"].tolist()) == {
        Path(sys.executable).resolve().name.encode()[:15],
        Path(sys.executable).name.encode()[:15],
    } & set(rows["comm"].tolist())
    sure = np.abs(truth[:, 0]) > truth[:, 1] + rows["err_ns"][:23] + 300
    assert np.sign(rows["size_ns"][:23][sure]).tolist() == np.sign(truth[sure, 0]).tolist()
    assert (np.abs(rows["size_ns"][:23] - truth[:, 0]) <= rows["err_ns"][:23] + truth[:, 1] + 300).all()
    assert well_known(rig, rows, truth)
    assert ((truth[:, 2] <= rows["t_ns"][:23]) & (rows["t_ns"][:23] <= truth[:, 3])).all()
    assert (rows["ret"] == 0).all()
    assert (rows["real_mono_after_ns"] - rows["real_mono_before_ns"] == rows["size_ns"]).all()
    assert (rows["real_mono_before_ns"][1:] == rows["real_mono_after_ns"][:-1]).all()
    if how.endswith("settime"):
        assert (
            np.abs(rows["requested_ns"][:23] - rows["real_mono_after_ns"][:23] - rows["t_ns"][:23]) < 1_000 * COARSE
        ).all()
    assert len(rig.of(pid, NULL_I64)) == 24, "something was reported twice or invented"
    cuts = rig.rows("clock_offset")
    assert np.isin(rows["t_ns"], cuts["t_ns"][cuts["cut"] == 1]).all()


BURST = """
how, pause = sys.argv[1], float(sys.argv[2])
sizes = [s for i in range(50) for s in (10_000 * i + 1_000, -10_000 * i - 1_000)]
for by in (*sizes[:50], 300_000):
    assert step(how, by) >= 0
    if pause: time.sleep(pause)
"""


def burst_sizes() -> list[int]:
    return [*[s for i in range(50) for s in (10_000 * i + 1_000, -10_000 * i - 1_000)][:50], 300_000]


@pytest.mark.parametrize(
    ("how", "pause"), [("adjtimex", "0"), ("raw_clock_adjtime", "0"), ("raw_clock_adjtime", "0.005")]
)
def test_a_burst_is_as_many_rows_and_notices(rig: Rig, how: str, pause: str) -> None:
    rig.notices()
    pid, _ = rig.python(BURST, how, pause)
    rows, wanted = rig.of(pid), np.array(burst_sizes())
    assert len(rows) == 51
    assert (np.abs(rows["size_ns"] - wanted) <= rows["err_ns"]).all()
    assert (rows["requested_ns"] == wanted).all()
    assert (rows["err_ns"] < 5_000 * COARSE).all()
    assert rig.lost() == 0
    reported = rig.notices()
    assert abs(sum(int(str(n["size_ns"])) for n in reported) - 300_000) < 1_000 * COARSE
    if pause != "0":
        assert [n["actor"] for n in reported] == [{"pid": pid, "comm": rows["comm"][0].decode()}] * 51
        assert (np.abs(np.array([n["size_ns"] for n in reported]) - wanted) <= [n["err_ns"] for n in reported]).all()


#: clock_adjtime64 as a 32-bit program calls it, by int 0x80: push rbx; mov eax, 405; xor ebx, ebx; mov ecx, edi; int
#: 0x80; pop rbx; ret
COMPAT = """
import mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("53 b895010000 31db 89f9 cd80 5b c3"))
call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
libc.mmap.restype = ctypes.c_void_p
low = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x62, -1, ctypes.c_long(0))  # MAP_32BIT
for i in range(23):
    ctypes.memmove(low, offset(-7000 if i % 2 else 7000), 208)
    assert call(low) >= 0
    time.sleep(float(sys.argv[1]))
"""


def test_steps_of_a_32_bit_program_have_their_actor(rig: Rig) -> None:
    pid, _ = rig.python(COMPAT, str(0.005 * COARSE))
    rows = rig.of(pid)
    assert kinds(rows) == ["step"] * 23
    assert set(rows["via"].tolist()) == {b"clock_adjtime"}
    assert rows["requested_ns"].tolist() == [-7000 if i % 2 else 7000 for i in range(23)]
    assert (np.abs(rows["size_ns"] - rows["requested_ns"]) <= rows["err_ns"]).all()
    assert len(rig.of(pid, NULL_I64)) == 23
    assert [n["actor"]["pid"] for n in rig.notices()] == [pid] * 23  # type: ignore[index]


#: A 32-bit program's calls with its own structs. push rbx; mov eax, edi; mov ebx, esi; mov ecx, edx; int 0x80; pop rbx;
#: ret
COMPAT_STRUCTS = """
import mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("53 89f8 89f3 89d1 cd80 5b c3"))
int_int_pointers = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
call = int_int_pointers(ctypes.addressof(ctypes.c_char.from_buffer(code)))
libc.mmap.restype = ctypes.c_void_p
low = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x62, -1, ctypes.c_long(0))  # MAP_32BIT
def put(form, *values):
    ctypes.memset(low, 0, 256)
    ctypes.memmove(low, struct.pack(form, *values), struct.calcsize(form))
def timex32(modes, freq=0, seconds=0, part=0):
    put("<Iiiiiiiiiii", modes, 0, freq, 0, 0, 0, 0, 0, 0, seconds, part)
def later(per):  # not at once: it must be ahead of the clock by no more than a little
    now = time.time_ns() + 50_000
    put("<ii", now // 10**9, now % 10**9 // per)
timex32(0x2100, part=7000); assert call(124, low, 0) >= 0
timex32(0x2100, seconds=-1, part=10**9 - 7000); assert call(343, 0, low) >= 0
timex32(2, freq=1 << 16); assert call(124, low, 0) >= 0
timex32(2); assert call(343, 0, low) >= 0
timex32(0x2100, part=-7000); assert call(124, low, 0) == -22
timex32(0); assert call(124, low, 0) >= 0
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # nothing comes between reading and setting
later(1000); assert call(79, low, 0) == 0
later(1); assert call(264, 0, low) == 0
put("<ii", 5, 7); assert call(264, 0, low) == -22
put("<ii", 5, 7); assert call(25, low, 0) == 0  # stime: seconds only; the kernel forgets to say that it refused them
"""


def test_what_a_32_bit_program_asks_for_in_its_own_structs(rig: Rig) -> None:
    pid, _ = rig.python(COMPAT_STRUCTS)
    rows = rig.of(pid)
    assert kinds(rows) == ["step", "step", "frequency", "frequency", *["step"] * 5]
    assert rows["via"].tolist() == [
        b"adjtimex",
        b"clock_adjtime",
        b"adjtimex",
        b"clock_adjtime",
        b"adjtimex",
        b"settimeofday",
        b"clock_settime",
        b"clock_settime",
        b"settimeofday",
    ]
    assert rows["ret"].tolist() == [0, 0, 0, 0, -22, 0, 0, -22, -22]
    assert rows["requested_ns"][[0, 1, 2, 3, 4, 7, 8]].tolist() == [
        7000,
        -7000,
        NULL_I64,
        NULL_I64,
        -7000,
        5 * 10**9 + 7,
        5 * 10**9,
    ]
    assert rows["freq_after_ppb"][2:4].tolist() == [1000, 0]
    assert (np.abs(rows["size_ns"][:2] - [7000, -7000]) <= rows["err_ns"][:2]).all()
    set_to = rows[[5, 6]]
    assert (np.abs(set_to["requested_ns"] - set_to["real_mono_after_ns"] - set_to["t_ns"]) < 1_000_000 * COARSE).all()
    assert len(rig.of(pid, NULL_I64)) == 9


HUNDRED_AND_ONE = """
shifts = ["adjtimex", "clock_adjtime", "raw_adjtimex", "raw_clock_adjtime"]
calls = shifts + ["clock_settime", "settimeofday", "raw_clock_settime", "raw_settimeofday"]
def gap():
    reads = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    width, offset = min((b - a, r - (a + b) // 2) for a, r, b in reads)
    return offset, width // 2
for i, size in enumerate(map(int, sys.argv[2:])):
    hows = shifts if abs(size) < 20_000 else calls  # who sets a time errs by what goes by until it is set
    (before, err), how = gap(), hows[i // 2 % len(hows)]
    assert step(how, size) >= 0, os.strerror(ctypes.get_errno())
    after, more = gap()
    exact = how in shifts
    print(size if exact else after - before, 0 if exact else err + more)
    time.sleep(float(sys.argv[1]))
"""


def hundred_and_one() -> list[int]:
    """There and back, 1 to 500 us, evenly in the logarithm; the last is left for the rig to undo. The clock is never
    off by more than 0.5 ms.
    """
    sizes = np.round(np.geomspace(1_000, 500_000, 50)).astype(int)
    there = np.where(np.arange(50) % 2, sizes, -sizes)
    return [*np.ravel(np.column_stack([there, -there])).tolist(), 1_000]


def test_101_steps_from_1_to_500_us_each_found_with_actor_sign_and_size(rig: Rig) -> None:
    pid, out = rig.python(HUNDRED_AND_ONE, str(0.003 * COARSE), *(str(size * COARSE) for size in hundred_and_one()))
    truth = np.array([line.split() for line in out.splitlines()], np.int64)
    rows = rig.of(pid)
    assert len(truth) == len(rows) == 101
    assert kinds(rows) == ["step"] * 101
    assert len(set(rows["comm"].tolist())) == 1
    aimed = (
        np.abs(truth[:, 0]) > truth[:, 1] + rows["err_ns"] + 300 * COARSE
    )  # setting to a time is not exact: the program itself must know which way
    assert np.sign(rows["size_ns"][aimed]).tolist() == np.sign(truth[aimed, 0]).tolist()
    assert (np.abs(rows["size_ns"] - truth[:, 0]) <= rows["err_ns"] + truth[:, 1]).all()
    assert len(rig.of(pid, NULL_I64)) == 101, "something was reported twice or invented"
    if rig.loaded.words["FUNC_ktime_get_tai_ns"]:
        assert aimed.sum() > 90
        assert np.percentile(rows["err_ns"], 99) <= 1_000 * (50 if COARSE > 1 else 1)
    reported = np.array(
        [
            (n["size_ns"], n["err_ns"])
            for n in rig.notices()
            if n["actor"] == {"pid": pid, "comm": rows["comm"][0].decode()}
        ]
    )
    moved = rows[np.abs(rows["size_ns"]) > 300]
    assert len(reported) == len(moved)
    assert (np.abs(reported[:, 0] - moved["size_ns"]) <= reported[:, 1] + moved["err_ns"]).all()


FREQUENCY = """
how = sys.argv[1]
def adjust(modes, freq):
    t = timex(modes, freq=freq)
    return {"adjtimex": lambda: libc.adjtimex(t), "ntp_adjtime": lambda: libc.ntp_adjtime(t),
            "clock_adjtime": lambda: libc.clock_adjtime(0, t), "raw": lambda: raw(159, t),
            }[how](), struct.unpack(TIMEX, t.raw)[2]
_, now = adjust(0, 0)
try:
    assert adjust(2, now + 65536)[0] >= 0
    time.sleep(0.05)
    for _ in range(23): adjust(0, 0)
finally:
    assert adjust(2, now)[0] >= 0
print(now)
"""


@pytest.mark.parametrize("how", ["adjtimex", "ntp_adjtime", "clock_adjtime", "raw"])
def test_a_frequency_change_and_its_undoing_and_no_reads(rig: Rig, how: str) -> None:
    before = rig.baseline
    pid, out = rig.python(FREQUENCY, how)
    rows = rig.of(pid)
    assert kinds(rows) == ["frequency"] * 2
    assert rows["modes"].tolist() == [b"FREQUENCY"] * 2
    base = timex.freq_ppb(int(out), 10_000)
    assert rows["freq_before_ppb"].tolist() == [base, base + 1000]
    assert rows["freq_after_ppb"].tolist() == [base + 1000, base]
    assert (rows["size_ns"] == 0).all()
    assert (rows["ret"] >= 0).all()
    assert len(rig.of(pid, NULL_I64)) == 2
    assert len(rig.history.segments.start_ns) == 1, "a frequency change does not move REALTIME - MONOTONIC"
    assert (
        abs(int(rig.history.segments.real_boot_ns[0] + rig.rows("clock_offset")["boot_mono_ns"][0]) - before)
        < 1_000 * COARSE
    )


ADJTIME = """
try:
    assert libc.adjtime(struct.pack("<qq", 0, 7), None) == 0
finally:
    assert libc.adjtime(struct.pack("<qq", 0, 0), None) == 0
assert libc.adjtime(None, ctypes.create_string_buffer(16)) == 0
"""


def test_adjtime_is_a_slew_and_its_query_is_nothing(rig: Rig) -> None:
    pid, _ = rig.python(ADJTIME)
    rows = rig.of(pid)
    assert kinds(rows) == ["slew", "slew"]
    assert rows["modes"].tolist() == [b"SINGLESHOT"] * 2
    assert rows["requested_ns"].tolist() == [7_000, 0]
    assert len(rig.of(pid, NULL_I64)) == 2


REFUSED = """
os.setuid(65534)
hows = ["clock_settime", "settimeofday", "adjtimex", "clock_adjtime"]
hows += ["raw_clock_settime", "raw_settimeofday", "raw_adjtimex"]
for how in hows: assert step(how, 1000) == -1
assert libc.adjtimex(timex(2, freq=1 << 16)) == -1
assert libc.adjtime(struct.pack("<qq", 0, 7), None) == -1
assert libc.adjtimex(timex()) >= 0
"""


def test_refused_attempts_are_rows_and_change_nothing(rig: Rig) -> None:
    pid, _ = rig.python(REFUSED)
    rows = rig.of(pid)
    assert kinds(rows) == ["step"] * 7 + ["frequency", "slew"]
    assert rows["ret"].tolist() == [EPERM] * 9
    assert (np.abs(rows["size_ns"]) <= rows["err_ns"] + 300 * COARSE).all()
    assert (rows["freq_before_ppb"] == rows["freq_after_ppb"]).all()
    assert len(rig.of(pid, NULL_I64)) == 9
    cuts = rig.rows("clock_offset")
    assert not np.isin(rows["t_ns"], cuts["t_ns"][cuts["cut"] == 1]).any()
    assert not any(n["actor"] == {"pid": pid, "comm": rows["comm"][0].decode()} for n in rig.notices())


#: Two children try without end, by machine code, and may not. mov eax, 305; xor edi, edi; mov rsi, rbx; syscall; dec
#: r12; jnz
FLOOD = """
import mmap, signal
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("53 4154 4889fb 4989f4 b831010000 31ff 4889de 0f05 49ffcc 75ef 415c 5b c3"))
call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
tried = offset(1000)
children = []
for _ in range(2):
    children.append(os.fork())
    if not children[-1]:
        os.setuid(65534)
        call(ctypes.addressof(tried), 1 << 40)
time.sleep(0.3)
for i in range(23):
    assert step(sys.argv[1], -7000 if i % 2 else 7000) >= 0
    time.sleep(0.01)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(*children)
"""


@pytest.mark.parametrize("how", ["clock_adjtime", "raw_clock_adjtime"])
def test_who_tries_without_end_and_may_not_hides_nobody_who_may(rig: Rig, how: str) -> None:
    pid, children = rig.python(FLOOD, how)
    rows = rig.of(pid)
    assert kinds(rows) == ["step"] * 23
    assert rows["requested_ns"].tolist() == [-7000 if i % 2 else 7000 for i in range(23)]
    assert (np.abs(rows["size_ns"] - rows["requested_ns"]) <= rows["err_ns"]).all()
    tried = rig.of(*map(int, children.split()))
    assert len(tried) > 23 and set(tried["ret"].tolist()) == {EPERM}
    assert rig.lost() > 1_000


INVALID = """
assert libc.clock_settime(0, pair(10**9, 1)[:8] + struct.pack("<q", -1)) == -1
assert libc.adjtimex(timex(0x4000, tick=1)) == -1
"""


def test_invalid_arguments_are_failed_attempts(rig: Rig) -> None:
    pid, _ = rig.python(INVALID)
    rows = rig.of(pid)
    assert kinds(rows) == ["step", "frequency"]
    assert rows["ret"].tolist() == [-22, -22]


INVALID_RAW = """
assert raw(227, 0, struct.pack('<qq', 5, 0)) == -1  # before the boot: no wall time may be less than CLOCK_MONOTONIC
assert raw(305, 0, timex(0x2100, seconds=0, part=-5)) == -1
assert raw(159, timex(0x4000, tick=1)) == -1
assert raw(159, timex(0x2, freq=1 << 60)) == -1
"""


def test_invalid_arguments_are_failed_attempts_also_where_no_return_is_seen(rig: Rig) -> None:
    pid, _ = rig.python(INVALID_RAW)
    rows = rig.of(pid)
    assert kinds(rows) == ["step", "step", "frequency", "frequency"]
    assert rows["ret"].tolist() == [-22] * 4
    assert rows["size_ns"].tolist() == [0] * 4
    assert (rows["freq_after_ppb"] == rows["freq_before_ppb"]).all()


@pytest.mark.parametrize("missing", ["clock_woke", "clock_ask", "libc"])
def test_any_one_view_may_be_missing(tmp_path: Path, missing: str) -> None:
    rig = Rig(tmp_path, libc=missing != "libc", detached=() if missing == "libc" else (missing,))
    try:
        pid, out = rig.python(STEPS, "clock_settime", str(100_000 * COARSE), str(0.002 * COARSE))
        assert kinds(rig.of(pid)) == ["step"] * 24
        assert len(rig.of(pid, NULL_I64)) == 24
        assert well_known(rig, rig.of(pid), np.array([line.split() for line in out.splitlines()], np.int64))
    finally:
        rig.close()


@pytest.mark.parametrize("probes", [True, False])
def test_without_the_programs_steps_are_found_but_nobody_is_named(tmp_path: Path, probes: bool) -> None:
    rig = Rig(tmp_path, probes=probes, libc=False, detached=("clock_woke", "clock_ask"))
    try:
        pid, _ = rig.python(STEPS, "raw_clock_adjtime", str(100_000 * COARSE), str(0.15 * min(PATIENCE, 4)))
        rows = rig.rows()
        assert len(rig.of(pid)) == 0
        assert (rows["pid"] == NULL_I64).all()
        assert kinds(rows) == ["step"] * 24
        assert len(rig.notices()) == 24
        assert set(rows["via"].tolist()) == {b"none"}
    finally:
        rig.close()


@pytest.mark.parametrize("how", ["adjtimex", "clock_settime"])
def test_as_on_a_kernel_that_cannot_read_tai(tmp_path: Path, how: str) -> None:
    rig = Rig(tmp_path, detached=("clock_ask",), without=("ktime_get_tai_ns",))
    try:
        pid, out = rig.python(STEPS, how, str(200_000 * COARSE), "0.12")
        rows, truth = rig.of(pid), np.array([line.split() for line in out.splitlines()], np.int64)
        assert kinds(rows) == ["step"] * 24
        assert len(rig.of(pid, NULL_I64)) == 24
        assert (np.abs(rows["size_ns"][:23] - truth[:, 0]) <= rows["err_ns"][:23] + truth[:, 1] + 300).all()
        assert [n["actor"]["pid"] for n in rig.notices()] == [pid] * 24  # type: ignore[index]
    finally:
        rig.close()


def test_a_frequency_change_that_only_polling_sees(tmp_path: Path) -> None:
    rig = Rig(tmp_path, libc=False, detached=("clock_ask",))
    try:
        pid, _ = rig.python(FREQUENCY.replace("time.sleep(0.05)", "time.sleep(1.3)"), "adjtimex")
        rig.settle(1.2)
        assert len(rig.of(pid)) == 0
        assert kinds(rig.rows()) == ["frequency"] * 2
        assert np.diff(rig.rows()["freq_after_ppb"]).tolist() == [-1000]
    finally:
        rig.close()


def test_subscribers_that_do_not_read_are_dropped_and_counted(rig: Rig) -> None:
    slow = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    slow.connect(str(rig.path))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    rig.python(
        "for _ in range(997): assert step('raw_clock_adjtime', 1000) >= 0 and step('raw_clock_adjtime', -1000) >= 0;"
        " time.sleep(1e-4)"
    )
    assert rig.watch.dropped >= 1
    reported = rig.notices()
    assert reported
    slow.close()


def test_the_watch_ends_with_the_agent_and_does_not_heed_ctrl_c(rig: Rig) -> None:
    os.kill(rig.watch.pid, signal.SIGINT)
    pid, _ = rig.python("step('clock_adjtime', 5000)")
    assert rig.notices()[0]["actor"]["pid"] == pid  # type: ignore[index]
    assert (
        sorted(os.sched_getscheduler(int(tid)) for tid in os.listdir(f"/proc/{rig.watch.pid}/task"))
        == [os.SCHED_OTHER] * 2 + [os.SCHED_RR] * SLEEPERS
    )
    assert rig.watch.state()["watch"] == "running"
    status = Path(f"/proc/{rig.watch.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Uid:\t65534\t65534" in status
    rig.watch.sock.close()
    assert os.waitpid(rig.watch.pid, 0) == (rig.watch.pid, 0)


def test_a_watch_that_may_not_go_first_reports_it_and_works(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    script = """
import socket, sys, time
from pathlib import Path
from agent.posix.child import fork
from agent.clock import first, watch_process
from tests.lab import sockets
watch = watch_process.start(fork("watch", first.serve), sockets.notices(Path(sys.argv[1])), 65534, 65534)
watch.begin(-1)
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
watch.reports.setblocking(True)
watch.reports.recv(1 << 16)  # it serves
print(watch.state()["watch"])
watch.close()
"""
    command = [
        "setpriv",
        "--bounding-set=-sys_nice",
        "--inh-caps=-sys_nice",
        sys.executable,
        "-c",
        script,
        str(tmp_path / "notices.sock"),
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]).stdout
    assert "without real-time priority (CAP_SYS_NICE," in output
