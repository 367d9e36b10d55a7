"""The alert rules: committed as made, sound to promtool, and each fires on what it is for and not before. What they see
is what the page showed, second by second, while recorded sessions of the laboratory happened again.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from agent.batch import Batch, make
from agent.common.alert_labels import RUNBOOK_URL
from agent.tables import TABLES
from dashboards import alerts
from dashboards.boards import BOARDS
from dashboards.boards import text as board_text
from exporters.exposition import render
from exporters.metrics import MAX_SERIES, METRICS
from tests.docs import ROOT
from tests.replayed import SECOND, WELL, Replayed, session
from tests.unit.correlate_scenarios import T0, Host
from tests.unit.test_correlate_replay import bucket

_FOLDER = Path(alerts.__file__).parent
_FILES = [str(_FOLDER / name) for name in alerts.FILES]
_EXPRESSIONS = [r.expression for r in (*alerts.RULES, *alerts.RECORDINGS)]
_USED = {m.name for m in METRICS if any(re.search(rf"\b{m.prometheus}\b", one) for one in _EXPRESSIONS)}
_NODE = {"instance": "web1:9469", "job": "tickscope"}
_HOST = {"host_name": "web1"}
#: What each series was, second by second; None while it was not there.
Shown = dict[str, list[float | None]]


def series(name: str, labels: dict[str, str]) -> str:
    return name + "{" + ",".join(f"{k}={json.dumps(v)}" for k, v in {**_NODE, **labels}.items()) + "}"


def recorded(page: Replayed, seconds: Iterable[int]) -> Shown:
    """Of the metrics that rules name."""
    shown: Shown = {}
    for n, _ in enumerate(seconds, 1):
        text = render([(m, s) for m, s in page.store.collect() if m.name in _USED], {})
        now = {series(s.name, s.labels): s.value for f in parsed(text) for s in f.samples if f.name != "target_info"}
        for name in {**shown, **now}:
            held = shown.setdefault(name, [])
            held += [None] * (n - 1 - len(held)) + [now.get(name)]
    shown[series("target_info", {"service_name": "tickscope", **_HOST})] = [1.0] * n
    return shown


def happened(name: str, until: int | None = None) -> Shown:
    """A session, as seen until that second; what the page had then stays."""
    page = Replayed()

    def seconds() -> Iterator[int]:
        for second in page.seconds(session(name)):
            yield second
            if second == until:
                return

    return recorded(page, seconds())


def jump_events() -> list[Batch | int]:
    """Of a token bucket whose clock is set back by 2 s."""
    host = Host()
    bucket(host, 33.5, -2 * SECOND)
    by_second: dict[int, list[Batch]] = {}
    for table, made in host.made:
        for second in np.unique(made["t_ns"] // SECOND).tolist():
            by_second.setdefault(second, []).append(Batch(table, made[made["t_ns"] // SECOND == second]))
    begin = T0 // SECOND
    return [e for s in range(begin, begin + 45) for e in (*by_second.get(s, ()), (s + 1) * SECOND)]


def jumped() -> Shown:
    page = Replayed()
    return recorded(page, page.seconds(jump_events()))


def disagreed() -> Shown:
    """chronyd's time moves away from the oscillator's."""
    code = TABLES["clock_daemon"].code
    report = {
        "daemon": b"chrony",
        "source": b"raw",
        "kind": code("kind", "check"),
        "state": code("state", "disagree"),
        "offset_ns": SECOND,
        "distance_ns": 1000,
    }
    events: list[Batch | int] = []
    for second in range(20):
        if second == 10:
            events.append(make("clock_daemon", 1, t_ns=T0 + second * SECOND, **report))
        events.append(T0 + (second + 1) * SECOND)
    page = Replayed()
    return recorded(page, page.seconds(events))


def rows(table: str, before: dict[str, Any], after: dict[str, Any], **more: Any) -> Shown:
    """One row a second; the others from second 10 on."""
    page = Replayed()

    def seconds() -> Iterator[int]:
        for second in range(20):
            page.offer(make(table, 1, t_ns=(second + 1) * SECOND, **more, **(before if second < 10 else after)))
            yield second

    return recorded(page, seconds())


def status(**after: Any) -> Shown:
    """The agent's own state changes at second 10."""
    page = Replayed()

    def seconds() -> Iterator[int]:
        for second in range(20):
            page.status = {**WELL, **(after if second >= 10 else {})}
            page.observed(second * 5 * SECOND)
            yield second

    return recorded(page, seconds())


def receiver(**after: Any) -> dict[str, Any]:
    """The states of receivers, of which Slack's changes."""
    well: Any = WELL["export"]
    return {**well, "slack": {**well["slack"], **after}}


def reported(offset_ns: int) -> Shown:
    """chronyd's report of the offset grows to this."""
    report = {"kind": TABLES["clock_daemon"].code("kind", "system"), "daemon": b"chrony"}
    return rows("clock_daemon", {"offset_ns": 10**6}, {"offset_ns": offset_ns}, **report)


def polled(before: dict[str, float], after: dict[str, float]) -> Shown:
    queue = {"system": b"celery", "cluster": b"east", "destination": b"orders", "consumer_group": b"workers"}
    return rows("queue_lag", before, after, status=b"lagging", **queue)


def failing() -> Shown:
    failed = TABLES["tls_handshake"].code("result", "failed")
    return rows("tls_handshake", {"result": 0}, {"result": failed}, role=0)


def lost() -> Shown:
    page, stage = Replayed(), TABLES["loss"].code("stage", "ring")

    def seconds() -> Iterator[int]:
        for second in range(20):
            if second == 10:
                page.offer(make("loss", 1, t_ns=SECOND, stage=stage, source=b"limiter", count=9))
            yield second

    return recorded(page, seconds())


def overflowing() -> Shown:
    """More processes than one metric has series for."""
    page = Replayed()

    def seconds() -> Iterator[int]:
        for second in range(20):
            names = [b"p%d" % n for n in range(MAX_SERIES + 1 if second >= 10 else 1)]
            page.offer(make("tcp_reset", len(names), t_ns=second * SECOND, comm=names, direction=0))
            page.store.collect()
            page.observed(second * 5 * SECOND)
            yield second

    return recorded(page, seconds())


_HELD = {"oldest_pending_s": 60.0, "redelivery_s": 3540.0}
_DEGRADED = {"state": "degraded", "bytes": 1, "segments": 1, "waiting_rows": 0, "dropped_rows": 0}
_ACCEPT = TABLES["socket_queue"].code("kind", "accept")
#: Other names are sessions of the laboratory, some with the second at which they end.
HISTORIES: dict[str, Callable[[], Shown]] = {
    "a jump moves a bucket": jumped,
    "a daemon is wrong": disagreed,
    "the clock is not synchronised": lambda: rows("clock_offset", {"synchronised": 1}, {"synchronised": 0}),
    "the clock is behind": lambda: reported(2 * 10**8),
    "the clock is ahead": lambda: reported(-2 * 10**8),
    "a subscriber does not answer": lambda: rows("notice_status", {"pending": 0}, {"pending": 2}),
    "a queue fills slowly": lambda: {
        name: held
        for name, held in polled({"limit_in_s": 7200.0}, {"limit_in_s": 1800.0}).items()
        if not name.startswith("target_info")
    },
    "a queue fills fast": lambda: polled({"limit_in_s": 7200.0}, {"limit_in_s": 300.0}),
    "a message is held": lambda: polled(_HELD, {"oldest_pending_s": 3240.0, "redelivery_s": 360.0}),
    "a message is overdue": lambda: polled(_HELD, {"oldest_pending_s": 4000.0, "redelivery_s": -400.0}),
    "an accept queue overflows": lambda: rows("socket_queue", {"overflows": 5}, {"overflows": 6}, kind=_ACCEPT),
    "handshakes fail": failing,
    "records are lost": lost,
    "the page overflows": overflowing,
    "a probe is missing": lambda: status(probes=[{"probe": "tcp", "state": "unavailable"}]),
    "the store is full": lambda: status(store=_DEGRADED),
    "a receiver is down": lambda: status(export=receiver(state="down", retries=3)),
    "a message is refused": lambda: status(export=receiver(dropped=1)),
    "a request is repeated": lambda: status(export=receiver(state="retrying", retries=9)),
    "the page is down": lambda: {series("up", {}): [1.0] * 10 + [0.0] * 10},
}


@cache
def shown(name: str) -> Shown:
    if name in HISTORIES:
        return HISTORIES[name]()
    recording, _, until = name.partition(" until ")
    return happened(recording, int(until) if until else None)


def aggregated(alert: str) -> bool:
    """Whether its series keep no label of the scrape but the node."""
    first = next(r.expression for r in alerts.RULES if r.alert == alert)
    return first.lstrip("(").startswith(("sum by", "max by", "min by", *(r.record for r in alerts.RECORDINGS)))


class Case(NamedTuple):
    """alert fires lasted seconds after what was shown, with these labels and texts; severity, as it has several."""

    shown: str
    alert: str
    severity: str
    lasted: int
    labels: dict[str, str]
    summary: str
    description: str
    command: str


_JUMP = {**_HOST, "tickscope_symptom": "clock_jump", "tickscope_cause": "clock_step", "tickscope_severity": "alarm"}
_KILLED = {
    **_HOST,
    "incident": "process_killed redis-server on web1",
    "tickscope_symptom": "service_errors",
    "tickscope_cause": "process_killed",
    "tickscope_culprit_comm": "redis-server",
    "tickscope_severity": "alarm",
}
_FULL = {
    **_HOST,
    "incident": "resource_limit 10.77.0.2:6380",  # of every node that has the same server
    "tickscope_symptom": "service_errors",
    "tickscope_cause": "resource_limit",
    "tickscope_culprit_comm": "redis-server",
    "tickscope_culprit_object": "10.77.0.2:6380",
    "tickscope_severity": "alarm",
}
_ORDERS = {
    "incident": "queue orders of celery",
    "messaging_system": "celery",
    "messaging_destination_name": "orders",
    "messaging_consumer_group_name": "workers",
    "tickscope_cluster": "east",
}
_CLOCK, _AGENT = {"incident": "clock", **_HOST}, {"incident": "tickscope", **_HOST}
_LIMITER = "limiter lab:api-redis (lab-api-redis pid 1347)"
_FULL_SOON = (
    "At the present rate, the server's memory will be full, or the oldest message will be deleted before it is read."
)
_TWICE = "At 100 % it is delivered a second time, while a consumer may still work on it: the work is done twice."
_FAR = "A positive value: the clock is behind. From 128 ms on, ntpd steps the clock, which moves limiters and timers."
_MOVED = "Limiters, timers and leases that use the wall clock may now decide wrongly."
CASES = (
    Case(
        "a jump moves a bucket",
        "TickscopeClockJump",
        "warning",
        35,
        {**_CLOCK, **_JUMP, "tickscope_culprit_comm": "chronyd"},
        "The wall clock of web1 was moved: clock_step by chronyd",
        _MOVED,
        "tickscope explain e93e7e1fbc0ceb37",
    ),
    Case(
        "a jump moves a bucket",
        "TickscopeLimiterRefusesAfterJump",
        "critical",
        1,
        {
            **_CLOCK,
            **_HOST,
            "rate_limiting_limiter_id": "rate.Limiter@0xc0",
            "process_executable_name": "shop",
            "direction": "backward",
            "tickscope_cause": "clock_step",
            "tickscope_culprit_comm": "chronyd",
        },
        "Limiter rate.Limiter@0xc0 (shop) on web1 refuses requests because the clock jumped backward",
        "40 requests were refused in 5 minutes that would have been admitted without the jump. Cause: clock_step by"
        " chronyd.",
        "tickscope limiters replay --jump last",
    ),
    Case(
        "0020-0",
        "TickscopeClockJump",
        "warning",
        40,
        {**_CLOCK, **_JUMP, "tickscope_culprit_comm": "lab-clock"},
        "The wall clock of web1 was moved: clock_step by lab-clock",
        _MOVED,
        "tickscope explain 0514ee3fd8a19870",
    ),
    Case(
        "0020-0",
        "TickscopeFinding",
        "warning",
        40,
        {**_CLOCK, **_JUMP, "tickscope_symptom": "decision_latency"},
        "decision_latency of limiter lab:api-redis-far (lab-api-redis-f pid 168) on web1",
        "Cause: clock_step.",
        "tickscope explain 6c89a0b8d02f5cb8",
    ),
    Case(
        "6008-0",
        "TickscopeFinding",
        "warning",
        40,
        _KILLED,
        f"service_errors of {_LIMITER} on web1",
        "Cause: process_killed by redis-server.",
        "tickscope explain fdad4fce4778a27f",
    ),
    Case(
        "6008-0 until 18",
        "TickscopeFinding",
        "warning",
        320,
        _KILLED,
        f"service_errors of {_LIMITER} on web1",
        "Cause: process_killed by redis-server.",
        "tickscope explain fdad4fce4778a27f",
    ),
    Case(
        "6008-0 until 18",
        "TickscopeFinding",
        "critical",
        320,
        _KILLED,
        f"service_errors of {_LIMITER} on web1, for 5 minutes",
        "Cause: process_killed by redis-server. Users get errors, or data are lost.",
        "tickscope explain fdad4fce4778a27f",
    ),
    Case(
        "6003-9 until 18",  # more requests, which is what limiters are for, is no reason to wake anybody
        "TickscopeFinding",
        "warning",
        320,
        {
            **_HOST,
            "incident": "load on web1",
            "tickscope_symptom": "refusals",
            "tickscope_cause": "load",
            "tickscope_severity": "alarm",
        },
        "refusals of limiter lab:api-redis (lab-api-redis pid 21757) on web1",
        "Cause: load.",
        "tickscope explain b3415e1f01655a2d",
    ),
    Case(
        "6003-9 until 18",
        "TickscopeFinding",
        "warning",
        320,
        {
            **_HOST,
            "incident": "memory lab-api-tables on web1",
            "tickscope_symptom": "decision_latency",
            "tickscope_cause": "memory",
            "tickscope_culprit_comm": "lab-api-tables",
            "tickscope_culprit_object": "/sys/fs/cgroup/memory/tickscope-lab-0sodhty1/api-tables",
            "tickscope_severity": "alarm",
        },
        "decision_latency of limiter lab:api-tables (lab-api-tables pid 21754) on web1",
        "Cause: memory by lab-api-tables (/sys/fs/cgroup/memory/tickscope-lab-0sodhty1/api-tables).",
        "tickscope explain adad4c49d3247907",
    ),
    Case(
        "4037-8",
        "TickscopeFinding",
        "warning",
        40,
        _FULL,
        "service_errors of the server at 10.77.0.2:6380 on web1",
        "Cause: resource_limit by redis-server (10.77.0.2:6380).",
        "tickscope explain 86cb4c2fbec462cd",
    ),
    Case(
        "a daemon is wrong",
        "TickscopeTimeDaemonWrong",
        "warning",
        35,
        {
            **_CLOCK,
            **_HOST,
            "tickscope_symptom": "clock_disagreement",
            "tickscope_cause": "unknown",
            "tickscope_severity": "alarm",
        },
        "A time daemon of web1 contradicts the oscillator or a time server: chrony's time against MONOTONIC_RAW",
        "Either the daemon or what it follows is wrong. Until it is known which, the clock cannot be trusted.",
        "tickscope explain c4016ff76cc67479",
    ),
    Case(
        "the clock is not synchronised",
        "TickscopeClockNotSynchronised",
        "warning",
        620,
        _CLOCK,
        "No time daemon synchronises the clock of web1",
        "The clock drifts, and is likely to be stepped when a daemon starts again.",
        "tickscope clock",
    ),
    *(
        Case(
            name,
            "TickscopeClockFarOff",
            "warning",
            130,
            {**_CLOCK, "tickscope_daemon": "chrony"},
            f"The wall clock of web1 is off by {offset}, says chrony",
            _FAR,
            "tickscope clock",
        )
        for name, offset in (("the clock is behind", "200ms"), ("the clock is ahead", "-200ms"))
    ),
    Case(
        "a subscriber does not answer",
        "TickscopeNotReanchored",
        "warning",
        70,
        _CLOCK,
        "2 notices of clock jumps on web1 are not acknowledged",
        "The programs that did not acknowledge may still count by the time before the jump.",
        "tickscope clock",
    ),
    *(
        Case(
            name,
            "TickscopeQueueWillOverflow",
            severity,
            130,
            {**_ORDERS, **node},
            f"celery queue orders, group workers: full, or messages deleted unread, in {left}",
            _FULL_SOON,
            "tickscope queues",
        )
        for name, left, severity, node in (
            ("a queue fills slowly", "30m 0s", "warning", {}),  # and the page has no name of the node
            ("a queue fills fast", "5m 0s", "warning", _HOST),
            ("a queue fills fast", "5m 0s", "critical", _HOST),
        )
    ),
    *(
        Case(
            name,
            "TickscopeUnacknowledgedNearTimeout",
            "warning",
            70,
            {**_ORDERS, **_HOST},
            f"celery queue orders, group workers: the oldest unacknowledged message has used {used} of its time-out",
            _TWICE,
            "tickscope queues",
        )
        for name, used in (("a message is held", "90%"), ("a message is overdue", "111.1%"))
    ),
    Case(
        "an accept queue overflows",
        "TickscopeAcceptOverflow",
        "info",
        5,
        {"incident": "network on web1", **_HOST},
        "Connections met a full accept queue on web1",
        "A program accepts connections more slowly than they arrive. If it lasts, there is also a finding.",
        'tickscope query socket_queue --where "kind = \'accept\' AND queue >= \\"limit\\""',
    ),
    Case(
        "handshakes fail",
        "TickscopeTlsHandshakesFail",
        "info",
        293,
        {"incident": "network on web1", **_HOST},
        "TLS handshakes fail on web1",
        "Some always fail where the Internet connects. If more fail than usual, there is also a finding.",
        "tickscope query tls_handshake --where \"result = 'failed'\"",
    ),
    Case(
        "records are lost",
        "TickscopeLosesRecords",
        "warning",
        5,
        {**_AGENT, "tickscope_stage": "ring"},
        "tickscope on web1 lost records (ring)",
        "Findings of this time may be missing or incomplete.",
        "tickscope query loss --since 10m",
    ),
    Case(
        "a probe is missing",
        "TickscopeProbeNotAttached",
        "warning",
        70,
        {**_AGENT, "tickscope_probe": "tcp"},
        "The probe tcp misses events on web1",
        "Findings that rest on these events are missing.",
        "tickscope probes",
    ),
    Case(
        "the store is full",
        "TickscopeStoreDegraded",
        "warning",
        70,
        {**_AGENT, "tickscope_state": "degraded"},
        "tickscope on web1 cannot write its store",
        "Rows may be lost: findings still arise, but cannot be looked up later.",
        "tickscope status",
    ),
    *(
        Case(
            what,
            "TickscopeFindingsNotSent",
            "warning",
            300,
            {**_AGENT, "tickscope_receiver": "slack"},
            "tickscope on web1 cannot send findings to slack",
            "Who relies on this receiver does not learn of findings. Those that were dropped are in the store only.",
            "tickscope status",
        )
        for what in ("a receiver is down", "a message is refused")
    ),
    Case(
        "the page overflows",
        "TickscopeMetricsOverflow",
        "info",
        893,
        _AGENT,
        "The metrics page of web1 has too many label sets",
        "Some are summed under otel_metric_overflow, or left out (gauges).",
        "tickscope status",
    ),
    Case(
        "the page is down",
        "TickscopeDown",
        "warning",
        305,
        {"incident": "tickscope"},
        "Prometheus cannot read the metrics page of web1:9469",
        "Other alerts of this node cannot fire.",
        "tickscope status",
    ),
)


def check(tmp_path: Path, tests: list[dict[str, Any]]) -> str:
    """What promtool has to say against it."""
    file = tmp_path / "rules_test.yml"
    file.write_text(json.dumps({"rule_files": _FILES, "evaluation_interval": "1s", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def values(history: list[float | None], more: int) -> str:
    """As promtool writes them; the last one stays for so many seconds more."""
    out, was = [], False
    for value in history:
        out.append(repr(value) if value is not None else "stale" if was else "_")
        was = value is not None
    return " ".join(out) + (f" {history[-1]!r}x{more}" if history[-1] is not None else "")


def judged(case: Case) -> dict[str, Any]:
    """The alert, of this severity and others, before and after."""
    history = shown(case.shown)
    seconds = max(map(len, history.values()))
    at = seconds + case.lasted
    lines = [{"series": name, "values": values(held, case.lasted + 60)} for name, held in history.items()]
    return {
        "interval": "1s",
        "input_series": lines,
        "alert_rule_test": [
            {"eval_time": "2s", "alertname": case.alert, "exp_alerts": []},
            {
                "eval_time": f"{at}s",
                "alertname": case.alert,
                "exp_alerts": [
                    {
                        "exp_labels": {
                            "severity": c.severity,
                            **{k: v for k, v in _NODE.items() if k == "instance" or not aggregated(c.alert)},
                            **c.labels,
                        },
                        "exp_annotations": {
                            "summary": c.summary,
                            "description": c.description,
                            "command": c.command,
                            "runbook_url": RUNBOOK_URL.replace("{alert}", c.alert),
                        },
                    }
                    for c in CASES
                    if (c.shown, c.alert, c.lasted) == (case.shown, case.alert, case.lasted)
                ],
            },
        ],
    }


def test_committed_rules_are_current() -> None:
    for name, made in alerts.FILES.items():
        for folder in alerts.FOLDERS:
            assert (folder / name).read_text() == alerts.text(made()), "run: python -m dashboards.alerts"


def test_promtool_reads_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", *_FILES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(alerts.RULES)} rules found" in done.stdout and f"{len(alerts.RECORDINGS)} rules found" in done.stdout


def test_each_rule_has_a_case() -> None:
    assert {(c.alert, c.severity) for c in CASES} == {(r.alert, r.severity) for r in alerts.RULES}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.alert}-{c.severity}-{c.shown}")
def test_a_rule_fires_on_what_it_is_for_and_not_before(tmp_path: Path, case: Case) -> None:
    assert check(tmp_path, [judged(case)]) == ""


@pytest.mark.parametrize("quiet", ["6004-9", "a request is repeated"])
def test_no_rule_fires_while_nothing_happens(tmp_path: Path, quiet: str) -> None:
    history = {**shown(quiet), series("up", {}): [1.0]}
    test = {
        "interval": "1s",
        "input_series": [{"series": name, "values": values(held, 1200)} for name, held in history.items()],
        "alert_rule_test": [
            {"eval_time": at, "alertname": rule.alert, "exp_alerts": []}
            for rule in alerts.RULES
            for at in ("20s", "50s", "1000s")
        ],
    }
    assert check(tmp_path, [test]) == ""


def test_a_jump_without_its_finding_is_reported_too(tmp_path: Path) -> None:
    """The join with the culprit must not hide a limiter where the series of the finding is missing."""
    history = {name: held for name, held in jumped().items() if "tickscope_finding_open" not in name}
    assert 'alertname="TickscopeLimiterRefusesAfterJump", direction="backward"' in check(
        tmp_path,
        [
            {
                "interval": "1s",
                "input_series": [{"series": name, "values": values(held, 9)} for name, held in history.items()],
                "alert_rule_test": [
                    {"eval_time": "46s", "alertname": "TickscopeLimiterRefusesAfterJump", "exp_alerts": []}
                ],
            }
        ],
    )


@pytest.mark.parametrize("rule", [*alerts.RULES, *alerts.RECORDINGS], ids=lambda r: str(r[0]))
def test_what_increases_starts_at_0_or_counts_its_first_sample(rule: alerts.Rule | alerts.RecordingRule) -> None:
    observed_from_0 = {"tickscope.metrics.overflowed", "tickscope.notify.dropped"}
    for name in re.findall(r"increase\((\w+)", rule.expression):
        metric = next(m for m in METRICS if m.prometheus == name)
        assert metric.bounded or metric.name in observed_from_0 or f"{name} unless {name} offset" in rule.expression


@pytest.mark.parametrize("rule", alerts.RULES, ids=lambda r: f"{r.alert}-{r.severity}")
def test_each_alert_has_a_runbook_with_the_same_parts(rule: alerts.Rule) -> None:
    page = (ROOT / "docs" / alerts.page_of(rule.alert)).read_text()
    assert page.startswith(f"# {rule.alert}\n")
    assert re.findall("^## (.+)$", page, re.MULTILINE) == ["Meaning", "Check", "Act"]
    assert "$ tickscope " in page


def test_the_mixin_has_all_files_and_one_place_for_the_documents() -> None:
    """By jsonnet, as those build it who keep their rules in jsonnet."""
    folder, wiki = _FOLDER, "https://wiki.example/tickscope"
    text = f"""
      local mixin = (import '{folder}/mixin.libsonnet') {{ _config+:: {{ docs: '{wiki}' }} }};
      {{ alerts: mixin.prometheusAlerts, rules: mixin.prometheusRules, boards: mixin.grafanaDashboards }}
    """
    made = json.loads(subprocess.run(["jsonnet", "-e", text], capture_output=True, text=True, check=True).stdout)
    expected = json.dumps(alerts.alerts()).replace(alerts.DOCS, wiki)
    assert made["alerts"] == json.loads(expected) and made["rules"] == alerts.recordings()
    boards = {f"tickscope-{name}.json": json.loads(board_text(name).replace(alerts.DOCS, wiki)) for name in BOARDS}
    assert made["boards"] == boards
    pattern = "https://runbooks.example/?of=%s"
    text = f"""
      local mixin = (import '{folder}/mixin.libsonnet') {{ _config+:: {{ runbookURLPattern: '{pattern}' }} }};
      [rule.annotations.runbook_url for group in mixin.prometheusAlerts.groups for rule in group.rules]
    """
    made = json.loads(subprocess.run(["jsonnet", "-e", text], capture_output=True, text=True, check=True).stdout)
    assert made == [pattern % rule.alert for rule in alerts.RULES]
