"""Who held the lock that a call waited for: flock and fcntl, in this namespace and from another; and what is reported
of files.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from agent.correlate.words import peer
from agent.kernel.loaded_families import on_the_host
from agent.probes import syscalls
from tests.kernel.test_syscalls import BLOCKED, SO_FAR, Family
from tests.patience import COARSE, PATIENCE, until

#: argv: the file, the call. Holds the lock until told to end.
HOLDS = """
import fcntl, sys
f = open(sys.argv[1], 'r+b')
fcntl.flock(f, fcntl.LOCK_EX) if sys.argv[2] == "flock" else fcntl.lockf(f, fcntl.LOCK_EX, 1)
print("held", flush=True); sys.stdin.read()
"""
#: Waits for it.
WAITS = """
import fcntl, sys, time
f = open(sys.argv[1], 'r+b')
{"flock": fcntl.flock, "fcntl": fcntl.lockf}[sys.argv[2]](f, fcntl.LOCK_EX)
time.sleep(0.03)
"""
#: Does not wait for it, but sleeps and tries again, as SQLite does.
RETRIES = """
import fcntl, sys, time
f = open(sys.argv[1], 'r+b')
more = () if sys.argv[2] == "flock" else (1,)
while True:
    try:
        {"flock": fcntl.flock, "fcntl": fcntl.lockf}[sys.argv[2]](f, fcntl.LOCK_EX | fcntl.LOCK_NB, *more)
    except OSError:
        time.sleep(0.05)
    else:
        break
time.sleep(0.06)
"""
#: A lock of an open file description has no process, for user space; the kernel knows who took it.
WAITS_OFD = """
import fcntl, os, struct, sys
f = open(sys.argv[1], 'r+b')
fcntl.fcntl(f, fcntl.F_OFD_SETLKW, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
"""
#: Sleeps in three threads: for a time, for an answer, for any of several events.
ASLEEP = """
import select, socket, sys, threading, time
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
threading.Thread(target=c.recv, args=(1,)).start()
threading.Thread(target=select.epoll().poll, daemon=True).start()
time.sleep(20)
"""
WRITES = """
import os, sys, time
f = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for _ in range(13):
    time.sleep(0.001); os.write(f, bytes(700_001)); os.fsync(f)
"""
APART = ["unshare", "--pid", "--fork", "--kill-child"]


@contextmanager
def holding(*before: str, call: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [*before, sys.executable, "-c", HOLDS, str(file), call]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdin
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.stdin.close()


def waiting(file: Path, call: str, code: str = WAITS) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, str(file), call])


def in_line(file: Path, n: int = 1) -> None:
    """Returns a moment after n of them wait for a lock on that file."""
    locks, inode = Path("/proc/locks"), f":{file.stat().st_ino} "
    until(
        lambda: sum(" -> " in line and inode in line for line in locks.read_text().splitlines()) >= n,
        why=locks.read_text,
    )
    time.sleep(0.05 * COARSE)


def own_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def start_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) * 10_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "state.db").write_bytes(b"x")
    return tmp_path / "state.db"


@pytest.mark.parametrize("call", ["flock", "fcntl"])
@pytest.mark.parametrize("before", [(), APART], ids=["here", "apart"])
def test_a_lock_wait_names_the_holder(
    attach: Callable[..., object], file: Path, call: str, before: tuple[str, ...]
) -> None:
    family = Family(attach)
    with holding(*before, call=call, file=file) as holder:
        who = own_child(holder.pid) if before else holder.pid
        started = start_ns(who)
        waiter = waiting(file, call)
        in_line(file)
    waiter.wait(20 * PATIENCE)
    (row,) = family.slow(waiter.pid, 1, call.encode(), waited_ns=20_000_000 * COARSE)
    assert (row["holder_pid"], row["file"], row["fd_type"]) == (who, b"state.db", b"file")
    assert row["holder_comm"].startswith(b"python")
    assert row["holder_start_ns"] // 10_000_000 * 10_000_000 == started
    assert family.attached.lost() == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", ["flock", "fcntl"])
def test_a_sleep_between_tries_names_who_has_the_lock(attach: Callable[..., object], file: Path, call: str) -> None:
    """Who has locked another part of the file does not matter."""
    family = Family(attach)
    with file.open("r+b") as other, holding(call=call, file=file) as holder:
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)
        waiter = waiting(file, call, RETRIES)
        assert syscalls.WatchedProcesses(family.family).add(waiter.pid, 40_000_000)
        time.sleep(0.4 * COARSE)
    assert waiter.wait(20 * PATIENCE) == 0

    def naps(rows: np.ndarray) -> np.ndarray:
        return np.asarray(rows[(rows["pid"] == waiter.pid) & (rows["syscall"] == b"clock_nanosleep")])

    rows = family.attached.wait("slow_syscall", naps, lambda rows: np.any(rows["holder_pid"] < 0))  # type: ignore[attr-defined]
    tries, last = rows[rows["holder_pid"] > 0], rows[rows["holder_pid"] < 0]
    assert len(tries) >= 3
    assert set(zip(tries["holder_pid"], tries["file"], tries["fd_type"], strict=True)) == {
        (holder.pid, b"state.db", b"")
    }
    assert len(last) == 1  # it has the lock
    assert last["file"] == b""


@pytest.mark.parametrize("call", ["flock", "fcntl"])
@pytest.mark.parametrize("older", [False, True], ids=["younger", "older"])
def test_a_call_that_goes_on_is_reported_with_what_it_waits_for(
    attach: Callable[..., object], file: Path, older: bool, call: str
) -> None:
    """A lock, a connection, a time; not a wait for any of several events. At its end the whole call is a row. older:
    than the programs.
    """
    if older and not on_the_host():
        pytest.skip("in a PID namespace, threads that wait since before are not seen")
    family = None if older else Family(attach)
    with (
        holding(call=call, file=file) as holder,
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen([sys.executable, "-c", ASLEEP, str(server.getsockname()[1])]) as asleep,
    ):
        waiter, since_ns = waiting(file, call), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        pids = [waiter.pid, asleep.pid]
        if family is None:  # all wait before the programs run
            in_line(file)
            until(lambda: len(os.listdir(f"/proc/{asleep.pid}/task")) == 3)
            time.sleep(0.2 * COARSE)
            waiting_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            family = Family(attach)
        so_far = syscalls.CallsSoFar(family.attached.source, family.family, lambda: pids)  # type: ignore[attr-defined]
        family.attached.extra.append(so_far)  # type: ignore[attr-defined]

        def those(rows: np.ndarray) -> np.ndarray:
            return np.asarray(rows[(rows["basis"] == SO_FAR) & np.isin(rows["pid"], pids)])

        rows = family.attached.wait(  # type: ignore[attr-defined]
            "slow_syscall", those, lambda rows: len(rows) > 9 and len({*rows["tid"].tolist()}) == 3
        )
        lock, naps, reads = (rows[rows["syscall"] == name] for name in (call.encode(), b"clock_nanosleep", b"recvfrom"))
        assert len(lock) + len(naps) + len(reads) == len(rows)
        assert {*zip(lock["pid"], lock["holder_pid"], lock["file"], strict=True)} == {
            (waiter.pid, holder.pid, b"state.db")
        }
        assert (naps["duration_ns"] >= syscalls.SO_FAR_NS).all()
        assert {peer(row.tobytes()) for row in reads["peer"]} == {f"127.0.0.1:{server.getsockname()[1]}"}
        begun = rows["t_ns"] - rows["duration_ns"]
        assert len(np.unique(begun)) == 3
        assert (begun >= since_ns).all()
        if older:
            assert (begun <= waiting_ns).all()
        asleep.kill()
    assert waiter.wait(20 * PATIENCE) == 0
    whole = family.slow(waiter.pid, 1, call.encode(), waited_ns=syscalls.SO_FAR_NS)
    whole = whole[whole["basis"] == BLOCKED]
    assert (whole["t_ns"] - whole["duration_ns"]).tolist() == np.unique(begun[rows["pid"] == waiter.pid]).tolist()


def test_those_who_stand_in_line_name_who_has_it_and_not_each_other(attach: Callable[..., object], file: Path) -> None:
    family = Family(attach)
    with holding(call="flock", file=file) as holder:
        line = [waiting(file, "flock") for _ in range(5)]
        in_line(file, 5)
        time.sleep(0.5 * COARSE)
    pids = [waiter.pid for waiter in line if waiter.wait(20 * PATIENCE) == 0]
    first = np.concatenate([family.slow(pid, 1, b"flock", waited_ns=20_000_000 * COARSE) for pid in pids])
    assert len(first) == 5
    assert (first["holder_pid"] == holder.pid).sum() >= 1
    assert set(first["holder_pid"]) <= {holder.pid, *pids}
    longest = first[np.argmax(first["duration_ns"])]
    assert longest["holder_pid"] == holder.pid


def test_a_call_after_one_that_waited_has_no_holder(attach: Callable[..., object], file: Path) -> None:
    family = Family(attach)
    later = WAITS + "\nfcntl.flock(f, fcntl.LOCK_UN)\nimport os\nr, w = os.pipe()\nos.write(w, bytes(65536))\n"
    later += (
        f"import threading; threading.Timer({0.05 * COARSE}, lambda: os.read(r, 65536)).start()\nos.write(w, b'x')\n"
    )
    with holding(call="flock", file=file):
        waiter = waiting(file, "flock", later)
        in_line(file)
    waiter.wait(20 * PATIENCE)
    rows = family.slow(waiter.pid, 2, b"flock", b"write", waited_ns=20_000_000 * COARSE)
    assert dict(zip(rows["syscall"], rows["holder_pid"] > 0, strict=True)) == {b"flock": True, b"write": False}


def test_a_lock_of_an_open_file_description_names_who_took_it(attach: Callable[..., object], file: Path) -> None:
    family = Family(attach)
    ofd = WAITS_OFD + "print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", ofd, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        assert holder.stdin
        holder.stdout.readline()
        waiter = waiting(file, "fcntl", WAITS_OFD)
        in_line(file)
        holder.stdin.close()
    waiter.wait(20 * PATIENCE)
    (row,) = family.slow(waiter.pid, 1, b"fcntl", waited_ns=20_000_000 * COARSE)
    assert row["holder_pid"] == holder.pid


def test_without_its_program_nobody_is_named(attach: Callable[..., object], file: Path) -> None:
    family = Family(attach)
    os.close(family.family.links.pop("syscalls_on_flock"))
    with holding(call="flock", file=file):
        waiter = waiting(file, "flock")
        in_line(file)
    waiter.wait(20 * PATIENCE)
    (row,) = family.slow(waiter.pid, 1, b"flock", waited_ns=20_000_000 * COARSE)
    assert row["holder_pid"] < 0


def test_a_sync_reports_its_file_and_how_much_was_written(attach: Callable[..., object]) -> None:
    """On a disk: a sync in memory does not wait."""
    family = Family(attach, options={"SYSCALLS_SLOW_NS": 10_000})
    place = Path("/var/tmp/tickscope-test-journal")
    try:
        child = subprocess.Popen([sys.executable, "-c", WRITES, str(place)])
        child.wait(60 * PATIENCE)
        synced = family.slow(child.pid, 1, b"fsync")
    finally:
        place.unlink()
    assert len(synced)
    assert set(synced["file"]) == {b"tickscope-test-journal"}
    assert np.all(synced["written_bytes"] >= 700_001)
    assert np.all(synced["written_bytes"] < 2 * 700_001 + 65_536)
    assert not synced["frozen"].any()
