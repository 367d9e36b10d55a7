"""Findings as alerts of Alertmanager, by its API v2 (POST /api/v2/alerts).

An open finding is sent again and again, without an end: Alertmanager ends an alert itself if nobody repeats it for its
``resolve_timeout`` (5 minutes by default), for example since the agent is gone. A closed finding is sent once, with its
end.

The node's wall clock may be what is wrong. So times are by Alertmanager's clock (the Date of its answers) where the two
differ: an alert that starts in its future is refused, and one that ended in its past notifies nobody.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from agent.columns import NULL_I64
from agent.common.alert_labels import CRITICAL_AFTER_S, alert_name, incident, severities
from agent.common.clocks import boot_ns
from agent.common.finding import CHANGED, CLOSED, FindingEvent, FindingEvents
from agent.common.instants import iso
from agent.common.places import PLACES
from agent.common.sentence import ToWall
from agent.tables import TABLES
from exporters.lane import Lane
from exporters.notifier import MAX_AGE_S, MOST_WAITING, Notifier
from exporters.notify_settings import AlertmanagerSettings
from exporters.webhook import Webhook, is_page, remedy

if TYPE_CHECKING:
    from exporters.transport import Answer

PATH = "/api/v2/alerts"
#: How often open findings are sent: five times within Alertmanager's default resolve_timeout.
RESEND_S = 60.0
#: How often an empty list is sent, so that ``status`` shows a fault before an alert meets it.
IDLE_S = 600.0
#: Clocks that differ by less agree: a Date has whole seconds, and an answer takes time.
_AGREE_NS = 2 * 10**9
#: Columns of a finding that are labels -> their names, which are those of ``tickscope_finding_open``.
_LABELS = {
    name: (TABLES["finding"].by_name[name].attribute or f"tickscope.{name}").replace(".", "_")
    for name in ("finding_id", "symptom", "cause", "culprit_comm", "culprit_object", *PLACES)
}


def api_url(url: str) -> str:
    """The URL of the API, from that of Alertmanager."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(PATH) else path + PATH))


@dataclass
class _Alert:
    """later: the labels once the finding has been open for CRITICAL_AFTER_S. opened_ns, start_ns, end_ns:
    CLOCK_BOOTTIME of the first row with these labels, and of the finding; end_ns is 0 while it is open. pending: its
    latest state is not delivered yet. sent_ns: CLOCK_BOOTTIME of its first delivery, 0 before that. ended_s:
    time.monotonic.
    """

    labels: Mapping[str, str]
    later: Mapping[str, str]
    annotations: Mapping[str, str]
    link: str
    opened_ns: int
    start_ns: int
    end_ns: int = 0
    pending: bool = True
    sent_ns: int = 0
    ended_s: float = 0.0


class AlertmanagerNotifier(Notifier):
    """read_url: of Alertmanager. node: the labels of this node, ``instance`` and ``host_name``. link: makes the link of
    a finding; empty for none. to_wall is called on the worker thread.
    """

    def __init__(
        self,
        name: str,
        settings: AlertmanagerSettings,
        events: FindingEvents,
        to_wall: ToWall,
        *,
        read_url: Callable[[], str],
        node: Mapping[str, str],
        link: Callable[[FindingEvent], str],
        resend_s: float = RESEND_S,
    ) -> None:
        self._webhook = Webhook(lambda: api_url(read_url()), _wrong, settings.ca_file)
        super().__init__(name, events, Lane(name, self._webhook, _listed))
        self._settings, self._to_wall, self._node, self._link = settings, to_wall, node, link
        self._hold_ns, self._resend_s = int(settings.hold_s * 1e9), resend_s
        self._open: dict[str, _Alert] = {}
        self._ended: list[_Alert] = []
        self._posted: list[_Alert] = []
        self._due_s = 0.0

    @property
    def endpoint(self) -> str:
        return self._webhook.shown

    def waiting(self) -> int:
        return sum(alert.pending for alert in (*self._open.values(), *self._ended))

    def take(self, one: FindingEvent, now: float) -> None:
        now_ns, finding_id = boot_ns(), one.text("finding_id")
        alert, subject, host = alert_name(one.text("symptom")), one.text("subject"), self._node["host_name"]
        annotations = {
            "summary": one.text("sentence"),
            "description": f"{one.text('symptom')} of {subject} on {host}",
            "command": f"tickscope explain {finding_id}",
            "subject": subject,
        }
        if self._settings.runbook_url:
            annotations["runbook_url"] = self._settings.runbook_url.replace("{alert}", alert)
        labels, later = self._labels(one)
        new = _Alert(labels, later, annotations, self._link(one), now_ns, int(one.fields["start_ns"]))
        with self._lock:
            old = self._open.pop(finding_id, None)
            if old is not None and old.later != new.later:  # for Alertmanager another alert: the cause is clearer now
                self._end(old, now_ns, now)
            elif old is not None:
                new.labels, new.opened_ns, new.sent_ns = old.labels, old.opened_ns, old.sent_ns
                new.pending = old.pending or one.event != CHANGED
            if one.event == CLOSED:
                self._end(new, max(int(one.fields["end_ns"]), (new.sent_ns or now_ns) + self._hold_ns), now)
            else:
                self._open[finding_id] = new
            while len(self._open) + len(self._ended) > MOST_WAITING:
                if self._ended:
                    del self._ended[0]
                else:
                    del self._open[next(iter(self._open))]
                self._queue_full += 1

    def _end(self, alert: _Alert, end_ns: int, now: float) -> None:
        self._ended.append(replace(alert, end_ns=end_ns, ended_s=now, pending=True))

    def _labels(self, one: FindingEvent) -> Iterator[dict[str, str]]:
        """Of its alert, and of the later one."""
        found, host = {name: one.text(name) for name in _LABELS}, self._node["host_name"]
        for severity in severities(one.text("severity"), found["symptom"], found["cause"]):
            labels = {
                "alertname": alert_name(found["symptom"]),
                **self._node,
                "severity": severity,
                "incident": incident(found["cause"], found["culprit_comm"], found["culprit_object"], host),
                **{_LABELS[name]: value for name, value in found.items()},
                **self._settings.labels,
            }
            yield {name: value for name, value in labels.items() if value}

    def prepare(self, now: float) -> float:
        lane = self._lane
        if lane.request and now < lane.not_before:
            return lane.not_before
        with self._lock:
            kept = [alert for alert in self._ended if now - alert.ended_s <= MAX_AGE_S]
            self._expired += len(self._ended) - len(kept)
            self._ended = kept
            self._worsen(now)
            alerts = [*self._open.values(), *kept]
            if not lane.request and now < self._due_s and not any(alert.pending for alert in alerts):
                return self._due_s
        # A request that failed is replaced: more is known now.
        lane.begin([self._encoded(alert) for alert in alerts] or [b""], len(alerts))
        self._posted = alerts
        self._due_s = now + (self._resend_s if self._open else IDLE_S) * random.uniform(0.8, 1.0)
        return self._due_s

    def _worsen(self, now: float) -> None:
        """Replaces alerts of findings that have been open for so long that they are critical."""
        now_ns = boot_ns()
        for finding_id, alert in self._open.items():
            if alert.labels != alert.later and now_ns - alert.opened_ns >= CRITICAL_AFTER_S * 10**9:
                self._end(alert, now_ns, now)
                self._open[finding_id] = replace(alert, labels=alert.later, pending=True, sent_ns=0)

    def delivered(self) -> None:
        with self._lock:
            for alert in self._posted:
                alert.pending, alert.sent_ns = False, alert.sent_ns or boot_ns()
            self._ended = [alert for alert in self._ended if alert.pending]

    def _encoded(self, alert: _Alert) -> bytes:
        starts, ends = self._unix_ns(alert.start_ns), self._unix_ns(alert.end_ns) if alert.end_ns else None
        if starts is not None and ends is not None:
            ends = max(starts, ends)
        times = {name: iso(at, 3, utc=True) for name, at in (("startsAt", starts), ("endsAt", ends)) if at is not None}
        link = {"generatorURL": alert.link} if alert.link else {}
        return json.dumps({"labels": alert.labels, "annotations": alert.annotations, **times, **link}).encode()

    def _unix_ns(self, t_ns: int) -> int | None:
        """Unix time of CLOCK_BOOTTIME ns; None if unknown."""
        own = int(self._to_wall(np.array([t_ns]))[0])
        if (known := self._webhook.server_time) is None:
            return None if own == NULL_I64 else own
        theirs = known[1] + t_ns - known[0]
        return own if abs(own - theirs) <= _AGREE_NS else theirs

    def remedy(self, error: str) -> str:
        return remedy(error, "Alertmanager (usually port 9093)", "notify.alertmanager")


def _listed(parts: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(filter(None, parts)) + b"]"


def _wrong(answer: Answer) -> str:
    return "the answer is a web page: is this the URL of Alertmanager?" if is_page(answer) else ""
