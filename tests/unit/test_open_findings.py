"""The gauge of open findings: one series a finding, with its latest cause, until 5 minutes after it closed."""

from __future__ import annotations

from agent.batch import Batch, make
from agent.tables import TABLES
from exporters.aggregate import MetricStore
from exporters.alertmanager import _LABELS
from exporters.open_findings import KEPT_NS, MOST, OpenFindings

_S = 10**9
_OPEN, _CLOSED = (TABLES["finding"].code("state", word) for word in ("open", "closed"))
_ALARM = TABLES["finding"].code("severity", "alarm")


def finding(its_id: bytes, t_ns: int, state: int = _OPEN, cause: bytes = b"unknown", culprit: bytes = b"") -> Batch:
    more = {"symptom": b"refusals", "subject": b"limiter a", "severity": _ALARM, "culprit_comm": culprit}
    return make("finding", 1, t_ns=t_ns, finding_id=its_id, state=state, cause=cause, **more)


def shown(store: MetricStore) -> dict[str, tuple[float, dict[str, object]]]:
    every = {m.name: series for m, series in store.collect()}.get("tickscope.finding.open", [])
    return {str(dict(s.attributes)["tickscope.finding.id"]): (s.value, dict(s.attributes)) for s in every}


def test_a_finding_has_one_series_with_its_latest_cause() -> None:
    sink = OpenFindings(store := MetricStore(), "web1")
    sink.offer(finding(b"ab", _S))
    assert shown(store)["ab"][0] == 1 and "tickscope.culprit_comm" not in shown(store)["ab"][1]
    sink.offer(finding(b"ab", 2 * _S, cause=b"disk", culprit=b"dd"))
    ((value, labels),) = shown(store).values()
    assert (value, labels["tickscope.cause"], labels["tickscope.culprit_comm"]) == (1, "disk", "dd")
    assert labels["host.name"] == "web1"


def test_its_labels_are_those_of_the_agents_own_alerts() -> None:
    sink = OpenFindings(store := MetricStore(), "web1")
    batch = finding(b"ab", _S)
    for name in _LABELS:
        batch.rows[name] = name.encode()
    sink.offer(batch)
    ((_, labels),) = shown(store).values()
    labels = {name.replace(".", "_"): value for name, value in labels.items()}
    assert {label: labels[label] for label in _LABELS.values()} == {label: name for name, label in _LABELS.items()}


def test_it_stays_for_five_minutes_after_it_closed_and_no_longer() -> None:
    sink = OpenFindings(store := MetricStore(), "web1")
    sink.offer(finding(b"ab", _S))
    sink.offer(finding(b"cd", _S))
    sink.offer(finding(b"ab", 9 * _S, _CLOSED))
    for t_ns, expected in ((9 * _S + KEPT_NS, {"ab": 0, "cd": 1}), (10 * _S + KEPT_NS + 1, {"cd": 1})):
        sink.offer(make("tcp_reset", 1, t_ns=t_ns))  # any row tells the time
        assert {its_id: value for its_id, (value, _) in shown(store).items()} == expected


def test_beyond_the_limit_closed_ones_go_first_and_open_ones_are_counted() -> None:
    sink = OpenFindings(store := MetricStore(), "web1")
    sink.offer(finding(b"closed", 999 * _S, _CLOSED))
    for n in range(MOST):
        sink.offer(finding(b"%x" % n, (1000 + n) * 10**6 + 999 * _S))
    assert len(shown(store)) == MOST and "closed" not in shown(store) and sink.losses() == {"finding_limit": 0}
    sink.offer(finding(b"last", 1002 * _S))
    assert {"last"} <= shown(store).keys() and "0" not in shown(store) and sink.losses() == {"finding_limit": 1}
