"""Limits of cgroups on block I/O and on processes: the kernel's files of both versions, a real cgroup, and what is made
of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.resources import cgroups
from agent.resources.disks import names
from agent.resources.limits import CgroupLimits, Used
from agent.resources.resource_source import Resources, Watched
from tests.unit.correlate_scenarios import APP_PID, UNTIL, Host, S, around_stall, call, code, latest, run

MB = 1_000_000
#: Starts a program as often as it is told to, and says whether it could.
FORKS = """import os, sys
for line in sys.stdin:
    try:
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        print("yes", flush=True)
    except OSError:
        print("no", flush=True)
"""
PYTHON3 = {"pid": APP_PID, "comm": b"python3"}


def one(place: Path, modern: bool, written: int, requests: int) -> None:
    if modern:
        (place / "io.max").write_text(
            "254:0 rbps=max wbps=1000000 riops=max wiops=50\n8:0 rbps=max wbps=max riops=max wiops=max\n"
        )
        (place / "io.stat").write_text(
            f"254:0 rbytes=77 wbytes={written} rios=1 wios={requests} dbytes=0 dios=0\n8:0 rbytes=999 wbytes=999\n"
        )
    else:
        (place / "blkio.throttle.write_bps_device").write_text("254:0 1000000\n")
        (place / "blkio.throttle.write_iops_device").write_text("254:0 50\n")
        (place / "blkio.throttle.io_service_bytes").write_text(
            f"254:0 Read 77\n254:0 Write {written}\n254:0 Total {written + 77}\nTotal {written}\n"
        )
        (place / "blkio.throttle.io_serviced").write_text(f"254:0 Read 1\n254:0 Write {requests}\nTotal {requests}\n")


def done(limits: CgroupLimits, second: int) -> list[Used]:
    """Without the disk's name, which this host may know."""
    return [used._replace(device="") for used in limits.io(second * S)]


@pytest.mark.parametrize("modern", [True, False])
def test_who_does_as_much_on_a_disk_as_he_may_is_reported(tmp_path: Path, modern: bool) -> None:
    limits = CgroupLimits(str(tmp_path))
    one(tmp_path, modern, 5 * MB, 10)
    assert list(limits.io(10 * S)) == []
    one(tmp_path, modern, 7 * MB, 20)  # in two seconds
    assert done(limits, 12) == [Used("io", MB, MB, direction="write")]
    one(tmp_path, modern, 7 * MB + 600_000, 68)
    assert done(limits, 13) == [Used("iops", 48, 50, direction="write")]
    one(tmp_path, modern, 8 * MB, 70)
    assert list(limits.io(14 * S)) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_a_limit_of_few_requests_is_reached_a_little_below_it(tmp_path: Path, limit: int) -> None:
    limits = CgroupLimits(str(tmp_path))
    (tmp_path / "io.max").write_text(f"254:0 wiops={limit}\n")
    for requests, at in ((0, 10), (9 * limit, 20)):
        (tmp_path / "io.stat").write_text(f"254:0 wios={requests}\n")
        reported = done(limits, at)
    assert reported == [Used("iops", round(0.9 * limit), limit, direction="write")]


def test_without_limits_there_is_nothing_to_report(tmp_path: Path) -> None:
    limits = CgroupLimits(str(tmp_path / "gone"))
    assert [list(limits.io(n * S)) + list(limits.pids()) for n in range(5)] == [[]] * 5


def test_processes_that_a_real_cgroup_does_not_let_start() -> None:
    tree = cgroups.mounts().pids
    if not tree:
        pytest.skip("this host has no cgroup of pids of version 1")
    place = Path(tree) / f"tickscope-test-{os.getpid()}"
    place.mkdir()
    process = subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    try:
        (place / "cgroup.procs").write_text(str(process.pid))
        limits, output = CgroupLimits(str(place)), []
        for most in ("max", "1", "1"):
            (place / "pids.max").write_text(most)
            print("now", file=process.stdin, flush=True)
            output.append((process.stdout.readline(), list(limits.pids())))
        assert output == [("yes\n", []), ("no\n", [Used("pids", 1, 1, 1)]), ("no\n", [Used("pids", 1, 1, 1)])]
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        for _ in range(50):
            with contextlib.suppress(OSError):
                place.rmdir()
                break
            time.sleep(0.02)


def test_a_process_that_moves_is_looked_for_where_it_is() -> None:
    """As one that a service manager puts into its cgroup once it runs; where it was when it ended is where it is looked
    for then.
    """
    tree = cgroups.mounts().pids
    if not tree:
        pytest.skip("this host has no cgroup of pids of version 1")
    places, source = [Path(tree) / f"tickscope-test-{os.getpid()}-{n}" for n in range(2)], Resources()
    for place in places:
        place.mkdir()
    child = subprocess.Popen(["sleep", "60"])
    try:
        (places[0] / "cgroup.procs").write_text(str(child.pid))
        tick = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
        one = source.watched[child.pid, tick] = Watched(child.pid, tick * 10_000_000, b"sleep", 20 * S)
        found = []
        for at, place in enumerate((*places, places[1])):
            if at == 2:
                child.kill()
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            else:
                (place / "cgroup.procs").write_text(str(child.pid))
            list(source.drain((20 + 2 * at) * S))
            found.append(one.pids[0])
            list(source.drain((21 + 2 * at) * S))
        assert found == [str(places[0]), str(places[1]), str(places[1])]
    finally:
        child.kill()
        child.wait()
        for place in places:
            place.rmdir()


def test_what_a_cgroup_below_met_is_not_reported_of_those_beside_it(tmp_path: Path) -> None:
    """pids.events and memory.events are sums over the tree (the former since Linux 6.11); those of the cgroup alone
    stand beside them.
    """
    limits, group = CgroupLimits(str(tmp_path)), cgroups.Group(str(tmp_path))
    (tmp_path / "pids.current").write_text("40\n")
    (tmp_path / "pids.max").write_text("40\n")
    output = []
    for all_, own in ((0, 0), (9, 0), (12, 3)):
        (tmp_path / "pids.events").write_text(f"max {all_}\n")
        (tmp_path / "pids.events.local").write_text(f"max {own}\n")
        (tmp_path / "memory.events").write_text(f"low 0\nhigh {all_}\nmax 0\noom 0\noom_kill {all_}\n")
        (tmp_path / "memory.events.local").write_text(f"low 0\nhigh {own}\nmax 0\noom 0\noom_kill {own}\n")
        group.read_memory()
        output.append((list(limits.pids()), group.met, group.killed))
    assert output == [([], 0, 0), ([], 0, 0), ([Used("pids", 40, 40, 3)], 3, 3)]


def test_lines_that_a_kernel_does_not_end_and_files_of_many_devices(tmp_path: Path) -> None:
    limits = CgroupLimits(str(tmp_path))
    many = "".join(f"7:{n} rbps=max wbps=2000000 riops=max wiops=max\n" for n in range(200))
    (tmp_path / "io.max").write_text(many + "254:0 rbps=max wbps=1000000 riops=max wiops=max\n")
    for n, at in ((5, 10), (6, 11)):
        (tmp_path / "io.stat").write_text(f"\n7:1 7:2 254:0 rbytes=1 wbytes={n * MB} rios=1 wios=1\n")
        reported = done(limits, at)
    assert reported == [Used("io", MB, MB, direction="write")]


def test_a_disk_is_called_as_what_lies_on_it_too(tmp_path: Path) -> None:
    """A partition with a volume on it, that is encrypted; by links as the kernel's."""
    for place in ("sda/sda1/holders", "dm-0/holders", "dm-1/holders", "links"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "links/8:0").symlink_to(tmp_path / "sda")
    (tmp_path / "sda/sda1/holders/dm-0").symlink_to(tmp_path / "dm-0")
    (tmp_path / "dm-0/holders/dm-1").symlink_to(tmp_path / "dm-1")
    assert [names(device, tmp_path / "links") for device in ("8:0", "8:16")] == ["sda dm-0 dm-1", ""]
    for link in Path("/sys/dev/block").iterdir():
        assert names(link.name).split()[0] == link.resolve().name


@pytest.mark.parametrize(
    ("device", "direction", "by_it"),
    [
        (b"", b"write", True),
        (b"sda", b"write", True),
        (b"vda sda", b"write", True),
        (b"sdb", b"write", False),
        (b"sda", b"read", False),
    ],
)
def test_a_limit_on_another_disk_or_the_other_direction_held_nothing_back(
    device: bytes, direction: bytes, by_it: bool
) -> None:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        call(host, syscall=b"fsync", fd_type=b"file", device=b"sda", written_bytes=1024, frozen=0)
        host.add(
            "resource",
            at=31,
            **PYTHON3,
            kind="io",
            object=b"/c/api",
            interval_ns=S,
            used=990_000,
            limit=MB,
            device=device,
            direction=direction.decode(),
        )

    (found,) = latest(run(around_stall(stall), UNTIL))
    assert (found["cause_detail"] == "throttled") == by_it
    on = device.decode().partition(" ")[0] or "a disk"
    assert (f"/c/api reached its write limit of 1 MB per second on {on} while" in str(found["sentence"])) == by_it


@pytest.mark.parametrize(
    ("limited", "cause"), [(True, ("disk", "throttled", "/c/api")), (False, ("syscall", "fsync", "/dev/sda"))]
)
def test_a_call_that_its_own_cgroup_holds_back(limited: bool, cause: tuple[str, str, str]) -> None:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        call(host, syscall=b"fsync", fd_type=b"file", device=b"sda", written_bytes=1024, frozen=0)
        if limited:
            host.add("resource", at=31, **PYTHON3, kind="io", object=b"/c/api", interval_ns=S, used=990_000, limit=MB)

    (found,) = latest(run(around_stall(stall), UNTIL))
    assert (found["cause"], found["cause_detail"], found["culprit_object"]) == cause
    assert not limited or "/c/api reached its I/O limit of 1 MB per second on a disk while fsync of python3" in str(
        found["sentence"]
    )


def test_who_may_start_no_more_processes_is_reported_once_a_time() -> None:
    host = Host(1).healthy(0, 60)
    for at in range(30, 36):
        host.add(
            "resource", at=at, **PYTHON3, kind="pids", object=b"/c/api", interval_ns=S, used=40, limit=40, events=7
        )
    (found,) = latest(run(host, 60))
    assert (found["symptom"], found["cause"], found["cause_detail"]) == ("resource_low", "resource_limit", "pids")
    assert (found["culprit_pid"], found["culprit_object"]) == (APP_PID, "/c/api")
    assert "The cgroup of python3 pid 4242 could not start 7 processes or threads" in str(found["sentence"])
    assert "its cgroup /c/api reached its limit of 40 processes and threads" in str(found["sentence"])


def test_a_limit_that_may_be_that_of_a_cgroup_above_is_reported_so() -> None:
    host = Host(1).healthy(0, 60)
    host.add("resource", at=30, **PYTHON3, kind="pids", object=b"/c/api", interval_ns=S, used=3, limit=40, events=7)
    (found,) = latest(run(host, 60))
    assert "its cgroup /c/api, or one above it, reached its limit of processes" in str(found["sentence"])


def test_limits_of_whoever_is_watched_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The whole way from a process's cgroup to a row."""
    one(tmp_path, True, 5 * MB, 10)
    source, start_ns = Resources(), int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) * 10_000_000
    its = Path("/proc/self/cgroup").read_text()
    source.watched[os.getpid(), start_ns // 10_000_000] = Watched(
        os.getpid(), start_ns, b"python", 20 * S, cgroup=its, io=(str(tmp_path),)
    )
    monkeypatch.setattr(source, "_read_groups", lambda: None)  # it is in none of ours
    list(source.drain(20 * S))
    one(tmp_path, True, 7 * MB, 20)
    rows = [
        row
        for batch in source.drain(22 * S)
        if batch.table == "resource"
        for row in batch.rows
        if row["kind"] == code("resource", "kind", "io")
    ]
    assert [(row["pid"], row["object"], row["used"], row["limit"]) for row in rows] == [
        (os.getpid(), str(tmp_path).encode(), MB, MB)
    ]


@pytest.mark.parametrize(("ended_with_it", "reported"), [(True, 1), (False, 0)])
def test_who_is_killed_for_want_of_memory_is_reported_though_its_cgroup_ends_with_it(
    tmp_path: Path, ended_with_it: bool, reported: int
) -> None:
    """As that of a container, or of a service. What was killed beside it is none of its."""
    leaf, source = tmp_path / "api", Resources()
    leaf.mkdir()
    for place in (leaf, tmp_path):
        for name in ("memory.events", "memory.events.local"):
            (place / name).write_text("oom_kill 3\n")
    with subprocess.Popen(["sleep", "60"]) as child:
        tick = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
        its = Path(f"/proc/{child.pid}/cgroup").read_text()
        watched = Watched(
            child.pid, tick * 10_000_000, b"sleep", 20 * S, cgroup=its, memory=(str(leaf), str(tmp_path)), faults=0
        )
        source.watched[child.pid, tick] = watched
        list(source.drain(20 * S))
        child.kill()
        child.wait()
    (tmp_path / "memory.events").write_text("oom_kill 4\n")
    if ended_with_it:
        shutil.rmtree(leaf)
    batches = [*source.drain(22 * S), *source.drain(24 * S)]
    rows = [
        row
        for b in batches
        if b.table == "resource"
        for row in b.rows
        if row["kind"] == code("resource", "kind", "oom")
    ]
    assert [(row["object"], row["events"]) for row in rows] == [(str(tmp_path).encode(), 1)] * reported
