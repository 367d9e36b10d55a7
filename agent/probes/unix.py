"""Unix stream sockets: who asks whom, and how long the answer takes; see bpf/unix.bpf.c.

Rows of ``service_latency`` are the same as those of TCP, with the number that stands for the socket as the address, and
two bytes of it as the port.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.kernel.probe import Aggregate, Parts, Probe, Program
from agent.kernel.wire_structs import OUTSIDE, decode, make_peer
from agent.probes.tcp import WAITING_NS, RequestSweep, decode_served

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.kernel.loaded_families import Family


def decode_unix(keys: np.ndarray, values: np.ndarray, interval_ns: int, t_ns: int) -> Iterator[Batch]:
    """Aggregated elements, one a client, server and socket -> unix_peer and service_latency rows."""
    yield from decode_served(keys, _by_server(keys, values), interval_ns, t_ns)
    used = np.flatnonzero(keys["pid"] > 0)
    values = values[used]
    rows = decode(values[["proc", "requests", "sum_ns", "max_ns"]], "unix_peer").rows
    rows["t_ns"], rows["interval_ns"] = t_ns, interval_ns
    rows["peer"] = make_peer(values["addr"], values["port"])
    rows["path"] = [path_of(v["path"], int(v["path_len"])) for v in values]
    server = values["server"]
    rows["server_pid"], rows["server_start_ns"], rows["server_comm"] = (
        np.where(server["pid"] >= OUTSIDE, NULL_I64, server["pid"].astype(np.int64)),
        server["proc_start_ns"],
        server["comm"],
    )
    if len(rows):
        yield Batch("unix_peer", rows)


def path_of(raw: bytes, length: int) -> bytes:
    """As it is written, with @ for the zero byte that an abstract name begins with (and for any other one)."""
    name = np.bytes_(raw).ljust(length, b"\0")[:length]
    return name.replace(b"\0", b"@") if name[:1] == b"\0" else name.rstrip(b"\0")


def _by_server(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """One element a server's process and socket, all its clients together."""
    both = np.stack([keys["server_pid"].astype(np.uint64), keys["id"]], axis=1)
    unique, of = np.unique(both, axis=0, return_inverse=True)
    of = of.reshape(-1)
    order = np.lexsort((values["max_ns"], of))
    worst = order[np.flatnonzero(np.diff(of[order], append=-1))]  # of each, the one with the slowest
    sums = ("requests", "waiting", "sum_ns")
    form = [(name, "<u8") for name in (*sums, "unanswered", "max_ns", "max_from_ns")]
    out = np.zeros(
        len(unique),
        np.dtype(
            [
                *form,
                ("proc", values["server"].dtype),
                ("saddr", "u1", 16),
                ("sport", "<u2"),
                ("role", "u1"),
                ("buckets", "<u4", values["buckets"].shape[1]),
            ]
        ),
    )
    for name in (*sums, "buckets"):
        np.add.at(out[name], of, values[name])
    for to, name in (
        ("max_ns", "max_ns"),
        ("max_from_ns", "max_from_ns"),
        ("proc", "server"),
        ("saddr", "addr"),
        ("sport", "port"),
    ):
        out[to] = values[name][worst]
    out["role"] = 1
    return out


def setup(family: Family, kernel: Any, helper: Any, targets: Any, parts: Parts) -> Iterable[Source]:
    return (RequestSweep(family, "unix", by_place=True),) if "on_unix_sweep" in family.programs else ()


PROBE = Probe(
    name="unix",
    parts=("unix_name.h",),
    programs=(
        Program(
            "unix_on_read", target="consume_skb", loses="who asks whom by Unix sockets, and how long the answer takes"
        ),
        Program(
            "on_unix_sweep",
            target="consume_skb",
            on_demand=True,
            optional=True,
            loses="requests that wait, until they are answered",
        ),
    ),
    aggregates=(Aggregate(("unix_a", "unix_b"), "unix_key", "unix_value", decode_unix),),
    options={"UNIX_WAITING_NS": WAITING_NS},
    maps=("unix_asking",),
    setup=setup,
)
