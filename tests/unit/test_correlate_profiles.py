"""What causes make of on-demand profiles: rows that come some seconds after what they are about."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from agent.correlate.correlator import Correlator
from tests.unit.correlate_scenarios import (
    APP_PID,
    MS,
    START,
    T0,
    UNTIL,
    WEB_PID,
    Host,
    S,
    accept_overflow,
    around_stall,
    call,
    code,
    latest,
    peer,
    run,
)
from tests.unit.test_correlate_connects import API, slow

END = T0 + 35 * S  # of the look, three seconds after the stalled decision
MB = 1_000_000


def stalled(*profiles: Callable[[Host], None]) -> dict[str, object]:
    """The finding of a decision that waited for fsync, with what looks saw."""

    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        call(host, syscall=b"fsync", fd_type=b"file", device=b"sda", written_bytes=1024, frozen=0)
        for profile in profiles:
            profile(host)

    (one,) = latest(run(around_stall(stall), UNTIL))
    return one


def disk(
    max_ms: float, each_ms: float, device: bytes = b"sda", t_ns: int = END, **more: object
) -> Callable[[Host], None]:
    def add(host: Host) -> None:
        host.add(
            "block_io",
            1,
            **(
                {
                    "t_ns": t_ns,
                    "interval_ns": 3 * S,
                    "device": device,
                    "op": code("block_io", "op", "all"),
                    "count": 10,
                    "unfinished": 0,
                    "bytes": 50_000,
                    "sum_ns": int(10 * each_ms * MS),
                    "max_ns": int(max_ms * MS),
                    "queued_ns": 0,
                }
                | more
            ),
        )

    return add


def writer(pid: int, comm: bytes, mb: float) -> Callable[[Host], None]:
    return lambda host: host.add(
        "block_io",
        t_ns=END,
        interval_ns=3 * S,
        pid=pid,
        comm=comm,
        device=b"sda",
        op="write",
        count=5,
        unfinished=0,
        bytes=int(mb * MB),
        sum_ns=S,
        max_ns=S,
        queued_ns=0,
    )


def lock(wait_ms: float, path: str = "process", pid: int = APP_PID) -> Callable[[Host], None]:
    return lambda host: host.add(
        "lock_contention",
        t_ns=END,
        interval_ns=3 * S,
        pid=pid,
        comm=b"python3",
        lock=b"taken by ext4_write",
        kind=b"write",
        path=path,
        count=7,
        sum_ns=int(2 * wait_ms * MS),
        max_ns=int(wait_ms * MS),
        kernel_stack=b"rwsem_down_write_slowpath;down_write;ext4_write;vfs_write;ksys_write",
    )


def test_a_disk_that_takes_long_itself_is_the_cause() -> None:
    one = stalled(disk(max_ms=900, each_ms=300))
    assert (one["cause"], one["cause_detail"], one["culprit_object"]) == ("disk", "slow", "/dev/sda")
    assert "because requests to sda took up to 900 ms while fsync of python3 pid 4242 waited for" in str(
        one["sentence"]
    )
    assert "block_io" in str(one["evidence"])


def test_who_wrote_to_it_meanwhile_is_named() -> None:
    one = stalled(
        disk(900, 300), writer(77, b"backup", 40), writer(APP_PID, b"python3", 1), writer(5, b"kworker/u8:1", 30)
    )
    assert (one["culprit_pid"], one["culprit_comm"], one["culprit_object"]) == (77, "backup", "/dev/sda")
    assert "backup pid 77 wrote 40 MB to it meanwhile" in str(one["sentence"])


def test_a_disk_that_was_quick_or_another_one_or_another_time_is_none() -> None:
    quick = stalled(disk(max_ms=3, each_ms=1))
    assert quick["cause"] == "syscall"
    assert "its requests took 1 ms each, 3 ms at most" in str(quick["ruled_out"])
    for profile in (disk(900, 300, device=b"sdb"), disk(900, 300, t_ns=T0 + 55 * S), disk(900, 300, t_ns=T0 + 25 * S)):
        assert stalled(profile)["cause"] == "syscall"


def asleep(host: Host, syscall: bytes, stack: bytes, ns: int) -> None:
    host.add(
        "off_cpu",
        t_ns=END,
        interval_ns=3 * S,
        pid=APP_PID,
        comm=b"python3",
        state="uninterruptible",
        kind="slow",
        syscall=syscall,
        count=3,
        sum_ns=ns,
        max_ns=ns,
        kernel_stack=stack,
    )


def test_where_it_slept_is_evidence() -> None:
    def slept(host: Host) -> None:
        for stack, ns in (
            (b"io_schedule;folio_wait_bit;folio_wait_writeback;ext4_sync_file;do_fsync", S),
            (b"else", MS),
        ):
            asleep(host, b"fsync", stack, ns)

    one = stalled(slept)
    entry = next(e for e in one["evidence"] if e["table"] == "off_cpu")  # type: ignore[attr-defined]
    assert entry["where"] == "io_schedule < folio_wait_bit < folio_wait_writeback < ext4_sync_file"
    assert (entry["what"], entry["value"], entry["times"]) == ("asleep in fsync", S, 3)


def test_a_lock_of_the_kernels_is_the_cause_where_no_call_explains_it() -> None:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        lock(1200)(host)

    (one,) = latest(run(around_stall(stall), UNTIL))
    assert (one["cause"], one["culprit_object"], one["cause_detail"]) == ("kernel_lock", "taken by ext4_write", "write")
    assert "threads of python3 pid 4242 waited for the kernel lock taken by ext4_write 7 times, for up to 1.2 s" in str(
        one["sentence"]
    )

    def elsewhere(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        for profile in (lock(1200, pid=77), lock(1200, path="handshake"), lock(2)):
            profile(host)

    (one,) = latest(run(around_stall(elsewhere), UNTIL))
    assert one["cause"] != "kernel_lock"


@pytest.mark.parametrize(
    ("seen", "wait_ms", "cause"),
    [
        ({}, 1200, "kernel_lock"),
        ({}, 300, "syscall"),  # it waited for something else, too
        ({"holder_pid": 77, "holder_start_ns": START, "holder_comm": b"other"}, 1200, "syscall"),
        ({"fd_type": b"file", "device": b"sda"}, 1200, "syscall"),
    ],
)
def test_a_lock_of_the_kernels_reports_more_than_the_call_that_waited_for_it(
    seen: dict[str, object], wait_ms: float, cause: str
) -> None:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        call(host, syscall=b"mmap", **seen)
        lock(wait_ms)(host)

    (one,) = latest(run(around_stall(stall), UNTIL))
    assert one["cause"] == cause


@pytest.mark.parametrize(("asleep_ms", "cause"), [(700, "kernel_lock"), (1300, "syscall")])
def test_a_profile_that_began_after_the_longest_call(asleep_ms: int, cause: str) -> None:
    """What counts is the share of the time asleep that it saw itself: the lock's is 600 ms."""

    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        call(host, syscall=b"mmap")
        lock(300)(host)
        asleep(host, b"mmap", b"rwsem_down_write_slowpath;down_write_killable;vm_mmap_pgoff", asleep_ms * MS)

    (one,) = latest(run(around_stall(stall), UNTIL))
    assert one["cause"] == cause


def _syns(host: Host, slowest_ms: float, port: int = 8080) -> None:
    host.add(
        "syn_ack",
        t_ns=END,
        interval_ns=3 * S,
        sport=port,
        count=40,
        sum_ns=int(9 * slowest_ms * MS),
        max_ns=int(slowest_ms * MS),
    )


def test_syns_that_the_hosts_own_locks_keep_waiting() -> None:
    host = accept_overflow()
    port = int(next(b for b in host.made if b.table == "socket_queue").rows["sport"][0])
    _syns(host, 800, port)
    lock(700, path="handshake")(host)
    host.made[-1].rows["pid"] = -(2**63)
    (one, *_) = [f for f in latest(run(host, UNTIL)) if "kernel_lock" in str(f)]
    assert "this host took up to 800 ms to answer a SYN, and waited up to 700 ms for the kernel lock " in str(one)

    for other in (port, port + 1):  # no lock was waited for; or it is another port's
        host = accept_overflow()
        _syns(host, 800, other)
        if other != port:
            lock(700, path="handshake")(host)
        found = latest(run(host, UNTIL))
        assert not any(c["cause"] == "kernel_lock" for f in found for c in f["causes"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("here", [True, False])
def test_slow_connects_to_a_server_of_this_host_whose_syn_acks_are_late(here: bool) -> None:
    """And not to one elsewhere, whose port somebody here has too. Who serves it is looked at."""
    host = slow()
    _syns(host, 900, 443)
    lock(800, path="handshake")(host)
    if here:
        host.add(
            "tcp_rtt",
            at=np.arange(60),
            pid=WEB_PID,
            comm=b"nginx",
            role="server",
            netns=4026531840,
            saddr=API[:16],
            sport=443,
            peer=peer("10.0.0.9", 40000),
            samples=1,
            rtt_sum_us=50,
            srtt_us=50,
        )
    reported = list[tuple[tuple[int, int | None], ...]]()
    found = latest(
        run(
            host,
            UNTIL,
            each=lambda correlator: reported.extend(
                t.pids for t in correlator.active_episodes() if t.symptom == "connect_latency"
            ),
        )
    )
    assert [(f["symptom"], f["cause"]) for f in found] == ([("connect_latency", "kernel_lock")] if here else [])
    assert set(reported) == ({((WEB_PID, None),)} if here else set())


def test_what_is_wrong_now_and_with_whom() -> None:
    """As the correlator tells it to who looks closer: while it goes on, and with its finding once there is one."""
    host = Host()
    host.decisions(0, 60)
    host.decisions(30, 36, ms=900, rate=5)
    reported = list[tuple[int, str, bool]]()

    def profile(correlator: Correlator) -> None:
        for active_episode in correlator.active_episodes():
            assert active_episode.pids[0] == (APP_PID, START // 10_000_000)
            reported.append(
                ((correlator._second or 0) - T0 // S, active_episode.symptom, bool(active_episode.finding_id))
            )

    run(host, UNTIL, each=profile)
    assert {symptom for _, symptom, _ in reported} == {"decision_latency"}
    assert min(t for t, _, _ in reported) >= 30 and max(t for t, _, _ in reported) <= 40
    assert any(named for _, _, named in reported)


def test_a_disk_is_less_sure_where_processors_are_short() -> None:
    """The kernel's threads that work for it wait, too."""
    at = T0 + np.arange(31, 36) * S

    def short(host: Host) -> None:
        host.add("cpu_wait", t_ns=at, pid=5, interval_ns=S, wait_ns=3 * S)

    sure, less = (float(str(stalled(disk(max_ms=900, each_ms=300), *also)["confidence"])) for also in ((), (short,)))
    assert less < 0.7 * sure
