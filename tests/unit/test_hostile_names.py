"""Every name of ``tests.found.HOSTILE`` on each surface that a test without servers can read: it is shown as text, and
nothing more. The journal, Slack, Alertmanager, Prometheus, Grafana and a browser have tests of their own with the same
names (test_notify_journal, test_notify_slack; tests/servers: test_alertmanager, test_boards, test_browser,
test_journald).
"""

from __future__ import annotations

import csv
import io
import json
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus_text

from agent.common.clocks import boot_ns
from agent.tables import TABLES
from exporters.aggregate import MetricStore
from exporters.open_findings import OpenFindings
from exporters.process_resource import ProcessResources
from exporters.prometheus import PrometheusEndpoint
from exporters.records import records
from exporters.spans import SpanEncoder
from tests.commands import on_terminal, tickscope
from tests.found import HOSTILE, hostile, hostile_rows, hostile_store
from tests.screens import Program

VERBS = (
    ["findings"],
    ["explain", "last"],
    ["limiters"],
    ["limiters", "show", "<script>"],
    ["queues"],
    ["queues", "show", "<script>"],
    ["clock"],
    ["clock", "history"],
    ["query", "limiter_decision"],
    ["query", "limiter_decision", "--group-by", "limiter_id"],
    ["sql", "select limiter_id, comm from limiter_decision"],
    ["top"],
)
#: What tickscope itself sends to a terminal: colours, and in ``top`` positions and modes.
_OURS = re.compile(r"\x1b\[(?:\d*(?:;\d+)*[mGHKJ]|\?(?:1049|25|7|2026)[hl]|8[lh]|2J)")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_store(tmp_path_factory.mktemp("hostile") / "store", HOSTILE.values())


def harmless(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_verb_prints_text(place: Path, verb: list[str]) -> None:
    """And a name adds neither a line of ndjson nor a row of csv."""
    counts = set()
    for fmt in ("table", "json", "ndjson", "csv"):
        if verb == ["top"] and fmt in ("ndjson", "csv"):
            continue
        done = tickscope(*verb, "--store", place, "-o", fmt)
        assert done.returncode == 0, done.stderr
        assert harmless(done.stdout.decode()) and harmless(done.stderr.decode()), (fmt, done)
        if fmt == "json" and "rows" in (document := json.loads(done.stdout)):
            counts.add(len(document["rows"]))
        if fmt == "ndjson" and verb[0] != "explain":
            counts.add(len([json.loads(line) for line in done.stdout.splitlines()]))
        if fmt == "csv" and verb[0] != "explain":
            counts.add(len(list(csv.DictReader(io.StringIO(done.stdout.decode())))))
    assert len(counts) <= 1


@pytest.mark.parametrize("verb", [["findings"], ["limiters"], ["queues"], ["query", "limiter_decision"]], ids=" ".join)
def test_json_has_the_names_as_they_are(place: Path, verb: list[str]) -> None:
    def strings(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from strings(one)

    found = set(strings(json.loads(tickscope(*verb, "--store", place, "-o", "json").stdout)))
    assert {name.encode(errors="surrogateescape").decode("utf-8", "replace") for name in HOSTILE.values()} <= found


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != ["top"]], ids=" ".join)
def test_a_verb_writes_its_own_escapes_only(place: Path, verb: list[str]) -> None:
    assert harmless(_OURS.sub("", on_terminal(*verb, "--store", place, errors=True)))


def test_top_writes_its_own_escapes_only(place: Path) -> None:
    with Program(["top", "--store", place], 160, 50) as program:
        program.until(lambda text: "FINDINGS" in text and "reading the store" not in text, 40)
        for key in ("2", "3", "4", "5", "1", "\r"):
            program.press(key)
            program.read(1.0)
        program.press("q", "q")
        assert program.ended() == 0
    assert harmless(_OURS.sub("", program.raw.decode()).replace("\r", ""))


class _Tags(HTMLParser):
    """Counts elements and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[tuple[str, ...]] = Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag, *(name for name, _ in attrs)] += 1


def test_a_report_has_the_elements_that_it_has_with_harmless_names(place: Path, tmp_path: Path) -> None:
    plain = hostile_store(tmp_path / "plain", [f"name{i}" for i in range(len(HOSTILE))])
    pages = []
    for store in (place, plain):
        out = tmp_path / "report.html"
        done = tickscope("report", "--since", "boot+0", "-o", out, "--store", store)
        assert done.returncode == 0, done.stderr
        pages.append(out.read_text())
    assert _Tags(pages[0]).found == _Tags(pages[1]).found
    assert "\x1b" not in pages[0] and "\u202e" not in pages[0]


def shown(name: str, table: str, column: str) -> str:
    """The name as a column holds it: cut at its width, and what is not UTF-8 replaced."""
    width = TABLES[table].by_name[column].dtype.itemsize
    return name.encode(errors="surrogateescape")[:width].decode("utf-8", "replace")


@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_the_metrics_page_has_names_as_values(kind: str) -> None:
    """Read by the parsers of Prometheus' own Python client."""
    store = MetricStore()
    sinks = (store, OpenFindings(store, "web1"))
    for i, name in enumerate(HOSTILE.values()):
        for batch in hostile_rows(name, boot_ns() + i):
            for sink in sinks:
                sink.offer(batch)
    with closing(PrometheusEndpoint(("127.0.0.1", 0), store, {"service.name": "tickscope"})) as page:
        asked = urllib.request.Request(f"http://127.0.0.1:{page.port}/metrics", headers={"Accept": kind})
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert answer.headers["Content-Type"].startswith(kind)
            text = answer.read().decode()
    parse = openmetrics if "openmetrics" in kind else prometheus_text
    families: list[Metric] = list(parse(text))
    samples = [sample for family in families for sample in family.samples]
    assert not [sample for sample in samples if sample.name == "tickscope_fake"]
    for name, label, table, column in (
        ("tickscope_finding_open", "tickscope_subject", "finding", "subject"),
        ("tickscope_queue_lag", "messaging_destination_name", "queue_lag", "destination"),
        ("tickscope_limiter_decisions_by_limiter_total", "rate_limiting_limiter_id", "limiter_decision", "limiter_id"),
    ):
        found = {sample.labels[label] for sample in samples if sample.name == name}
        assert found == {shown(one, table, column) for one in HOSTILE.values()}, name


@pytest.mark.parametrize("name", HOSTILE)
def test_otlp_has_names_as_values(name: str) -> None:
    encoder = SpanEncoder("boot", lambda t_ns: t_ns, ProcessResources({"service.name": "tickscope"}))
    row = hostile("aa11", HOSTILE[name], "closed").rows
    (span,) = (Span.FromString(one.span) for one in encoder.findings(row))
    (record,) = (LogRecord.FromString(raw) for raw in records("closed", row, encoder, lambda t: t, sampled=True))
    for of in (span.attributes, record.attributes):
        values = {one.key: one.value.string_value for one in of}
        assert values["tickscope.subject"] == shown(HOSTILE[name], "finding", "subject")
        assert values["tickscope.cause"] == "process_stopped"
        assert len(values) == len(of)
