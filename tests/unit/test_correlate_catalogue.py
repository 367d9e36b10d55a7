"""A symptom is one file and a cause is one file: registered by being there, and none can end the others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import agent
from agent.cli.status import most_expensive
from agent.correlate.catalogue import Cause, causes, kept, symptoms
from agent.correlate.correlator import Correlator
from agent.correlate.episode import Episode, Verdict
from agent.correlate.guard import IN_A_ROW
from agent.correlate.view import View
from agent.errors import AgentError
from agent.tables import TABLES
from tests.unit.correlate_scenarios import ALL, T0, UNTIL, S, broker_slow, lagging, latest, refusing

SYMPTOM_FILE = '''"""Connections that are closed by dozens."""

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.watch import Watch
from agent.correlate.words import render, value, when

import numpy as np


class Closes(Watch):
    metrics = ("n",)

    def fill(self, second, rows):
        closed = rows.get("tcp_close")
        slots = np.array([self.series.slot(("all",), second)] if closed is not None else [], np.int64)
        self.series.put(second, slots, n=np.full(len(slots), 0.0 if closed is None else len(closed)))
        return slots

    def describe(self, symptom, slot):
        return Episode(symptom, ("all",), slot, "all connections", "host", metric="n")


def judge(watch, second):
    for slot in second.slots.tolist():
        n = float(watch.series.recent("n", second.slots, second.at, 1)[0, 0])
        if n >= 12 and (SYMPTOM.name, slot) not in watch.active:
            episode = watch.describe(SYMPTOM.name, slot)
            episode.start_ns = second.at * 10**9
            watch.open(episode, second.at, n, 1)


SYMPTOM = Symptom("closing_time", 900, "connections are closed by dozens", "all connections", "", "tcp_close",
                  {"tcp_close": ("retransmits",)},
                  lambda e: render("{n} were closed {when}", n=value(e.value, "connection"), when=when(e)),
                  "ask who closed them", Closes, judge)
'''
CAUSE_FILE = '''"""Connections that had to send again before they ended."""

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Verdict
from agent.correlate.words import render, value


def rule(episode, view):
    again = int(view.during("tcp_close", episode, 10**9)["retransmits"].sum())
    words = render("they had sent {again} again", again=value(again, "segment"))
    yield Verdict(CAUSE.name, 0.9 if again else 0.0, "", words)


CAUSE = Cause("worn_out", 900, "connections had sent too much again", {"tcp_close": ("retransmits",)},
              "look at the network", {"closing_time": rule})
'''
PROGRAM = """
import numpy as np
from agent.batch import make
from agent.correlate.correlator import Correlator
from agent.tables import CAUSES, SYMPTOMS
correlator = Correlator()
correlator.feed(make("tcp_close", 13, t_ns=10**12 + np.arange(13), pid=1, retransmits=3))
(row,) = [r for b in correlator.advance(10**12 + 9 * 10**9) if b.table == "finding" for r in b.rows if r["state"] == 1]
assert "closing_time" in SYMPTOMS.split() and "worn_out" in CAUSES.split()
print(row["symptom"].decode(), row["cause"].decode(), row["sentence"].decode(), sep="|")
"""


def test_files_dropped_into_the_package_are_found(tmp_path: Path) -> None:
    shutil.copytree(Path(agent.__file__).parent, tmp_path / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "agent/correlate/symptoms/closing_time.py").write_text(SYMPTOM_FILE)
    (tmp_path / "agent/correlate/causes/worn_out.py").write_text(CAUSE_FILE)

    def run(*argv: str) -> str:
        root = str(Path(agent.__file__).parents[1])
        return subprocess.run(
            [sys.executable, *argv],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    symptom, cause, sentence = run("-c", PROGRAM).strip().split("|")
    assert (symptom, cause) == ("closing_time", "worn_out")
    assert sentence.startswith("13 connections were closed from boot+1000.000") and sentence.endswith(
        "because they had sent 39 segments again."
    )
    listed = {row["cause"]: row for row in json.loads(run("-m", "agent", "causes", "-o", "json"))["rows"]}
    assert (listed["worn_out"]["explains"], listed["worn_out"]["reads"]) == ("closing_time", "tcp_close")
    assert list(listed)[-2:] == ["worn_out", "unknown"]
    listed = {row["symptom"]: row for row in json.loads(run("-m", "agent", "symptoms", "-o", "json"))["rows"]}
    assert listed["closing_time"]["causes"] == "worn_out" and list(listed)[-1] == "closing_time"


@pytest.mark.parametrize(("verb", "names"), [("causes", causes), ("symptoms", symptoms)])
@pytest.mark.parametrize("fmt", ["table", "json", "ndjson", "csv"])
def test_the_catalogue_is_printed(verb: str, names: Any, fmt: str) -> None:
    out = subprocess.run(
        [sys.executable, "-m", "agent", verb, "-o", fmt], capture_output=True, text=True, check=True
    ).stdout
    assert [name for name in names() if name not in out] == []


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ({"tcp_nothing": ("peer",)}, "'tcp_nothing'"),
        ({"tcp_close": ("nothing",)}, "tcp_close: there is no 'nothing'"),
    ],
)
def test_what_a_cause_reads_exists(monkeypatch: pytest.MonkeyPatch, reads: Any, message: str) -> None:
    wrong = {**causes(), "busy": replace(causes()["busy"], reads=reads)}
    monkeypatch.setattr("agent.correlate.catalogue.causes", lambda: wrong)
    with pytest.raises(AgentError, match=f"cause busy: reads.*{message}"):
        kept.__wrapped__()


def test_declarations_are_whole() -> None:
    for declared in (*symptoms().values(), *causes().values()):
        assert declared.meaning and declared.todo and not declared.meaning.endswith(".")
        assert {c for columns in declared.reads.values() for c in columns} <= {
            c for t in declared.reads for c in TABLES[t].by_name
        }
    assert all(symptom in symptoms() for cause in causes().values() for symptom in cause.explains)
    explained = {symptom for cause in causes().values() for symptom in cause.explains}
    assert [name for name, one in symptoms().items() if one.judge and name not in explained] == [], (
        "no cause explains it"
    )
    assert [name for name in (*symptoms(), *causes()) if len(name) > TABLES["finding"].by_name["cause"].width] == []
    assert set(kept()) <= set(TABLES)
    orders = [[one.order for one in some.values()] for some in (symptoms(), causes())]
    assert all(len(set(order)) == len(order) and order == sorted(order) for order in orders)


def breaks(_episode: Episode, _view: View) -> Iterator[Verdict]:
    raise ZeroDivisionError("of this rule")


def findings(correlator: Correlator, host: Any) -> list[dict[str, object]]:
    for batch in host.made:
        correlator.feed(batch)
    return latest([b for second in range(UNTIL + 20) for b in correlator.advance(T0 + second * S)])


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.__name__)
def test_a_cause_that_raises_does_not_end_the_others(scenario: Any) -> None:
    broken = Cause("broken", 0, "it breaks", {}, "mend it", dict.fromkeys(symptoms(), breaks))
    with_it, without = Correlator(causes_to_judge=[broken, *causes().values()]), Correlator()
    assert findings(with_it, scenario()) == findings(without, scenario())
    assert with_it.losses()["rules"] == with_it.guard.missed() > 0
    assert without.losses()["rules"] == 0, without.guard.failures
    assert with_it.guard.new_failures()[0] in [
        f"cause broken of {symptom}: ZeroDivisionError: of this rule" for symptom in symptoms()
    ]
    assert not with_it.guard.new_failures()


def test_a_cause_that_goes_on_raising_is_left_out_and_reported() -> None:
    broken = Cause("broken", 0, "it breaks", {}, "mend it", {"queue_lag": breaks})
    correlator = Correlator(causes_to_judge=[broken, *causes().values()])
    (found,) = findings(correlator, lagging(out=20))
    assert found["cause"] == "consumer_slow"
    assert correlator.guard.counts["cause broken of queue_lag"] == IN_A_ROW
    assert correlator.guard.new_failures()[-1].endswith("left out from now on")
    (row,) = [row for row in correlator.guard.state() if row["rule"] == "cause broken of queue_lag"]
    assert (row["failures"], row["left_out"], row["run_ns"]) == (IN_A_ROW, True, None)


def test_a_symptom_that_raises_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(_watch: object, _second: object) -> None:
        raise IndexError("of this symptom")

    monkeypatch.setitem(symptoms(), "decision_latency", replace(symptoms()["decision_latency"], judge=judge))
    correlator = Correlator()
    (found,) = findings(correlator, refusing(rate=200.0))
    assert (found["symptom"], found["cause"]) == ("refusals", "load")
    assert correlator.guard.counts == {"symptom decision_latency": IN_A_ROW}
    assert correlator.losses()["rules"] == IN_A_ROW + correlator.guard.skipped > IN_A_ROW, (
        "for as long as it is left out"
    )


def test_what_a_rule_costs_is_known_to_who_passes_a_clock() -> None:
    ticks = count(step=7)
    correlator = Correlator(clock=lambda: next(ticks))
    findings(correlator, broker_slow())
    rows = {row["rule"]: row for row in correlator.guard.state()}
    assert (
        rows["cause broker_slow of decision_latency"]["run_ns"]
        == 7 * int(str(rows["cause broker_slow of decision_latency"]["runs"]))
        > 0
    )
    assert rows["symptom decision_latency"]["runs"] == UNTIL - 1, "the second of the stall has no decision"


def test_people_are_reported_of_the_most_expensive_rules_only() -> None:
    correlator = Correlator(clock=partial(next, count(step=10_000_000)))
    assert most_expensive(correlator.guard.state()) == "" == most_expensive([])
    findings(correlator, broker_slow())
    rules = correlator.guard.state()
    new = most_expensive(rules)
    assert new.startswith(
        f"{sum(correlator.guard.runs.values()) * 0.01:.2f} s in {correlator.guard.runs.total()} calls; most expensive: "
    )
    assert new.count(" s in ") == 1 + 3
    assert len(rules) <= 4 * len(symptoms()) + 2 * 16 + sum(len(cause.explains) + 1 for cause in causes().values()), (
        "bounded by what is declared"
    )


def test_where_nothing_changed_nothing_is_ranked_anew() -> None:
    """A stall is over at once, its finding stays open for some seconds; until its causes' rows have come, and no
    longer, it is ranked.
    """
    correlator = Correlator()
    (found,) = findings(correlator, broker_slow())
    assert found["cause"] == "broker_slow"
    assert 1 <= correlator.guard.runs["cause broker_slow of decision_latency"] <= 3, (
        "six seconds open, each second ranked before"
    )


def test_rows_that_come_late_are_ranked_with() -> None:
    host = broker_slow()
    late = [batch for batch in host.made if batch.table == "slow_syscall"]
    correlator = Correlator()
    for batch in host.without("slow_syscall").made:
        correlator.feed(batch)
    assert latest([b for tick in range(330) for b in correlator.advance(T0 + tick * S // 10)])[0]["cause"] == "unknown"
    for batch in late:
        correlator.feed(batch)
    assert (
        latest([b for tick in range(330, 600) for b in correlator.advance(T0 + tick * S // 10)])[0]["cause"]
        == "broker_slow"
    )
