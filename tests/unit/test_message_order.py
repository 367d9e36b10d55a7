"""Duplicates and messages out of order: by a script that knows which there are, at the intake's real socket."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.common.resp import RedisDown, ReplyTooLarge
from agent.limiters.intake import Intake
from agent.queues.message_reports import PAIRS, TABLE, USERS, Consumer, MessageReports
from agent.queues.message_values import whole
from agent.queues.order import IDS, MOST_CONSUMERS, MessageArrival, MessageOrder, SeenIds
from agent.queues.packing import pack
from agent.queues.redis_reading import Stream, entry_id
from agent.queues.redis_tail import FIRST, MOST, EntryField, Tail
from tests.lab import sockets

#: In a process of its own: each line of its input is a report.
CONSUMER = """
import socket, sys
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
out.connect(sys.argv[1])
for line in sys.stdin:
    if line == "\\n":
        print(flush=True)
    else:
        out.send(line.encode())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "intake.sock"


@pytest.fixture
def intake(path: Path) -> Iterator[Intake]:
    source = Intake(sockets.datagrams(path), messages=MessageReports())
    yield source
    source.close()


def report(source: Intake, path: Path, messages: list[dict[str, Any]]) -> int:
    """Pid of a process that reports these."""
    command = [sys.executable, "-c", CONSUMER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        for at in range(0, len(messages), 100):
            child.stdin.writelines([*(json.dumps(one) + "\n" for one in messages[at : at + 100]), "\n"])
            child.stdin.flush()
            child.stdout.readline()  # it has sent them, and lives
            rows_of(source)
        child.stdin.close()
    return child.pid


FOUND: dict[int, list[np.ndarray]] = {}


def rows_of(source: Intake) -> list[np.ndarray]:
    """All rows so far."""
    found = FOUND.setdefault(id(source), [])
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    found += [batch.rows for batch in source.drain(now_ns) if batch.table == TABLE.name]
    return found


def ended(source: Intake) -> np.ndarray:
    """Also what waits still."""
    found = rows_of(source)
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    found += [batch.rows for batch in source.finish(now_ns, time.sleep) if batch.table == TABLE.name]
    return np.concatenate([TABLE.empty(0), *FOUND.pop(id(source))])


def shuffled(n: int, duplicates: int, swaps: int, seed: int) -> list[int]:
    """0 to n - 1 in order, but for so many neighbours that are swapped, and so many that come again later."""
    pick = random.Random(seed)
    out = list(range(n))
    for at in pick.sample(range(0, n - 1, 3), swaps):
        out[at], out[at + 1] = out[at + 1], out[at]
    for one in pick.sample(range(n), duplicates):
        out.insert(pick.randrange(out.index(one) + 1, len(out) + 1), one)
    return out


@pytest.mark.parametrize("seed", range(3))
def test_23_duplicates_and_7_swaps_among_10_007_messages_and_no_others(intake: Intake, path: Path, seed: int) -> None:
    order = shuffled(10_007 - 23, 23, 7, seed)
    assert len(order) == 10_007
    pid = report(intake, path, [{"message": f"order-{n}", "queue": "orders", "seq": n} for n in order])
    rows = ended(intake)
    assert set(rows["pid"].tolist()) == {pid} and set(rows["destination"].tolist()) == {b"orders"}
    assert [rows[name].sum() for name in ("messages", "duplicates", "out_of_order")] == [10_007, 23, 7]
    assert set(rows["behind"][rows["out_of_order"] > 0].tolist()) == {1}
    assert set(rows["first_pid"][rows["duplicates"] > 0].tolist()) == {pid}


def test_two_consumers_of_a_group_share_duplicates_and_have_an_order_each(intake: Intake, path: Path) -> None:
    """The second process gets the odd messages, and 5 of the first one's again."""
    even, odd = range(0, 200, 2), range(1, 200, 2)
    shared = {"queue": "orders", "group": "billing", "system": "kafka", "partition": 3}
    first = report(intake, path, [{"message": n, "seq": n, **shared} for n in even])
    again = report(intake, path, [{"message": n, "seq": n, **shared} for n in (*odd, *[*even][:5])])
    # Another group, another partition's numbers and another producer's are neither.
    report(intake, path, [{"message": n, "seq": n, **shared, "group": "mails"} for n in even])
    report(intake, path, [{"message": f"a{n}", "seq": n, **shared, "producer": f"p{n % 2}"} for n in (8, 7, 10, 9)])
    rows = ended(intake)
    twice = rows[rows["duplicates"] > 0]
    assert (twice["pid"].item(), twice["first_pid"].item(), twice["duplicates"].item()) == (again, first, 5)
    assert twice["duplicate_id"].item() == b"0" and 0 < twice["repeated_s"].item() < 60
    assert (twice["system"].item(), twice["partition"].item(), twice["consumer_group"].item()) == (
        b"kafka",
        b"3",
        b"billing",
    )
    assert rows["out_of_order"].sum() == 0


@pytest.mark.parametrize(
    ("numbers", "late"),
    [
        ([1, 2, 5, 3, 4, 6], 2),  # RFC 4737, section 4.2.3: each that follows a higher one
        ([1, 2, 2, 3], 0),
        ([*range(100, 120), 1, 2, 3], 0),  # the producer was restarted
        ([3, 1, 2], 2),
        ([-2, -1, 7, None, 8], 0),
        ([10**30, 5, 7], 2),
    ],
)
def test_a_number_below_one_before_it_is_out_of_order(numbers: list[int | None], late: int) -> None:
    order = MessageOrder()
    for i, number in enumerate(numbers):
        order.add(MessageArrival("orders", None, None, 1, f"m{i}", number, i))
    ((_, _, _, columns),) = order.rows()
    assert (columns["messages"], columns["duplicates"], columns["out_of_order"]) == (len(numbers), 0, late)
    pack([columns], TABLE.name)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("on_its_way", [[], [(497, 1)]])  # a message of the former run, to consumer 1, which has 499
def test_consumers_that_share_a_queue_know_of_a_restart_of_its_producer(
    first: int, on_its_way: list[tuple[int, int]]
) -> None:
    """Only one of them gets the message with which the numbers begin anew."""
    order = MessageOrder()
    runs = [[(n, n % 3) for n in range(first, last) if (n, 1) not in on_its_way] for last in (500, 400, 300)]
    restart = [(first, 2), *on_its_way]
    for i, (number, consumer) in enumerate([*runs[0], *restart, *runs[1][1:], *runs[2]]):
        order.add(MessageArrival("orders", None, None, consumer, f"m{i}", number, i))
    assert sum(columns["out_of_order"] for *_, columns in order.rows()) == len(on_its_way)
    for consumer, number in enumerate((250, 251, 252)):  # behind the last ones of each
        order.add(MessageArrival("orders", None, None, consumer, f"late {consumer}", number, 0))
    assert [columns["out_of_order"] for *_, columns in order.rows()] == [1, 1, 1]


@pytest.mark.parametrize(("its", "first", "wrong"), [(range(0, 500, 2), 260, 1), ((1, 3), 2, 0)])
def test_a_consumer_that_comes_late_to_the_new_run_is_not_out_of_order_for_long(
    its: Sequence[int], first: int, wrong: int
) -> None:
    """Its first number of that run looks like one of the former run."""
    order = MessageOrder()
    former = [(n, n in its) for n in range(500)]
    for i, (number, consumer) in enumerate([*former, (0, 0), (1, 0), *((n, 1) for n in range(first, first + 99))]):
        order.add(MessageArrival("orders", None, None, consumer, f"m{i}", number, i))
    assert sum(columns["out_of_order"] for *_, columns in order.rows()) == wrong


@pytest.mark.parametrize(
    "wrong",
    [
        {"message": None, "queue": "q"},
        {"message": "", "queue": "q"},
        {"message": True, "queue": "q"},
        {"message": ["a"], "queue": "q"},
        {"message": "a"},
        {"message": "a", "queue": ""},
        {"message": "a", "queue": {}},
        {"message": "a", "queue": "q", "seq": 1.5},
        {"message": "a", "queue": "q", "seq": 1 << 63},
        {"message": "a", "queue": "q", "seq": True},
        {"message": "a", "queue": "q", "producer": []},
        {"message": "a", "queue": "q", "group": 1.5},
        {"message": "a", "queue": "q", "dropped": -1},
        {"message": "a", "queue": "q", "t_ns": "now"},
        {"message": "a", "queue": "q", "t_ns": 1},
    ],
)
def test_a_wrong_report_is_counted_and_costs_no_other(intake: Intake, path: Path, wrong: dict[str, Any]) -> None:
    right = {"message": "right", "queue": "q"}
    report(intake, path, [right, wrong, {**right, "message": "x" * 300}, {"limiter": "a", "result": "allowed"}])
    rows = ended(intake)
    assert rows["messages"].sum() == 2 and intake.losses() == {"malformed": 1, "dropped": 0}


def test_what_a_consumer_could_not_send_is_a_loss(intake: Intake, path: Path) -> None:
    report(intake, path, [{"message": "a", "queue": "q", "dropped": 3}])
    assert ended(intake)["messages"].sum() == 1 and intake.losses()["dropped"] == 3


def test_no_user_takes_the_others_places() -> None:
    reports = MessageReports()
    who = (1, 2, b"shop")
    for uid in range(1000, 1000 + 2 * USERS):
        reports.add({"message": 1, "queue": "q"}, who, uid, 1)
    reports.add({"message": 1, "queue": "q"}, who, 0, 1)
    assert reports.unchecked == USERS + 1
    for i in range(PAIRS):
        reports.add({"message": 1, "queue": f"q{i}"}, who, 0, 1)
    assert reports.unchecked == USERS + 2
    reports.add({"message": 1, "queue": "q"}, who, 0, 1)
    (batch,) = reports.batches(2_000_000_000)
    assert batch.rows["duplicates"].sum() == 1  # message 1 of q of root; other users have their own


def test_ids_are_remembered_for_long_and_memory_is_bounded() -> None:
    seen, n = SeenIds(), IDS // 4
    assert not any(seen.add(("q", i), i, "a") for i in range(10 * n))
    assert sum(seen.add(("q", i), 0, "a") is not None for i in range(9 * n, 10 * n)) > n * (1 - 1 / 1000)
    assert seen.add(("q", 0), 0, "a") is None


def test_who_had_a_message_first_is_right_or_unknown() -> None:
    seen, ms = SeenIds(), 1_000_000
    for i in range(3 * MOST_CONSUMERS):
        seen.add(("q", i), i * ms, f"consumer {i}")
    for i in range(3 * MOST_CONSUMERS):
        before = seen.add(("q", i), 0, "consumer")
        assert before is not None and before.t_ns == i * ms
        assert before.consumer == (f"consumer {i}" if i >= 2 * MOST_CONSUMERS else None)


def test_a_path_without_queues_is_a_decision(intake: Intake, path: Path) -> None:
    """A decision may have a member that is called message."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.connect(str(path))
        out.send(json.dumps({"limiter": "a", "result": "allowed", "message": "hello"}).encode())
    found = [batch.table for batch in intake.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME))]
    assert found == ["limiter_decision"]


def test_columns_of_a_row_are_those_of_the_queue_and_the_process() -> None:
    reports = MessageReports()
    reports.add({"message": 7, "queue": "q", "cluster": "eu"}, Consumer(1, 2, b"shop"), 0, 5)
    reports.add({"message": 7, "queue": "q", "cluster": "eu"}, Consumer(3, 4, b"shop"), 0, 2_000_000_005)
    (batch,) = reports.batches(3_000_000_000)
    rows = batch.rows[np.argsort(batch.rows["pid"])]
    assert rows["cluster"].tolist() == [b"eu", b"eu"] and rows["proc_start_ns"].tolist() == [2, 4]
    assert rows["duplicates"].tolist() == [0, 1] and rows["repeated_s"][1] == pytest.approx(2, abs=0.001)
    assert (rows["first_pid"][1], rows["first_proc_start_ns"][1], rows["first_comm"][1]) == (1, 2, b"shop")


@pytest.mark.parametrize(
    ("message", "partitions", "duplicates"),
    [
        ("order-1", (3, 3), 1),
        ("order-1", (3, 5), 1),
        ("order-1", (3, None), 1),
        (17, (3, 3), 1),
        (17, (3, 5), 0),  # an offset
        ("17", (3, 5), 0),
        ("17", (None, None), 1),
    ],
)
def test_an_offset_is_unique_in_its_partition_and_another_id_in_its_queue(
    message: str | int, partitions: tuple[int | None, ...], duplicates: int
) -> None:
    reports = MessageReports()
    for at, partition in enumerate(partitions):
        members = {"message": message, "queue": "q", "seq": at, "partition": partition}
        reports.add(members, Consumer(1 + at, 2, b"shop"), 0, 5 + at)
    (batch,) = reports.batches(2_000_000_000)
    rows = batch.rows[np.argsort(batch.rows["pid"])]
    assert rows["partition"].tolist() == [str(one).encode() if one is not None else b"" for one in partitions]
    assert rows["duplicates"].tolist() == [0, duplicates]
    if duplicates:
        assert rows["first_pid"][1] == 1


def test_offsets_of_8_partitions_with_5_redeliveries_and_no_other_duplicates() -> None:
    """Two consumers have four partitions each; then the second one gets the last 5 records of partition 0."""
    reports = MessageReports()
    records = [(offset, partition) for offset in range(1000) for partition in range(8)]
    arrivals = [(1 + partition // 4, offset, partition) for offset, partition in records]
    for pid, offset, partition in [*arrivals, *((2, offset, 0) for offset in range(995, 1000))]:
        members = {"message": offset, "queue": "orders", "seq": offset, "partition": partition}
        reports.add(members, Consumer(pid, 2, b"shop"), 0, 5)
    (batch,) = reports.batches(2_000_000_000)
    twice = batch.rows[batch.rows["duplicates"] > 0]
    assert [twice[name].tolist() for name in ("partition", "duplicates", "pid", "first_pid")] == [[b"0"], [5], [2], [1]]
    assert batch.rows["messages"].sum() == 8005 and not batch.rows["out_of_order"].any()


def test_who_had_a_message_first_is_known_also_of_many_partitions() -> None:
    reports, partitions = MessageReports(), MOST_CONSUMERS + 100
    for partition in range(partitions):
        members = {"message": f"order-{partition}", "queue": "q", "partition": partition}
        reports.add(members, Consumer(1 + partition % 4, 2, b"shop"), 0, 5)
        if partition % PAIRS == PAIRS - 1:
            list(reports.batches(2_000_000_000))
    list(reports.batches(2_000_000_000))
    reports.add({"message": "order-0", "queue": "q", "partition": 0}, Consumer(9, 2, b"shop"), 0, 6)
    (batch,) = reports.batches(4_000_000_000)
    assert (batch.rows["duplicates"].tolist(), batch.rows["first_pid"].tolist()) == ([1], [1])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("17", 17),
        ("9" * 21, 10**21 - 1),
        (str(2**128 - 1), 2**128 - 1),
        ("9" * 41, None),
        ("0190163d-8694-739b-aea5-966c26f8ad91", 0x0190163D8694),
        ("order-1", None),
        (5, 5),
        (None, None),
    ],
)
def test_a_number_is_read_as_a_whole(text: str | int | None, number: int | None) -> None:
    assert whole(text) == number


class Entries:
    """Streams of a server; entry N of each has the id N-0, and its field n is N. size: of an entry, bytes; sizes: of
    those of a stream, if it is another. fails: the question, counted from 0, which it does not answer. refused: replies
    that were too large, by stream.
    """

    def __init__(
        self, lengths: dict[bytes, int], size: int = 100, fails: int = -1, sizes: dict[bytes, int] | None = None
    ) -> None:
        self.lengths, self.size, self.fails, self.sizes = lengths, size, fails, sizes or {}
        self.asked = self.sent = 0
        self.refused = Counter[bytes]()

    @property
    def streams(self) -> list[Stream]:
        return [Stream(name, n, (1, 0), (n, 0), (n, 0), n, (0, 0)) for name, n in self.lengths.items()]

    def __call__(self, commands: Any) -> list[Any]:
        ((command, name, start, _, _, most),) = commands
        self.asked += 1
        if self.asked - 1 == self.fails:
            raise RedisDown("no answer within 0.5 s", failure="no_answer")
        length = self.lengths[name]
        if command == "XREVRANGE":
            numbers = list(range(length, max(0, length - most), -1))
        else:
            first = max(1, sum(entry_id(start.encode())))  # after N-0 is N-1
            numbers = list(range(first, length + 1))[:most]
        size = self.sizes.get(name, self.size)
        self.sent += min(size * len(numbers), 8 << 20)
        if size * len(numbers) > 8 << 20:
            self.refused[name] += 1
            raise ReplyTooLarge("refused an answer of more than 8 MiB")
        return [[[b"%d-0" % n, [b"n", b"%d" % n]] for n in numbers]]


def counted(tail: Tail, server: Entries, polls: int) -> tuple[int, int, int]:
    """Messages, duplicates and unread ones of so many polls; one that fails has none."""
    found = [0, 0, 0]
    for turn in range(polls):
        try:
            rows = tail.read(server.streams, server, 1 + turn)
        except RedisDown:
            continue
        for row in rows:
            for at, name in enumerate(("messages", "duplicates", "unread")):
                number = row.get(name, 0)
                assert isinstance(number, int)
                found[at] += number
    return found[0], found[1], found[2]


@pytest.mark.parametrize("length", [FIRST // 2, 2 * FIRST])
@pytest.mark.parametrize("fails", range(6))
def test_a_server_that_does_not_answer_has_no_message_counted_twice(length: int, fails: int) -> None:
    tail = Tail(EntryField.parse("n"), EntryField.parse("n"))
    server = Entries({b"a": length, b"b": length}, fails=fails)
    before = counted(tail, server, 3)
    server.lengths = dict.fromkeys(server.lengths, length + 7)
    after = counted(tail, server, 4)
    assert (before[0] + after[0], before[1] + after[1]) == (2 * (min(length, FIRST) + 7), 0)


def test_the_first_poll_of_many_streams_reads_no_more_than_another() -> None:
    tail = Tail(EntryField.parse("n"), None)
    server = Entries({b"s%d" % at: 2 * FIRST for at in range(40)})
    messages, *_ = counted(tail, server, 1)
    assert 0 < messages <= MOST
    assert counted(tail, server, 12) == (40 * FIRST - messages, 0, 0)


@pytest.mark.parametrize(("size", "read"), [(1_500_000, True), (9_000_000, False)])
def test_large_entries_are_read_one_by_one_or_skipped_once(size: int, read: bool) -> None:
    tail = Tail(EntryField.parse("n"), None)
    server = Entries({b"a": 20}, size)
    messages, duplicates, unread = counted(tail, server, 30)
    assert (messages, duplicates, unread) == ((20, 0, 0) if read else (0, 0, 20))
    sent = server.sent
    counted(tail, server, 30)
    assert server.sent == sent


@pytest.mark.parametrize(
    ("size", "each", "read", "refused"),
    [(1_500_000, 10, True, 12), (5_000_000, 1, True, 0), (5_000_000, 2, True, 5), (9_000_000, 1, False, 101)],
)
def test_large_entries_beside_other_streams_are_read_or_skipped(size: int, each: int, read: bool, refused: int) -> None:
    """Each poll finds so many large entries, and 3 small ones of each of two other streams."""
    tail, polls, new = Tail(EntryField.parse("n"), None), 100, {b"a": each, b"b": 3, b"c": 3}
    server = Entries({}, sizes={b"a": size})
    found = np.zeros(3, int)
    for poll in range(polls + 5):
        server.lengths = {name: n * min(polls, 1 + poll) for name, n in new.items()}
        found += counted(tail, server, 1)
    large, small = polls * new[b"a"], polls * (new[b"b"] + new[b"c"])
    assert found.tolist() == ([large + small, 0, 0] if read else [small, 0, large])
    assert server.refused.keys() <= {b"a"} and server.refused[b"a"] <= refused


def test_the_first_poll_counts_what_a_reply_has_no_room_for() -> None:
    tail, server = Tail(EntryField.parse("n"), None), Entries({b"a": 2 * FIRST, b"b": 2 * FIRST}, sizes={b"a": 100_000})
    messages, duplicates, unread = counted(tail, server, 10)
    assert (messages + unread, duplicates) == (2 * FIRST, 0) and 0 < unread < FIRST
    assert server.refused == {b"a": 2}


def test_an_interval_is_since_the_last_rows() -> None:
    """A poll that fails in between has none: its messages are in the rows of the next one."""
    tail, server = Tail(EntryField.parse("n"), None), Entries({b"a": 5, b"b": 5}, fails=3)
    tail.read(server.streams, server, 10 * 10**9)
    server.lengths = {b"a": 10, b"b": 10}
    with pytest.raises(RedisDown):
        tail.read(server.streams, server, 11 * 10**9)
    rows = tail.read(server.streams, server, 12 * 10**9)
    assert [(row["messages"], row["interval_ns"]) for row in rows] == [(5, 2 * 10**9)] * 2
