"""The intake socket with real datagrams."""

from __future__ import annotations

import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from hashlib import blake2b
from math import isnan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.clock import timens
from agent.columns import NULL_I64
from agent.errors import AgentError
from agent.limiters.arrival import Arrival, read_clocks
from agent.limiters.decision import Decoder
from agent.limiters.intake import QUEUE_LENGTH, TABLE, Intake, process_identity
from tests.lab import sockets


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "intake.sock"


@pytest.fixture
def intake(path: Path) -> Iterator[Intake]:
    source = Intake(sockets.datagrams(path))
    yield source
    source.close()


def send(path: Path, *messages: object) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.connect(str(path))
        for m in messages:
            client.send(m if isinstance(m, bytes) else json.dumps(m).encode())


def decisions(source: Intake) -> np.ndarray:
    found = [b.rows for b in source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)) if b.table == "limiter_decision"]
    return np.concatenate(found) if found else TABLE.empty(0)


FULL = {
    "limiter": "api",
    "result": "refused",
    "key": "10.0.0.1",
    "cost": 2,
    "limit_per_s": 5.5,
    "burst": 10,
    "window_ns": 10**9,
    "remaining": -1.5,
    "wait_ns": 7,
    "duration_ns": 1_000_003,
    "program_wall_ns": 1_760_000_000_000_000_007,
    "trace_id": "0af7651916cd43dd8448eb211c80319c",
    "span_id": "b7ad6b7169203331",
    "tid": 4711,
    "library": "a/limiter",
    "library_version": "v1.2.3",
    "anything": {"else": [1, None]},
}


def test_every_member_arrives(path: Path, intake: Intake) -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    send(path, FULL)
    (row,) = decisions(intake)
    assert before < row["t_ns"] < time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert (row["limiter_id"], row["source"], row["result"]) == (
        b"api",
        TABLE.code("source", "socket"),
        TABLE.code("result", "refused"),
    )
    assert row["reporter_uid"] == os.getuid()
    assert row["key"] == blake2b(b"10.0.0.1", digest_size=8).hexdigest().encode()
    for name in (
        "cost",
        "limit_per_s",
        "burst",
        "window_ns",
        "remaining",
        "wait_ns",
        "duration_ns",
        "program_wall_ns",
        "tid",
    ):
        assert row[name] == FULL[name]
    assert (row["trace_id"], row["span_id"]) == (str(FULL["trace_id"]).encode(), str(FULL["span_id"]).encode())
    assert (row["library"], row["library_version"]) == (b"a/limiter", b"v1.2.3")
    assert row["pid"] == os.getpid()
    assert (row["proc_start_ns"], row["comm"]) == process_identity(os.getpid())[:2]


@pytest.mark.usefixtures("own_clock")
def test_the_time_is_that_of_sending(path: Path, intake: Intake) -> None:
    for _ in range(3):
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        send(path, FULL)
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        time.sleep(0.05)
        (row,) = decisions(intake)
        assert before < row["t_ns"] < after


def test_a_stamp_from_before_a_step_is_bounded() -> None:
    arrival, clocks = Arrival(read_clocks()), read_clocks()
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for off_s in (-3600, 3600):
        stamp = [(socket.SOL_SOCKET, 35, struct.pack("qq", int(time.time()) + off_s, 0))]
        assert now - 1_000_000_000 < arrival.sent_ns(stamp, now, clocks) <= now
    assert arrival.sent_ns([], now, clocks) == now


def test_a_line_of_syslog_is_the_object_in_it(path: Path, intake: Intake) -> None:
    output = json.dumps({"limiter": "<{", "result": "allowed", "library": "x" * 100}).encode()
    send(path, b"<190>Nov 23 21:22:42 host nginx: " + output, b"<134>" + output + b"\n")
    rows = decisions(intake)
    assert rows["limiter_id"].tolist() == [b"<{"] * 2
    assert len(rows["library"][0]) <= 48
    for wrong in (b"<", b"<190>", b"<190>}{", b"<190>{" + output, b"x" + output, b"<190>[1]"):
        send(path, wrong)
    send(path, *({"limiter": "x", "result": "allowed", name: 7} for name in ("library", "library_version")))
    assert len(decisions(intake)) == 0
    assert intake.losses()["malformed"] == 8


def test_what_was_not_reported_is_unknown(path: Path, intake: Intake) -> None:
    send(path, {"limiter": "api", "result": "allowed", "cost": None})
    (row,) = decisions(intake)
    assert isnan(row["cost"])
    assert isnan(row["remaining"])
    assert (row["duration_ns"], row["tid"], row["key"], row["trace_id"]) == (NULL_I64, NULL_I64, b"", b"")


def test_no_limit(path: Path, intake: Intake) -> None:
    """Said as a word, or as the number by which golang.org/x/time/rate says it."""
    for more in (
        {"unlimited": True},
        {"limit_per_s": 1.7976931348623157e308},
        {"limit_per_s": 5, "unlimited": True},
        {"limit_per_s": 5},
    ):
        send(path, {"limiter": "api", "result": "cancelled", **more})
    found = decisions(intake)
    assert found["unlimited"].tolist() == [1, 1, 1, -1]
    assert np.isnan(found["limit_per_s"]).tolist() == [True, True, True, False]
    assert set(found["result"]) == {TABLE.code("result", "cancelled")}


MEMBERS = {
    "limiter": ["api", "", 1, None],
    "result": ["allowed", "refused", "no", []],
    "key": ["10.0.0.1", 7, True, None, "x" * 100],
    "cost": [1, 0.5, -1, float("nan"), None],
    "limit_per_s": [5, 1.7976931348623157e308, 2**63, "5"],
    "remaining": [-3, 0.0],
    "duration_ns": [812, 1.5, 2**63, -1],
    "tid": [12],
    "unlimited": [True, False],
    "dropped": [0, 3, 1 << 31],
    "library": ["l", 5],
    "trace_id": ["0" * 32, "0"],
    "note": ["anything", {}],
}


def test_messages_that_are_checked_together_give_what_each_gives_alone() -> None:
    decoder, choose, together = Decoder("hashed"), random.Random(29), 0
    for _ in range(2000):
        # Mostly what is right, which comes first in each list.
        names = ["limiter", "result", *choose.sample([*MEMBERS][2:], choose.randrange(5))]
        some = [
            {name: choose.choice(MEMBERS[name]) if choose.random() < 0.05 else MEMBERS[name][0] for name in names}
            for _ in range(choose.randrange(1, 4))
        ]
        if (found := decoder.columns(some)) is None:
            continue
        together += 1
        columns, dropped = found
        alone = [decoder.check(message) for message in some]  # none of them is malformed
        assert dropped == sum(its for _, its in alone)
        assert [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)] == [
            values for values, _ in alone
        ]
    assert together > 500


def test_the_sender_is_reported_by_the_kernel(path: Path, intake: Intake) -> None:
    code = (
        "import socket, sys, os; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(sys.argv[1]);"
        's.send(b\'{"limiter": "x", "result": "allowed", "pid": 1}\'); print(os.getpid(), flush=True); sys.stdin.read()'
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    (row,) = decisions(intake)
    assert row["pid"] == pid
    start_ns = process_identity(pid).start_ns
    assert row["proc_start_ns"] == start_ns
    assert 0 < time.clock_gettime_ns(time.CLOCK_BOOTTIME) - start_ns < 60_000_000_000
    child.communicate("")
    assert process_identity(pid) == (NULL_I64, b"", NULL_I64)


MALFORMED: list[object] = [
    b"",
    b"{",
    b"\xff\xfe",
    b"null",
    [],
    5,
    {},
    {"limiter": "a"},
    {"result": "allowed"},
    {"limiter": "", "result": "allowed"},
    {"limiter": 3, "result": "allowed"},
    {"limiter": "a", "result": "ok"},
    {"limiter": "a", "result": ["allowed"]},
    b'{"limiter":"a","result":"allowed","cost":NaN}',
    b'{"limiter":"a","result":"allowed","cost":1e999}',
    {"limiter": "a", "result": "allowed", "cost": "1"},
    {"limiter": "a", "result": "allowed", "cost": True},
    {"limiter": "a", "result": "allowed", "wait_ns": -1},
    {"limiter": "a", "result": "allowed", "duration_ns": 2**63},
    {"limiter": "a", "result": "allowed", "key": {}},
    {"limiter": "a", "result": "allowed", "trace_id": "xyz"},
    b'{"limiter":"a","result":"allowed"}' + b" " * 9000,
    b"[" * 5000,
    b'{"limiter":"a","result":"allowed","cost":' + b"1" * 5000 + b"}",
    b'{"limiter":"a","result":"allowed","x":"' + b"y" * 9000 + b'"}',
    b'{"limiter":"a","result":"allowed","x":' + b"1" * 65 + b"}",
    {"limiter": "a", "result": "allowed", "x": list(range(128))},
]


def test_a_thread_in_a_container_is_reported_by_the_hosts_number(path: Path, intake: Intake) -> None:
    """It tells its own number, as gettid() gives it there; the system calls in its decision have the host's."""
    program = f"""
import json, os, socket, threading, time
def tell(name):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        decision = {{"limiter": name, "result": "allowed", "tid": threading.get_native_id()}}
        client.sendto(json.dumps(decision).encode(), {str(path)!r})
    time.sleep(600)
threading.Thread(target=tell, args=("second",), daemon=True).start()
tell("first")
"""
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", program]
    with subprocess.Popen(command) as inside:
        try:
            got: list[np.void] = []
            while len(got) < 2:
                got += list(decisions(intake))
                time.sleep(0.01)
            pid = int(got[0]["pid"])
            tasks = {int(name) for name in os.listdir(f"/proc/{pid}/task")}
        finally:
            inside.kill()
    assert {int(row["tid"]) for row in got} == tasks
    assert next(row["tid"] for row in got if row["limiter_id"] == b"first") == pid


@pytest.mark.parametrize("message", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_is_counted_and_nothing_else(path: Path, intake: Intake, message: object) -> None:
    send(path, message, {"limiter": "a", "result": "allowed"})
    assert len(decisions(intake)) == 1
    assert intake.losses()["malformed"] == 1


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.one_of(
        st.binary(max_size=200),
        st.dictionaries(
            st.sampled_from([*FULL, "t_ns"]),
            st.one_of(
                st.none(),
                st.text(max_size=80),
                st.floats(),
                st.integers(),
                st.sampled_from(["allowed", "delayed"]),
                st.lists(st.integers(), max_size=2),
            ),
            max_size=9,
        ).map(lambda d: json.dumps(d).encode()),
    )
)
def test_any_datagram_is_a_row_or_counted(data: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        source = Intake(ours)
        theirs.send(data)
        assert len(decisions(source)) + source.losses()["malformed"] == 1
        source.close()


def test_valid_ones_survive_a_flood_of_malformed_ones(path: Path, intake: Intake) -> None:
    """30,011 malformed ones at 10,000 a second, 1,009 valid ones among them from another sender: each is accounted
    for.
    """

    def flood() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.connect(str(path))
            start = time.monotonic()
            for i in range(30_011):
                client.send(b'{"limiter": "a", "result"')
                if i % 100 == 0:
                    time.sleep(max(0.0, start + i / 10_000 - time.monotonic()))

    def report() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.connect(str(path))
            for i in range(1_009):
                client.send(json.dumps({"limiter": "a", "result": "refused", "cost": i}).encode())
                time.sleep(0.002)

    threads = [threading.Thread(target=t) for t in (flood, report)]
    for t in threads:
        t.start()
    rows, lost = [], 0
    until = time.monotonic() + 60
    while time.monotonic() < until:
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        batches = list(intake.drain(now_ns))
        rows += [b.rows for b in batches if b.table == "limiter_decision"]
        lost += sum(int(b.rows["count"].sum()) for b in batches if b.table == "loss")
        if not batches and not any(t.is_alive() for t in threads) and lost == 30_011:
            break
        time.sleep(0.01)
    assert np.concatenate(rows)["cost"].tolist() == list(range(1_009))
    assert intake.losses() == {"malformed": 30_011, "dropped": 0}
    assert lost == 30_011


def test_loss_rows_cover_the_time(path: Path, intake: Intake) -> None:
    start = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert list(intake.drain(start)) == []
    send(path, b"x", b"y", b"z")
    assert list(intake.drain(start + 1)) == []
    (batch,) = intake.drain(start + 2_000_000_000)
    (row,) = batch.rows
    assert (batch.table, row["source"], row["count"], row["from_ns"], row["to_ns"]) == (
        "loss",
        b"intake",
        3,
        start,
        start + 2_000_000_000,
    )
    assert list(intake.drain(start + 9_000_000_000)) == []


def test_a_sender_that_has_ended_costs_nobody_s_decisions(path: Path, intake: Intake) -> None:
    """Nobody has waited for it, so /proc shows it, but without clocks; whoever may not read others' namespaces gets
    nothing else to hold on to.
    """
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(sys.argv[1]);"
        " s.send(sys.argv[2].encode())"
    )
    send(path, {"limiter": "before", "result": "allowed"})
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path), json.dumps({"limiter": "x", "result": "allowed", "t_ns": 1})]
    )
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    send(path, {"limiter": "after", "result": "allowed"})
    os.seteuid(65534)
    try:
        with pytest.raises(ValueError, match="has ended"):
            timens.of(child.pid)
        rows = decisions(intake)
    finally:
        os.seteuid(0)
    assert rows["limiter_id"].tolist() == [b"before", b"x", b"after"]
    assert rows["pid"].tolist() == [os.getpid(), child.pid, os.getpid()]
    assert rows["proc_start_ns"][1] != NULL_I64
    assert intake.losses() == {"malformed": 0, "dropped": 0}
    child.wait()


def test_the_end_takes_all_that_waits_and_reports_what_was_malformed(path: Path) -> None:
    source = Intake(sockets.datagrams(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        client.setsockopt(
            socket.SOL_SOCKET, 32, 64 << 20
        )  # SO_SNDBUFFORCE: the queue's length is the limit, not the sender's memory
        client.connect(str(path))
        sent = 0
        try:
            while True:
                client.send(
                    json.dumps({"limiter": "a", "result": "allowed", "cost": sent}).encode() if sent % 10 else b"{"
                )
                sent += 1
        except BlockingIOError:
            assert sent >= QUEUE_LENGTH
        batches = list(source.finish(time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.sleep))
        with pytest.raises(BrokenPipeError):
            client.send(b"{}")
    rows = np.concatenate([b.rows for b in batches if b.table == TABLE.name])
    assert rows["cost"].tolist() == [i for i in range(sent) if i % 10]
    (loss,) = [b.rows for b in batches if b.table == "loss"]
    assert loss["count"].tolist() == [len(range(0, sent, 10))]
    assert loss["from_ns"] < loss["to_ns"]
    source.close()


def test_descriptors_that_a_sender_attaches_do_not_stay(path: Path, intake: Intake) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client, open("/dev/null") as null:
        client.connect(str(path))
        socket.send_fds(client, [json.dumps({"limiter": "a", "result": "allowed"}).encode()], [null.fileno()] * 3)
    (row,) = decisions(intake)
    assert row["pid"] == os.getpid()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("messages", [(), (b"no decision",), ({"limiter": "a", "result": "allowed"},)])
def test_the_loop_hears_of_what_comes_next(path: Path, intake: Intake, messages: tuple[object, ...]) -> None:
    """By a readable descriptor after a drain that found nothing, by ``due_ns`` before: also after no decision."""
    send(path, *messages)
    for _ in range(2):
        decisions(intake)
    assert (select.select(intake.fds(), [], [], 0)[0], intake.due_ns) == ([], 0)
    send(path, {"limiter": "a", "result": "allowed"})
    assert select.select(intake.fds(), [], [], 0)[0]
    assert len(decisions(intake)) == 1 and intake.due_ns > 0


def test_one_drain_is_bounded_and_the_rest_stays(path: Path) -> None:
    source = Intake(sockets.datagrams(path), max_messages=5)
    send(path, *[{"limiter": "a", "result": "allowed"}] * 7)
    assert len(decisions(source)) == 5
    assert len(decisions(source)) == 2
    source.close()


def test_long_names_are_cut_at_a_character_and_stay_apart(path: Path) -> None:
    source = Intake(sockets.datagrams(path), keys="clear")
    send(
        path,
        *({"limiter": "é" * 100 + end, "result": "allowed", "key": key} for end, key in (("a", "ü" * 100), ("b", 17))),
    )
    rows = decisions(source)
    assert rows["key"].tolist() == [
        ("ü" * 19).encode() + b"~" + blake2b(("ü" * 100).encode(), digest_size=4).hexdigest().encode(),
        b"17",
    ]
    first, second = rows["limiter_id"].tolist()
    assert first.decode()[:19] == second.decode()[:19] == "é" * 19
    assert first != second


def test_creating_takes_a_stale_path_over_and_leaves_a_live_one(path: Path) -> None:
    first = sockets.datagrams(path)
    assert path.stat().st_mode & 0o777 == 0o666
    with pytest.raises(AgentError, match="another agent is running"):
        sockets.datagrams(path)
    first.close()
    assert path.exists()
    second = sockets.datagrams(path)
    send(path, b"x")
    assert second.recv(10) == b"x"
    second.close()
    path.unlink()
    path.write_text("a file")
    with pytest.raises(AgentError, match="not a socket"):
        sockets.datagrams(path)
