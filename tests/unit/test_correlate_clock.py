"""Clock findings: who, how far, and exactly the decisions in the interval that happened twice or never."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent.batch import Batch
from agent.correlate.clock import ClockWatch
from agent.correlate.correlator import Correlator
from agent.correlate.inbox import compact
from agent.correlate.thresholds import CorrelatorConfig
from tests.unit.correlate_scenarios import APP_PID, MS, START, T0, US, Host, S, code, latest, run

N = 23


def decisions(host: Host, t_ns: np.ndarray, limiter: bytes = b"api", result: str = "allowed", **more: object) -> None:
    columns: dict[str, object] = {
        "t_ns": t_ns,
        "pid": APP_PID,
        "proc_start_ns": START,
        "comm": b"python3",
        "limiter_id": limiter,
        "library": b"own",
        "result": code("limiter_decision", "result", result),
        "duration_ns": 1000,
    }
    host.add("limiter_decision", len(t_ns), **(columns | more))


def affected(finding: dict[str, object]) -> dict[str, dict[str, object]]:
    return {e["limiter_id"]: e for e in finding["evidence"] if "limiter_id" in e}  # type: ignore[attr-defined]


@pytest.mark.parametrize("sign", [-1, 1])
def test_decisions_within_the_size_of_the_step_on_either_side_are_counted(sign: int) -> None:
    host, size, at = Host(), 400 * US, T0 + 10 * S
    host.step(10, sign * size)
    decisions(host, at - 390 * US + np.arange(N) * 10 * US)
    decisions(host, at + 1 * US + np.arange(7) * 10 * US, result="refused")
    decisions(host, at - size - 1 - np.arange(11) * MS)
    decisions(host, at + size + 1001 + np.arange(13) * MS)
    found = latest(run(host, 20))
    assert [(f["cause"], f["symptom"], f["state"], f["start_ns"]) for f in found] == [
        ("clock_step", "clock_jump", "closed", at)
    ]
    assert (found[0]["culprit_pid"], found[0]["culprit_comm"]) == (812, "chronyd")
    entry = affected(found[0])["api"]
    assert (entry["allowed"], entry["refused"]) == (N, 7)
    sentence = str(found[0]["sentence"])
    for part in (
        "back" if sign < 0 else "forward",
        "400 us",
        "(clock_settime from chronyd, pid 812)",
        "limiter api",
        "python3 pid 4242",
        f"{N} allowed, 7 refused",
    ):
        assert part in sentence


@pytest.mark.parametrize(("rate", "least"), [(1.0, False), (0.25, True), (np.nan, False)])
def test_of_a_limiter_that_is_watched_in_a_share_of_the_time_there_are_at_least_so_many(
    rate: float, least: bool
) -> None:
    host = Host()
    host.step(10, -400 * US)
    decisions(host, T0 + 10 * S - 390 * US + np.arange(N) * 10 * US, sample_rate=rate)
    (found,) = latest(run(host, 20))
    assert (affected(found)["api"].get("at_least") is True) == least
    assert (f"At least {N} decisions fell into" in str(found["sentence"])) == least
    assert (f"(python3 pid 4242; at least {N} allowed" in str(found["sentence"])) == least


def test_the_finding_is_emitted_at_once_then_updated_then_closed() -> None:
    host = Host()
    host.step(10, -50 * MS)
    decisions(host, T0 + 10 * S + 20 * MS + np.arange(N) * 100 * US)
    out = run(host, 20, every_ms=100, tables=("finding",))
    assert (int(out[0].rows["state"][0]), int(out[-1].rows["state"][0])) == (0, 1)
    assert int(out[0].rows["t_ns"][0]) <= T0 + 10 * S + 100 * MS
    assert len({bytes(b.rows["finding_id"][0]) for b in out}) == 1


def test_a_decision_that_spans_the_step_is_inside() -> None:
    host = Host()
    host.step(10, 100 * US)
    decisions(host, np.array([T0 + 11 * S]), duration_ns=2 * S)
    assert affected(latest(run(host, 20))[0])["api"]["allowed"] == 1


def test_windows_that_straddle_and_limiters_that_are_immune_are_distinguished() -> None:
    host, at = Host(), T0 + 10 * S
    host.step(10, -10 * MS)
    decisions(host, at - np.arange(1, 6) * 100 * MS, b"window", window_ns=S)
    decisions(host, at - np.arange(1, 6) * 100 * MS, b"bucket", limit_per_s=10.0, burst=5.0)
    decisions(host, at - np.arange(1, 6) * 100 * MS, b"far")
    decisions(host, at - np.arange(1, 6) * MS, b"nginx", step_immune=1)
    finding = latest(run(host, 20))[0]
    entries = affected(finding)
    assert set(entries) == {"window", "bucket", "nginx"}
    assert entries["window"]["straddling"] == entries["bucket"]["straddling"] == 5
    assert "not affected" in str(entries["nginx"]["what"])
    assert "Not affected (ignores the wall clock): limiter nginx" in str(finding["sentence"])


@pytest.mark.parametrize(
    ("kind", "size", "causes"),
    [
        ("step", -1, ["clock_step"]),
        ("leap", -S, ["leap"]),
        ("slew", 200 * MS, ["clock_slew"]),
        ("slew", MS, []),
        ("frequency", 500, []),
        ("tai", S, []),
        ("suspend", S, []),
        ("step", 0, []),
    ],
)
def test_only_jumps_are_findings(kind: str, size: int, causes: list[str]) -> None:
    host = Host()
    host.step(5, size, kind=kind)
    assert [f["cause"] for f in latest(run(host, 20))] == causes


def test_a_refused_attempt_is_no_finding() -> None:
    host = Host()
    host.step(5, -S)
    host.made[0].rows["ret"] = -1
    assert latest(run(host, 20)) == []


def test_a_step_whose_actor_was_not_seen_reports_it() -> None:
    host = Host()
    host.step(5, -S, pid=-(2**63), comm=b"")
    assert "an unknown process" in str(latest(run(host, 20))[0]["sentence"])


def test_an_actor_outside_of_the_agents_pid_namespace_is_named() -> None:
    host = Host()
    host.step(5, -S, pid=-(2**63))
    assert "(clock_settime from chronyd, which is not visible from the agent's container)" in str(
        latest(run(host, 20))[0]["sentence"]
    )


def test_repeated_steps_of_one_actor_are_one_finding_that_counts_them() -> None:
    host, at = Host(), T0 + 5 * S
    for i in range(N):
        host.step(5 + i * 0.3, (-1) ** i * 300 * US)
    decisions(host, at + np.arange(7 * 1000) * MS, window_ns=S)
    found = latest(run(host, 30))
    assert [(f["cause"], f["state"], f["start_ns"]) for f in found] == [("clock_step", "closed", at)]
    for part in (
        f"jumped {N} times (12 forward and 11 back, by 300 us each, 300 us forward in sum)",
        "(clock_settime from chronyd, pid 812)",
        "limiter api",
    ):
        assert part in str(found[0]["sentence"])
    reported = [e for e in found[0]["evidence"] if e["table"] == "clock_change"]  # type: ignore[attr-defined]
    assert [e["value"] for e in reported if e["what"] == "steps"] == [N] and len(
        [e for e in reported if e["what"] == "clock_step"]
    ) == 16
    assert [e["t_ns"] for e in reported if e["what"] == "clock_step"] == [
        T0 + int((5 + i * 0.3) * S) for i in range(16)
    ]


def test_a_decision_near_several_steps_counts_once() -> None:
    host, at = Host(), T0 + 5 * S
    for i in range(5):
        host.step(5 + i * 0.01, 400 * US)
    decisions(host, at + np.arange(N) * 10 * US, duration_ns=0)
    decisions(host, np.array([at + 45 * MS]), duration_ns=45 * MS)
    entry = affected(latest(run(host, 20))[0])["api"]
    assert (entry["allowed"], entry["straddling"]) == (N + 1, 0)


def test_a_series_ends_with_a_pause() -> None:
    host = Host()
    for at in (5, 5.8, 6.6, 9):
        host.step(at, 300 * US)
    assert [str(f["sentence"]).count("3 times") for f in latest(run(host, 40))] == [1, 0]


def test_actors_that_do_not_undo_each_other_are_distinguished() -> None:
    host = Host()
    for i in range(3):
        host.step(5 + i, 300 * US, pid=900 + i, comm=b"date")
        host.step(5.5 + i, 100 * US)
        host.step(5.2 + i, -300 * US, pid=-(2**63), comm=b"")
    sentences = sorted(str(f["sentence"]) for f in latest(run(host, 30)))
    assert len(sentences) == 3
    assert (
        sum("date pid 900, date pid 901 and date pid 902" in s for s in sentences)
        == sum("an unknown process" in s for s in sentences)
        == 1
    )


def test_daemons_that_undo_each_other_s_corrections_are_one_finding_that_names_both() -> None:
    """Each corrects the clock at its polls, every 64 s: sizes differ, some corrections take two steps."""
    host, rival = Host(), b"systemd-timesyn"
    host.decisions(0, 600)
    for i in range(15):
        host.step(30 + 32 * i, 300 * MS + i * MS)
        host.step(40 + 32 * i, -200 * MS, pid=900, comm=rival)
        host.step(40.5 + 32 * i, -90 * MS, pid=900, comm=rival)
    out = run(host, 600)
    (found,) = latest(out)
    assert (found["state"], found["start_ns"]) == ("open", T0 + 30 * S)
    assert (found["culprit_comm"], found["culprit_object"]) == ("chronyd", "systemd-timesyn pid 900")
    assert "jumped 45 times (15 forward and 30 back, by 90 ms to 314 ms" in str(found["sentence"])
    assert "chronyd pid 812 and systemd-timesyn pid 900 undo each other's corrections" in str(found["sentence"])
    assert [e["value"] for e in found["evidence"] if e.get("what") == "steps"] == [45]  # type: ignore[attr-defined]
    assert latest(run(host, 40 + 32 * 14 + 1200 + 20))[0]["state"] == "closed"


@pytest.mark.parametrize(
    ("second", "findings"),
    [
        ({"size_ns": -2 * S}, 1),  # a daemon takes back what somebody did
        ({"size_ns": -2 * S, "at": 1300}, 2),  # long after
        ({"size_ns": 2 * S}, 2),  # further the same way
        ({"size_ns": -5 * S}, 2),  # by far more
        ({"size_ns": -2 * S, "comm": b""}, 2),  # nobody knows who
        ({"size_ns": -2 * S, "comm": b"date"}, 2),  # the same one, who may well mean it
    ],
)
def test_who_takes_back_a_step_belongs_to_its_finding(second: dict[str, Any], findings: int) -> None:
    host = Host()
    host.step(30, 2 * S, pid=900, comm=b"date")
    host.step(**{"at": 60, **second})
    found = latest(run(host, 1400))
    assert len(found) == findings
    assert ("date pid 900 and chronyd pid 812 in turn" in str(found[0]["sentence"])) == (findings == 1)


def test_a_small_step_does_not_explain_refusals() -> None:
    host = Host()
    host.decisions(0, 30)
    host.decisions(30, 60, refused=0.7)
    host.step(29.9, -400 * US)
    found = latest(run(host, 60))
    assert sorted(str(f["cause"]) for f in found) == ["clock_step", "unknown"]
    assert [f["symptom"] for f in found if f["cause"] == "unknown"] == ["refusals"]


def test_a_step_explains_no_refusals_of_an_immune_limiter() -> None:
    host = Host()
    host.decisions(0, 30, step_immune=1)
    host.decisions(30, 60, refused=0.7, step_immune=1)
    host.step(29.9, -20 * S)
    assert sorted(str(f["cause"]) for f in latest(run(host, 60))) == ["clock_step", "unknown"]


def stepped_in_a_loop(actors: int) -> tuple[list[Batch], dict[str, int]]:
    host = Host()
    for i in range(200):
        variant = 1 if i % 2 or actors > 1 else -1  # several that undo each other would be one finding
        host.step(10 + i / 1000, variant * 100 * US, pid=1000 + i % actors, comm=b"p%d" % (i % actors))
    correlator = Correlator()
    for table, rows in host.made:
        correlator.feed(Batch(table, rows))
    return [b for b in correlator.advance(T0 + 11 * S) if b.table == "finding"], correlator.losses()


def test_a_clock_that_is_stepped_in_a_loop_is_counted_whole() -> None:
    out, losses = stepped_in_a_loop(1)
    assert [b"jumped 200 times" in b.rows["sentence"][0] for b in out] == [True] and losses["findings"] == 0


def test_more_actors_than_findings_are_reported_by_the_first() -> None:
    out, losses = stepped_in_a_loop(200)
    assert len(out) == 64 and losses["findings"] == 200 - 64


def test_what_is_kept_of_a_decision_suffices_to_count_it_on_both_clocks() -> None:
    host, watch = Host(), ClockWatch(CorrelatorConfig())
    decisions(host, np.array([T0]), key=b"customer", remaining=3.5, program_wall_ns=17, sample_rate=0.25)
    (batch,) = (one for one in host.made if one.table == "limiter_decision")
    watch.feed(None, compact(batch.table, batch.rows), T0 + S)
    (row,) = watch.decisions.between(T0, T0 + 1)
    assert (row["key"], row["remaining"], row["program_wall_ns"], row["sample_rate"]) == (b"customer", 3.5, 17, 0.25)


@pytest.mark.parametrize(("sign", "how"), [(-1, "late"), (1, "early")])
def test_timers_that_the_step_moved_are_counted_by_queue(sign: int, how: str) -> None:
    host, at = Host(), T0 + 10 * S
    host.step(10, sign * 500 * MS)
    timers = [(b"celery", b"mail", "redelivery", 37, 500 * MS), (b"redis", b"lock:*", "lock", 1, 20 * MS)]
    timers.append((b"celery", b"mail", "eta", 7, 0))  # immune
    for system, destination, kind, count, moved in timers:
        host.add(
            "timer_effect",
            t_ns=at,
            jump_t_ns=at,
            system=system,
            destination=destination,
            kind=kind,
            timers=count,
            moved_ns=-sign * moved,
        )
    (found,) = latest(run(host, 20))
    words = f"Up to 500 ms {how}: 37 messages to be redelivered (celery mail) and 1 lock (redis lock:*)."
    assert words in str(found["sentence"])
    counted = [(e["destination"], e["value"]) for e in found["evidence"] if e["table"] == "timer_effect"]  # type: ignore[attr-defined]
    assert counted == [("mail", 37), ("lock:*", 1)]
