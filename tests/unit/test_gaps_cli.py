"""Every verb that reads the store tells what is missing from its answer: in the JSON document, else on stderr."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent.batch import Batch, make
from agent.cli.gaps import hides_findings
from agent.columns import NULL_I64
from agent.common.clocks import boot_ns
from agent.common.host import boot_id as this_boot
from agent.service.unevaluated import REASONS, Unevaluated
from agent.store.hot import HotStore
from agent.tables import TABLES
from tests.commands import tickscope
from tests.unit.correlate_scenarios import T0, S, broker_slow, latest, run
from tests.unit.test_replay_cli import HEAD

VERBS = (
    ["query", "tcp_rtt", "--since", "5m"],
    ["findings", "--since", "5m"],
    ["findings"],
    ["limiters"],
    ["queues"],
    ["sql", "select * from tcp_rtt"],
    ["explain"],
    ["clock", "history", "--since", "5m"],
)


def lost(now_ns: int, source: bytes = b"tcp_events", stage: str = "ring", **columns: int) -> Batch:
    return make(
        "loss",
        1,
        t_ns=now_ns,
        stage=TABLES["loss"].code("stage", stage),
        source=source,
        **{"count": 17, "from_ns": now_ns - 2 * S, "to_ns": now_ns, **columns},
    )


def store(path: Path, *batches: Batch, boot: str = "") -> Path:
    hot = HotStore(path, boot or this_boot(), HEAD.host, seal_command=())
    hot.append(batches)
    hot.close()
    return path


@pytest.fixture
def gappy(tmp_path: Path) -> Path:
    return store(tmp_path / "store", lost(boot_ns() - 10 * S))


@pytest.mark.parametrize("argv", VERBS, ids=" ".join)
def test_gaps_and_notes_are_reported_on_stderr(gappy: Path, argv: list[str]) -> None:
    done = tickscope(*argv, "--store", gappy, "-o", "ndjson" if argv == ["queues"] else "table")
    assert done.returncode == 3
    assert re.search(rb"gap: 17 records lost in ring \(tcp_events\), between (boot\+|\d{4}-)", done.stderr)
    assert done.stderr.count(b"note: no agent writes this store now") == 1


@pytest.mark.parametrize("argv", [v for v in VERBS if v[0] != "explain"], ids=" ".join)
def test_gaps_are_in_the_document(gappy: Path, argv: list[str]) -> None:
    done = tickscope(*argv, "--store", gappy, "-o", "json")
    doc: dict[str, Any] = json.loads(done.stdout)
    assert [(g["stage"], g["source"], g["count"]) for g in doc["gaps"]] == [("ring", "tcp_events", 17)]
    assert b"gap: " not in done.stderr
    assert done.stderr.count(b"note: no agent writes this store now") == 1


@pytest.mark.parametrize("argv", [["findings", "--since", "5m"], ["findings", "--open"], ["explain"]], ids=" ".join)
def test_no_finding_beside_a_gap_is_no_good_news(gappy: Path, argv: list[str]) -> None:
    output = tickscope(*argv, "--store", gappy).stderr
    assert b"nothing wrong" not in output
    assert b"but rows are missing or were not evaluated: see above" in output


def test_a_gap_outside_the_window_reports_nothing_of_it(tmp_path: Path) -> None:
    now = boot_ns()
    path = store(tmp_path, lost(now - 60 * S))
    output = tickscope("findings", "--since", "30s", "--store", path).stderr
    assert b"no findings in that time\n" in output and b"gap" not in output
    assert b"see above" in tickscope("findings", "--since", "1h", "--store", path).stderr


def test_what_only_an_exporter_lost_was_checked(tmp_path: Path) -> None:
    output = tickscope("findings", "--store", store(tmp_path, lost(boot_ns(), b"otlp full", "export"))).stderr
    assert b"no findings\n" in output and b"lost in export (otlp full)" in output
    assert b"; the store has them" in output
    assert hides_findings([{"stage": "export"}, {"stage": "kernel"}])


def test_what_the_correlator_left_out_is_reported_and_not_called_lost(tmp_path: Path) -> None:
    counts = dict.fromkeys(REASONS, 0)
    source, now = Unevaluated(lambda: counts), boot_ns()
    counts["subjects"] = 600
    rows = [*source.drain(now - 90 * S)]
    counts.update(subjects=1100, late=3)
    path = store(tmp_path, *rows, *source.drain(now))
    output = tickscope("findings", "--store", path).stderr
    assert b"note: not evaluated for findings: 500 seconds of limiters, " in output
    assert b", 3 late rows (earlier reports: 1)" in output
    assert b"rows are missing or were not evaluated: see above" in output
    assert b"lost" not in output
    assert json.loads(tickscope("findings", "--store", path, "-o", "json").stdout)["gaps"] == []
    assert b"rows are missing" in tickscope("explain", "--store", path).stderr


def test_a_finding_is_reported_with_the_gaps_of_its_own_time(tmp_path: Path) -> None:
    batches = run(broker_slow(), 60)
    start, end = (int(latest(batches)[0][name]) for name in ("start_ns", "end_ns"))  # type: ignore[call-overload]
    gaps = [
        lost(end + S, b"during", from_ns=end - 1, to_ns=end + S),
        lost(start, b"opening", from_ns=NULL_I64, to_ns=start),
        lost(start - 5 * S, b"before"),
        lost(end + 30 * S, b"after"),
    ]
    path = store(tmp_path, *batches, *gaps, boot=HEAD.boot_id)
    doc = json.loads(tickscope("explain", "--store", path, "-o", "json").stdout)
    assert sorted(g["source"] for g in doc["gaps"]) == ["during", "opening"]
    output = tickscope("explain", "--store", path).stderr
    assert output.count(b"gap: ") == 2
    assert T0 < start < end


def test_queues_of_now_need_no_store(tmp_path: Path) -> None:
    doc = json.loads(tickscope("queues", "--now", "--store", tmp_path / "none", "-o", "json").stdout)
    assert doc["gaps"] == []
