"""Labels of alerts on findings. The agent's own alerts (exporters/alertmanager.py) and those of the rules for
Prometheus (dashboards/alerts.py) have the same ones, so that they are grouped and routed alike.
"""

from __future__ import annotations

import re

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


def incident(cause: str, comm: str, thing: str, instance: str) -> str:
    """The label to group by: the same for all findings of one fault. All changes of clocks are one incident, and what
    nodes share, a server's ip:port, is one for all of them. comm, thing: the culprit's.
    """
    if cause in CLOCK_CAUSES:
        return "clock"
    if re.fullmatch(ENDPOINT, thing) and not re.match(LOOPBACK, thing):
        return f"{cause} {thing}"
    return " ".join(filter(None, (cause, comm, "on", instance)))


def severities(severity: str, symptom: str, cause: str) -> tuple[str, str]:
    """The label ``severity`` of a finding that opens, and once it has been open for CRITICAL_AFTER_S. severity: the
    finding's.
    """
    if severity != "alarm":
        return "info", "info"
    return "warning", "critical" if symptom in HARMFUL and cause not in INTENDED else "warning"
