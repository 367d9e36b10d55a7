"""Messages that consumers report to the intake: ``{"message": ID, "queue": NAME}``, and any of ``seq``, ``partition``,
``group``, ``system``, ``cluster``, ``producer``, ``t_ns``, ``dropped``. They become rows of ``message_order``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from agent.batch import Batch, make
from agent.columns import fitted
from agent.common.fairness import Places, UpperBound
from agent.queues.order import IDS, INTERVAL_NS, MOST_SEQUENCES, MessageArrival, MessageOrder
from agent.tables import TABLES

TABLE = TABLES["message_order"]
#: Users whose messages are remembered, and rows of each of them in a second: one per queue, partition and consumer.
USERS, PAIRS = 4, 256
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "report",
        "users whose reported messages are checked for duplicates",
        USERS,
        "messages of other users are not checked",
        "`status` (`bounds`), `probe_status` row `intake`",
    ),
    UpperBound(
        "report",
        "message ids that are remembered per user",
        IDS,
        "the oldest are forgotten: their duplicates are not found",
        "-",
    ),
    UpperBound(
        "report",
        "sequences (of a partition, producer and consumer) per user; partitions and consumers in one second",
        f"{MOST_SEQUENCES:,}; {PAIRS}",
        "the oldest are forgotten; messages of the others are not checked",
        "`status` (`bounds`), `probe_status` row `intake`",
    ),
)
_TEXTS = {"group": "consumer_group", "system": "system", "cluster": "cluster"}
_WIDTHS = {column: TABLE.by_name[column].width for column in (*_TEXTS.values(), "destination", "partition")}
_ID_BYTES = TABLE.by_name["duplicate_id"].width


class Consumer(NamedTuple):
    """Who reported: pid, start of the process in CLOCK_BOOTTIME ns, command name."""

    pid: int
    start_ns: int
    comm: bytes


class _QueueName(NamedTuple):
    system: bytes
    cluster: bytes
    destination: bytes
    consumer_group: bytes


class MessageReports:
    """``add`` takes reports, ``batches`` returns rows, one per queue, partition, consumer and second."""

    def __init__(self) -> None:
        self._places = Places(USERS, a_user=1)
        self._orders: dict[int, MessageOrder] = {}
        self._since_ns = self._latest_ns = 0
        self.unchecked = 0

    def add(self, members: dict[str, Any], consumer: tuple[int, int, bytes], uid: int, t_ns: int) -> None:
        """Raises ValueError for an invalid report."""
        texts = {column: _text(members.get(name), column) for name, column in _TEXTS.items()}
        queue = _QueueName(destination=_text(members.get("queue"), "destination"), **texts)
        who, partition = Consumer(*consumer), _text(members.get("partition"), "partition")
        message, number, producer = members["message"], members.get("seq"), members.get("producer")
        if type(message) not in (str, int) or message == "" or not queue.destination:
            raise ValueError("message or queue")
        if not (number is None or (type(number) is int and -(2**63) <= number < 2**63)):
            raise ValueError("seq")
        if not (producer is None or type(producer) in (str, int)):
            raise ValueError("producer")
        order = self._order(uid)
        if order is None or not order.has_room(queue, partition, who, PAIRS):
            self.unchecked += 1
            return
        self._since_ns = self._since_ns or t_ns
        self._latest_ns = max(self._latest_ns, t_ns)
        arrival = MessageArrival(queue, partition, producer, who, str(message), number, t_ns, _is_offset(message))
        order.add(arrival)

    def batches(self, now_ns: int, interval_ns: int = INTERVAL_NS) -> Iterator[Batch]:
        """The rows, once messages have come for ``interval_ns``."""
        if not self._since_ns or now_ns - self._since_ns < interval_ns:
            return
        took_ns, self._since_ns = max(1, now_ns - self._since_ns), 0
        found = [row for order in self._orders.values() for row in order.rows()]
        batch = make(TABLE.name, len(found), t_ns=now_ns, interval_ns=took_ns, source=TABLE.code("source", "consumer"))
        for out, (queue, partition, who, columns) in zip(batch.rows, found, strict=True):
            first = columns.pop("first", None)
            its = {"partition": partition, "pid": who.pid, "proc_start_ns": who.start_ns, "comm": who.comm}
            values = {**queue._asdict(), **its, **columns}
            if first is not None:
                pid, start_ns, comm = first
                values |= {"first_pid": pid, "first_proc_start_ns": start_ns, "first_comm": comm}
            for name, value in values.items():
                out[name] = fitted(value.encode("utf-8", "replace"), _ID_BYTES) if isinstance(value, str) else value
        yield batch

    def _order(self, uid: int) -> MessageOrder | None:
        if uid not in self._orders:
            if self._places.refusal(uid):
                return None
            self._places.take(uid)
            self._orders[uid] = MessageOrder()
        return self._orders[uid]


def _is_offset(message: str | int) -> bool:
    """Whether an id may be an offset or another counter, which each partition has of its own: a whole number."""
    return type(message) is int or str(message).isdecimal()


def _text(value: Any, column: str) -> bytes:
    if value is None:
        return b""
    if type(value) not in (str, int):
        raise ValueError(column)
    return fitted(str(value).encode("utf-8", "replace"), _WIDTHS[column])
