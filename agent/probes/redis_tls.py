"""Decisions of limiters in Redis that are asked by TLS, read where OpenSSL is given them and gives them; see
bpf/redis_tls.bpf.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agent.kernel.probe import Probe, Program, Ring

if TYPE_CHECKING:
    import numpy as np

    from agent.batch import Batch
    from agent.contracts import Source
    from agent.kernel.load import Family
    from agent.kernel.source import KernelSource
    from agent.targets.attacher import Attacher
    from agent.targets.targets import Targets


def _kept(_: np.ndarray) -> Iterable[Batch]:
    """Its listener reads them: they are who is to have probes."""
    return ()


def setup(
    family: Family, kernel: KernelSource, helper: Attacher, targets: Targets, config: Mapping[str, Any]
) -> Iterable[Source]:
    """Nothing where probes cannot be held to a process: all programs with TLS would pay."""
    from agent.kernel.attaching import knows_processes
    from agent.probes.beside.redis_tls import RedisTls

    del config
    redis = kernel.loaded.families.get("redis")
    if redis is None or redis.state == "unavailable":
        family.state, family.reason = "unavailable", "it needs the redis family"
    elif not (kernel.loaded.uprobe_multi and knows_processes()):
        family.state, family.reason = (
            "unavailable",
            "before Linux 6.10 probes cannot be held to a process, and all programs with TLS would pay",
        )
    else:
        return (RedisTls(family, redis, kernel, helper, targets),)
    return ()


_LOSES = "decisions of limiters in Redis that are asked by TLS"

PROBE = Probe(
    name="redis_tls",
    parts=("redis_tls_place.h",),
    programs=(
        Program("redis_tls_write", "uprobe", loses=_LOSES),
        Program("redis_tls_write_ex", "uprobe", loses=_LOSES),
        Program("redis_tls_read", "uprobe", loses=_LOSES),
        Program("redis_tls_read_ex", "uprobe", loses=_LOSES),
        Program("redis_tls_return", "uretprobe", loses=_LOSES),
        Program("redis_tls_free", "uprobe", loses="that a connection is another's now"),
        Program("redis_tls_connect", target="inet_sock_set_state", loses="clients until they are found otherwise"),
    ),
    rings=(Ring("redis_tls_users", "redis_tls_user", _kept, wake=True),),
    maps=("redis_tls_processes", "redis_tls_connections", "redis_tls_owned", "redis_tls_counts"),
    options={
        "REDIS_TLS_EACH_NS": 50_000_000,
        "REDIS_TLS_MOST": 64,
        "REDIS_TLS_A_USER": 8192,
        "REDIS_TLS_OTHERS": 24576,
    },
    after=("redis",),
    setup=setup,
)
