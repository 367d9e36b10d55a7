"""The laboratory's rules: who was impacted by a fault, which finding reports it, and what that counts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from socket import inet_aton
from typing import Any

import pytest

from agent.errors import AgentError
from agent.lab import effect, oplog, truth
from agent.lab.deadline import at_most
from agent.lab.effect import impacts
from agent.lab.judge import Reported, judge
from agent.lab.kind import Right, kinds
from agent.lab.oplog import Ops
from agent.lab.plan import one, seeds, session
from agent.lab.program import FAR, programs, reach, with_systems
from agent.lab.programs.dns_server import LONG, answer
from agent.lab.score import Score
from agent.lab.truth import Done, Truth, quiet
from agent.tables import TABLES

S, MS = 1_000_000_000, 1_000_000
QUIET = [(0, 20 * S)]
FAULT = (20 * S, 23 * S)


def ops(
    *extra: tuple[int, int, str], until_s: int = 30, every_ms: int = 50, gap: tuple[int, int] | None = None
) -> dict[tuple[str, str], Ops]:
    """A program that does something each 50 ms, in 2 ms, and what else is reported."""
    usual = [
        (t * MS, 2 * MS, "ok")
        for t in range(0, until_s * 1000, every_ms)
        if gap is None or not gap[0] <= t * MS < gap[1]
    ]
    return {("api", "decide"): Ops([*usual, *extra])}


def test_nothing_is_noticed_where_nothing_happened() -> None:
    assert impacts(ops(), FAULT, QUIET) == []


@pytest.mark.parametrize(("ms", "who"), [(40, []), (90, []), (199, []), (230, ["slow"])])
def test_one_operation_must_lose_a_fifth_of_a_second(ms: int, who: list[str]) -> None:
    assert [f.how for f in impacts(ops((21 * S, ms * MS, "ok")), FAULT, QUIET)] == who


def test_several_must_lose_a_tenth_together() -> None:
    few = ops(*((21 * S + n * 100 * MS, 30 * MS, "ok") for n in range(3)))
    more = ops(*((21 * S + n * 100 * MS, 60 * MS, "ok") for n in range(3)))
    assert impacts(few, FAULT, QUIET) == []
    (slow,) = impacts(more, FAULT, QUIET)
    assert (slow.how, slow.count, slow.ratio) == ("slow", 3, 30)
    assert slow.since_ns == 21 * S


def test_what_is_as_slow_now_and_then_anyway_is_not_the_faults() -> None:
    often = [(t * S, 400 * MS, "ok") for t in range(1, 20, 4)]
    assert impacts(ops((21 * S, 400 * MS, "ok")), FAULT, QUIET)
    assert impacts(ops((21 * S, 400 * MS, "ok"), *often), FAULT, QUIET) == []
    assert impacts(ops((21 * S, 2900 * MS, "ok"), *often), FAULT, QUIET)


def test_a_slow_operation_elsewhere_is_not_the_faults() -> None:
    assert impacts(ops((25 * S, 400 * MS, "ok")), FAULT, QUIET) == []
    assert [f.how for f in impacts(ops((19 * S + 900 * MS, 400 * MS, "ok")), FAULT, QUIET)] == ["slow"]


def test_failures_refusals_and_silence() -> None:
    assert [f.how for f in impacts(ops(*((21 * S + n * MS, MS, "error") for n in range(20))), FAULT, QUIET)] == [
        "failed"
    ]
    assert [f.how for f in impacts(ops(*((21 * S + n * MS, MS, "refused") for n in range(40))), FAULT, QUIET)] == [
        "refused"
    ]
    assert [f.how for f in impacts(ops(gap=FAULT), FAULT, QUIET)] == ["missing"]
    assert impacts(ops(gap=(20 * S, 21 * S)), FAULT, QUIET) == []


def test_one_name_is_reported_by_tcp_only() -> None:
    head = b"\x12\x34\x01\x00\x00\x01" + bytes(6)
    short, long = (
        head + b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + b"\0\0\x01\0\x01"
        for name in ("policy.lab", LONG)
    )
    assert answer(short, by_tcp=False)[-4:] == answer(long, by_tcp=True)[-4:] == inet_aton(FAR)
    truncated = answer(long, by_tcp=False)
    assert (truncated[2] & 0x02, truncated[6:8]) == (2, b"\0\0"), "it says so, and holds nothing"
    assert not answer(short, by_tcp=False)[2] & 0x02


def test_what_has_no_usual_reports_nothing() -> None:
    assert impacts({("api", "rare"): Ops([(21 * S, 5 * S, "ok")])}, FAULT, QUIET) == []


def test_what_a_fault_cannot_do_is_not_its_effect() -> None:
    log = {
        ("api-redis", "decide"): ops((21 * S, 400 * MS, "ok"), *((21 * S + n * MS, MS, "refused") for n in range(40)))[
            "api", "decide"
        ]
    }
    anyhow, clock = (
        done(effect=[], reach=["api-redis"]),
        done(effect=[], reach=["api-redis"], impacts=["failed", "refused"]),
    )
    assert [
        [impacts["how"] for impacts in effect.measured(whole(fault), log).faults[0].effect] for fault in (anyhow, clock)
    ] == [["slow", "refused"], ["refused"]]


def test_what_a_server_did_for_others_is_reported_by_them() -> None:
    assert impacts({("upstream", "serve"): ops(gap=FAULT)["api", "decide"]}, FAULT, QUIET) == []


def test_who_can_feel_it_follows_from_who_uses_what() -> None:
    there = programs()
    assert reach(there, ("dns",)) == {"dns", "api-http", "api-dns-tcp", "goapi", "callers"}
    assert reach(there, ("state.flock",)) == {"api-flock"}
    assert reach(there, ()) == set(there)
    assert reach(there, ("redis",)) == {
        "redis",
        "api-redis",
        "leases",
        "producer",
        "consumer1",
        "consumer2",
        "consumer3",
    }


def test_quiet_is_what_faults_and_what_they_leave_do_not_cover() -> None:
    assert quiet(0, 100 * S, [(40 * S, 42 * S), (20 * S, 23 * S)]) == [
        (0, 20 * S - truth.BEFORE_NS),
        (28 * S, 40 * S - truth.BEFORE_NS),
        (47 * S, 100 * S),
    ]
    assert quiet(0, 10 * S, []) == [(0, 10 * S)]


def test_a_log_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "api.ndjson").write_bytes(b'[1,2,"decide","ok"]\n[3,4,"decide","refused"]\n[5,6,"dec')
    before = oplog.read(tmp_path)
    assert before["api", "decide"].rows.tolist() == [(1, 2, 0), (3, 4, 1)]
    oplog.pack(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["api.ndjson.gz"]
    assert oplog.read(tmp_path)["api", "decide"].rows.tolist() == before["api", "decide"].rows.tolist()


def done(kind: str = "broker_stopped", at_s: int = 20, **more: Any) -> Done:
    slow = {
        "program": "api-redis",
        "op": "decide",
        "how": "slow",
        "usual": 2e6,
        "worst": 5e8,
        "count": 3,
        "since_ns": at_s * S,
        "until_ns": (at_s + 3) * S,
        "ratio": 250.0,
    }
    right = [
        {"cause": "process_stopped", "detail": "", "culprit": True},
        {"cause": "broker_slow", "detail": "", "culprit": False},
    ]
    return replace(
        Done(
            "1-0",
            kind,
            "redis",
            {"what": "duration_s", "value": 3.0},
            at_s * S,
            (at_s + 3) * S,
            {"process": "redis", "pids": [77], "comm": "redis-server", "object": ""},
            right,
            [slow],
        ),
        **more,
    )


def whole(*faults: Done) -> Truth:
    reported = {
        "api-redis": {"comm": "lab-api-redis", "pids": [5], "names": ["lab:api-redis"]},
        "api-tls": {"comm": "lab-api-tls", "pids": [6], "names": ["lab:api-tls"]},
        "redis": {"comm": "redis-server", "pids": [77], "names": ["127.0.0.1:6379"]},
    }
    return Truth(1, 5 * S, 3605 * S, reported, list(faults), [])


def finding(
    cause: str,
    start_s: float = 20,
    end_s: float = 23,
    reported_s: float = 21,
    subject: str = "limiter lab:api-redis",
    **more: Any,
) -> Reported:
    row = {
        "finding_id": f"{cause}{start_s}",
        "state": "closed",
        "start_ns": int(start_s * S),
        "end_ns": int(end_s * S),
        "symptom": "decision_latency",
        "subject": subject,
        "cause": cause,
        "confidence": 0.8,
        "sentence": "",
        "causes": [],
        "evidence": "",
        **more,
    }
    return Reported([(int(reported_s * S), row)])


def score(faults: list[Done], reported: list[Reported]) -> dict[str, Any]:
    result = Score()
    result.add(whole(*faults), reported)
    return result.to_json()


def test_right_by_cause_and_right_in_full() -> None:
    figures = score([done()], [finding("broker_slow")])
    assert (
        figures["all"]["detected"],
        figures["all"]["top1_cause"],
        figures["all"]["top1"],
        figures["all"]["median_s"],
    ) == (1, 1, 1, 1)
    figures = score([done()], [finding("process_stopped")])
    assert (figures["all"]["top1_cause"], figures["all"]["top1"]) == (1, 0), "the culprit is part of that answer"
    assert score([done()], [finding("process_stopped", culprit_pid=77)])["all"]["top1"] == 1
    assert score([done()], [finding("process_stopped", culprit_pid=78)])["all"]["top1"] == 0
    assert score([done()], [finding("broker_slow", subject="limiter lab:api-tls")])["all"]["top1"] == 0, (
        "that one was not impacted"
    )


def test_a_wrong_cause_counts_and_the_right_one_below_it_is_among_three() -> None:
    figures = score([done()], [finding("cpu", causes=["cpu", "broker_slow"])])
    assert (figures["all"]["top1_cause"], figures["all"]["top3_cause"], figures["wrong_causes_per_hour"]) == (0, 1, 1)
    assert figures["confusion"] == {"broker_stopped": {"cpu": 1}}
    assert score([done()], [finding("unknown")])["wrong_causes_per_hour"] == 0, (
        "who says that he does not know is not wrong"
    )


def test_the_surest_finding_counts() -> None:
    sure, unsure = finding("broker_slow", confidence=0.9), finding("cpu", start_s=20.5)
    assert score([done()], [unsure, sure])["all"]["top1_cause"] == 1
    assert score([done()], [unsure, sure])["wrong_causes_per_hour"] == 1
    elsewhere = finding("disk", confidence=0.95, subject="limiter lab:api-other")
    figures = score([done()], [elsewhere, sure])
    assert (figures["all"]["top1_cause"], figures["wrong_causes_per_hour"]) == (1, 1), "it names nobody of the fault's"
    assert score([done()], [elsewhere])["all"]["top1_cause"] == 0


def test_a_finding_without_a_fault_is_wrong() -> None:
    figures = score([], [finding("cpu", 100, 101), finding("cpu", 2, 3)])
    assert figures["wrong_symptoms_per_hour"] == 1, "what began before the warm-up was over does not count"


def test_a_finding_that_began_before_a_fault_does_not_speak_of_it() -> None:
    before, as_it_began = finding("broker_slow", 17, 23), finding("broker_slow", 19.2, 23)
    assert [len(v.reported) for v in judge(whole(done()), [before])[0]] == [0]
    assert score([done()], [before])["wrong_symptoms_per_hour"] == 1
    assert score([done()], [as_it_began])["all"]["detected"] == 1


def test_what_a_fault_started_itself_is_its_culprit_by_pid() -> None:
    """A clock jump's finding lasts until no decision can be hit any more, into the next one's time."""
    first, second = (
        done(kind, at_s, culprit={"process": "lab-clock", "pids": [pid], "comm": "lab-clock", "object": ""})
        for kind, at_s, pid in (("clock_step_forward", 20, 91), ("clock_step_back", 32, 92))
    )
    first = replace(first, effect=[{**first.effect[0], "program": "leases"}])
    reported = [
        finding(
            "clock_step", 20, 33, subject="wall clock", sentence="lab-clock pid 91 did it, and lab:api-redis is hit"
        ),
        finding(
            "clock_step", 32, 43, 33, subject="wall clock", sentence="lab-clock pid 92 did it, and lab:api-redis is hit"
        ),
    ]
    assert [v.reported for v in judge(whole(first, second), reported)[0]] == [reported[:1], reported[1:]]


def test_a_finding_without_a_fault_counts_against_its_confidence() -> None:
    assert score([], [finding("cpu", 100, 101, confidence=0.95)])["calibration"] == [
        {"from": 0.9, "to": 1.0, "findings": 1, "right": 0.0}
    ]
    assert score([], [finding("unknown", 100, 101)])["calibration"] == []


def test_right_in_full_is_who_has_the_victim_or_the_culprit_as_its_subject() -> None:
    elsewhere = finding("broker_slow", subject="limiter lab:api-tls", sentence="while lab:api-redis waited")
    assert score([done()], [elsewhere])["all"]["top1"] == 0
    assert score([done()], [finding("broker_slow", subject="redis at 127.0.0.1:6379")])["all"]["top1"] == 1


def test_what_could_not_be_injected_is_reported() -> None:
    result = Score()
    result.add(
        replace(whole(), left_out=[{"kind": "cpu_throttled", "why": "this host has no cgroup controller cpu"}]), []
    )
    assert result.to_json()["left_out"] == {"cpu_throttled": 1}


def test_a_fault_that_nobody_noticed_does_not_count() -> None:
    without = done(effect=[])
    figures = score([without], [finding("broker_slow")])
    assert (
        figures["all"]["faults"],
        figures["without_impact"],
        figures["wrong_causes_per_hour"],
        figures["calibration"],
    ) == (
        0,
        {"broker_stopped": 1},
        0,
        [],
    )
    assert score([without], [finding("cpu")])["wrong_causes_per_hour"] == 1


def test_a_fault_that_is_only_written_down_lowers_the_score() -> None:
    real = score([done()], [finding("broker_slow")])
    invented = score([done(), done(at_s=60, injected=False)], [finding("broker_slow")])
    assert (real["all"]["top1"], invented["all"]["top1"], invented["all"]["detected"]) == (1, 0.5, 0.5)


def test_of_two_at_once_each_is_scored_alone() -> None:
    tls = done(
        "tls_peer_stopped",
        effect=[{**done().effect[0], "program": "api-tls"}],
        culprit={"process": "nginx", "pids": [9], "comm": "nginx", "object": ""},
        right=[{"cause": "tls", "detail": "", "culprit": False}],
    )
    verdicts, stray = judge(whole(done(), tls), [finding("tls", subject="limiter lab:api-tls"), finding("broker_slow")])
    assert [[t.last["cause"] for t in v.reported] for v in verdicts] == [["broker_slow"], ["tls"]]
    assert stray == []
    assert score([done(), tls], [finding("broker_slow")])["all"]["detected"] == 0.5


def test_servers_of_one_command_name_are_distinguished() -> None:
    truth = whole(
        done(),
        done(
            at_s=40, culprit={"process": "redis-other", "pids": [78], "comm": "redis-server", "object": ""}, effect=[]
        ),
    )
    truth.programs["redis-other"] = {"comm": "redis-server", "pids": [78], "names": ["10.78.0.9:6379"]}
    long = {"start_s": 20, "end_s": 44, "subject": "limiter x"}
    verdicts, _ = judge(
        truth,
        [finding("broker_slow", sentence="because redis-server pid 78 at 10.78.0.9:6379 answered late", **long)],
    )
    assert [len(v.reported) for v in verdicts] == [0, 1]
    verdicts, _ = judge(truth, [finding("broker_slow", sentence="because redis-server pid 7 answered late", **long)])
    assert [len(v.reported) for v in verdicts] == [1, 0], "nobody is named: the one whose impact was seen"


def test_the_commonest_cause_is_the_bar() -> None:
    figures = score(
        [done(), done(at_s=60), done("cpu_hog", 100, right=[{"cause": "cpu", "detail": "", "culprit": False}])], []
    )
    assert figures["always_guessing"] == {"cause": "process_stopped", "top1_cause": 0.667}


def test_a_session_that_hangs_is_given_up() -> None:
    with pytest.raises(AgentError, match="did not end within"), at_most(0.05):
        time.sleep(10)
    with at_most(0.05):
        pass
    time.sleep(0.1)  # what is over in time is not given up later


def test_a_truth_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole(done()).write(tmp_path)
    assert Truth.read(tmp_path) == whole(done())
    (tmp_path / truth.FILE).write_text("{}")
    with pytest.raises(AgentError, match="is not a truth file"):
        Truth.read(tmp_path)


def test_the_same_seed_gives_the_same_faults() -> None:
    known = list(kinds().values())
    there = programs()
    assert session(known, 7, 40, there) == session(known, 7, 40, there)
    assert session(known, 7, 40, there) != session(known, 8, 40, there)
    assert one(known[0], 3) == one(known[0], 3)
    always = [kind for kind in known if not kind.system]
    groups = [group for seed in range(5) for group in session(always, seed, len(always), there)]
    assert sorted(f.kind for group in groups for f in group) == sorted(5 * [kind.name for kind in always]), (
        "each kind as often as the others"
    )
    pairs = [group for group in groups if len(group) > 1]
    assert pairs
    for one_, other in pairs:
        assert not kinds()[one_.kind].reach(one_, there) & kinds()[other.kind].reach(other, there), (
            "nobody can feel both"
        )
    assert seeds(5, 30, 12) == [(5, 12), (6, 12), (7, 6)]


def test_a_session_runs_one_broker_and_another_session_another_one() -> None:
    of = {kind.name: kind.system for kind in kinds().values()}
    sessions = [session(list(kinds().values()), seed, 90, programs()) for seed in range(20)]
    brokers = [{of[fault.kind] for group in groups for fault in group} - {""} for groups in sessions]
    assert {len(some) for some in brokers} == {1}
    assert set().union(*brokers) == {"celery", "chains", "kafka", "postgresql", "rabbitmq"}
    for system in set().union(*brokers):
        there = with_systems(programs(), {system})
        for kind in kinds().values():
            assert kind.system != system or kind.reach(one(kind, 1), there), f"{kind.name} impacts none of its broker"


def test_kinds_draw_within_their_sizes() -> None:
    for kind in kinds().values():
        drawn = [one(kind, seed) for seed in range(50)]
        least, most = sorted((kind.size.mild, kind.size.hard))
        assert all(least * 0.999 <= f.size <= most * 1.001 for f in drawn), kind.name
        assert all(f.target in kind.targets for f in drawn)
        assert all(f.duration_s > 0 for f in drawn)


def test_right_answers_are_in_the_tables_words() -> None:
    with pytest.raises(AssertionError, match="gremlins"):
        Right("gremlins")
    assert all(kind.right for kind in kinds().values() if kind.name != "nothing")


def test_findings_have_the_columns_that_are_judged() -> None:
    assert {
        "finding_id",
        "start_ns",
        "end_ns",
        "symptom",
        "subject",
        "cause",
        "confidence",
        "sentence",
    } <= set(TABLES["finding"].by_name)
