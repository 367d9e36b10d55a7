"""From a late process to the processes that it waited for, and on: what is found at the end of the way explains all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent.cli.explain import path_of
from agent.columns import NULL_I64
from tests.unit.correlate_scenarios import MS, T0, UNTIL, Host, S, latest, peer, run
from tests.unit.test_correlate_answers import PORT, SHOP_PID
from tests.unit.test_correlate_inferred_waits import DB, DB_PID, WEB_PID, listens, slow, talks

HOLDER_PID = 1999
SESSION = {"pid": DB_PID, "tid": DB_PID, "comm": b"postgres"}
SHOP = {"pid": SHOP_PID, "tid": SHOP_PID, "comm": b"shop"}
#: The wait of the thread that owes the answer, from 30.0 s on.
LATCH = {"kind": "waiting", "syscall": b"epoll_wait", "duration_ns": 2900 * MS}
HOLDER = {"waker_pid": HOLDER_PID, "waker_comm": b"postgres"}


def asleep(host: Host, who: dict[str, Any], at: float = 32.95, **columns: Any) -> None:
    host.add("slow_syscall", at=at, **{**who, "run_queue_ns": 0, "fd_type": b"", **columns})


def chain() -> Host:
    """web asks shop, shop asks a session of a database, and none of them answers from 30 s to 33 s."""
    host = Host()
    for pid, port, comm in ((WEB_PID, 80, b"nginx"), (SHOP_PID, PORT, b"shop"), (DB_PID, 5432, b"postgres")):
        slow(host, pid, port, comm)
    talks(host, WEB_PID, peer("127.0.0.1", PORT))
    talks(host, SHOP_PID, DB)
    return host


def shop() -> Host:
    host = Host()
    slow(host, SHOP_PID, PORT, b"shop")
    return host


def stopped(host: Host, pid: int, comm: bytes) -> None:
    for at, kind in ((29.9, "stopped"), (32.9, "continued")):
        host.add(
            "process_event", at=at, pid=pid, comm=comm, kind=kind, signal=19, sender_pid=7, sender_comm=b"operator"
        )


def found(host: Host) -> list[dict[str, Any]]:
    """Those that stand for themselves."""
    return [one for one in latest(run(host, UNTIL)) if not one["merged_into"]]


def test_who_held_what_the_last_of_a_chain_waited_for_is_the_culprit() -> None:
    host = chain()
    asleep(host, SESSION, **LATCH, **HOLDER)
    (one,) = found(host)
    assert (one["cause"], one["cause_detail"], one["culprit_pid"]) == ("process_wait", "epoll_wait", HOLDER_PID)
    assert "postgres pid 1802 slept in epoll_wait for 2.9 s until postgres pid 1999 woke it" in one["sentence"]
    for who in ("shop pid 1700", "nginx pid 1803"):
        assert who in one["sentence"]


@pytest.mark.parametrize("late_ms", [20, 600])
def test_a_call_that_goes_on_explains_requests_that_go_on(late_ms: int) -> None:
    """Each is seen once a second, the call after the request; what is seen of it later replaces that."""
    host, its = chain(), {"kind": "slow", "syscall": b"flock", "basis": "so_far"}
    held = {"holder_pid": HOLDER_PID, "holder_comm": b"backup", "holder_start_ns": T0}
    for second in (31, 32, 33):
        took = (second - 30) * S + (late_ms - 30) * MS
        asleep(host, SESSION, second + late_ms / 1000, **its, **held, duration_ns=took)
    (one,) = [one for one in latest(run(host, 34)) if not one["merged_into"]]
    assert (one["cause"], one["culprit_pid"]) == ("syscall", HOLDER_PID), one["sentence"]
    assert one["via"] == "shop pid 1700, postgres pid 1802"


@pytest.mark.parametrize("since_s", [29.98, 12.0])
@pytest.mark.parametrize("call", ["recvfrom", "flock"])
def test_a_thread_that_is_idle_for_long_is_no_reason(call: str, since_s: float) -> None:
    """It waits for notices of a server, or for its turn as a leader."""
    host = shop()
    talks(host, SHOP_PID, DB)
    its: dict[str, Any] = {"syscall": call.encode(), "basis": "so_far"}
    its |= (
        {"kind": "waiting", "peer": DB}
        if call == "recvfrom"
        else {"kind": "slow", "holder_pid": HOLDER_PID, "holder_comm": b"leader", "holder_start_ns": T0}
    )
    for second in range(31, UNTIL):
        took = int((second + 0.02 - since_s) * S)
        asleep(host, {**SHOP, "tid": SHOP_PID + 1}, second + 0.02, **its, duration_ns=took)
    causes = {one["cause"] for one in found(host)}
    assert (causes == {"unknown"}) == (since_s < 29), causes


def test_those_that_wait_for_one_lock_wake_one_another_in_turn() -> None:
    """The session that shop asked got it after another one, which got it from the holder."""
    host = chain()
    asleep(host, SESSION, 32.97, **LATCH, waker_pid=1777, waker_comm=b"postgres")
    asleep(host, {"pid": 1777, "tid": 1777, "comm": b"postgres"}, **LATCH, **HOLDER)
    (one,) = found(host)
    assert (one["cause"], one["culprit_pid"]) == ("process_wait", HOLDER_PID)
    assert one["via"].endswith("postgres pid 1777")
    assert path_of(one) == f"{one['subject']} -> {one['via'].replace(', ', ' -> ')} -> postgres pid {HOLDER_PID}"


@pytest.mark.parametrize(("tid", "cause"), [(SHOP_PID, "process_wait"), (SHOP_PID + 1, "unknown")])
def test_short_naps_count_if_the_thread_that_read_the_request_takes_them(tid: int, cause: str) -> None:
    """It polls for something; any program may have another thread that naps for ever."""
    host = shop()
    for n in range(28):
        its = {"kind": "waiting", "syscall": b"clock_nanosleep", "duration_ns": 99 * MS}
        asleep(host, {**SHOP, "tid": tid}, 30.1 + n / 10, **its)
    (one,) = found(host)
    assert one["cause"] == cause, one["sentence"]


def test_who_lets_the_first_of_many_go_on_is_found_for_the_last_one() -> None:
    """As where nine sessions wait for one lock, and each gives it to the next."""
    host = chain()
    line = [SESSION, *({"pid": 1770 + n, "tid": 1770 + n, "comm": b"postgres"} for n in range(8))]
    for n, one in enumerate(line):
        by = line[n + 1]["pid"] if n < 8 else HOLDER_PID
        its = {"waker_pid": by, "waker_tid": by, "waker_comm": b"postgres"}
        asleep(host, one, 32.97 - n / 1000, **LATCH, **its)
    (one,) = found(host)
    assert (one["cause"], one["culprit_pid"]) == ("process_wait", HOLDER_PID), one["sentence"]


def test_the_processes_on_the_way_are_listed() -> None:
    host = chain().without("service_latency")
    slow(host, WEB_PID, 80, b"nginx")
    slow(host, DB_PID, 5432, b"postgres")
    talks(host, WEB_PID, DB)
    asleep(host, SESSION, **LATCH, **HOLDER)
    ways = {one["via"] for one in found(host)}
    assert ways & {"postgres pid 1802"}


def test_who_has_the_lock_that_is_tried_again_and_again_is_the_culprit() -> None:
    """As SQLite does: it sleeps for a while, and tries again."""
    host = shop()
    its = {"kind": "waiting", "syscall": b"clock_nanosleep", "file": b"app.db", "duration_ns": 99 * MS}
    for n in range(28):
        held = {"holder_pid": HOLDER_PID, "holder_comm": b"backup", "holder_start_ns": T0}
        asleep(host, SHOP, 30.1 + n / 10, **its, **held)
    (one,) = found(host)
    assert (one["cause"], one["culprit_pid"]) == ("process_wait", HOLDER_PID)
    words = f"for up to 99 ms, between tries to lock app.db, which backup pid {HOLDER_PID} held"
    assert f"slept in clock_nanosleep 28 times, {words}" in one["sentence"]


@pytest.mark.parametrize("listener", [DB_PID, 1801], ids=["session", "postmaster"])
@pytest.mark.parametrize("peer_of", [b"", peer("127.0.0.1", 51515)], ids=["unix", "tcp"])
def test_a_client_that_is_idle_in_a_transaction_holds_up_who_waits_for_its_locks(peer_of: bytes, listener: int) -> None:
    """The holder waits for its client, since before the request; that client's next statement ends all waits."""
    host = chain().without("socket_queue")
    for pid, port, comm in ((WEB_PID, 80, b"nginx"), (SHOP_PID, PORT, b"shop"), (listener, 5432, b"postgres")):
        listens(host, pid, port, comm)
    asleep(host, SESSION, **LATCH, **HOLDER, waker_tid=HOLDER_PID)
    its = {"pid": HOLDER_PID, "tid": HOLDER_PID, "comm": b"postgres", "peer": peer_of}
    psql = {"waker_pid": 866, "waker_comm": b"psql", "waker_tid": 866}
    asleep(host, its, 32.94, **{**LATCH, "duration_ns": 4200 * MS}, **psql)
    asleep(host, {**its, "tid": 1}, 32.94, kind="waiting", syscall=b"futex")  # another thread of it
    host.add("tcp_rtt", at=[20, 25], pid=866, comm=b"psql", netns=1, role="client", peer=DB, rtt=(1, 50, 50, 50))
    (one,) = found(host)
    assert (one["cause"], one["culprit_pid"]) == ("process_wait", 866), one["sentence"]
    assert f"postgres pid {HOLDER_PID}" in one["via"]


@pytest.mark.parametrize(
    ("threads", "times_out", "just_then"),
    [(1, False, False), (3, False, False), (1, True, False), (3, True, False), (1, True, True)],
)
def test_a_client_that_is_idle_in_a_transaction_of_a_server_of_many_threads(
    threads: int, times_out: bool, just_then: bool
) -> None:
    """As MariaDB's: a thread for each session; each that got the lock lets the next one go on. A thread may wait again
    and again for a time (for locks on tables), and such a time may end just when the lock is free.
    """
    host, own = chain(), {"pid": DB_PID, "comm": b"mariadbd"}
    futex, nobody = {"kind": "waiting", "syscall": b"futex"}, {"waker_pid": NULL_I64, "waker_tid": NULL_I64}
    for n in range(threads):
        its = {**own, "tid": DB_PID + n}
        waker = {"waker_pid": DB_PID, "waker_comm": b"mariadbd", "waker_awake_ns": 9 * MS, "waker_tid": DB_PID + n + 1}
        for second in (31, 32) if times_out else ():
            asleep(host, its, second + 0.05 - n / 100, **futex, duration_ns=1000 * MS, **nobody)
        took = (900 if times_out else 2900) * MS
        asleep(host, its, 32.95 - n / 100, **futex, duration_ns=took, **(nobody if just_then else waker))
        if just_then:
            asleep(host, {**own, "tid": DB_PID + 50}, 32.96, **futex, duration_ns=2800 * MS, **waker)
    client = {"waker_pid": 866, "waker_comm": b"mariadb", "waker_tid": 866}
    its = {**own, "tid": DB_PID + threads, "peer": peer("127.0.0.1", 51515)}
    asleep(host, its, 32.94 - threads / 100, kind="waiting", syscall=b"poll", duration_ns=4200 * MS, **client)
    host.add("tcp_rtt", at=[20, 25], pid=866, comm=b"mariadb", netns=1, role="client", peer=DB, rtt=(1, 50, 50, 50))
    (one,) = found(host)
    assert (one["cause"], one["culprit_pid"]) == ("process_wait", 866), one["sentence"]


def test_threads_that_get_work_from_clients_wait_for_no_lock() -> None:
    """A thread that has read a late request waits for work: the one that hands it out did so when a client asked."""
    host, own = chain(), {"pid": DB_PID, "comm": b"mariadbd"}
    waker = {"waker_pid": DB_PID, "waker_comm": b"mariadbd", "waker_tid": DB_PID + 9, "waker_awake_ns": 1 * MS}
    asleep(host, {**own, "tid": DB_PID}, 32.95, kind="waiting", syscall=b"futex", duration_ns=2900 * MS, **waker)
    client = {"waker_pid": 866, "waker_comm": b"mariadb", "waker_tid": 866, "duration_ns": 2800 * MS}
    asleep(host, {**own, "tid": DB_PID + 9}, 32.949, kind="waiting", syscall=b"epoll_wait", **client)
    host.add("tcp_rtt", at=[20, 25], pid=866, comm=b"mariadb", netns=1, role="client", peer=DB, rtt=(1, 50, 50, 50))
    assert 866 not in [one["culprit_pid"] for one in found(host)]


@pytest.mark.parametrize("basis", ["blocked", "so_far"])
def test_a_thread_that_sleeps_for_a_time_waits_for_no_other_one(basis: str) -> None:
    """Though one is woken just then; or that has not been woken yet."""
    host, own = chain(), {"pid": DB_PID, "comm": b"java"}
    waker = {"waker_pid": DB_PID, "waker_comm": b"java", "waker_tid": DB_PID + 9, "waker_awake_ns": 1 * MS}
    futex = {"kind": "waiting", "syscall": b"futex", "duration_ns": 2900 * MS}
    asleep(host, {**own, "tid": DB_PID}, 32.95, **futex, waker_pid=NULL_I64, waker_tid=NULL_I64, basis=basis)
    asleep(host, {**own, "tid": DB_PID + 1}, 32.95, **futex, **waker)
    client = {"waker_pid": 866, "waker_comm": b"mariadb", "waker_tid": 866, "duration_ns": 2800 * MS}
    its = {"kind": "waiting", "syscall": b"recvfrom", "peer": peer("127.0.0.1", 51515)}
    asleep(host, {**own, "tid": DB_PID + 9}, 32.949, **its, **client)
    host.add("tcp_rtt", at=[20, 25], pid=866, comm=b"mariadb", netns=1, role="client", peer=DB, rtt=(1, 50, 50, 50))
    assert 866 not in [one["culprit_pid"] for one in found(host)]


def test_what_happened_to_the_holder_is_the_cause() -> None:
    host = chain()
    asleep(host, SESSION, **LATCH, **HOLDER)
    stopped(host, HOLDER_PID, b"postgres")
    (one,) = found(host)
    assert (one["cause"], one["culprit_pid"]) == ("process_stopped", HOLDER_PID)


@pytest.mark.parametrize("comm", [b"cat", b"logd"])
def test_a_stop_and_who_waited_for_it_become_one_finding(comm: bytes) -> None:
    """That the writer waited for its reader is known when it goes on; until then it is a finding of its own."""
    host = shop()
    stopped(host, HOLDER_PID, comm)
    its = {"kind": "slow", "syscall": b"write", "fd_type": b"pipe", "duration_ns": 2900 * MS}
    asleep(host, SHOP, **its, waker_pid=HOLDER_PID, waker_comm=comm)
    every = latest(run(host, UNTIL))
    (one,) = [one for one in every if not one["merged_into"]]
    assert (one["cause"], one["culprit_pid"]) == ("process_stopped", HOLDER_PID)
    assert "shop pid 1700" in one["sentence"]
    assert {other["merged_into"] for other in every if other is not one} <= {one["finding_id"]}
    assert {other["state"] for other in every} == {"closed"}


def test_of_several_writers_the_reader_wakes_one_and_that_one_the_next() -> None:
    host = shop()
    stopped(host, HOLDER_PID, b"cat")
    its = {"kind": "slow", "syscall": b"write", "fd_type": b"pipe", "duration_ns": 2900 * MS}
    asleep(host, SHOP, 32.9501, **its, waker_pid=HOLDER_PID, waker_comm=b"cat")
    for n in range(1, 9):
        asleep(host, {**SHOP, "tid": n}, 32.9501 + n / 100, **its, waker_pid=SHOP_PID, waker_comm=b"shop")
    (one,) = found(host)
    assert (one["cause"], one["culprit_pid"]) == ("process_stopped", HOLDER_PID)


def test_a_reader_that_is_only_slow_is_named() -> None:
    host = shop()
    its = {"kind": "slow", "syscall": b"sendto", "fd_type": b"socket", "duration_ns": 2900 * MS}
    asleep(host, SHOP, **its, waker_pid=HOLDER_PID, waker_comm=b"logd")
    (one,) = found(host)
    assert (one["cause"], one["culprit_pid"], one["culprit_comm"]) == ("syscall", HOLDER_PID, "logd")
    assert "until logd pid 1999 ended the wait" in one["sentence"]


def test_a_child_for_each_request() -> None:
    host = shop()
    for n in range(6):
        its = {**LATCH, "syscall": b"wait4", "waker_pid": 3000 + n, "waker_comm": b"convert"}
        asleep(host, {**SHOP, "tid": 50 + n}, 32.95 + n / 1000, **its)
    (one,) = found(host)
    assert (one["cause"], one["cause_detail"], one["culprit_comm"]) == ("process_wait", "wait4", "convert")
    assert "until 6 processes of convert woke it" in one["sentence"]


@pytest.mark.parametrize(("call", "fd_type"), [(b"fsync", b"file"), (b"openat", b""), (b"sync", b"")])
def test_a_wait_for_a_disk_names_no_process(call: bytes, fd_type: bytes) -> None:
    """An interrupt ended it, in whatever call of whichever process."""
    host = shop()
    its = {"kind": "slow", "syscall": call, "fd_type": fd_type, "duration_ns": 2900 * MS}
    asleep(host, SHOP, **its, waker_pid=HOLDER_PID, waker_comm=b"bystander")
    (one,) = found(host)
    assert one["culprit_pid"] == NULL_I64
    assert "bystander" not in one["sentence"]


def test_a_worker_that_nobody_watches_computed() -> None:
    host = shop()
    its = {**LATCH, "syscall": b"read", "fd_type": b"pipe", "waker_pid": HOLDER_PID, "waker_comm": b"worker"}
    asleep(host, SHOP, **its, waker_awake_ns=2950 * MS, waker_cpu_ns=2700 * MS)
    (one,) = found(host)
    assert (one["cause"], one["culprit_pid"]) == ("busy", HOLDER_PID)
    assert "worker pid 1999 was busy: it ran on a CPU for" in one["sentence"]
    assert "usually" not in one["sentence"].partition("worker")[2]


@pytest.mark.parametrize(("awake", "cpu"), [(2950, 900), (9000, 2700)])
def test_a_worker_that_may_have_run_at_another_time_is_not_busy(awake: int, cpu: int) -> None:
    host = shop()
    its = {**LATCH, "syscall": b"read", "fd_type": b"pipe", "waker_pid": HOLDER_PID, "waker_comm": b"worker"}
    asleep(host, SHOP, **its, waker_awake_ns=awake * MS, waker_cpu_ns=cpu * MS)
    (one,) = found(host)
    assert (one["cause"], one["culprit_pid"]) == ("process_wait", HOLDER_PID)


def test_a_worker_that_nobody_watches_slept() -> None:
    """Its own last wait comes with the wait that it ended."""
    host = shop()
    its = {**LATCH, "syscall": b"read", "fd_type": b"pipe", "waker_pid": HOLDER_PID, "waker_comm": b"worker"}
    asleep(host, SHOP, **its, waker_awake_ns=1 * MS, waker_cpu_ns=0)
    worker = {"pid": HOLDER_PID, "tid": HOLDER_PID, "comm": b"worker"}
    asleep(host, worker, 32.949, **{**LATCH, "syscall": b"clock_nanosleep"})
    (one,) = found(host)
    assert (one["cause"], one["cause_detail"], one["culprit_pid"]) == ("process_wait", "clock_nanosleep", HOLDER_PID)
    assert "as its program requested" in one["sentence"]


def test_a_worker_is_judged_by_the_thread_that_ended_the_wait() -> None:
    """Another thread of it waits for a server, for a reason of its own."""
    host, remote = shop(), peer("10.0.0.5", 5432)
    worker = {"pid": HOLDER_PID, "tid": HOLDER_PID + 1, "comm": b"worker"}
    its = {"waker_pid": HOLDER_PID, "waker_comm": b"worker", "waker_tid": worker["tid"]}
    asleep(host, SHOP, **{**LATCH, "syscall": b"read", "fd_type": b"pipe"}, **its)
    asleep(host, {**worker, "tid": HOLDER_PID}, 32.98, **{**LATCH, "syscall": b"recvfrom"}, peer=remote)
    talks(host, HOLDER_PID, remote)
    (one,) = found(host)
    assert (one["cause"], one["cause_detail"], one["culprit_pid"]) == ("process_wait", "read", HOLDER_PID)
    assert "10.0.0.5" not in one["sentence"]


@pytest.mark.parametrize(("client", "cause"), [("127.0.0.1", "process_wait"), ("10.0.0.9", "unknown")])
def test_a_wait_that_no_process_ended_is_a_time_out_unless_another_host_may_have(client: str, cause: str) -> None:
    host = shop()
    at = np.arange(0.5, UNTIL)
    its = {"netns": 1, "role": "server", "sport": PORT, "saddr": peer("127.0.0.1", 0)[:16], "rtt": (10, 30, 40, 50)}
    host.add("tcp_rtt", at=at, **SHOP, **its, peer=peer(client, 40000))
    asleep(host, SHOP, **LATCH)
    (one,) = found(host)
    assert one["cause"] == cause
    assert ("slept in epoll_wait for 2.9 s, and no other process ended that" in one["sentence"]) == (cause != "unknown")


def test_a_program_that_sleeps_by_its_own_choice() -> None:
    host = shop()
    asleep(host, SHOP, **{**LATCH, "syscall": b"clock_nanosleep"}, **HOLDER)
    (one,) = found(host)
    assert (one["cause"], one["cause_detail"], one["culprit_pid"]) == ("process_wait", "clock_nanosleep", SHOP_PID)
    assert "as its program requested" in one["sentence"]


@pytest.mark.parametrize(
    "idle",
    [
        {**LATCH, "duration_ns": 9_000 * MS, **HOLDER},  # it began long before the request
        {**LATCH, "duration_ns": 900 * MS, **HOLDER},  # a small part of it
        {**LATCH, "waker_pid": WEB_PID, "waker_comm": b"nginx"},  # its client woke it: for the next request
        {**LATCH, "waker_pid": SHOP_PID, "waker_comm": b"shop"},  # another thread of it
    ],
)
def test_waits_for_more_work_are_no_reason(idle: dict[str, Any]) -> None:
    host = shop()
    talks(host, WEB_PID, peer("127.0.0.1", PORT))
    asleep(host, SHOP, **idle)
    assert [one["cause"] for one in found(host)] == ["unknown"]


@pytest.mark.parametrize("tid", [SHOP_PID, SHOP_PID + 1])
@pytest.mark.parametrize("local", [True, False])
def test_a_server_that_reads_from_one_client_and_serves_no_other(tid: int, local: bool) -> None:
    """Threads that serve a client each wait for its next request, for as long as it takes."""
    host = shop()
    by = {"waker_pid": 866, "waker_comm": b"upload", "waker_tid": 866} if local else {}
    its = {"syscall": b"recvfrom", "fd_type": b"socket", "peer": peer("10.0.0.9", 40632)}
    asleep(host, {**SHOP, "tid": tid}, **{**LATCH, **its}, **by)
    (one,) = found(host)
    if tid != SHOP_PID:
        assert one["cause"] == "unknown"
        return
    assert (one["cause"], one["culprit_object"]) == ("process_wait", "10.0.0.9:40632")
    client = "upload pid 866 at 10.0.0.9:40632" if local else "10.0.0.9:40632"
    assert f"waited in recvfrom for 2.9 s for what its client {client} sends, and served no other" in one["sentence"]


def test_a_debugger_that_attached_just_then() -> None:
    host = chain()
    host.add("process_event", at=29.9, **SHOP, kind="traced", signal=19, sender_pid=77, sender_comm=b"gdb")
    (one,) = [one for one in found(host) if "port 8080" in one["sentence"]]
    assert (one["cause"], one["cause_detail"], one["culprit_pid"]) == ("process_stopped", "traced", SHOP_PID)
    assert "traced by gdb, pid 77" in one["sentence"]


def test_a_debugger_that_attached_long_before_is_not_blamed() -> None:
    host = shop()
    host.add("process_event", at=20.0, **SHOP, kind="traced", signal=19, sender_pid=77, sender_comm=b"gdb")
    assert [one["cause"] for one in found(host)] == ["unknown"]


@pytest.mark.parametrize("answered", [100, 600])
def test_what_is_answered_after_a_stall_is_no_load(answered: int) -> None:
    """Clients that wait open more connections, and ask more on each."""
    host = shop()
    for table, rows in host.made:
        if table == "service_latency":
            rows["requests"][rows["t_ns"] // S == T0 // S + 33] = answered
    assert [one["cause"] for one in found(host)] == ["unknown"]


def test_the_processes_that_a_late_one_calls_are_followed() -> None:
    host, followed = chain().without("service_latency"), list[set[int]]()
    slow(host, WEB_PID, 80, b"nginx")
    run(host, UNTIL, each=lambda correlator: followed.append(set(correlator.to_follow())))
    assert {WEB_PID, SHOP_PID} in followed
    assert followed[20] == set() == followed[-1]


def test_a_stall_before_is_not_usual() -> None:
    """The same server was late once before: its client waits for it all the same."""
    host = shop()
    slow(host, DB_PID, 5432, b"postgres")
    talks(host, SHOP_PID, DB)
    its = [rows for table, rows in host.made if table == "service_latency" and rows["pid"][0] == DB_PID]
    at = int(np.argmax(its[0]["t_ns"] >= T0 + 12 * S))
    its[0]["max_ns"][at], its[0]["max_from_ns"][at], its[0]["sum_ns"][at] = 2800 * MS, T0 + 9 * S, 150 * S
    for rows in its:
        rows["requests"] = rows["requests"].clip(5)  # some are answered all the time
    (one,) = [one for one in found(host) if "port 8080" in one["sentence"] and one["end_ns"] > T0 + 30 * S]
    assert (one["cause"], "postgres pid 1802" in one["sentence"]) == ("broker_slow", True)


@pytest.mark.parametrize("queued", [True, False])
def test_requests_that_queue_within_a_program_wait_for_what_their_first_one_waits_for(queued: bool) -> None:
    """One pipe to a worker, and a lock around it: each thread waits for the one before it, and then for the worker."""
    host = shop()
    worker = {
        "kind": "waiting",
        "syscall": b"read",
        "fd_type": b"pipe",
        "waker_pid": HOLDER_PID,
        "waker_tid": HOLDER_PID,
    }
    own = {"kind": "waiting", "syscall": b"futex", "waker_pid": SHOP_PID}
    for n in range(3):
        asleep(host, {**SHOP, "tid": n + 1}, 30.98 + n, **worker, waker_comm=b"worker", duration_ns=970 * MS)
        if n and queued:
            began_ms = 200 * n
            its = {**own, "waker_tid": n, "waker_comm": b"shop", "duration_ns": (n * 1000 - began_ms) * MS}
            asleep(host, {**SHOP, "tid": n + 1}, 30.0 + n, **its)
    (one,) = found(host)
    wanted = ("process_wait", HOLDER_PID) if queued else ("unknown", NULL_I64)
    assert (one["cause"], one["culprit_pid"]) == wanted, one["sentence"]
