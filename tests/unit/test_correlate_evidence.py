"""Evidence as rows of its own: what speaks for a cause, what against, and what happened when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from agent.batch import Batch
from agent.correlate import evidence
from agent.correlate.catalogue import causes
from agent.correlate.correlator import Correlator
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.finding import Finding
from agent.tables import TABLES
from tests.unit.correlate_scenarios import ALL, APP_PID, T0, UNTIL, Host, S, broker_slow, clock_step, latest, run
from tests.unit.test_findings_cli import store
from tests.unit.test_replay_cli import tickscope

TABLE = TABLES["evidence"]
BOTH = ("finding", "evidence")


def rows(batches: list[Batch]) -> list[dict[str, object]]:
    """The latest state of each piece."""
    found: dict[bytes, np.void] = {}
    for batch in batches:
        if batch.table == "evidence":
            found.update((bytes(row["evidence_id"]), row) for row in batch.rows)
    plain = [
        {name: v.decode() if isinstance(v := row[name], bytes) else v.item() for name in row.dtype.names or ()}
        for row in found.values()
    ]
    return [{**row, "role": TABLE.by_name["role"].names[row["role"]]} for row in plain]


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.__name__)
def test_each_finding_has_evidence_for_its_cause_and_a_time_line(scenario: Callable[[], Host]) -> None:
    batches = run(scenario(), UNTIL, tables=BOTH)
    (finding,) = latest(batches)
    pieces = rows(batches)
    assert {p["finding_id"] for p in pieces} == {finding["finding_id"]}
    assert any(p["role"] in ("for", "timeline") and p["cause"] == finding["cause"] for p in pieces)
    assert any(p["role"] == "timeline" and p["start_ns"] == finding["start_ns"] for p in pieces)
    for p in pieces:
        assert p["cause"] in ("", *causes()) and p["what"] and p["table"] in TABLES
        assert p["column"] in ("", *TABLES[str(p["table"])].by_name)
        if p["column"] and p["unit"] in ("ns", "us"):
            assert TABLES[str(p["table"])].by_name[str(p["column"])].unit == p["unit"]


def test_what_was_ruled_out_is_evidence_against() -> None:
    against = {str(p["cause"]): p for p in rows(run(broker_slow(), UNTIL, tables=BOTH)) if p["role"] == "against"}
    rtt = against["network_rtt"]
    assert (rtt["table"], rtt["column"], rtt["unit"], rtt["object"]) == ("tcp_rtt", "srtt_us", "us", "127.0.0.1:6399")
    assert 40 < float(str(rtt["baseline"])) <= float(str(rtt["value"])) < 60
    assert against["network_loss"]["value"] == 0
    assert against["cpu"]["pid"] == APP_PID


def test_the_time_line_of_a_jump() -> None:
    pieces = rows(run(clock_step(), UNTIL, tables=BOTH))
    jump = next(p for p in pieces if p["table"] == "clock_change" and p["role"] == "timeline")
    assert (jump["column"], jump["value"], jump["unit"], jump["start_ns"], jump["object"]) == (
        "size_ns",
        -30e9,
        "ns",
        T0 + int(29.5 * S),
        "chronyd",
    )
    assert any(p["table"] == "limiter_decision" and p["object"] == "api" and p["unit"] == "decisions" for p in pieces)


def test_a_piece_is_told_again_only_when_it_changed() -> None:
    host = broker_slow()
    late = [batch for batch in host.made if batch.table == "slow_syscall"]
    correlator = Correlator()
    for batch in host.without("slow_syscall").made:
        correlator.feed(batch)
    before = [b for tick in range(330) for b in correlator.advance(T0 + tick * S // 10)]
    for batch in late:
        correlator.feed(batch)
    after = [b for tick in range(330, 600) for b in correlator.advance(T0 + tick * S // 10)]
    states: dict[bytes, list[bytes]] = {}
    for row in (row for b in (*before, *after) if b.table == "evidence" for row in b.rows):
        states.setdefault(bytes(row["evidence_id"]), []).append(row.tobytes()[8:])  # all but t_ns
    assert all(a != b for its in states.values() for a, b in pairwise(its))
    assert not any(p["cause"] == "broker_slow" for p in rows(before))
    assert next(p for p in rows([*before, *after]) if p["cause"] == "broker_slow")["role"] == "for"
    quiet = [b for tick in range(600, 700) for b in correlator.advance(T0 + tick * S // 10)]
    assert not quiet


def test_what_is_no_longer_so_is_withdrawn() -> None:
    episode = Episode("refusals", ("api", 1, 2), 0, "limiter api", "1/2", T0, T0 + S, "share", "", 0.1, 0.6, 0.3, 0)
    found = Finding(T0, T0 + S, 0, "abc")
    entry = item("limiter_decision", "asked for", 200, "1/s", column="cost", baseline=50, pid=1)
    roles = []
    for t_ns, verdicts in enumerate(
        ([Verdict("load", 0.6, "", "", (entry,))], [Verdict("load", 0.0, "", "", (entry,))], [], [])
    ):
        found.judged(episode, verdicts)
        made = evidence.batch(found, t_ns)
        roles.append(
            [(TABLE.by_name["role"].names[r["role"]], r["cause"].decode()) for r in made.rows] if made else None
        )
    assert roles == [[("timeline", ""), ("for", "load")], [("against", "load")], [("withdrawn", "load")], None]


def test_what_still_holds_is_not_withdrawn_for_want_of_room() -> None:
    episode = Episode("refusals", ("api", 1, 2), 0, "limiter api", "1/2", T0, T0 + S, "share", "", 0.1, 0.6, 0.3, 0)
    found = Finding(T0, T0 + S, 0, "abc")
    entries = tuple(item("limiter_decision", "asked for", 200, "1/s", column="cost", pid=pid) for pid in range(150))
    roles = []
    for t_ns, shown in enumerate((entries, entries[::-1], entries[:100])):
        found.judged(episode, [Verdict("load", 0.6, "", "", shown)])
        made = evidence.batch(found, t_ns)
        roles.append(dict(Counter(TABLE.by_name["role"].names[r["role"]] for r in made.rows)) if made else {})
    assert roles == [{"timeline": 1, "for": 127}, {}, {"withdrawn": 27}]
    assert len(found.unfit) == 23


def test_it_is_stored_and_queried(tmp_path: Path) -> None:
    place = store(tmp_path / "store", run(broker_slow(), UNTIL, tables=BOTH))
    doc = json.loads(
        tickscope(
            "query",
            "evidence",
            "--columns",
            "role,cause,table,column,value,unit,baseline,object",
            "--where",
            "role = 'for'",
            "--store",
            place,
            "-o",
            "json",
        ).stdout
    )
    wait = next(row for row in doc["rows"] if row["table"] == "slow_syscall")
    assert (wait["cause"], wait["column"], wait["object"]) == ("broker_slow", "duration_ns", "127.0.0.1:6399")
    out = tickscope(
        "sql", "SELECT role, count(*) AS n FROM evidence GROUP BY role ORDER BY role", "--store", place, "-o", "json"
    )
    assert {row["role"] for row in json.loads(out.stdout)["rows"]} == {"for", "against", "timeline"}, out.stderr
