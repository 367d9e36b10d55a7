"""Every query of the dashboards, and every rule, in a real Prometheus that scraped our page: of nodes where recorded
sessions of the laboratory happen again, and of one with a row of each table that these have not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from hashlib import blake2b
from itertools import islice
from typing import Any

import pytest

from agent.batch import Batch, make
from agent.common.places import PLACES
from agent.tables import TABLES
from dashboards import alerts
from dashboards.boards import BOARDS, VARIABLES, dashboard
from exporters.fold import DRIFT_SPAN_NS
from tests.found import HOSTILE
from tests.patience import until
from tests.replayed import SECOND, Replayed, session
from tests.servers.prometheus import Prometheus

#: A clock that is stepped, a queue of RabbitMQ whose prefetch is full, a killed Redis, clients of TLS that are slow.
_SESSIONS = ("0020-0", "4038-0", "6008-0", "6008-3")
_HIST = [0] * 20 + [3] + [0] * 43
#: Text of others, in names of queues, limiters and processes.
_NAMES = [name.encode(errors="surrogateescape") for name in HOSTILE.values()]


def rows(t_ns: int, name: bytes) -> Iterator[Batch]:
    """Of tables that are not in the recordings, or of which these lack columns."""

    def code(table: str, column: str, word: str) -> int:
        return TABLES[table].code(column, word)

    clock = {c.name: 1000 for c in TABLES["clock_offset"].columns if c.kind == "i64"} | {"synchronised": 1}
    yield make("clock_offset", 1, **{**clock, "mono_raw_ns": t_ns, "t_ns": t_ns})
    daemon = {c.name: 1000 for c in TABLES["clock_daemon"].columns if c.kind == "i64"} | {"daemon": b"chrony"}
    yield make("clock_daemon", 1, **{**daemon, "t_ns": t_ns, "kind": code("clock_daemon", "kind", "system")})
    source = {**daemon, "t_ns": t_ns, "kind": code("clock_daemon", "kind", "source"), "source": name}
    yield make("clock_daemon", 1, **source)
    jump = {"size_ns": SECOND, "direction": 0, "comm": name, "kind": code("clock_change", "kind", "step")}
    yield make("clock_change", 1, t_ns=t_ns, via=1, **jump)
    yield make(
        "notice_status", 1, t_ns=t_ns, channel=0, sent=1, acknowledged=1, dropped=0, failed=0, pending=0, subscribers=1
    )
    counts = {"over_admitted": 3, "wrongly_refused": 4, "direction": 1, "quality": 0}
    yield make("limiter_jump", 1, t_ns=t_ns, limiter_id=name, comm=name, **counts)
    decision = {"limit_per_s": 5.0, "burst": 5.0, "cost": 1.0, "member": 7, "source": 0, "sample_rate": 1.0}
    yield make(
        "limiter_decision",
        4,
        t_ns=t_ns,
        limiter_id=name,
        comm=name,
        result=[0, 0, 1, 2],
        duration_ns=5_000_000,
        wait_ns=[0, 0, 0, 9_000_000],
        **decision,
    )
    numbers = {c.name: 5 for c in TABLES["queue_lag"].columns if c.kind in ("i64", "f64")}
    queue = {"system": b"redis", "cluster": b"east", "destination": name, "consumer_group": b"g", "partition": b"0"}
    yield make("queue_lag", 1, **{**numbers, **queue, "t_ns": t_ns, "status": b"lagging"})
    order = {k: v for k, v in queue.items() if k != "status"}
    yield make("message_order", 1, t_ns=t_ns, source=0, messages=9, duplicates=1, out_of_order=1, **order)
    sockets = {"comm": name, "queue": 3, "limit": 5, "overflows": t_ns // SECOND, "drops": t_ns // SECOND, "sport": 80}
    yield make("socket_queue", 1, t_ns=t_ns, kind=code("socket_queue", "kind", "accept"), **sockets)
    yield make("loss", 1, t_ns=t_ns, stage=1, source=name, count=9)
    yield make("tcp_reset", 1, t_ns=t_ns, comm=name, direction=0)
    yield make("tcp_connect", 1, t_ns=t_ns, comm=name, result=0, duration_ns=5_000_000)
    yield make("tls_handshake", 1, t_ns=t_ns, comm=name, role=0, result=0, duration_ns=5_000_000)
    yield make("dns_lookup", 1, t_ns=t_ns, comm=name, result=0, duration_ns=5_000_000)
    yield make(
        "service_latency", 1, t_ns=t_ns, comm=name, sport=80, hist=[[0] * 22 + [3] + [0] * 41], sum_ns=9, max_ns=9
    )
    yield make("tcp_rtt", 1, t_ns=t_ns, comm=name, role=0, hist=[_HIST], rtt_sum_us=9, rtt_min_us=1, rtt_max_us=9)
    call = {"syscall": b"read", "basis": 0, "kind": 0, "run_queue_ns": 9, "errors": 1, "sum_ns": 9, "max_ns": 9}
    yield make("syscall_latency", 1, t_ns=t_ns, comm=name, hist=[_HIST], **call)
    for symptom in (b"refusals", b"service_errors", b"clock_jump", b"clock_disagreement"):
        its_id = blake2b(symptom + name, digest_size=8).hexdigest().encode()
        finding = {"finding_id": its_id, "symptom": symptom, "cause": b"syscall", "severity": 1, "state": 0}
        places = dict.fromkeys(PLACES, name)
        yield make("finding", 1, t_ns=t_ns, subject=name, culprit_comm=name, culprit_object=name, **finding, **places)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Has scraped each page before and after things happened."""
    nodes = {name: Replayed() for name in (*_SESSIONS, "made", "hostile")}
    with ExitStack() as ends:
        ports = {name: ends.enter_context(closing(node.served())).port for name, node in nodes.items()}
        prometheus = ends.enter_context(Prometheus(tmp_path_factory.mktemp("prometheus"), ports))

        def scraped() -> None:
            """By each page twice more."""
            done = prometheus.value("sum(count_over_time(up[1h]))")
            until(lambda: prometheus.value("sum(count_over_time(up[1h]))") >= done + 2 * len(nodes))

        going = {name: nodes[name].seconds(session(name)) for name in _SESSIONS}
        for turn in range(3):
            for at, name in enumerate([b"made", *_NAMES]):
                node = nodes["hostile" if at else "made"]
                node.offer(*rows(turn * (DRIFT_SPAN_NS + SECOND) + SECOND, name))
            for node in nodes.values():
                node.observed(turn * 10 * SECOND)
            for seconds in going.values():
                list(islice(seconds, None if turn == 2 else 13))
            scraped()
        yield prometheus


def chosen(query: str) -> str:
    """As Grafana asks, with everything chosen."""
    query = query.replace("$__rate_interval", "1m").replace("$__range", "1h")
    asked = re.sub(rf"\$({'|'.join(VARIABLES)})\b", ".*", query)
    assert "$_" not in asked
    return asked


PANELS = [(name, p) for name in BOARDS for p in dashboard(name)["panels"] if "targets" in p]


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=[f"{b}: {p['title']}" for b, p in PANELS])
def test_a_panel_has_data(server: Prometheus, board: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        found = server.query(chosen(target["expr"]))
        assert [one for one in found if not math.isnan(float(one["value"][1]))], (board, target["expr"])


@pytest.mark.parametrize("board", BOARDS)
def test_choices_and_marks_have_data(server: Prometheus, board: str) -> None:
    for one in dashboard(board)["annotations"]["list"]:
        assert server.query(chosen(one["expr"])), one["expr"]
    for one in dashboard(board)["templating"]["list"]:
        if one["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]).groups()  # type: ignore[union-attr]
            series = server.get("series", **{"match[]": chosen(selector)})
            assert {s[label] for s in series if label in s}, one["query"]


def test_rules_are_evaluated_without_an_error(server: Prometheus) -> None:
    found = server.rules()
    assert len(found) == len(alerts.RULES) + len(alerts.RECORDINGS)
    assert {(r["name"], r["health"], r.get("lastError")) for r in found} == {(r["name"], "ok", None) for r in found}


@pytest.mark.parametrize("rule", alerts.RECORDINGS, ids=lambda r: str(r.record))
def test_what_is_recorded_has_data(server: Prometheus, rule: alerts.RecordingRule) -> None:
    assert server.query(rule.expression) and until(lambda: server.query(rule.record))


@pytest.mark.parametrize("rule", alerts.RULES, ids=lambda r: f"{r.alert}-{r.severity}")
def test_what_an_alert_compares_has_data(server: Prometheus, rule: alerts.Rule) -> None:
    """A selector that matches nothing would be a rule that never fires: without the comparison there is a value."""
    for part in re.split(r" or (?:on \([^)]*\) )?", rule.expression):
        assert server.query(re.sub(r"( [<>=]=? -?[\d.]+)+$", "", part)), part


def as_shown(table: str, column: str) -> set[str]:
    """The hostile names, as a column holds them: cut at its width, and what is not UTF-8 replaced."""
    width = TABLES[table].by_name[column].dtype.itemsize
    return {name[:width].decode("utf-8", "replace") for name in _NAMES}


@pytest.mark.parametrize(
    ("metric", "label", "table", "column"),
    [
        ("tickscope_queue_lag", "messaging_destination_name", "queue_lag", "destination"),
        (
            "tickscope_limiter_wrongly_refused_by_limiter_total",
            "rate_limiting_limiter_id",
            "limiter_jump",
            "limiter_id",
        ),
        ("tickscope_tcp_resets_by_process_total", "process_executable_name", "tcp_reset", "comm"),
        ("ntp_source_offset_seconds", "tickscope_source", "clock_daemon", "source"),
        ("tickscope_finding_open", "tickscope_subject", "finding", "subject"),
    ],
)
def test_hostile_names_arrive_as_they_are(server: Prometheus, metric: str, label: str, table: str, column: str) -> None:
    found = {one["metric"][label] for one in server.query(f'{metric}{{instance="hostile"}}')}
    assert found == as_shown(table, column)


def test_hostile_names_add_no_series(server: Prometheus) -> None:
    assert server.query("tickscope_fake") == []
    assert server.value('up{instance="hostile"}') == 1


def test_hostile_names_are_text_in_alerts(server: Prometheus) -> None:
    """Templates are expanded once: what a name says is not a template."""
    found = [a for a in server.get("alerts")["alerts"] if a["labels"].get("instance") == "hostile"]
    firing = [a for a in found if a["labels"]["alertname"] == "TickscopeQueueWillOverflow"]
    assert {a["labels"]["messaging_destination_name"] for a in firing} == as_shown("queue_lag", "destination")
    for alert in firing:
        name = alert["labels"]["messaging_destination_name"]
        assert alert["labels"]["incident"] == f"queue {name} of redis"
        assert alert["annotations"]["summary"].startswith(f"redis queue {name}, group g: full")
    for alert in found:
        if command := re.search("^tickscope explain (.*)", alert["annotations"]["command"], re.DOTALL):
            assert re.fullmatch("[0-9a-f]{16}", command[1])


def test_the_list_of_findings_has_their_places_to_choose_by(server: Prometheus) -> None:
    (table,) = (p for p in dashboard("findings")["panels"] if p["type"] == "table")
    columns = table["transformations"][0]["options"]["include"]["names"]
    places = ("k8s_namespace_name", "k8s_pod_name", "k8s_container_name", "container_image_name", "systemd_unit_name")
    assert {*places, "tickscope_culprit_pod", "tickscope_culprit_unit"} <= {*columns}
    for variable in ("namespace", "pod", "container", "image", "unit"):
        found = server.query(chosen(table["targets"][0]["expr"].replace(f"${variable}", "made")))
        assert {one["metric"]["instance"] for one in found} == {"made"}
        assert {one["metric"][place] for one in found for place in places} == {"made"}


def test_hostile_names_are_no_part_of_a_command(server: Prometheus) -> None:
    """In the list of findings, which people copy from."""
    (table,) = (p for p in dashboard("findings")["panels"] if p["type"] == "table")
    found = server.query(chosen(table["targets"][0]["expr"]))
    assert {one["metric"]["instance"] for one in found} >= {"hostile", "0020-0"}
    assert all(re.fullmatch("tickscope explain [0-9a-f]{16}", one["metric"]["command"]) for one in found)
