"""Names, labels and runbooks of alerts on findings. The agent's own alerts (exporters/alertmanager.py) and those of the
rules for Prometheus (dashboards/alerts.py) have the same ones, so that they are grouped and routed alike. The node is
``host_name`` in both: ``instance`` is what the scrape makes of it.
"""

from __future__ import annotations

import re

#: Names of alerts by the finding's symptom, and of all other findings.
CLOCK_ALERTS = {"clock_jump": "TickscopeClockJump", "clock_disagreement": "TickscopeTimeDaemonWrong"}
FINDING_ALERT = "TickscopeFinding"
#: Where the runbooks are: on each node.
RUNBOOK_URL = "file:///opt/tickscope/docs/runbooks/{alert}.md"
#: Causes that are changes of a clock.
CLOCK_CAUSES = ("clock_step", "clock_slew", "leap")
#: Regular expressions that Python and Go read alike: ip:port, and the beginning of one of this host.
ENDPOINT = r"([0-9.]+|\[[0-9a-f:.]+\]):[0-9]+"
LOOPBACK = r"127\.|\[::1\]"
#: Symptoms that are errors for users, or lost data, by themselves. Others are slowness, or precede harm.
HARMFUL = (
    "broker_down",
    "connect_failures",
    "entries_lost",
    "handshake_failures",
    "refusals",
    "retention_near",
    "service_errors",
    "silence",
)
#: Causes with which a limiter does what it is for: more requests came, or the limit was lowered.
INTENDED = ("load", "config")
#: How long a harmful finding is open before it is critical.
CRITICAL_AFTER_S = 300


def alert_name(symptom: str) -> str:
    return CLOCK_ALERTS.get(symptom, FINDING_ALERT)


def incident(cause: str, comm: str, thing: str, host: str) -> str:
    """The label to group by: the same for all findings of one fault. All changes of clocks are one incident, and what
    nodes share, a server's ip:port, is one for all of them. comm, thing: the culprit's. host: the node's name.
    """
    if cause in CLOCK_CAUSES:
        return "clock"
    if re.fullmatch(ENDPOINT, thing) and not re.match(LOOPBACK, thing):
        return f"{cause} {thing}"
    return " ".join(filter(None, (cause, comm, "on", host)))


def severities(severity: str, symptom: str, cause: str) -> tuple[str, str]:
    """The label ``severity`` of a finding that opens, and once it has been open for CRITICAL_AFTER_S. severity: the
    finding's.
    """
    if severity != "alarm":
        return "info", "info"
    return "warning", "critical" if symptom in HARMFUL and cause not in INTENDED else "warning"
