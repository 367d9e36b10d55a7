"""Decisions of limiters that live in Redis, from the wire; see bpf/redis.bpf.c."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.kernel.probe import Parts, Probe, Program, Ring
from agent.kernel.wire_structs import wire_records
from agent.limiters.redis_settings import RedisLimiterSettings

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.kernel.helper_client import Helper
    from agent.kernel.kernel_source import KernelSource
    from agent.kernel.loaded_families import Family


def setup(family: Family, kernel: KernelSource, helper: Helper, targets: object, parts: Parts) -> Iterable[Source]:
    from agent.redis_wire.redis_source import RedisWire

    del targets
    return (RedisWire(family, kernel, helper, parts.settings),)


#: The first that came with Linux 6.12; bpf_dynptr_from_skb is older, but these programs may call it since 6.11 only.
_NEEDS = "bpf_path_d_path: before Linux 6.12 no such program may read what a packet has in pages"

PROBE = Probe(
    name="redis",
    programs=(
        Program("redis_in", "tp_btf", "tcp_probe", "decisions of limiters in Redis", on_demand=True, needs=_NEEDS),
        Program(
            "redis_out",
            "tp_btf",
            "net_dev_queue",
            "decisions of limiters in Redis if client or server is on another host",
            on_demand=True,
            needs=_NEEDS,
        ),
        Program(
            "redis_unix",
            "tp_btf",
            "consume_skb",
            "requests of more than 3.7 KB to limiters in Redis behind Unix sockets",
            on_demand=True,
            needs=_NEEDS,
        ),
        Program(
            "redis_unix_short",
            target="consume_skb",
            loses="decisions of limiters in Redis behind Unix sockets",
            on_demand=True,
            instead_of="redis_unix",
        ),
    ),
    parts=("redis_piece.h", "redis_segment.h", "redis_command.h", "redis_stream.h", "redis_unix.bpf.c"),
    rings=(Ring("redis_pieces", "redis_piece", wire_records),),  # parts of streams: rows once a request has its reply
    maps=("redis_switch", "redis_ports", "redis_clients", "redis_commands", "redis_flows", "redis_paths"),
    after=("tcp",),
    setup=setup,
    settings=RedisLimiterSettings,
)
