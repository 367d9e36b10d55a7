"""What one user makes happen hides nothing that happens to others, takes nobody's place, and names nobody else."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

from agent.batch import make
from agent.common import process_stat
from agent.correlate.catalogue import dtypes
from agent.correlate.rows import LastRows
from agent.kernel.loaded_families import BPF_DIR
from agent.kernel.wire_structs import Wire
from agent.probes import discover
from agent.probes.syscalls import decode_cpu_waits
from agent.resources.cgroups import Mounts
from agent.resources.resource_source import MOST, Resources, Watched
from agent.resources.spaces import Space, Spaces
from tests.unit.correlate_scenarios import MS, T0, UNTIL, Host, S, latest, run
from tests.unit.test_correlate_processes import event
from tests.unit.test_correlate_resources import resource

NOBODY, REDIS = 65534, 110


def test_who_has_most_rows_makes_room_for_the_others() -> None:
    ring = LastRows(dtypes()["process_event"], 100, 120 * S)
    first = np.zeros(10, dtypes()["process_event"])
    first["t_ns"], first["uid"] = np.arange(10), REDIS
    ring.add(first)
    for n in range(1, 40):
        flood = np.zeros(97 if n == 7 else 30, first.dtype)
        flood["t_ns"], flood["uid"] = n * S + np.arange(len(flood)), NOBODY
        ring.add(flood)
    kept = ring.between(0, 40 * S)
    assert len(kept) == 100 and (kept["uid"] == REDIS).sum() == 10 and (np.diff(kept["t_ns"]) >= 0).all()
    assert kept["t_ns"].max() == flood["t_ns"].max() and ring.dropped == 10 + 38 * 30 + 97 - 100
    late = np.zeros(1, first.dtype)
    late["t_ns"] = 200 * S
    ring.add(np.repeat(late, 60))
    ring.add(np.repeat(late, 60))
    assert len(ring.between(0, 300 * S)) == 100 and (ring.between(0, 300 * S)["t_ns"] == 200 * S).all()


def test_of_each_user_the_longest_waits_are_reported() -> None:
    values = np.zeros(
        201, Wire.read(*(BPF_DIR / f for f in ("events.h", "syscalls_cpu.h"))).dtype("syscalls_cpu_value")
    )
    values["wait_ns"], values["uid"], values["proc"]["pid"] = 900 * MS, NOBODY, np.arange(201)
    values["uid"][200], values["wait_ns"][200] = REDIS, 200 * MS
    (batch,) = decode_cpu_waits(values[["count"]], values, S, T0)
    assert len(batch.rows) == 64 and 200 in batch.rows["pid"]
    (batch,) = decode_cpu_waits(values[:200][["count"]], values[:200], S, T0)
    assert len(batch.rows) == 64


def test_a_users_storm_of_signals_hides_no_servers_stop() -> None:
    host = Host(1).healthy(0, 60)
    event(host, "stopped", 30.2, signal=19, uid=REDIS)
    for n in range(3):  # a toy that listens, and others
        t = T0 + int((30.3 + n) * S) + np.arange(2000) * 100_000
        host.add(
            "process_event",
            2000,
            t_ns=t,
            pid=5000 + n,
            tid=5000,
            comm=b"toy",
            cgroup_id=1,
            kind=np.arange(2000) % 2,
            signal=19,
            sender_pid=1,
            sender_comm=b"toy",
            uid=NOBODY,
        )
    event(host, "continued", 32.7, signal=18, uid=REDIS)
    (found,) = latest(run(host, 60))
    assert (found["symptom"], found["cause"], found["culprit_comm"]) == (
        "process_stopped",
        "process_stopped",
        "redis-server",
    )


def test_ends_of_another_users_programs_of_that_name_are_no_restarts() -> None:
    host = Host(1).healthy(0, 60)
    event(host, "killed", 30, signal=9, uid=REDIS)
    for n in range(1, 7):
        event(
            host,
            "killed",
            30 + n / 2,
            pid=2000 + n,
            signal=9,
            proc_start_ns=T0 + int((30 + n / 2 - 0.2) * S),
            uid=NOBODY,
        )
    (found,) = latest(run(host, 60))
    assert (found["cause"], found["culprit_pid"]) == ("process_killed", 900)


def test_a_users_stopped_toys_leave_room_for_others() -> None:
    host = Host(1).healthy(0, 60)
    for n in range(40):
        host.decisions(0, 60, pid=3000 + n, limiter=b"toy%d" % n)
        event(host, "stopped", 25, pid=3000 + n, comm=b"toy", signal=19, cgroup_id=n + 1, uid=NOBODY)
    event(host, "stopped", 30.2, signal=19, uid=REDIS)
    found = [f for f in latest(run(host, 60)) if f["symptom"] == "process_stopped"]
    assert sum(f["culprit_comm"] != "redis-server" for f in found) == 16
    assert any(f["culprit_comm"] == "redis-server" for f in found)


def test_anothers_file_system_of_that_name_hides_no_full_disk() -> None:
    host = Host(1).healthy(0, UNTIL)
    size = 100 << 30
    for uid, pid in ((0, 800), (NOBODY, 3000)):
        resource(host, "disk", [5, 15, 25], object=b"/data", used=size // 2, limit=size, uid=uid, pid=pid)
    resource(host, "disk", np.arange(30.25, 33, 0.5), object=b"/data", used=size - 4096, limit=size, uid=0, pid=800)
    resource(host, "disk", np.arange(30.26, 33, 0.5), object=b"/data", used=4096, limit=size, uid=NOBODY, pid=3000)
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause_detail"]) == ("resource_low", "disk_full")


@pytest.mark.parametrize("name", ["a\x0bb", "a\x85b", "a\u2028b", "a\rb", "a:b\x1c", "x" * 5000])
def test_a_cgroups_name_is_anybodys_choice(name: str) -> None:
    mounts = Mounts("/c", "/m", "/two")
    for cut in range(40):
        mounts.groups(f"2:memory:/{name}\n1:cpu:/{name}\n0::/{name}\n"[:-cut])
    assert mounts.groups(f"1:cpu:/{name}\n")[0] == (f"/c/{name}",)
    assert Mounts.parse(f"{name} /mnt/{name} fuse rw 0 0\ncgroup2 /two cgroup2 rw 0 0\n") == Mounts(two="/two")


def test_the_user_of_a_process() -> None:
    assert process_stat.uid(os.getpid()) == os.getuid()
    assert process_stat.uid(1 << 22) is None


def watch(polled: Resources, pids: range, uid: int) -> None:
    for pid in pids:
        polled._users[pid, 0] = uid
        list(polled(make("limiter_decision", 1, pid=pid, proc_start_ns=5), pid))


def test_a_user_with_many_servers_leaves_room_for_others() -> None:
    polled = Resources()
    watch(polled, range(1000, 1100), NOBODY)
    watch(polled, range(2000, 2003), 0)
    watch(polled, range(3000, 3005), REDIS)
    watch(polled, range(4000, 4100), NOBODY)
    watch(polled, range(5000, 5100), 0)
    uids = [one.uid for one in polled.watched.values()]
    assert (uids.count(NOBODY), uids.count(REDIS), uids.count(0)) == (MOST // 2, 5, MOST // 2 - 5)


def test_file_systems_that_are_no_longer_reported_are_forgotten() -> None:
    polled, one = Resources(), Watched(7, 5, b"toy", 1, NOBODY)
    spaces = Spaces(None, polled)  # type: ignore[arg-type]
    for n in range(200):
        spaces._take(one, (7, 0), [Space(b"/tmp", 0, 4096 + n, False, 0)], n * S)
    assert len(spaces._known) == 1
    spaces._take(Watched(8, 5, b"it", 1, 0), (8, 0), [Space(b"/tmp", 0, 4295, False, 0)], 300 * S)
    assert len(spaces._known) == 2  # another's, though it looks the same


#: Of a ring that wakes the agent when a quarter of it was written; and of one that waits for the next turn.
AWAKE_MS, QUIET_MS = 50, 100


@pytest.mark.parametrize(
    ("ring", "struct", "stem", "shares", "turn_ms"),
    [
        ("process_events", "process_event", "PROCESS", 4, QUIET_MS),
        ("dns_events", "dns_event", "DNS", 4, QUIET_MS),
        ("clock_refused", "clock_event", "CLOCK", 4, QUIET_MS),
        # one more for sockets that are not known
        ("tcp_connects", "tcp_connect_event", "TCP_CONNECT", 5, AWAKE_MS),
        ("tcp_closes", "tcp_close_event", "TCP_CLOSE", 5, AWAKE_MS),
        ("tcp_resets", "tcp_reset_event", "TCP_RESETS", 5, QUIET_MS),
        ("tcp_retransmits", "tcp_retransmit_event", "TCP_RETRANSMITS", 5, QUIET_MS),
        ("tls_events", "tls_event", "TLS", 4, AWAKE_MS),
        ("limiter_decisions", "limiter_decision", "LIMITER", 4, AWAKE_MS),
    ],
)
def test_the_shares_fit_into_their_rings(ring: str, struct: str, stem: str, shares: int, turn_ms: int) -> None:
    """What all may report at once, and until the agent takes it, overflows nothing. Of the shares, root has two, and
    all users but root together two.
    """
    files = [path for path in sorted(BPF_DIR.glob("*.[ch]")) if path.name != "tickscope.h"]
    text = "".join(path.read_text() for path in files)
    words = {w[1]: w[2] for w in map(str.split, text.splitlines()) if len(w) > 2 and w[0] == "#define"}
    wire = Wire.read(BPF_DIR / "events.h", next(path for path in files if f"struct {struct} {{" in path.read_text()))
    pages = text.partition(f"BPF_RINGBUF_OUTPUT({ring}, ")[2].partition(")")[0]
    each_ns, most = int(words[f"{stem}_EACH_NS"]), int(words[f"{stem}_MOST"])
    reported = shares * (most + turn_ms * MS // each_ns)
    assert reported * (-(-wire.dtype(struct).itemsize // 8) * 8 + 8) <= int(words.get(pages, pages)) * 4096, ring


def test_the_shares_fit_into_their_maps() -> None:
    """Those of all users and of root. Of the maps that are emptied each second, what is added in one."""
    text = "".join(path.read_text() for path in sorted(BPF_DIR.glob("*.[ch]")))
    words = {w[1]: w[2].rstrip("ul") for w in map(str.split, text.splitlines()) if len(w) > 2 and w[0] == "#define"}
    sizes = dict(re.findall(r"BPF_(?:F_)?TABLE\(\"\w+\", [^,]+, [^,]+, (\w+), (\w+)", text))
    numbers = {name: int(value) for name, value in words.items() if value.isdecimal()} | discover()["tcp"].options
    for table, most in {
        "tcp_listeners": numbers["TCP_LISTENERS_MOST"],
        "tcp_threads": numbers["TCP_THREADS_MOST"],
        "tcp_rtt_a": numbers["TCP_RTT_MOST"] + 10**9 // numbers["TCP_RTT_EACH_NS"],
        "tcp_served_a": numbers["TCP_SERVED_MOST"] + 10**9 // numbers["TCP_SERVED_EACH_NS"],
        "tcp_answers_a": numbers["TCP_ANSWERS_MOST"] + 10**9 // numbers["TCP_ANSWERS_EACH_NS"],
        "tls_opened": numbers["TLS_OPEN_MOST"],
        "tls_done": numbers["TLS_OPEN_MOST"],
        "tls_insides": numbers["TLS_THREADS_MOST"],
        "tls_busy": numbers["TLS_THREADS_MOST"],
        "limiter_deciding": numbers["LIMITER_PLACES_MOST"],
        "limiter_waiting": numbers["LIMITER_PLACES_MOST"],
    }.items():
        assert 4 * most <= int(numbers.get(sizes[table], sizes[table])), table
