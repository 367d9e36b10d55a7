"""What a finding rests on, as rows of their own: the causes that were considered, and what speaks for and against."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.ask.names import quote
from agent.ask.sql import literal
from agent.correlate import evidence
from agent.correlate.catalogue import Cause, causes, dtypes
from agent.correlate.correlator import Correlator
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.finding import Finding
from agent.correlate.guard import Guard
from agent.correlate.rank import Judge
from agent.correlate.replay import states
from agent.correlate.thresholds import CorrelatorConfig
from agent.correlate.view import View
from agent.store.recorded import Recorded
from agent.store.recording import Recording
from agent.tables import TABLES
from tests.commands import tickscope
from tests.lab.small import NAME, unpack
from tests.unit.correlate_scenarios import ALL, APP_PID, T0, UNTIL, Host, S, broker_slow, clock_step, latest, read, run
from tests.unit.test_findings_cli import store

KEPT = Path(__file__).parent / "data" / "lab"


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.__name__)
def test_each_finding_has_evidence_for_its_cause_and_a_time_line(scenario: Callable[[], Host]) -> None:
    (finding,) = latest(run(scenario(), UNTIL))
    pieces = finding["evidence"]
    assert any(p["role"] in ("for", "timeline") and p.get("cause") == finding["cause"] for p in pieces)
    assert any(p["role"] == "timeline" and p["t_ns"] == finding["start_ns"] for p in pieces)
    for p in pieces:
        columns = TABLES[p["table"]].by_name
        assert p.get("cause", "") in ("", *causes()) and p["what"]
        assert set(p.get("keys", {})) <= set(columns) and p["t_ns"] <= p["end_ns"]
        if p.get("column") and p.get("unit") in ("ns", "us"):
            assert columns[p["column"]].unit == p["unit"]


def test_the_first_verdict_is_the_findings_cause() -> None:
    batches = run(broker_slow(), UNTIL)
    (finding,) = latest(batches)
    last = [read(row) for row in [rows for table, rows in batches if table == "verdict"][-1]]
    assert [v["rank"] for v in last] == list(range(1, len(last) + 1))
    assert (last[0]["cause"], last[0]["score"], last[0]["ruled_out"]) == (finding["cause"], finding["confidence"], 0)
    assert sorted(v["score"] for v in last) == [v["score"] for v in last][::-1]
    assert {v["cause"] for v in last if v["ruled_out"]} >= {"clock_step", "load", "network_rtt"}
    assert all(v["reason"] for v in last)


def test_a_cause_without_any_recorded_rows_is_not_ruled_out() -> None:
    episode = Episode("refusals", ("api", 1, 2), 0, "limiter api", "1/2", T0, T0 + S, "share", "", 0.1, 0.6, 0.3, 0)
    verdict = Verdict("network_rtt", 0.1, "", "it stayed low")
    cause = Cause("network_rtt", 1, "", {"cpu_wait": ()}, "", {"refusals": lambda *_: iter([verdict])})
    view, judge, found = View(CorrelatorConfig(), dtypes(), ()), Judge([cause], Guard()), Finding(T0, T0 + S, 0, "abc")
    for rows, ruled_out, reason in (
        ({}, 0, "not checked: no rows of cpu_wait were recorded"),
        ({"cpu_wait": np.zeros(1, dtypes()["cpu_wait"])}, 1, "it stayed low"),
    ):
        view.add(rows)
        found.add_verdicts(episode, judge.rank(episode, view))
        (row,) = [one for one in evidence.verdicts(found, T0).rows if one["cause"] == b"network_rtt"]
        assert (row["ruled_out"], row["reason"], row["score"]) == (ruled_out, reason.encode(), 0)


def test_what_was_ruled_out_is_evidence_against() -> None:
    (finding,) = latest(run(broker_slow(), UNTIL))
    against = {p["cause"]: p for p in finding["evidence"] if p["role"] == "against"}
    rtt = against["network_rtt"]
    assert (rtt["table"], rtt["column"], rtt["unit"], rtt["keys"]) == (
        "tcp_rtt",
        "srtt_us",
        "us",
        {"peer": "127.0.0.1:6399"},
    )
    assert 40 < rtt["baseline"] <= rtt["value"] < 60
    assert APP_PID in [p["keys"].get("pid") for p in finding["evidence"]]


def test_the_time_line_of_a_jump() -> None:
    (finding,) = latest(run(clock_step(), UNTIL))
    jump = next(p for p in finding["evidence"] if p["table"] == "clock_change" and p["role"] == "timeline")
    assert (jump["column"], jump["value"], jump["unit"], jump["t_ns"], jump["object"]) == (
        "size_ns",
        -30e9,
        "ns",
        T0 + int(29.5 * S),
        "chronyd",
    )
    assert any(p["table"] == "limiter_decision" and p["unit"] == "decisions" for p in finding["evidence"])


def test_they_come_before_their_finding_and_only_when_they_changed() -> None:
    batches = run(broker_slow(), UNTIL)
    tables = [batch.table for batch in batches]
    assert tables[:3] == ["verdict", "evidence", "finding"] and tables[-1] == "finding"
    for table in ("verdict", "evidence"):
        sets = [rows.copy() for name, rows in batches if name == table]
        for rows in sets:
            assert len(set(rows[TABLES[table].as_of].tolist())) == 1
            rows[TABLES[table].as_of] = 0
        assert all(a.tobytes() != b.tobytes() for a, b in pairwise(sets))


def test_there_is_room_for_so_many() -> None:
    episode = Episode("refusals", ("api", 1, 2), 0, "limiter api", "1/2", T0, T0 + S, "share", "", 0.1, 0.6, 0.3, 0)
    entry = item("limiter_decision", "asked for", 200, "1/s", column="cost", keys={"pid": 1}).within(episode)
    found = Finding(T0, T0 + S, 0, "abc")
    for most, dropped_evidence in ((1, 0), (150, 87), (20, 0)):
        entries = tuple(item("limiter_decision", str(i), 1).within(episode) for i in range(most - 1))
        found.add_verdicts(episode, [Verdict("load", 0.6, "", "", (entry, *entries))])
        shown = dict(evidence.changed(found, most))["evidence"]
        assert (len(shown), found.dropped_evidence) == (min(most + 1, 64), dropped_evidence)
    assert not evidence.changed(found, 99)


def test_it_is_stored_and_queried(tmp_path: Path) -> None:
    """Of several states the newest, as of the window's end."""
    batches = run(broker_slow(), UNTIL)
    place = store(tmp_path / "store", batches)

    def asked(*argv: str) -> list[dict[str, Any]]:
        done = tickscope(*argv, "--store", place, "-o", "json")
        return list(json.loads(done.stdout)["rows"])

    (finding,) = latest(batches)
    columns = "role,cause,table,column,value,unit,baseline,object"
    wait = next(
        row
        for row in asked("query", "evidence", "--columns", columns, "--where", "role = 'for'")
        if row["table"] == "slow_syscall"
    )
    assert (wait["cause"], wait["column"], wait["object"]) == ("broker_slow", "duration_ns", "127.0.0.1:6399")
    shown = asked("sql", "SELECT role, count(*)::INT AS n FROM evidence GROUP BY role")
    assert sum(row["n"] for row in shown) == len(finding["evidence"])
    verdicts = asked("sql", "SELECT cause FROM verdict WHERE NOT ruled_out ORDER BY rank")
    assert [v["cause"] for v in verdicts] == [c["cause"] for c in finding["causes"]]
    first = min(int(rows["as_of_ns"][0]) for table, rows in batches if table == "evidence")
    before = asked("query", "evidence", "--until", f"boot+{first / S + 0.001:.3f}")
    assert len(before) > 0 and {row["as_of_ns"] for row in before} == {first}


def query(piece: np.void) -> str:
    """What fetches its rows."""
    keys: dict[str, Any] = json.loads(piece["keys"])
    chosen = [f"{quote(name)} = {literal(value)}" for name, value in keys.items()]
    time = f"t_ns BETWEEN {piece['t_ns']} AND {piece['end_ns']}"
    return f"SELECT count(*) FROM {piece['table'].decode()} WHERE {' AND '.join([*chosen, time])}"


@pytest.mark.parametrize("session", sorted(path.parent.name for path in KEPT.glob(f"*/{NAME}"))[::4])
def test_evidence_names_the_rows_that_it_rests_on(session: str, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    unpack(KEPT / session / NAME, recording)
    events = list(Recording(recording).events())
    held = {event.table for event in events if not isinstance(event, int)}
    last = {bytes(state.finding["finding_id"][0]): state.evidence for state in states(Correlator(), events)}
    with Recorded(recording, held) as source:
        for piece in (piece for evidence in last.values() for piece in evidence):
            table = piece["table"].decode()
            assert set(json.loads(piece["keys"])) <= set(TABLES[table].by_name)
            assert piece["t_ns"] <= piece["end_ns"]
            if table in held:
                assert source.run(query(piece)).rows[0][0], query(piece)
