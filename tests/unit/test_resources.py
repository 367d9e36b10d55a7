"""What is polled of watched processes: cgroups' counters, descriptors, room on disks. Real processes; the text of the
kernel's files.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.batch import make
from agent.common import process_stat
from agent.common.address import peer_of
from agent.kernel.spaces import spaces
from agent.resources import cgroups
from agent.resources.cgroups import Group, Mounts
from agent.resources.resource_source import AGAIN_NS, POLL_NS, WORKS_NS, Resources, Watched
from agent.resources.spaces import Space, Spaces
from agent.tables import TABLES

TABLE = TABLES["resource"]
HYBRID = """cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0
cgroup /sys/fs/cgroup/cpuacct cgroup rw,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""
#: Has as many files open as it may, when it is told to.
FULL = (
    "import resource, sys\nprint('ready', flush=True)\nsys.stdin.readline()\nresource.setrlimit(resource.RLIMIT_NOFILE,"
    " (3, 3))\nprint('full', flush=True)\nsys.stdin.readline()"
)


def test_where_the_trees_are_and_which_levels_may_withhold() -> None:
    both = Mounts.parse(HYBRID)
    assert both == Mounts("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified")
    text = "4:memory:/a/b\n2:cpuacct:/\n1:cpu:/a\n0::/c d/e\n"
    assert both.groups(text)[:2] == (
        ("/sys/fs/cgroup/cpu/a",),
        ("/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a"),
    )
    assert both.groups(text)[2:] == 2 * (("/sys/fs/cgroup/unified/c d/e", "/sys/fs/cgroup/unified/c d"),)
    apart = Mounts.parse(HYBRID + "cgroup /b cgroup rw,blkio 0 0\ncgroup /p cgroup rw,pids 0 0\n")
    assert apart.groups(text + "7:blkio:/x\n8:pids:/y\n")[2:] == (("/b/x",), ("/p/y",))
    two = Mounts.parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    assert two.groups("0::/x.slice/y\n")[0] == ("/sys/fs/cgroup/x.slice/y", "/sys/fs/cgroup/x.slice")
    assert two.groups("0::/\n") == ((), (), (), ())
    assert two.groups("0::/../other\n") == ((), (), (), ())  # of another cgroup namespace
    assert Mounts.parse("cgroup /c cgroup rw,cpu,cpuacct 0 0\n") == Mounts("/c")


@pytest.mark.parametrize("modern", [True, False])
def test_counters_of_both_versions(tmp_path: Path, modern: bool) -> None:
    def write(periods: int, throttled_us: int, met: int, killed: int) -> None:
        ns = f"throttled_usec {throttled_us}" if modern else f"throttled_time {throttled_us * 1000}"
        (tmp_path / "cpu.stat").write_text(f"nr_periods {periods + 3}\nnr_throttled {periods}\n{ns}\n")
        if modern:
            (tmp_path / "memory.events").write_text(f"low 0\nhigh 0\nmax {met}\noom 0\noom_kill {killed}\n")
            (tmp_path / "memory.current").write_text("4096\n")
            (tmp_path / "memory.max").write_text("max\n")
        else:
            (tmp_path / "memory.failcnt").write_text(f"{met}\n")
            (tmp_path / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {killed}\n")
            (tmp_path / "memory.usage_in_bytes").write_text("4096\n")
            (tmp_path / "memory.limit_in_bytes").write_text("8192\n")

    group = Group(str(tmp_path))
    write(5, 700, 11, 0)
    group.read_cpu()
    group.read_memory()
    assert (group.throttled, group.throttled_ns, group.met, group.killed) == (0, 0, 0, 0)
    write(7, 1000, 24, 1)
    group.read_cpu()
    group.read_memory()
    assert (group.periods, group.throttled, group.throttled_ns, group.met, group.killed) == (2, 2, 300_000, 13, 1)
    assert group.memory() == (4096, -1 if modern else 8192)
    group.read_memory()
    assert group.killed == 1  # whoever was killed may not have ended yet
    group.read_memory()
    assert group.killed == 0


def test_for_how_long_something_waited() -> None:
    text = "some avg10=12.31 avg60=16.34 avg300=17.06 total=442687272\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    assert cgroups.pressure_ns(text) == 442_687_272_000
    assert cgroups.pressure_ns("") == cgroups.pressure_ns("some total=\n") == -1


def test_a_group_that_is_gone_reports_nothing(tmp_path: Path) -> None:
    group = Group(str(tmp_path / "gone"))
    group.read_cpu()
    group.read_memory()
    assert (group.throttled_ns, group.met, group.killed, group.memory()) == (0, 0, 0, (-1, -1))


def test_one_process() -> None:
    now = process_stat.stat(os.getpid())
    assert now is not None and now.state == "R"
    assert process_stat.Stat.parse("1 (a ) b) S " + " ".join(str(n) for n in range(1, 30)))
    assert process_stat.Stat.parse("") is None
    fds = process_stat.descriptors(os.getpid())
    if fds is not None:  # Linux 6.2
        assert abs(fds - len(os.listdir("/proc/self/fd"))) <= 1
    limits = cgroups.read("/proc/self/limits")
    assert process_stat.most_descriptors(limits) == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert process_stat.most_descriptors("Max open files  unlimited  unlimited  files\n") is None


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    one = subprocess.Popen([sys.executable, "-c", FULL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert one.stdout is not None and one.stdout.readline() == "ready\n"
    yield one
    one.kill()
    one.communicate()


def test_descriptors_that_run_out_are_reported_and_the_others_now_and_then(child: subprocess.Popen[str]) -> None:
    polled = Resources()
    now = process_stat.stat(child.pid)
    assert now is not None
    start_ns = now.start_tick * 10_000_000 + 123
    passed = list(polled(make("limiter_decision", 3, pid=child.pid, proc_start_ns=start_ns, comm=b"it"), 1))
    assert len(passed) == 1 and len(polled.watched) == 1

    def rows(now_ns: int) -> np.ndarray:
        found = [batch.rows for batch in polled.drain(now_ns)]
        every = np.concatenate([TABLE.empty(0), *found])
        return every[every["kind"] == TABLE.code("kind", "fd")]

    if process_stat.descriptors(os.getpid()) is None:
        pytest.skip("before Linux 6.2 nobody but root can tell")
    first = rows(POLL_NS)
    assert len(first) == 1 and first["limit"][0] > first["used"][0] == 3 and first["pid"][0] == child.pid
    assert not len(rows(2 * POLL_NS))
    assert len(rows(POLL_NS + AGAIN_NS)) == 1
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "full\n"
    for n in (40, 41):
        gone = rows(n * POLL_NS)
        assert (gone["used"][0], gone["limit"][0]) == (3, 3)


def test_who_ended_is_watched_no_more_and_a_later_process_of_its_number_never(child: subprocess.Popen[str]) -> None:
    polled = Resources()
    now = process_stat.stat(child.pid)
    assert now is not None
    list(polled(make("limiter_decision", 1, pid=child.pid, proc_start_ns=now.start_tick * 10_000_000 - 10_000_000), 1))
    list(polled.drain(POLL_NS))
    assert not polled.watched
    list(polled(make("limiter_decision", 1, pid=child.pid, proc_start_ns=now.start_tick * 10_000_000), 1))
    list(polled.drain(2 * POLL_NS))
    assert polled.watched
    child.kill()
    while process_stat.is_it(process_stat.stat(child.pid), now.start_tick * 10_000_000):
        time.sleep(0.01)  # then it is a zombie
    list(polled.drain(3 * POLL_NS))
    assert not polled.watched


_ACCEPT = TABLES["socket_queue"].code("kind", "accept")


def test_a_client_of_a_polled_broker_and_its_children_are_watched(child: subprocess.Popen[str]) -> None:
    """Those that do the work of a consumer may talk to nobody (Celery)."""
    polled, broker = Resources(), peer_of("127.0.0.1:6379")
    mine, its = process_stat.stat(os.getpid()), process_stat.stat(child.pid)
    assert mine is not None and its is not None
    polled._own = 1
    shared = {"pid": os.getpid(), "proc_start_ns": mine.start_tick * 10_000_000, "comm": b"celery"}
    shared["role"] = TABLES["tcp_rtt"].code("role", "client")
    talks = make("tcp_rtt", 1, peer=np.frombuffer(broker, "V18"), **shared)
    list(polled(talks, 1))
    assert not polled.watched
    list(polled(make("queue_lag", 1, peer=np.frombuffer(broker, "V18")), 1))
    list(polled(talks, 1))
    for n in (1, 2):
        batches = list(polled.drain(n * AGAIN_NS))
    assert {key[0] for key in polled.watched} >= {os.getpid(), child.pid}
    (used,) = [batch.rows for batch in batches if batch.table == "cpu_use"]
    (row,) = used[used["pid"] == child.pid]
    assert (row["parent_pid"], row["comm"]) == (os.getpid(), its.comm.encode())


def test_the_children_of_a_server_for_which_connections_wait_are_watched(child: subprocess.Popen[str]) -> None:
    """At one of its sockets; for some time."""
    polled, mine = Resources(), process_stat.stat(os.getpid())
    assert mine is not None
    polled._own = 1
    server = {"pid": os.getpid(), "proc_start_ns": mine.start_tick * 10_000_000, "kind": _ACCEPT}
    list(polled(make("socket_queue", 1, queue=0, **server), 1))
    list(polled.drain(AGAIN_NS))
    assert child.pid not in {key[0] for key in polled.watched}
    list(polled(make("socket_queue", 2, queue=np.array([3, 0]), **server), AGAIN_NS))
    list(polled.drain(2 * AGAIN_NS))
    assert child.pid in {key[0] for key in polled.watched}
    seen_ns = next(one.seen_ns for one in polled.watched.values() if one.pid == child.pid)
    list(polled.drain(3 * AGAIN_NS + WORKS_NS))
    assert next(one.seen_ns for one in polled.watched.values() if one.pid == child.pid) == seen_ns


def test_only_so_many_are_watched() -> None:
    """Half of the places for one user but root."""
    polled = Resources()
    for pid in range(1_000_000, 1_000_100):
        list(polled(make("limiter_decision", 1, pid=pid, proc_start_ns=5), pid))
    assert len(polled.watched) == 32
    list(polled(make("limiter_decision", 1, pid=1, proc_start_ns=5), 3 * AGAIN_NS))
    assert len(polled.watched) == 33 and (1, 0) in polled.watched


def test_file_systems_that_a_process_writes_to(tmp_path: Path) -> None:
    with (tmp_path / "written").open("wb"), (tmp_path / "written").open("rb"):
        reported = Space.parse(spaces(os.getpid()))
    there = os.statvfs(tmp_path)
    sizes = [there.f_blocks * there.f_frsize, there.f_files]
    assert any(space.limit in sizes for space in reported), (reported, sizes)


def test_room_that_is_left() -> None:
    size = 64 << 20
    line = b"%d %d %d %d 3 /mnt/a\\040b\n"
    roomy, full, few = (
        Space.parse(line % numbers)[0]
        for numbers in ((size, size // 2, 1000, 900), (size, 4096, 1000, 900), (size, size // 2, 1000, 0))
    )
    assert (roomy.point, roomy.full, roomy.used, roomy.limit) == (b"/mnt/a b", False, size // 2, size)
    assert (full.full, full.used) == (True, size - 4096)
    assert (few.full, few.used, few.limit) == (True, 1000, 1000)
    for size, left, is_full in (  # a redis-server stopped at the first of these
        (48 << 20, 466_000, True),
        (48 << 20, 2 << 20, False),
        (1 << 20, 40_000, True),
        (1 << 20, 100_000, False),
        (100 << 30, 60 << 20, True),
        (100 << 30, 70 << 20, False),
    ):
        assert Space.parse(line % (size, left, 1000, 900))[0].full == is_full, (size, left)
    assert Space.parse(b"nonsense\n1 2 3\n-1 2 3 4 5 /\n") == []


@pytest.mark.parametrize(
    ("left", "files", "rest", "seconds"),
    [(64 << 20, 0, 0, 0.5), (8 << 30, 0, 0, 2), (900 << 30, 0, 0, 10), (900 << 30, 9_000_000, 3_000_000, 3)],
)
def test_much_room_is_asked_for_seldom(left: int, files: int, rest: int, seconds: float) -> None:
    polled = Spaces(None, Resources())  # type: ignore[arg-type]
    space = Space.parse(b"%d %d %d %d 3 /\n" % (1 << 40, left, files, rest))
    polled._take(Watched(7, 5, b"it", 1, 0), (7, 0), space, 0)
    (known,) = polled._known.values()
    assert known.due_ns == seconds * 1e9 - POLL_NS // 4
