"""On-demand profiles: whom, for how long and how often; what is made of what was counted."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest

from agent.binaries import nearest
from agent.binaries.elf import ElfError
from agent.cli import profiles
from agent.common.settings import read
from agent.config import Config, resolve
from agent.errors import AgentError
from agent.investigate.asleep import parse
from agent.investigate.decide import (
    EPISODE_NS,
    LEAST_NS,
    PROFILE_NS,
    REMEMBERED,
    SECOND,
    ProfileBudget,
    ProfiledProcess,
    families_of,
)
from agent.investigate.stacks import fitted, kernel_text, lock_text, places, user_text
from agent.kernel.asleep import asleep
from agent.kernel.settings import ProbeSettings
from agent.main import _families
from agent.tables import TABLES

ROOT_UID, ALICE, BOB = 0, 1000, 1001
NOW = 1_000 * SECOND


def process(n: int) -> ProfiledProcess:
    return ProfiledProcess(4242 + n, 17 + n)


def profile(budget: ProfileBudget, n: int, uid: int, now_ns: int, episode: object = None) -> int:
    """What is granted and spent."""
    ns = budget.grant((episode or n), process(n), uid, now_ns)
    if ns:
        budget.spend((episode or n), process(n), uid, ns, now_ns, begins=True)
    return ns


def test_symptoms_that_a_profile_can_explain() -> None:
    assert set(families_of("decision_latency")) >= {"offcpu", "block", "contention", "calls"}
    assert "synack" in families_of("accept_overflow") and "calls" not in families_of("accept_overflow")
    assert families_of("clock_jump") == families_of("process_gone") == ()


def test_a_process_is_checked_ever_more_rarely() -> None:
    budget, now, granted = ProfileBudget(), NOW, list[int]()
    while now < NOW + 3600 * SECOND:
        if profile(budget, 1, ROOT_UID, now, episode=now):
            granted.append(now)
        now += SECOND
    gaps = np.diff(granted) / SECOND
    assert gaps[0] == 23 and (gaps[1:] >= gaps[:-1]).all() and gaps[-1] == 643
    assert len(granted) <= 11


def test_an_episode_gets_a_profile_and_a_shorter_one() -> None:
    budget = ProfileBudget()
    spent = [profile(budget, 1, ROOT_UID, NOW + i * 60 * SECOND, episode="it") for i in range(20)]
    assert [ns for ns in spent if ns] == [PROFILE_NS, EPISODE_NS - PROFILE_NS]


def test_all_looks_together_take_a_tenth_of_the_time_at_most() -> None:
    """However many processes of however many users are ill, all the time."""
    budget, spent = ProfileBudget(), 0
    for second in range(3600):
        spent += profile(budget, second, (ROOT_UID, ALICE, BOB, 2000 + second)[second % 4], NOW + second * SECOND)
    assert 0.08 * 3600 * SECOND < spent <= 0.10 * 3600 * SECOND + 20 * SECOND
    assert budget.spent_ns == spent and budget.refused


def test_a_user_who_is_ill_on_purpose_takes_nobody_elses_looks() -> None:
    budget, alice = ProfileBudget(), 0
    for second in range(3600):
        alice += profile(budget, second, ALICE, NOW + second * SECOND)
    assert alice <= 0.025 * 3600 * SECOND + 5 * SECOND
    now = NOW + 3600 * SECOND
    assert profile(budget, 100_001, BOB, now) == profile(budget, 100_002, ROOT_UID, now) == PROFILE_NS
    assert profile(budget, 100_003, ALICE, now) == 0 and budget.refused["budget of its user"] > 0


def test_what_is_remembered_is_bounded() -> None:
    budget = ProfileBudget()
    for n in range(3 * REMEMBERED):
        profile(budget, n, 5000 + n, NOW + n * 100 * SECOND)
    assert max(map(len, (budget._pauses, budget._episodes, budget._time._buckets))) <= REMEMBERED


def test_a_process_more_of_a_profile_costs_its_user_and_not_the_others() -> None:
    budget = ProfileBudget()
    budget.spend("one", process(1), ROOT_UID, PROFILE_NS, NOW, begins=True)
    budget.spend("two", process(2), ALICE, PROFILE_NS, NOW, begins=False)
    assert budget.spent_ns == PROFILE_NS
    assert budget.grant("three", process(3), ALICE, NOW) == 2 * SECOND  # of five
    budget.spend("three", process(3), ALICE, 2 * SECOND, NOW, begins=False)
    assert budget.grant("four", process(4), ALICE, NOW) < LEAST_NS


def test_off_leaves_the_families_out() -> None:
    names = {"offcpu", "block", "contention", "reclaim", "synack", "calls"}
    assert names <= {p.name for p in _families(Config())}
    assert not names & {p.name for p in _families(Config(probes=ProbeSettings(investigate="off")))}
    assert "calls" not in {p.name for p in _families(Config(probes=ProbeSettings(syscalls="full")))}
    with pytest.raises(AgentError, match="investigate"):
        read(Config, {"investigate": "always"})


def test_the_setting_in_a_file(tmp_path: Path) -> None:
    """YAML reads a bare off as false."""
    file = tmp_path / "settings.yaml"
    file.write_text("investigate: off\n")
    assert resolve({}, {}, str(file)).probes.investigate == "off"
    assert resolve({"investigate": "auto"}, {}, str(file)).probes.investigate == "auto"


def test_stacks_lose_what_only_shows_that_somebody_looked() -> None:
    names = {
        1: "bpf_trace_run4",
        2: "__traceiter_sched_switch",
        3: "__schedule",
        4: "schedule",
        5: "io_schedule",
        6: "folio_wait_bit",
    }
    assert kernel_text([1, 2, 3, 4, 5, 6, 77], names) == "io_schedule;folio_wait_bit;0x4d"
    assert fitted(["a" * 20] * 100, 512).endswith(";...") and len(fitted(["a" * 20] * 100, 512)) <= 512
    assert fitted(["short"], 512) == "short" and fitted(["é" * 600], 512) == "..."


def test_a_lock_has_a_name_or_who_takes_it() -> None:
    names = {1: "__pv_queued_spin_lock_slowpath", 2: "_raw_spin_lock_irqsave", 3: "try_to_wake_up", 9: "tasklist_lock"}
    assert lock_text(9, [1, 2, 3], names) == "tasklist_lock"
    assert lock_text(10, [1, 2, 3], names) == "taken by try_to_wake_up"
    assert lock_text(10, [1, 2], names) == lock_text(10, [], names) == "unknown"


MAPS = b"""00400000-00500000 r--p 00000000 08:01 11 /usr/bin/python3
00500000-00700000 r-xp 00100000 08:01 11 /usr/bin/python3
7f0000000000-7f0000100000 r--p 00000000 08:01 12 /usr/lib/locale/C.utf8/LC_CTYPE
7f1000000000-7f1000200000 r-xp 00026000 08:01 13 /usr/lib/libc;.so.6 (deleted)
7f2000000000-7f2000001000 r-xp 00000000 00:00 0
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0 [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
"""


def test_where_a_programs_addresses_lie() -> None:
    at = [0x501234, 0x7F1000001000, 0x7F0000000010, 0x7F2000000010, 0x10, 0x7FFD00000010]
    found = places(MAPS, at)
    assert found[0x501234].offset == 0x101234 and found[0x501234].span == "500000-700000"
    assert found.keys() == {0x501234, 0x7F1000001000, 0x7F2000000010, 0x7FFD00000010}
    assert user_text(at, found, {0x501234: "PyEval"}) == "PyEval;libc?.so.6+0x27000"  # then the chain is lost
    assert user_text([0x7F2000000010, 0x7FFD00000010], found, {}) == "0x7f2000000010;[vdso]+0x10"
    assert user_text([5, 6], {}, {}) == "0x5;0x6" and places(b"\xff\n\n-- x", [5]) == {}


def test_threads_that_sleep() -> None:
    text = (
        b"11 S 202 futex_wait_queue\n12 S 202 futex_wait_queue\n13 D 74 folio_wait_bit\nx y\n15 R 1 a\n16 D\n-1 S 0 a\n"
    )
    found = {(one.nr, one.function): (one.state, one.threads) for one in parse(7, text, {12})}
    sleeping, held = (TABLES["off_cpu"].code("state", name) for name in ("sleeping", "uninterruptible"))
    assert found == {(202, "futex_wait_queue"): (sleeping, 1), (74, "folio_wait_bit"): (held, 1)}
    with pytest.raises(OSError):
        asleep(1 << 30)


def kallsyms(text: bytes) -> int:
    file = os.memfd_create("kallsyms")
    os.write(file, text)
    return file


def test_names_of_the_kernels_functions() -> None:
    fd = kallsyms(
        b"".join(b"%016x t f%d\n" % (0xFFFFFFFF81000000 + 64 * i, i) for i in range(5000))
        + b"ffffffffc0000000 t vendor\t[module]\n"
    )
    try:
        asked = [0xFFFFFFFF81000000 + 64 * 4242 + 7, 5, 0xFFFFFFFF81000000, 0xFFFFFFFFC0000010, 0xFFFF888000000000]
        assert nearest.in_kernel([fd], asked) == ["f4242", "", "f0", "vendor [module]", ""]
    finally:
        os.close(fd)
    fd = kallsyms(b"0000000000000000 T _text\n" * 10)
    try:
        with pytest.raises(ElfError, match="kptr_restrict"):
            nearest.in_kernel([fd], [1])
    finally:
        os.close(fd)


def test_names_in_a_file_of_anybodys() -> None:
    """Its own answer for its own functions, and for any bytes an answer or a clear error."""
    path = "/lib/x86_64-linux-gnu/libc.so.6" if os.path.exists("/lib/x86_64-linux-gnu/libc.so.6") else ""
    if path:
        fd = os.open(path, os.O_RDONLY)
        try:
            elf = nearest.NamedFile(fd)
            for name in (b"fsync", b"malloc", b"connect"):
                offset = elf.file_offset(elf.symbols([name])[name].value)
                assert name.decode() in nearest.in_file([fd], [offset + 1])[0]
            assert nearest.in_file([fd], [1 << 62, 0]) == ["", ""]
        finally:
            os.close(fd)
    whole = Path(os.path.realpath("/proc/self/exe")).read_bytes()[: 1 << 16]
    chance = random.Random(7)
    for _ in range(150):
        raw = bytearray(whole)
        for _ in range(20):
            raw[chance.randrange(256)] = chance.randrange(256)
        struct.pack_into("<Q", raw, 40, chance.randrange(1 << chance.randrange(1, 64)))
        with tempfile.TemporaryFile() as file:
            file.write(raw)
            file.flush()
            with contextlib.suppress(ElfError, OSError):
                assert len(nearest.in_file([file.fileno()], [1, 4096, 1 << 40])) == 3


LOOK = {
    "investigation": "a1.0",
    "comm": "app",
    "pid": 7,
    "interval_ns": 3 * SECOND,
    "begun_ns": NOW + SECOND,
    "t_ns": NOW + 4 * SECOND,
    "state": "done",
    "families": "offcpu block",
    "reason": None,
    "off_cpu": [
        {
            "comm": "app",
            "kind": "slow",
            "state": "uninterruptible",
            "syscall": "fsync",
            "count": 3,
            "sum_ns": 2 * SECOND,
            "max_ns": SECOND,
            "kernel_stack": ";".join(f"kernel_function_{i}" for i in range(40)),
            "user_stack": "fsync;main",
        }
    ],
    "block_io": [
        {
            "op": "all",
            "device": "sda",
            "comm": "",
            "pid": None,
            "count": 5,
            "unfinished": 2,
            "bytes": 4_000_000,
            "errors": 1,
            "sum_ns": 7 * SECOND,
            "max_ns": SECOND,
            "queued_ns": 0,
        },
        {
            "op": "write",
            "device": "sda",
            "comm": "dd",
            "pid": 9,
            "count": 5,
            "unfinished": 2,
            "bytes": 4_000_000,
            "errors": 1,
            "sum_ns": 7 * SECOND,
            "max_ns": SECOND,
            "queued_ns": 0,
        },
    ],
    "lock_contention": [
        {
            "comm": "app",
            "path": "process",
            "lock": "taken by ext4_x",
            "kind": "write",
            "count": 9,
            "sum_ns": SECOND,
            "max_ns": SECOND,
            "kernel_stack": "a;b",
        }
    ],
    "memory_stall": [{"comm": "app", "kind": "reclaim", "count": 2, "sum_ns": SECOND, "max_ns": SECOND}],
    "syn_ack": [{"sport": 80, "count": 2, "sum_ns": SECOND, "max_ns": SECOND}],
    "syscall_latency": [
        {"comm": "app", "syscall": "fsync", "count": 2, "errors": 0, "sum_ns": SECOND, "max_ns": SECOND}
    ],
}


@pytest.mark.parametrize("width", [80, 60])
def test_a_profile_in_words_fits_the_screen(width: int) -> None:
    from agent.cli.layout import wrapped

    lines = profiles.lines_of([LOOK], NOW, lambda text, indent, hang: wrapped(text, width, indent, " " * hang))
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "On-demand profile of app pid 7, for 3s from +1s on" in lines[1]
    words = " ".join(text.split())
    assert "app: 2s asleep, uninterruptible in fsync, 3 times, for up to 1s" in words and "28 more" in words
    assert (
        "disk sda: 5 requests, 1 failed, 2 not finished, 4.0 MB; it took 1s for each" in words
        and "write by dd pid 9" in words
    )
    assert (
        "waiting for a lock of the kernel's, taken by ext4_x (write)" in words and "port 80: 2 SYNs answered" in words
    )
