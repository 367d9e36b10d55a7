"""Findings for tests of what shows or sends them, with hostile names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agent.batch import Batch, make
from agent.common.clocks import boot_ns
from agent.common.finding import FindingEvents
from agent.common.host import boot_id
from agent.common.places import PLACE
from agent.common.sentence import ToWall, unknown
from agent.store.hot import HotStore
from agent.tables import TABLES
from exporters.notify_settings import at_least

#: Names that others choose (of processes, limiters, queues, servers), by what they are to do: add a field, mention
#: everybody, run, break a terminal, reverse a line, end a string of JSON, be expanded by a template, add a series.
HOSTILE = {
    "line": "x\nTICKSCOPE_CAUSE=busy",
    "mention": "<!channel> @here",
    "link": "<https://evil|log in>",
    "html": "<script>alert(1)</script>&amp;",
    "terminal": "\x1b[2J\x1b]0;owned\x07\x9b31m",
    "reversed": "\u202egnp.exe\u2066",
    "json": '"}],"labels":{"severity":"info"}//\\',
    "mrkdwn": "`*_~",
    "bytes": "\udcff\udcfe",
    "quotes": "a\"b\\c'd",
    "lines": "two\nlines\r\u2028",
    "script": "</script><img src=x onerror=alert(1)>",
    "address": "javascript:alert(1)",
    "grafana": "$__interval ${__from} ${__data.x} $instance",
    "template": '{{ $labels.instance }} {{ .Value }} {{ printf "%s" 1 }}',
    "colour": "\x1b[31mred\x1b[0m \x9b2J",
    "series": '"} 1\ntickscope_fake{x="',
    "regex": ".*|^(?",
    "nul": "nul\x00byte",
    "shell": "$(touch owned)`id`;|&",
    "wide": "日本語\u200b👩‍👩‍👧‍👦e" + "\u0301" * 9,
    "hebrew": "שלום",
}
#: Cause, culprit_comm and culprit_object of findings, and the label ``incident`` of their alerts on node-7.
INCIDENTS = [
    ("clock_step", "chronyd", "", "clock"),
    ("clock_slew", "", "", "clock"),
    ("process_stopped", "redis-server", "", "process_stopped redis-server on node-7"),
    ("network_delay", "", "10.0.0.1:6379", "network_delay 10.0.0.1:6379"),
    ("network_delay", "redis-server", "[2001:db8::1]:6379", "network_delay [2001:db8::1]:6379"),
    ("network_delay", "", "127.0.0.1:6379", "network_delay on node-7"),
    ("network_delay", "", "[::1]:6379", "network_delay on node-7"),
    ("network_delay", "", "eth0", "network_delay on node-7"),
    ("memory", "api", "/sys/fs/cgroup/10.0.0.1:80", "memory api on node-7"),
    ("disk", "", "cafe:80", "disk on node-7"),
    ("unknown", "", "", "unknown on node-7"),
]

#: Where the impacted process ran, and its culprit.
PLACES = {
    "namespace": "shop",
    "pod": "api-7c9d",
    "container_name": "api",
    "image": "shop:1.4",
    "container_id": "c" * 64,
    "culprit_unit": "redis.service",
}


def finding(finding_id: str, state: str = "open", severity: str = "alarm", **more: Any) -> Batch:
    """A row of ``finding`` that began 3 s ago and lasted 2 s. Texts may have bytes, as surrogates."""
    table, now_ns = TABLES["finding"], boot_ns()
    own: dict[str, Any] = {
        "t_ns": now_ns,
        "symptom": "decision_latency",
        "subject": "limiter shop:api",
        "cause": "process_stopped",
        "culprit_comm": "redis-server",
        "sentence": "Decisions of limiter shop:api took up to 2 s",
        "start_ns": now_ns - 3 * 10**9,
        "end_ns": now_ns - 10**9,
        "confidence": 0.9,
    }
    values = {
        name: one.encode(errors="surrogateescape") if isinstance(one, str) else one
        for name, one in (own | more).items()
    }
    return make(
        "finding",
        1,
        finding_id=finding_id.encode(),
        state=table.code("state", state),
        severity=table.code("severity", severity),
        **values,
    )


def hostile(finding_id: str, name: str, state: str = "open", **more: Any) -> Batch:
    """A finding with this name wherever a name can be. The command name has 16 bytes only."""
    whole = dict.fromkeys(("subject", "culprit_object", "culprit_comm", *PLACE, *(f"culprit_{p}" for p in PLACE)), name)
    whole["culprit_pod"] = f"other {name}"
    return finding(finding_id, state, sentence=f"Decisions of {name} took 2 s", **whole, **more)


def hostile_rows(name: str, t_ns: int) -> Iterator[Batch]:
    """Of a limiter, a queue and a process with this name; the process steps the clock and reads slowly."""
    text = name.encode(errors="surrogateescape")
    process = {"pid": 4_100_000, "comm": text}
    change = TABLES["clock_change"]
    yield hostile(f"{t_ns:016x}", name, t_ns=t_ns, start_ns=t_ns - 10**9, end_ns=t_ns)
    decision = {"limiter_id": text, "key": text, "cost": 1.0, "result": 0}
    yield make("limiter_decision", 3, t_ns=[t_ns, t_ns + 1, t_ns + 2], **decision, **process)
    queue = {"destination": text, "consumer_group": text, "reason": text, "workers": text, "cluster": text}
    yield make("queue_lag", 1, t_ns=t_ns, system=b"redis", lag_messages=7, status=b"stalled", exact=1, **queue)
    step = {"kind": change.code("kind", "step"), "size_ns": 10**9, "via": b"adjtimex", "err_ns": 9, "ret": 0}
    yield make("clock_change", 1, t_ns=t_ns, **step, **process)
    yield make("clock_offset", 1, t_ns=t_ns, real_mono_ns=1_800_000_000 * 10**9, boot_mono_ns=0, err_ns=9, cut=1)
    yield make("slow_syscall", 1, t_ns=t_ns, syscall=b"read", duration_ns=10**9, blocked_ns=10**9, **process)
    yield make("loss", 1, t_ns=t_ns, stage=0, source=text[:30], count=1, to_ns=t_ns)


def hostile_store(path: Path, names: Iterable[str]) -> Path:
    """A store with the rows of these names, half a second apart, the last ones some seconds old."""
    store, first_ns = HotStore(path, boot_id(), "web1", seal_command=()), boot_ns() - 30 * 10**9
    for i, name in enumerate(names):
        store.append(list(hostile_rows(name, first_ns + i * 10**9 // 2)))
    store.close()
    return path


def events(wall: ToWall = unknown, severity: str = "alarm") -> FindingEvents:
    return FindingEvents(wall, at_least(severity))
