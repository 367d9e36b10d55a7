"""Alert and recording rules for Prometheus, as code: ``python -m dashboards.alerts`` writes alerts.yaml and rules.yaml
(committed; a test compares).

Rules name metrics of exporters/metrics.py, so a renamed metric fails here. JSON is YAML, and jsonnet: what is written
is what promtool, Prometheus and mixin.libsonnet read.

severity: ``critical`` means wake somebody, since users get errors or data are lost, and both get worse until morning;
``warning`` means look today; ``info`` is context for other alerts. incident: the label to group by. Alerts of one fault
have the same one, whichever rule sees the fault and on however many nodes it is seen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from agent.common.alert_labels import (
    CLOCK_ALERTS,
    CLOCK_CAUSES,
    CRITICAL_AFTER_S,
    ENDPOINT,
    FINDING_ALERT,
    HARMFUL,
    INTENDED,
    LOOPBACK,
    RUNBOOK_URL,
)
from agent.common.places import PLACE
from exporters.metrics import FINDING, METRICS

#: Where the documents are: on each node. Users who publish them replace it, and RUNBOOK_URL (docs/alerting.md).
DOCS = "file:///opt/tickscope/docs"
#: Names in Prometheus, by our own.
_NAME = {m.name: m.prometheus for m in METRICS}
#: What identifies a queue, but for its partition.
QUEUE = ("messaging_system", "tickscope_cluster", "messaging_destination_name", "messaging_consumer_group_name")
_LIMITER = ("rate_limiting_limiter_id", "process_executable_name", "direction")
#: Symptoms with rules of their own.
_CLOCK_SYMPTOMS = "|".join(CLOCK_ALERTS)


class Rule(NamedTuple):
    """summary: what is wrong, in one sentence. meaning: why it matters, and what is known. command: what to run first
    on the node. lasts: how long it holds before it fires; "" at once. dropped: labels of the series that are in the
    texts only, since they would make a new alert of each value.
    """

    alert: str
    expression: str
    severity: str
    incident: str
    summary: str
    meaning: str
    command: str
    lasts: str = ""
    dropped: tuple[str, ...] = ()


class RecordingRule(NamedTuple):
    record: str
    expression: str
    meaning: str


def _more(name: str, by: str, selector: str = "", within: str = "5m") -> str:
    """Where a counter that starts at 0 went up."""
    return f"sum by ({by}) (increase({_NAME[name]}{selector}[{within}])) > 0"


def _grown(name: str, by: str) -> str:
    """How much a counter grew that does not start at 0: ``increase()`` does not count a series' first sample."""
    metric = _NAME[name]
    return f"sum by ({by}) (increase({metric}[5m]) > 0 or ({metric} unless {metric} offset 5m))"


def _finding(selector: str, state: str = "") -> str:
    """One finding of each symptom, cause and culprit. topk keeps all labels: the id is for the texts, and pod, unit
    and so on are there to route by.
    """
    by = "instance, tickscope_symptom, tickscope_cause, tickscope_culprit_comm, tickscope_culprit_object"
    return f'topk by ({by}) (1, {_NAME["tickscope.finding.open"]}{{tickscope_severity="alarm",{selector}}}{state})'


#: The node as people know it; a page on loopback is 127.0.0.1 to its scraper.
_NODE = "{{ or $labels.host_name $labels.instance }}"
#: Of a cause, by a process or an object.
_CULPRIT = (
    "{{ if $labels.tickscope_culprit_comm }} by {{ $labels.tickscope_culprit_comm }}{{ end }}"
    "{{ if $labels.tickscope_culprit_object }} ({{ $labels.tickscope_culprit_object }}){{ end }}"
)
#: ``incident`` of agent/common/alert_labels.py, by Prometheus.
_OF_CAUSE = (
    f"{{{{ if match `^({'|'.join(CLOCK_CAUSES)})$` $labels.tickscope_cause }}}}clock"
    f"{{{{ else if and (match `^({ENDPOINT})$` $labels.tickscope_culprit_object)"
    f" (not (match `^({LOOPBACK})` $labels.tickscope_culprit_object)) }}}}"
    "{{ $labels.tickscope_cause }} {{ $labels.tickscope_culprit_object }}"
    "{{ else }}{{ $labels.tickscope_cause }}{{ if $labels.tickscope_culprit_comm }}"
    " {{ $labels.tickscope_culprit_comm }}{{ end }} on {{ $labels.host_name }}{{ end }}"
)
_OF_QUEUE = "queue {{ $labels.messaging_destination_name }} of {{ $labels.messaging_system }}"
_THE_QUEUE = (
    "{{ $labels.messaging_system }} queue {{ $labels.messaging_destination_name }}"
    "{{ if $labels.messaging_consumer_group_name }}, group {{ $labels.messaging_consumer_group_name }}{{ end }}"
)
_EXPLAIN = "tickscope explain {{ $labels.tickscope_finding_id }}"
_IN_TEXTS = ("tickscope_finding_id", "tickscope_subject")
_SUBJECT = "{{ $labels.tickscope_symptom }} of {{ $labels.tickscope_subject }} on " + _NODE
_BECAUSE = f"Cause: {{{{ $labels.tickscope_cause }}}}{_CULPRIT}."
_REFUSED, _OVER, _LAG, _DUE, _COUNT = (
    "instance_limiter:tickscope_limiter_wrongly_refused:increase5m",
    "instance_limiter:tickscope_limiter_over_admitted:increase5m",
    "instance_queue:tickscope_queue_lag:sum",
    "instance_queue:tickscope_queue_redelivery_used:ratio",
    "instance_cause:tickscope_finding_open:count",
)
_LIMIT_IN = f"min by ({', '.join(('instance', *QUEUE))}) ({_NAME['tickscope.queue.limit_in']})"
_PENDING, _LEFT = _NAME["tickscope.queue.oldest_pending"], _NAME["tickscope.queue.redelivery_in"]
#: The finding of a jump, whose labels are joined to what the jump did.
_JUMP = f'topk by (instance) (1, {_NAME["tickscope.finding.open"]}{{tickscope_symptom="clock_jump"}})'
_CULPRITS = ("culprit_comm", "culprit_object", *(f"culprit_{name}" for name in PLACE))
_JOINED = ", ".join(("host_name", *(FINDING[name].replace(".", "_") for name in ("cause", *_CULPRITS))))

RECORDINGS = (
    RecordingRule(
        _REFUSED,
        _grown("tickscope.limiter.wrongly_refused.by_limiter", ", ".join(("instance", *_LIMITER))),
        "requests that a limiter refused only because of a clock jump, in the last 5 minutes",
    ),
    RecordingRule(
        _OVER,
        _grown("tickscope.limiter.over_admitted.by_limiter", ", ".join(("instance", *_LIMITER))),
        "requests that a limiter admitted only because of a clock jump, in the last 5 minutes",
    ),
    RecordingRule(
        _LAG,
        f"sum by ({', '.join(('instance', *QUEUE))}) ({_NAME['tickscope.queue.lag']})",
        "lag of a consumer group over all partitions",
    ),
    RecordingRule(
        _DUE,
        f"max by ({', '.join(('instance', *QUEUE))}) ({_PENDING} / ({_PENDING} + {_LEFT}))",
        "age of the oldest unacknowledged message as a share of the time after which it is redelivered",
    ),
    RecordingRule(
        _COUNT,
        "count by (instance, tickscope_severity, tickscope_cause) (" + _NAME["tickscope.finding.open"] + " == 1)",
        "open findings by cause",
    ),
)

RULES = (
    Rule(
        CLOCK_ALERTS["clock_jump"],
        _finding('tickscope_symptom="clock_jump"'),
        "warning",
        "clock",
        "The wall clock of {{ or $labels.host_name $labels.instance }} was moved: {{ $labels.tickscope_cause }}"
        + _CULPRIT,
        "Limiters, timers and leases that use the wall clock may now decide wrongly.",
        _EXPLAIN,
        "30s",
        _IN_TEXTS,
    ),
    Rule(
        CLOCK_ALERTS["clock_disagreement"],
        _finding('tickscope_symptom="clock_disagreement"'),
        "warning",
        "clock",
        "A time daemon of {{ or $labels.host_name $labels.instance }} contradicts the oscillator or a time server:"
        " {{ $labels.tickscope_subject }}",
        "Either the daemon or what it follows is wrong. Until it is known which, the clock cannot be trusted.",
        _EXPLAIN,
        "30s",
        _IN_TEXTS,
    ),
    Rule(
        "TickscopeClockNotSynchronised",
        f"{_NAME['ntp.sync_status']} == 0",
        "warning",
        "clock",
        "No time daemon synchronises the clock of {{ or $labels.host_name $labels.instance }}",
        "The clock drifts, and is likely to be stepped when a daemon starts again.",
        "tickscope clock",
        "10m",
    ),
    Rule(
        "TickscopeClockFarOff",
        f"{_NAME['ntp.offset']} > 0.128 or {_NAME['ntp.offset']} < -0.128",
        "warning",
        "clock",
        "The wall clock of {{ or $labels.host_name $labels.instance }} is off by {{ $value | humanizeDuration }}, says"
        " {{ $labels.tickscope_daemon }}",
        "A positive value: the clock is behind. From 128 ms on, ntpd steps the clock, which moves limiters and timers.",
        "tickscope clock",
        "2m",
    ),
    Rule(
        "TickscopeNotReanchored",
        f"{_NAME['tickscope.clock.pending_reanchorings']} > 0",
        "warning",
        "clock",
        "{{ $value }} notices of clock jumps on {{ or $labels.host_name $labels.instance }} are not acknowledged",
        "The programs that did not acknowledge may still count by the time before the jump.",
        "tickscope clock",
        "1m",
    ),
    Rule(
        "TickscopeLimiterRefusesAfterJump",
        f"{_REFUSED} * on (instance) group_left ({_JOINED}) ({_JUMP} * 0 + 1)"
        f" or on (instance, {', '.join(_LIMITER)}) {_REFUSED}",
        "critical",
        "clock",
        "Limiter {{ $labels.rate_limiting_limiter_id }} ({{ $labels.process_executable_name }}) on"
        " {{ or $labels.host_name $labels.instance }} refuses requests because the clock jumped"
        " {{ $labels.direction }}",
        "{{ $value | humanize }} requests were refused in 5 minutes that would have been admitted without the jump."
        "{{ if $labels.tickscope_cause }} " + _BECAUSE + "{{ end }}",
        "tickscope limiters replay --jump last",
    ),
    *(
        Rule(
            "TickscopeQueueWillOverflow",
            f"{_LIMIT_IN} < {least}",
            severity,
            _OF_QUEUE,
            f"{_THE_QUEUE}: full, or messages deleted unread, in {{{{ $value | humanizeDuration }}}}",
            "At the present rate, the server's memory will be full, or the oldest message will be deleted before it is"
            " read.",
            "tickscope queues",
            lasts,
        )
        for severity, least, lasts in (("critical", 600, "1m"), ("warning", 3600, "2m"))
    ),
    Rule(
        "TickscopeUnacknowledgedNearTimeout",
        f"{_DUE} > 0.8",
        "warning",
        _OF_QUEUE,
        f"{_THE_QUEUE}: the oldest unacknowledged message has used {{{{ $value | humanizePercentage }}}} of its"
        " time-out",
        "At 100 % it is delivered a second time, while a consumer may still work on it: the work is done twice.",
        "tickscope queues",
        "1m",  # of a time-out of seconds, only a share that stays high matters
    ),
    Rule(
        FINDING_ALERT,
        _finding(
            f'tickscope_symptom=~"{"|".join(HARMFUL)}",tickscope_cause!~"{"|".join(INTENDED)}"',
            " == 1",
        ),
        "critical",
        _OF_CAUSE,
        f"{_SUBJECT}, for {CRITICAL_AFTER_S // 60} minutes",
        f"{_BECAUSE} Users get errors, or data are lost.",
        _EXPLAIN,
        f"{CRITICAL_AFTER_S // 60}m",
        _IN_TEXTS,
    ),
    Rule(
        FINDING_ALERT,
        _finding(f'tickscope_symptom!~"{_CLOCK_SYMPTOMS}"'),
        "warning",
        _OF_CAUSE,
        _SUBJECT,
        _BECAUSE,
        _EXPLAIN,
        "30s",  # the cause may change in the first seconds
        _IN_TEXTS,
    ),
    Rule(
        "TickscopeAcceptOverflow",
        _more("tickscope.socket.accept.overflows", "instance"),
        "info",
        "network on " + _NODE,
        "Connections met a full accept queue on {{ or $labels.host_name $labels.instance }}",
        "A program accepts connections more slowly than they arrive. If it lasts, there is also a finding.",
        'tickscope query socket_queue --where "kind = \'accept\' AND queue >= \\"limit\\""',
    ),
    Rule(
        "TickscopeTlsHandshakesFail",
        _more("tickscope.tls.handshakes", "instance", '{tickscope_result="failed"}'),
        "info",
        "network on " + _NODE,
        "TLS handshakes fail on {{ or $labels.host_name $labels.instance }}",
        "Some always fail where the Internet connects. If more fail than usual, there is also a finding.",
        "tickscope query tls_handshake --where \"result = 'failed'\"",
        "5m",
    ),
    Rule(
        "TickscopeDown",
        'up{job=~".*tickscope.*"} == 0',
        "warning",
        "tickscope",
        "Prometheus cannot read the metrics page of {{ $labels.instance }}",
        "Other alerts of this node cannot fire.",
        "tickscope status",
        "5m",
    ),
    Rule(
        "TickscopeLosesRecords",
        _more("tickscope.losses.reports", "instance, tickscope_stage"),
        "warning",
        "tickscope",
        "tickscope on {{ or $labels.host_name $labels.instance }} lost records ({{ $labels.tickscope_stage }})",
        "Findings of this time may be missing or incomplete.",
        "tickscope query loss --since 10m",
    ),
    Rule(
        "TickscopeProbeNotAttached",
        "max by (instance, tickscope_probe)"
        f' ({_NAME["tickscope.probe.state"]}{{tickscope_state=~"degraded|unavailable"}}) == 1',
        "warning",
        "tickscope",
        "The probe {{ $labels.tickscope_probe }} misses events on {{ or $labels.host_name $labels.instance }}",
        "Findings that rest on these events are missing.",
        "tickscope probes",
        "1m",
    ),
    Rule(
        "TickscopeStoreDegraded",
        f'{_NAME["tickscope.store.state"]}{{tickscope_state="degraded"}} == 1',
        "warning",
        "tickscope",
        "tickscope on {{ or $labels.host_name $labels.instance }} cannot write its store",
        "Rows may be lost: findings still arise, but cannot be looked up later.",
        "tickscope status",
        "1m",
    ),
    Rule(
        "TickscopeFindingsNotSent",
        _more("tickscope.notify.dropped", "instance, tickscope_receiver", within="15m")
        + " or max by (instance, tickscope_receiver)"
        f' ({_NAME["tickscope.notify.state"]}{{tickscope_state="down"}}) == 1',
        "warning",
        "tickscope",
        "tickscope on {{ or $labels.host_name $labels.instance }} cannot send findings to"
        " {{ $labels.tickscope_receiver }}",
        "Who relies on this receiver does not learn of findings. Those that were dropped are in the store only.",
        "tickscope status",
        "5m",
    ),
    Rule(
        "TickscopeMetricsOverflow",
        _more("tickscope.metrics.overflowed", "instance", within="15m"),
        "info",
        "tickscope",
        "The metrics page of {{ or $labels.host_name $labels.instance }} has too many label sets",
        "Some are summed under otel_metric_overflow, or left out (gauges).",
        "tickscope status",
        "15m",
    ),
)


def page_of(alert: str) -> str:
    """The file of its runbook, in docs/."""
    return f"runbooks/{alert}.md"


def expression(rule: Rule) -> str:
    """With the label ``host_name`` where the page has it: findings have it, and of a page that is down nothing is
    known.
    """
    if _NAME["tickscope.finding.open"] in rule.expression or rule.expression.startswith("up{"):
        return rule.expression
    host = 'topk by (instance) (1, target_info{service_name="tickscope"})'
    named = f"({host} or on (instance) group by (instance) ({rule.expression}))"
    return f"({rule.expression}) * on (instance) group_left (host_name) {named}"


def texts(rule: Rule) -> dict[str, str]:
    return {
        "summary": rule.summary,
        "description": rule.meaning,
        "command": rule.command,
        "runbook_url": RUNBOOK_URL.replace("{alert}", rule.alert),
    }


def alerts() -> dict[str, Any]:
    rules = [
        {
            "alert": r.alert,
            "expr": expression(r),
            **({"for": r.lasts} if r.lasts else {}),
            # An empty value removes the label.
            "labels": {"severity": r.severity, "incident": r.incident, **dict.fromkeys(r.dropped, "")},
            "annotations": texts(r),
        }
        for r in RULES
    ]
    return {"groups": [{"name": "tickscope", "rules": rules}]}


def recordings() -> dict[str, Any]:
    rules = [{"record": r.record, "expr": r.expression} for r in RECORDINGS]
    return {"groups": [{"name": "tickscope.rules", "rules": rules}]}


def text(rules: dict[str, Any]) -> str:
    return "# Made by python -m dashboards.alerts\n" + json.dumps(rules, indent=1) + "\n"


#: What is written, by file.
FILES = {"alerts.yaml": alerts, "rules.yaml": recordings}

#: Where they are written. A Helm chart reads only files of its own.
FOLDERS = (Path(__file__).parent, Path(__file__).parents[1] / "deploy/helm/tickscope/files")

if __name__ == "__main__":
    for name, made in FILES.items():
        for folder in FOLDERS:
            (folder / name).write_text(text(made()))
