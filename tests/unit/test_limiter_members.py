"""Many limiters that one place asks: one id, a state each."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np

from agent.batch import make
from agent.common.alive import gone
from agent.demo import limiter_part
from agent.limiters.decision import Decoder
from agent.limiters.models.catalogue import MODELS
from agent.limiters.models.model import Arrivals, Limit
from agent.limiters.replay.jump import Decisions, Jump
from agent.limiters.replay.skew import split
from agent.tables import TABLES
from exporters.aggregate import MetricStore
from exporters.limiter_use import EVERY_NS, MOST, LimiterUse
from tests.unit.correlate_scenarios import APP_PID, START, T0, Host, S, latest, run

BASE = 1_790_000_000 * S
RATE = Limit(per_s=5.0, burst=10.0)
RESULT = TABLES["limiter_decision"].by_name["result"]


def columns(t: np.ndarray, step_ns: int, member: int) -> dict[str, object]:
    """A token bucket of its own for a member, whose clock is stepped at T0 + 30 s."""
    wall = t + BASE + step_ns * (t >= T0 + 30 * S)
    program = MODELS["token bucket"].decide(Arrivals.of(wall), RATE)
    rest = np.append(9.0, np.full(len(t) - 1, np.nan))
    return {
        "t_ns": t,
        "pid": APP_PID,
        "proc_start_ns": START,
        "comm": b"shop",
        "limiter_id": b"shop:rate.Limiter@shop.(*S).Customer",
        "member": member,
        "library": b"golang.org/x/time/rate",
        "library_version": b"v0.5.0",
        "cost": 1.0,
        "limit_per_s": 5.0,
        "burst": 10.0,
        "program_wall_ns": wall,
        "duration_ns": 0,
        "sample_rate": 1.0,
        "result": np.where(program, RESULT.code("allowed"), RESULT.code("refused")),
        "step_immune": 0,
        "unlimited": 0,
        "remaining": rest,
    }


def arrivals(seed: int) -> np.ndarray:
    return np.asarray(T0 + np.cumsum(np.random.default_rng(seed).exponential(S / 9, 320)).astype(np.int64))


def test_each_member_is_replayed_by_itself() -> None:
    """And one that two places ask is one bucket."""
    given = [columns(arrivals(seed), 2 * S, 0xC000 + seed) for seed in (1, 2, 3)]
    given[2]["limiter_id"] = np.where(
        np.arange(320) % 2, b"shop:rate.Limiter@shop.(*S).A", b"shop:rate.Limiter@shop.(*S).B"
    )
    rows = np.concatenate([make("limiter_decision", 320, **one).rows for one in given])
    jump = Jump(T0 + 30 * S, 2 * S, T0 + 30 * S + BASE, int(rows["t_ns"].max()))
    found = {one.member: one for one in Decisions(rows, T0).around(jump)}
    assert sorted(found) == [0xC001, 0xC002, 0xC003]
    for seed in (1, 2, 3):
        t = arrivals(seed)
        after = t >= T0 + 30 * S
        program, true = (
            MODELS["token bucket"].decide(Arrivals.of(t + BASE + step * after), RATE)[after] for step in (2 * S, 0)
        )
        one = found[0xC000 + seed]
        assert one.quality in ("exact", "bounded"), one.reason  # of others' requests it would be an estimate
        assert one.admitted_program == int(program.sum())
        assert one.over_admitted is not None
        most = one.over_admitted if one.over_admitted_most is None else one.over_admitted_most
        assert 0 < one.over_admitted <= int((program & ~true).sum()) <= most


def test_the_demos_own_limiter_is_replayed_from_what_it_reports() -> None:
    """Its script against the same model: tests/servers/test_limiter_models.py."""
    t = np.asarray(T0 + np.cumsum(np.random.default_rng(1).exponential(S / 40, 2_000)).astype(np.int64))
    jump_ns, size_ns = T0 + 30 * S, -5 * S
    wall = t + BASE + size_ns * (t >= jump_ns)
    limit = Limit(count=limiter_part.LIMIT, window_ns=limiter_part.WINDOW_MS * 1_000_000)
    log = MODELS["sliding log"]
    program, true = (log.decide(Arrivals.of(clock), limit) for clock in (wall, t + BASE))
    decoder, rows = Decoder("hashed"), []
    for at in range(len(t)):
        message = limiter_part.report("alice", 3 if program[at] else -1, int(wall[at]), 70_000)
        columns, _ = decoder.parse(json.dumps(message).encode())
        known = {name: value for name, value in columns.items() if name in TABLES["limiter_decision"].by_name}
        known |= {"pid": APP_PID, "proc_start_ns": START}
        rows.append(make("limiter_decision", 1, t_ns=t[at], **known).rows)
    (one,) = Decisions(np.concatenate(rows), T0).around(Jump(jump_ns, size_ns, jump_ns + BASE, int(t[-1])))
    after = t >= jump_ns
    assert (one.algorithm, one.quality) == ("sliding log", "exact"), one.reason
    assert one.wrongly_refused == int((~program & true)[after].sum()) > 0


def test_the_sentence_adds_up_what_members_let_through() -> None:
    host, excess = Host(), 0
    for seed in (1, 2):
        t = arrivals(seed)
        host.add("limiter_decision", 320, **columns(t, 2 * S, seed))
        wall = t + BASE + 2 * S * (t >= T0 + 30 * S)
        program, true = (
            MODELS["token bucket"].decide(Arrivals.of(clock), RATE)[t >= T0 + 30 * S] for clock in (wall, t + BASE)
        )
        ahead = np.cumsum(program.astype(int) - true)
        excess += int(ahead[np.argmax(np.abs(ahead))])
    host.step(30, 2 * S)
    (found,) = latest(run(host, 45))
    (entry,) = (e for e in found["evidence"] if "limiter_id" in e)  # type: ignore[attr-defined]
    assert excess > 10
    assert 0 < entry["excess"] <= excess


def test_a_window_is_split_by_member_where_one_process_has_several() -> None:
    rows = np.concatenate([make("limiter_decision", 320, **columns(arrivals(seed), 0, seed)).rows for seed in (1, 2)])
    (one,) = split(Decisions(rows, T0), S, 300_000_000, BASE)
    assert one.decisions == 640
    assert one.most_same <= 5


def test_use_of_the_limit_in_ten_seconds() -> None:
    store = MetricStore()
    use = LimiterUse(store)
    t = np.arange(1000, dtype=np.int64)
    allowed = np.where(t % 4 == 0, RESULT.code("allowed"), RESULT.code("refused"))
    rows = make(
        "limiter_decision",
        1000,
        t_ns=S + t * (10 * S // 1000),
        limiter_id=b"shop:pay",
        comm=b"shop",
        library=b"x",
        member=t % 5,
        result=allowed,
        cost=1.0,
        limit_per_s=10.0,
    )
    use.offer(rows)
    assert not any(m.name == "tickscope.limiter.rate" for m, _ in store.collect())
    use.offer(make("tcp_rtt", 1, t_ns=S + EVERY_NS))
    reported = {m.name: series for m, series in store.collect()}
    values = {
        name: reported[f"tickscope.limiter.{name}"][0].value for name in ("rate", "refused_share", "limit", "use")
    }
    assert values == {"rate": 100.0, "refused_share": 0.75, "limit": 50.0, "use": 0.5}
    assert "tickscope.limiter.watch_cost" not in reported
    assert dict(reported["tickscope.limiter.rate"][0].attributes) == {
        "rate_limiting.limiter.id": "shop:pay",
        "process.executable.name": "shop",
        "tickscope.library": "x",
    }
    assert all({*dict(series[0].attributes)} == {*m.observed} for m, series in store.collect() if not m.table)
    use.offer(make("tcp_rtt", 1, t_ns=S + 2 * EVERY_NS))
    reported = {m.name: series for m, series in store.collect()}
    assert reported["tickscope.limiter.rate"][0].value == 0
    assert "tickscope.limiter.refused_share" not in reported
    many = make(
        "limiter_decision", 2 * MOST, t_ns=3 * EVERY_NS, limiter_id=[b"l%d" % i for i in range(2 * MOST)], result=0
    )
    use.offer(many)
    use.offer(make("tcp_rtt", 1, t_ns=5 * EVERY_NS))
    assert len(next(series for m, series in store.collect() if m.name == "tickscope.limiter.rate")) == MOST
    assert use.losses()["limiter_limit"] == MOST


def test_the_limit_of_members_that_have_each_their_own() -> None:
    """One for all, and one a customer; the limit of the first was 20 before. Then one has none."""
    store = MetricStore()
    use = LimiterUse(store)
    limits, reported = np.array([20.0, 3, 3, 3, 40]), []
    for n, member, unlimited in ((1, [1, 2, 3, 4, 1], 0), (2, [1, 2, 3, 4, 5], [0, 0, 0, 0, 1])):
        use.offer(
            make(
                "limiter_decision",
                5,
                t_ns=n * EVERY_NS,
                limiter_id=b"shop:pay",
                member=member,
                result=RESULT.code("allowed"),
                cost=1.0,
                limit_per_s=limits,
                unlimited=unlimited,
            )
        )
        use.offer(make("tcp_rtt", 1, t_ns=(n + 1) * EVERY_NS))
        series = {m.name: [one.value for one in values] for m, values in store.collect()}
        reported.append(series.get("tickscope.limiter.limit"))
    assert reported[0] == [49.0] and not reported[1]


def _gauges(rows: list[dict[str, object]]) -> dict[str, dict[str, float]]:
    """The gauges of ten seconds with these decisions, by limiter."""
    store = MetricStore()
    use = LimiterUse(store)
    for one in rows:
        use.offer(make("limiter_decision", 100, t_ns=S, library=b"x", result=0, cost=1.0, limit_per_s=10.0, **one))
    use.offer(make("tcp_rtt", 1, t_ns=S + EVERY_NS))
    return {
        m.name.removeprefix("tickscope.limiter."): {
            str(dict(s.attributes)["rate_limiting.limiter.id"]): s.value for s in series
        }
        for m, series in store.collect()
        if m.name in {f"tickscope.limiter.{gauge}" for gauge in ("rate", "limit", "use")}
    }


def test_a_limiter_that_is_asked_at_two_places_has_one_use() -> None:
    """Each place asks for 10 a second of the 10 a second that the limiter lets through; another one is apart."""
    found = _gauges(
        [{"limiter_id": name, "pid": 7, "member": member} for name, member in ((b"a", 1), (b"b", 1), (b"c", 2))]
    )
    assert found["rate"] == {"a": 10, "b": 10, "c": 10}
    assert found["limit"] == {"a": 10, "b": 10, "c": 10}
    assert found["use"] == {"a": 2, "b": 2, "c": 1}


def test_the_same_address_in_two_processes_is_two_limiters() -> None:
    found = _gauges([{"limiter_id": b"a", "pid": pid, "member": 1} for pid in (7, 8)])
    assert (found["limit"], found["use"]) == ({"a": 20}, {"a": 1})


def test_many_names_with_few_decisions_do_not_take_the_place_of_a_busy_limiter() -> None:
    use = LimiterUse(store := MetricStore())
    use.offer(make("limiter_decision", MOST, t_ns=S, limiter_id=[b"l%d" % i for i in range(MOST)], result=0))
    use.offer(make("tcp_rtt", 1, t_ns=S + EVERY_NS))
    use.offer(make("limiter_decision", 50, t_ns=S + EVERY_NS, limiter_id=b"busy", result=0))
    use.offer(make("tcp_rtt", 1, t_ns=S + 2 * EVERY_NS))
    (series,) = (series for m, series in store.collect() if m.name == "tickscope.limiter.rate")
    assert {dict(s.attributes)["rate_limiting.limiter.id"]: s.value for s in series}["busy"] == 5


def test_what_watching_costs_is_reported_of_those_with_probes() -> None:
    store, source = MetricStore(), TABLES["limiter_decision"].by_name["source"]
    use = LimiterUse(store)
    for name, limiter in (("uprobe", b"probed"), ("redis", b"wire")):
        use.offer(make("limiter_decision", 5000, t_ns=S, limiter_id=limiter, result=0, source=source.code(name)))
    use.offer(make("tcp_rtt", 1, t_ns=S + EVERY_NS))
    (one,) = next(series for m, series in store.collect() if m.name == "tickscope.limiter.watch_cost")
    assert dict(one.attributes) == {"rate_limiting.limiter.id": "probed"}
    assert one.value == 500 * 12e-6


def test_refusals_of_a_limiter_are_counted_from_0() -> None:
    store = MetricStore()
    store.offer(
        make("limiter_decision", 3, t_ns=S, limiter_id=b"shop:pay", comm=b"shop", result=RESULT.code("allowed"))
    )

    def counts() -> dict[object, float]:
        series = next(s for m, s in store.collect() if m.name == "tickscope.limiter.decisions.by_limiter")
        return {dict(one.attributes)["rate_limiting.result"]: one.value for one in series}

    assert counts() == {"allowed": 3, "refused": 0}
    store.offer(
        make("limiter_decision", 2, t_ns=2 * S, limiter_id=b"shop:pay", comm=b"shop", result=RESULT.code("refused"))
    )
    assert counts() == {"allowed": 3, "refused": 2}


def test_whether_a_process_is_gone() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        words = Path(f"/proc/{child.pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
        start_ns = int(words[19]) * 10_000_000
        assert not gone(child.pid, start_ns)
        assert not gone(child.pid, start_ns + 9_999_999)
        assert not gone(child.pid, None)
        assert gone(child.pid, start_ns - S)  # another process had that number
    finally:
        child.kill()
        time.sleep(0.2)
        assert gone(child.pid, None)  # not waited for yet
        child.wait()
    assert gone(child.pid, None)
    assert not gone(os.getpid(), None)
