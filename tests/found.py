"""Findings for tests of what shows or sends them, with hostile names."""

from __future__ import annotations

from typing import Any

from agent.batch import Batch, make
from agent.common.clocks import boot_ns
from agent.common.finding import FindingEvents
from agent.common.places import PLACE
from agent.common.sentence import ToWall, unknown
from agent.tables import TABLES
from exporters.notify_settings import at_least

#: What a process may call itself, by what it is to do: add a field, mention everybody, run, break a terminal, reverse a
#: line, end a string of JSON.
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
        t_ns=now_ns,
        finding_id=finding_id.encode(),
        state=table.code("state", state),
        severity=table.code("severity", severity),
        **values,
    )


def hostile(finding_id: str, name: str, state: str = "open") -> Batch:
    """A finding with this name wherever a name can be. The command name has 16 bytes only."""
    whole = dict.fromkeys(("subject", "culprit_object", "culprit_comm", *PLACE, *(f"culprit_{p}" for p in PLACE)), name)
    whole["culprit_pod"] = f"other {name}"
    return finding(finding_id, state, sentence=f"Decisions of {name} took 2 s", **whole)


def events(wall: ToWall = unknown, severity: str = "alarm") -> FindingEvents:
    return FindingEvents(wall, at_least(severity))
