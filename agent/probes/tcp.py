"""TCP: RTT, connects, retransmits, resets and connection ends; see bpf/tcp.bpf.c.

Rows name the socket's user: who connected, or last received or closed; before an accepted socket's first use, the only
process that listens on its port. Sends are looked at in the window that opens each second, so that a socket which only
sends has its user and its round-trip times from there. A failure that sends no SYN and opens no socket state (no route)
is not a connect here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.contracts import Pending
from agent.kernel import bpf
from agent.kernel.bpf import OwnRun
from agent.kernel.probe import Aggregate, Parts, Probe, Program, Ring
from agent.kernel.ring import SharedArray
from agent.kernel.wire_structs import decode

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.kernel.loaded_families import Family, Loaded

#: Names of the kernel's TCP states by number (include/net/tcp_states.h) as in OpenTelemetry's network.connection.state.
STATES = np.array(
    [
        "",
        "established",
        "syn_sent",
        "syn_received",
        "fin_wait_1",
        "fin_wait_2",
        "time_wait",
        "closed",
        "close_wait",
        "last_ack",
        "listen",
        "closing",
        "syn_received",
        "bound_inactive",
    ],
    "S16",
)


#: A socket's RTT is sampled at most once in so many ns, or in the next smaller power of two of the kernel's ticks.
RTT_GATE_NS = 10_000_000
#: A request that has waited for so long is reported before it is answered.
WAITING_NS = 500_000_000
_MONOTONIC_COARSE = 6  # include/uapi/linux/time.h; Python has no name for it


def tick_ns() -> int:
    """A jiffy: the resolution of CLOCK_MONOTONIC_COARSE."""
    return round(time.clock_getres(_MONOTONIC_COARSE) * 1e9)


def _gate_shift() -> int:
    """log2 of the gate in jiffies."""
    return max(0, math.floor(math.log2(RTT_GATE_NS / tick_ns()) + 1e-6))


def _plain(table: str) -> Ring:
    return Ring(f"{table}s", f"{table}_event", partial(decode, table=table))


def _retransmits(records: np.ndarray) -> Batch:
    batch = decode(records, "tcp_retransmit")
    batch.rows["state"] = STATES[np.minimum(records["tcp_state"], len(STATES) - 1)]
    return batch


def _rtt(_: np.ndarray, values: np.ndarray, interval_ns: int, t_ns: int) -> Iterator[Batch]:
    batch = decode(values, "tcp_rtt")
    buckets = values["buckets"]
    batch.rows["hist"][:, : buckets.shape[1]] = buckets
    batch.rows["interval_ns"], batch.rows["t_ns"] = interval_ns, t_ns
    unmeasured = values["raw_max_us"] == 0
    batch.rows["raw_min_us"][unmeasured] = batch.rows["raw_max_us"][unmeasured] = NULL_I64
    yield batch


_HELD = 27  # the bucket from which on a request waited for long


def decode_served(_: np.ndarray, values: np.ndarray, interval_ns: int, t_ns: int) -> Iterator[Batch]:
    """Aggregated elements -> service_latency rows."""
    values = values[(values["requests"] > 0) | (values["unanswered"] > 0) | (values["waiting"] > 0)]
    if not len(values):
        return
    batch = decode(values, "service_latency")
    buckets = values["buckets"]
    batch.rows["hist"][:, : buckets.shape[1]] = buckets
    batch.rows["hist"][:, 0] += (values["requests"] - np.minimum(buckets.sum(axis=1), values["requests"])).astype(
        np.uint32
    )
    upto = np.cumsum(buckets[:, ::-1], axis=1)[:, ::-1]  # so many took at least as long as a bucket's
    for name, beyond in (("p50_ns", 0.5), ("p90_ns", 0.1)):
        reached = np.count_nonzero(upto > beyond * values["requests"][:, None], axis=1)
        middle = np.where(reached > 0, 2.0 ** (reached - 0.5), 0.0)
        batch.rows[name] = np.minimum(middle, values["max_ns"])
    batch.rows["held_ns"] = buckets[:, _HELD:] @ (1.5 * 2.0 ** np.arange(_HELD, buckets.shape[1]))
    batch.rows["interval_ns"], batch.rows["t_ns"] = interval_ns, t_ns
    batch.rows["max_from_ns"][values["max_ns"] == 0] = NULL_I64
    yield batch


PROTOCOLS = np.array(["", "http", "redis", "postgresql", "mysql", "memcached", "amqp"], "S12")


def decode_answers(keys: np.ndarray, values: np.ndarray, interval_ns: int, t_ns: int) -> Iterator[Batch]:
    """Aggregated elements -> service_answer rows."""
    batch = decode(values, "service_answer")
    batch.rows["protocol"] = PROTOCOLS[np.minimum(keys["protocol"], len(PROTOCOLS) - 1)]
    batch.rows["code"], batch.rows["interval_ns"], batch.rows["t_ns"] = keys["code"], interval_ns, t_ns
    yield batch


def setup(family: Family, kernel: Any, helper: Any, targets: Any, parts: Parts) -> Iterable[Source]:
    """Sockets that receive are seen whenever they do; what only sends, and each answer to it, in
    the window.
    """
    parts.window.add(family, ("on_tcp_probe", "on_tcp_send"))
    return (RequestSweep(family, "tcp"),) if "on_tcp_sweep" in family.programs else ()


LISTENERS = "tcp_listeners"


class Listeners:
    """Who listens on a port: from listen(), else from the first use of what was accepted; of a process and those that
    it started, the former. Reads the map ``LISTENERS``: (struct tcp_port, struct proc), where an unknown pid stands for
    several other processes.
    """

    def __init__(self, loaded: Loaded) -> None:
        key, value = loaded.wire.dtype("tcp_port"), loaded.wire.dtype("proc")
        self._map = bpf.HashMap(loaded.families["tcp"].maps[LISTENERS], key, value)

    def name(self, rows: np.ndarray) -> None:
        """Fills pid, proc_start_ns and comm of rows of ``socket_queue`` without a pid, by netns and sport. Raises
        OSError.
        """
        ports, procs = self._map.read()
        if not len(ports) or not len(rows):
            return
        known = decode(procs, "socket_queue").rows
        known["comm"][known["pid"] < 0] = b""
        numbers = ports["netns"].astype(np.int64) << 16 | ports["port"]
        order = np.argsort(numbers)
        wanted = rows["netns"] << 16 | rows["sport"]
        at = order[np.minimum(np.searchsorted(numbers, wanted, sorter=order), len(order) - 1)]
        found = (numbers[at] == wanted) & (rows["pid"] == NULL_I64)
        for column in ("pid", "proc_start_ns", "comm"):
            rows[column] = np.where(found, known[column][at], rows[column])


SOCKETS = "tcp_sockets"
_KEY = np.dtype([("address", "<u8")])
_TUPLE = np.dtype([("netns", "<u4"), ("sport", "<u2"), ("dport", "<u2"), ("saddr", "u1", 16), ("daddr", "u1", 16)])


class Connections:
    """Who uses a connection: who connected, or last received or sent. Reads the map ``SOCKETS``: (a kernel address,
    struct tcp_socket). Only asked while there are rows to name: it may be large.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._map = bpf.HashMap(loaded.families["tcp"].maps[SOCKETS], _KEY, loaded.wire.dtype("tcp_socket"))

    def name(self, rows: np.ndarray) -> None:
        """Fills pid, tid, proc_start_ns, comm and role of rows of ``socket_queue``, by both ends and netns. Raises
        OSError.
        """
        if not len(rows):
            return
        _, sockets = self._map.read()
        sockets = sockets[np.isin(sockets["sock"]["sport"], rows["sport"])]
        sockets = sockets[np.argsort(sockets["born_ns"], kind="stable")]  # of two with the same ends, the younger lives
        mine, theirs = _ends_of_rows(rows), _ends(sockets["sock"], len(sockets))
        at = {end: i for i, end in enumerate(theirs)}
        found = np.array([at.get(end, -1) for end in mine])
        known, i = found >= 0, found[found >= 0]
        named = decode(sockets["proc"][i], "socket_queue").rows
        for column in ("pid", "tid", "proc_start_ns"):
            rows[column][known] = named[column]
        rows["comm"][known] = np.where(named["pid"] == NULL_I64, b"", named["comm"])
        role = sockets["sock"]["role"][i]
        rows["role"][known] = np.where(role < 2, role, rows["role"][known])


def _ends(source: np.ndarray, n: int) -> list[bytes]:
    ends = np.zeros(n, _TUPLE)
    for name in _TUPLE.names or ():
        ends[name] = source[name]
    raw: list[bytes] = ends.view(f"V{_TUPLE.itemsize}").tolist()
    return raw


def _ends_of_rows(rows: np.ndarray) -> list[bytes]:
    source = np.zeros(len(rows), _TUPLE)
    for name in ("netns", "sport", "dport"):
        source[name] = rows[name]
    for name in ("saddr", "daddr"):
        source[name] = np.frombuffer(rows[name].tobytes(), np.uint8).reshape(-1, 16)
    return _ends(source, len(rows))


#: Twice an interval.
EVERY_NS = 500_000_000
#: Each costs two microseconds.
MOST = 256


class RequestSweep(Pending):
    """A source without rows: its program counts requests that wait for their answer, in the family's map. Where the
    kernel does not run programs for us, it gives up, and the family says so.

    by_place: whether the program is given a place of NAME_asking; else what stands there.
    """

    def __init__(self, family: Family, name: str, by_place: bool = False) -> None:
        self.name, self._program = f"{name}.sweep", f"on_{name}_sweep"
        self._family, self._by_place = family, by_place
        self._asking = SharedArray(family.maps[f"{name}_asking"], "<u8").values
        self._run = OwnRun(family.programs[self._program], 1)
        self._next_ns = self._from = 0

    def pending(self, now_ns: int) -> bool:
        return now_ns >= self._next_ns

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + EVERY_NS
            try:
                self._check()
            except OSError as error:
                self._next_ns = 1 << 62
                self._family.problem(
                    self._program, f"{self._program}: {error} (not seen: requests that wait, until they are answered)"
                )
        return ()

    def _check(self) -> None:
        """At most ``MOST`` of them; those after them the next time."""
        places = taken(self._asking)
        turn = np.roll(places, -int(np.searchsorted(places, self._from)))[:MOST]
        for place in turn.tolist():
            sk = int(self._asking[place])
            self._run.args[0] = place if self._by_place else sk
            if not self._run() and self._asking[place] == sk:
                self._asking[place] = 0
        if len(turn):
            self._from = int(turn[-1]) + 1

    def close(self) -> None: ...


def taken(shared: np.ndarray) -> np.ndarray:
    """The places that are not 0. Of a copy: the kernel writes meanwhile, and numpy raises where their number
    changes.
    """
    return np.flatnonzero(shared.copy())


PROBE = Probe(
    name="tcp",
    parts=(
        "tcp_tuple.h",
        "tcp_socket.h",
        "tcp_thread.h",
        "tcp_rtt.h",
        "tcp_service.h",
        "tcp_answer.h",
        "tcp_state.bpf.c",
    ),
    programs=(
        Program("on_tcp_state", target="inet_sock_set_state", loses="connects, connection ends, owners"),
        Program(
            "on_tcp_state_softirq", target="inet_sock_set_state", loses="connects, connection ends, accepted sockets"
        ),
        Program("on_tcp_destroy", target="tcp_destroy_sock", loses="room: closed sockets stay in the table"),
        Program(
            "on_tcp_receive",
            target="tcp_rcv_space_adjust",
            loses="owners, round-trip times and answers of sockets that receive",
        ),
        Program("on_tcp_probe", target="tcp_probe", on_demand=True, loses="round-trip times of sockets that only send"),
        Program(
            "on_tcp_send",
            target="sock_send_length",
            fallback="tcp_sendmsg",
            on_demand=True,
            loses="owners of accepted sockets that only send",
        ),
        Program(
            "on_tcp_sweep",
            target="tcp_destroy_sock",
            on_demand=True,
            optional=True,
            loses="requests that wait, until they are answered",
        ),
        Program("on_tcp_retransmit", target="tcp_retransmit_skb", loses="retransmitted data and SYNs"),
        Program("on_tcp_retransmit_synack", target="tcp_retransmit_synack", loses="retransmitted SYN-ACKs"),
        Program("on_tcp_send_reset", target="tcp_send_reset", loses="resets sent"),
        Program("on_tcp_receive_reset", target="tcp_receive_reset", loses="resets received"),
    ),
    rings=(
        _plain("tcp_connect"),
        Ring("tcp_retransmits", "tcp_retransmit_event", _retransmits),
        _plain("tcp_reset"),
        _plain("tcp_close"),
    ),
    maps=("tcp_listeners", "tcp_sockets", "tcp_asking"),
    counts=("tcp_shares",),
    aggregates=(
        Aggregate(("tcp_rtt_a", "tcp_rtt_b"), "tcp_rtt_key", "tcp_rtt_value", _rtt),
        Aggregate(("tcp_served_a", "tcp_served_b"), "tcp_served_key", "tcp_served_value", decode_served),
        Aggregate(("tcp_answers_a", "tcp_answers_b"), "tcp_answer_key", "tcp_answer_value", decode_answers),
    ),
    setup=setup,
    options={
        "TCP_RTT_GATE_SHIFT": _gate_shift(),
        "TCP_TICK_NS": tick_ns(),
        "TCP_WAITING_NS": WAITING_NS,
        "TCP_SOCKETS": 65536,
        "TCP_RTT_SOCKETS": 16384,
    },
)
