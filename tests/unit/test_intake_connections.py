"""The intake's connections: a queue a sender, drained fairly, bounded a user. Real sockets, floods by the user
nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.common.fairness import Budget
from agent.limiters import intake as room
from agent.limiters.intake import TABLE, Intake
from agent.limiters.senders import CONNECTIONS
from agent.service.bounds import Bounds
from tests.lab import sockets

FLOOD = r"""
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
socks, sent = [], 0
for _ in range(int(sys.argv[2])):
    sock = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[3]))
    sock.setblocking(False)
    sock.connect(sys.argv[1])
    socks.append(sock)
    try:
        while True:
            sock.send(b'{"limiter": "flood", "result": "allowed"}\n')
            sent += 1
    except OSError:
        pass
print(sent, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture
def intake(place: Path) -> Iterator[Intake]:
    source = Intake(*room.bind(sockets.directory(place / "intake.sock")))
    yield source
    source.close()


def connect(place: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    sock.connect(str(place / "intake.seq.sock"))
    return sock


def stream(place: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(place / "intake.stream.sock"))
    return sock


def decision(limiter: str, **more: object) -> bytes:
    return json.dumps({"limiter": limiter, "result": "allowed", **more}).encode()


def drained(source: Intake, turns: int = 1) -> dict[str, int]:
    """Decisions by limiter, of so many turns; and ``lost: SOURCE``."""
    found: dict[str, int] = {}
    for turn in range(turns):
        for batch in source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + turn * 2_000_000_000):
            names = (
                batch.rows["limiter_id"]
                if batch.table == TABLE.name
                else np.array([b"lost: " + s for s in batch.rows["source"]])
            )
            counts = np.ones(len(names), np.int64) if batch.table == TABLE.name else batch.rows["count"]
            for name, count in zip(names.tolist(), counts.tolist(), strict=True):
                found[name.decode()] = found.get(name.decode(), 0) + count
    return found


@contextlib.contextmanager
def flood(path: Path, count: int, kind: str = "SOCK_SEQPACKET") -> Iterator[int]:
    """The user nobody connects so often, and fills each queue; how many messages it sent."""
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD, str(path), str(count), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as nobody:
        assert nobody.stdout is not None
        yield int(nobody.stdout.readline())
        nobody.communicate()


def test_a_decision_has_its_sender_and_its_time_whatever_came_before_it_was_accepted(
    place: Path, intake: Intake
) -> None:
    with connect(place) as sock:
        early = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        sock.send(decision("early"))
        (batch,) = intake.drain(0)
        assert early < batch.rows["t_ns"][0] < time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        sent = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        sock.send(decision("late", duration_ns=7))
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        time.sleep(0.05)
        (batch,) = intake.drain(0)
    (row,) = batch.rows
    assert sent < row["t_ns"] < after
    assert (row["pid"], row["duration_ns"]) == (os.getpid(), 7)


def test_a_turn_has_something_for_each_user_whatever_others_have_waiting(place: Path, intake: Intake) -> None:
    """64 full queues of one user, and 100 datagrams and 100 messages of another: these are all in the next turn."""
    with (
        flood(place / "intake.seq.sock", CONNECTIONS // 4) as sent,
        connect(place) as sock,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        assert sent > 4000
        drained(intake, 6)  # the turns in which they are accepted
        with flood(place / "intake.seq.sock", 1):
            for _ in range(100):
                sock.send(decision("ours"))
                datagrams.sendto(decision("datagram"), str(place / "intake.sock"))
            found = drained(intake)
        assert (found["ours"], found["datagram"]) == (100, 100)
        assert found["flood"] > 100


def test_connections_are_bounded_a_user_and_what_went_with_them_is_a_loss(place: Path, intake: Intake) -> None:
    """A bound that is hit is reported in probe_status and status."""
    share = CONNECTIONS // 4
    with flood(place / "intake.seq.sock", share + 7) as sent, connect(place) as sock:
        found = drained(intake, 200)
        assert intake.state()["connections"] == share + 1
        assert intake.state()["refused"] == 7
        assert found["lost: intake connections"] > 7
        assert found["flood"] + found["lost: intake connections"] == sent
        sock.send(decision("ours"))
        assert drained(intake) == {"ours": 1}
        reported = Bounds("intake", intake.state, room.REASONS)
        (row,) = list(reported.drain(10**12))
        assert row.rows["reason"].tolist() == [f"7 {room.REASONS['refused']}".encode()]
    drained(intake, 2)
    assert intake.state()["connections"] == 0


def test_what_a_sender_dropped_is_a_loss(place: Path, intake: Intake) -> None:
    with connect(place) as sock:
        for dropped in (0, 17, None, 2):
            sock.send(decision("ours", dropped=dropped))
        for wrong in (-1, 1 << 31, "7", True):
            sock.send(decision("wrong", dropped=wrong))
        assert drained(intake, 2) == {"ours": 4, "lost: intake senders": 19, "lost: intake": 4}
    assert intake.losses() == {"malformed": 4, "dropped": 19}


def test_malformed_messages_cost_nothing_but_their_count(place: Path, intake: Intake) -> None:
    with connect(place) as sock:
        for output in (b"", b"{", b"x" * 9000, decision("ours")):
            sock.send(output)
        assert drained(intake, 2) == {"ours": 1, "lost: intake": 3}


MALFORMED = r"""
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))
sock = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[2]))
sock.connect(sys.argv[1])
while line := sys.stdin.readline():
    for _ in range(100):
        sock.send(line.encode())
    print("sent", flush=True)
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("intake.sock", "SOCK_DGRAM"),
        ("intake.seq.sock", "SOCK_SEQPACKET"),
        ("intake.stream.sock", "SOCK_STREAM"),
    ],
)
def test_messages_of_a_user_over_the_budget_for_malformed_ones_are_counted_unparsed(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    """The budget does not fill here, so that the test does not depend on time. Another user and root are not
    affected.
    """
    budget = Budget(0, 4, root=False)  # less than one malformed message takes, in ns
    monkeypatch.setattr("agent.limiters.senders.Budget", lambda *args, **options: budget)
    with (
        contextlib.closing(Intake(*room.bind(sockets.directory(place / "intake.sock")))) as source,
        sender(place / name, kind, 65534) as hostile,
        sender(place / name, kind, 65533) as other,
        connect(place) as root,
    ):
        hostile(b"{")
        lost = drained(source, 9)
        parsed = source.losses()["malformed"]
        assert 1 <= parsed < 100
        hostile(decision("hostile"))
        other(decision("other"))
        root.send(b"{")
        root.send(decision("root"))
        found = drained(source, 30)
        unparsed = 200 - parsed
        assert (found["other"], found["root"]) == (100, 1)
        assert "hostile" not in found
        assert source.losses()["malformed"] == parsed + 1
        assert source.senders.unparsed == {65534: unparsed}
        assert lost.get("lost: intake uid 65534", 0) + found["lost: intake uid 65534"] == unparsed
        assert Bounds("intake", source.state, room.REASONS).hit() == {room.REASONS["unparsed"]: unparsed}


@contextlib.contextmanager
def sender(path: Path, kind: str, uid: int) -> Iterator[Callable[[bytes], None]]:
    """A process of this user; the function has it send a message 100 times."""
    with subprocess.Popen(
        [sys.executable, "-c", MALFORMED, str(path), kind, str(uid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def send(message: bytes) -> None:
            process.stdin.write(message.decode() + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "sent\n"

        yield send
        process.communicate()


def test_the_end_takes_all_that_waits_of_those_who_are_not_accepted_yet_too(place: Path, intake: Intake) -> None:
    known = connect(place)
    drained(intake)
    late = [connect(place) for _ in range(40)]
    for sock in (known, *late):
        for _ in range(3):
            sock.send(decision("last"))
    batches = list(intake.finish(time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.sleep))
    assert sum(len(b.rows) for b in batches if b.table == TABLE.name) == 41 * 3
    with pytest.raises(BrokenPipeError):
        known.send(decision("after"))
    with pytest.raises(ConnectionRefusedError):
        connect(place)
    for sock in (known, *late):
        sock.close()


def test_a_stream_has_a_decision_in_each_line_however_it_is_cut(place: Path, intake: Intake) -> None:
    line = decision("ours", key="\u00fc", duration_ns=7) + b"\n"
    with stream(place) as sock:
        for at in range(len(line)):  # cut in two at each byte, with a turn between
            before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            sock.send(line[:at])
            assert drained(intake) == {}
            sock.send(line[at:])
            (batch,) = intake.drain(0)
            (row,) = batch.rows
            assert (row["limiter_id"], row["pid"], row["duration_ns"]) == (b"ours", os.getpid(), 7)
            assert before < row["t_ns"] < time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        sock.sendall(line * 997)
        assert drained(intake, 2) == {"ours": 997}


def test_a_line_without_an_end_costs_its_sender_alone(place: Path, intake: Intake) -> None:
    with stream(place) as endless, stream(place) as sock:
        endless.sendall(b"x" * 100_000)
        sock.sendall(b"\n{\r\n" + decision("ours") + b"\r\n")
        found = drained(intake, 2)
        assert found["ours"] == 1
        assert 2 + 100_000 // 16384 <= found["lost: intake"] <= 2 + 100_000 // 8192
        endless.sendall(b"\n" + decision("ours") + b"\n" + decision("cut off")[:-1])
        endless.shutdown(socket.SHUT_WR)
        before = intake.losses()["malformed"]
        assert drained(intake, 2)["ours"] == 1
        assert intake.losses()["malformed"] == before + 2
        assert intake.state()["connections"] == 1


def test_streams_share_the_places_and_the_turns_of_all_connections(place: Path, intake: Intake) -> None:
    share = CONNECTIONS // 4
    with (
        flood(place / "intake.seq.sock", share - 3) as packets,
        flood(place / "intake.stream.sock", 3 + 7, "SOCK_STREAM") as lines,
        connect(place) as mine,
        stream(place) as sock,
    ):
        assert min(packets, lines) > 1000
        for _ in range(5):
            drained(intake)  # the turns in which they are accepted
        mine.send(decision("packet"))
        sock.sendall(decision("line") + b"\n")
        found = drained(intake)
        assert (found["packet"], found["line"]) == (1, 1)
        assert intake.state()["connections"] == share + 2
        assert intake.state()["refused"] == 7


def test_the_end_takes_all_lines_that_wait(place: Path, intake: Intake) -> None:
    with stream(place) as known, stream(place) as late:
        drained(intake)
        long = decision("last", more="x" * 7000) + b"\n"
        known.sendall(long * 11 + decision("last"))  # and one without an end
        late.sendall(decision("last") + b"\n")
        batches = list(intake.finish(time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.sleep))
        assert sum(len(b.rows) for b in batches if b.table == TABLE.name) == 12
        assert intake.losses()["malformed"] == 1
        with pytest.raises(BrokenPipeError):
            known.send(b"{}")
