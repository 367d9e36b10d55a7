"""Why: every rule looks at one episode and says what it found. ``RULES`` is all of them, in the order that breaks ties."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent.correlate import beliefs, blocked
from agent.correlate.config import SECOND
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.view import View
from agent.correlate.words import number, plural, process, seconds, span

Rule = Callable[[Episode, View], Iterator[Verdict]]

_LEAST = 0.3  # a verdict below this is no explanation


def clock(episode: Episode, view: View) -> Iterator[Verdict]:
    """A jump shortly before, big enough to matter to this symptom."""
    if episode.symptom not in ("refusals", "decision_latency", "queue_lag"):
        return
    seen = False
    for jump in view.jumps:
        size = abs(jump.size_ns)
        lead = episode.start_ns - jump.t_ns
        if not -(view.config.persist_s + 1) * SECOND <= lead <= max(2 * SECOND, min(size, 600 * SECOND)) or jump.t_ns > episode.end_ns:
            continue
        seen = True
        rise = (episode.value - episode.base) * (1e9 if episode.unit == "s" else 1)
        enough = 10e6 if episode.symptom == "refusals" else 0.3 * rise
        mine = [a for a in jump.series.affected.values() if a.limiter == episode.key[0] and a.pid == episode.pid]
        if any(a.immune for a in mine):
            yield Verdict(jump.cause, 0.0, "", "that limiter does not use the wall clock")
        elif size < enough or (episode.symptom == "queue_lag" and episode.unit != "s"):
            yield Verdict(jump.cause, 0.0, "", f"the clock moved by only {span(size)}")
        else:
            who = f" by {process(jump.comm, jump.pid)}" if jump.pid or jump.comm else ""
            words = f"the wall clock was moved {'back' if jump.backward else 'forward'} by {span(size)}{who}"
            yield Verdict(jump.cause, 0.93 if abs(lead) <= 2 * SECOND else 0.8, str(jump.series.first.t_ns), words,
                          (item("clock_change", "size", jump.size_ns, "ns", t_ns=jump.t_ns, pid=jump.pid, lead_ns=lead),))
    if not seen:
        yield Verdict("clock_step", 0.0, "", "the wall clock was not moved")


def config(episode: Episode, view: View) -> Iterator[Verdict]:
    """The limit or the burst was lowered."""
    if episode.symptom != "refusals":
        return
    for metric, unit in (("limit", "1/s"), ("burst", "")):
        now, was = episode.facts.get(metric), episode.facts.get(f"{metric}_base")
        if now is None or was is None or now >= was * 0.99:
            continue
        yield Verdict("config", 0.92, episode.scope, f"its {metric} was lowered from {number(was)} to {number(now)}{' per second' if unit else ''}",
                      (item("limiter_decision", metric, now, unit, baseline=was, pid=episode.pid),))
        return
    yield Verdict("config", 0.0, "", "its limit and burst did not change" if "limit" in episode.facts else "its limit is not known")


def load(episode: Episode, view: View) -> Iterator[Verdict]:
    """More was asked for. The weakest explanation: any other one that holds comes first."""
    facts = episode.facts
    if episode.symptom in ("refusals", "decision_latency"):
        rate, usual, what, table = facts.get("cost"), facts.get("cost_base"), "asked for", "limiter_decision"
    elif episode.symptom == "queue_lag":
        rate, usual, what, table = facts.get("in"), facts.get("in_base"), "messages arriving", "queue_lag"
    else:
        return
    if rate is None or usual is None:
        yield Verdict("load", 0.0, "", "the rate is not known")
        return
    entry = item(table, what, rate, "1/s", baseline=usual, pid=episode.pid)
    limit = facts.get("limit")
    if rate >= 1.5 * usual and rate - usual >= 1:
        yield Verdict("load", 0.6, episode.scope, f"the load rose from {number(usual)} to {number(rate)} per second", (entry,))
    elif episode.symptom == "refusals" and limit and rate > 1.05 * limit and facts.get("limit_base", limit) <= limit:
        yield Verdict("load", 0.5, episode.scope, f"{number(rate)} per second were asked for and its limit is {number(limit)} per second", (entry,))
    else:
        yield Verdict("load", 0.0, "", f"the load was {number(rate)} per second, usually {number(usual)}")


def consumers(episode: Episode, view: View) -> Iterator[Verdict]:
    """The group stopped, changed or slowed down."""
    if episode.symptom != "queue_lag":
        return
    facts = episode.facts
    count, before = facts.get("consumers"), facts.get("consumers_base")
    out, out_was, arriving = facts.get("out"), facts.get("out_base"), facts.get("in")
    members = item("queue_lag", "consumers", count, "", baseline=before)
    rates = (item("queue_lag", "acknowledged", out, "1/s", baseline=out_was),
             item("queue_lag", "arriving", arriving, "1/s", baseline=facts.get("in_base")))
    if count == 0:
        yield Verdict("consumer_stopped", 0.95, episode.scope, "the group has no consumers", (members, *rates))
        return
    if count is not None and before is not None and count != before:
        yield Verdict("rebalance", 0.65, episode.scope, f"its consumers changed from {number(before)} to {number(count)}", (members, *rates))
    elif count is not None:
        yield Verdict("rebalance", 0.0, "", f"its consumers stayed {number(count)}")
    if out is None:
        yield Verdict("consumer_slow", 0.0, "", "the rate of acknowledgements is not known")
        return
    usual = "" if out_was is None else f", usually {number(out_was)}"
    if episode.metric == "pending_s" and out > 0 and out >= 0.7 * (out_was or 0):
        words = f"one that was delivered stays unacknowledged while {number(out)} others per second are: whoever took it stopped, or holds it"
        yield Verdict("consumer_stopped", 0.65, episode.scope, words, (*rates, members))
    elif out == 0 and ((out_was or 0) > 0 or (arriving or 0) > 0):
        more = f" any more{usual} per second" if out_was else f" while {number(arriving or 0)} messages per second arrived"
        yield Verdict("consumer_stopped", 0.9, episode.scope, f"nothing was acknowledged{more}", rates)
    elif out_was is not None and out < 0.7 * out_was:
        yield Verdict("consumer_slow", 0.85, episode.scope, f"its consumers acknowledged only {number(out)} messages per second{usual}", rates)
    elif arriving is not None and out < 0.95 * arriving and not arriving >= 1.5 * facts.get("in_base", arriving):
        words = f"its consumers acknowledged {number(out)} messages per second while {number(arriving)} arrived"
        yield Verdict("consumer_slow", 0.7, episode.scope, words, rates)
    else:
        yield Verdict("consumer_slow", 0.0, "", f"its consumers acknowledged {number(out)} messages per second{usual}")


def broker(episode: Episode, view: View) -> Iterator[Verdict]:
    """What the poller saw of the broker itself: it took long to answer, did not answer, or was not there."""
    if episode.symptom not in ("broker_stall", "broker_down"):
        return
    where, raw = episode.scope, episode.key[1]
    assert isinstance(raw, bytes)
    seen = item("queue_lag", "time without an answer", episode.value, "ns", baseline=episode.base, peer=where, reason=episode.words,
                t_ns=episode.start_ns)
    if episode.symptom == "broker_down":
        why = f" ({episode.words})" if episode.words else ""
        yield Verdict("broker_down", 0.95, where, f"{episode.subject} could not be reached{why}", (seen,))
        return
    usual, worst = view.rtt_us(raw, episode) if where else (None, None)
    rtt = item("tcp_rtt", "smoothed RTT", worst, "us", peer=where, baseline=usual)
    server = view.server(where)
    who = f"{server[0]} (pid {server[1]})" if server else "the server"
    starved = min(view.starved_ns(server[1], episode), episode.value) if server else 0.0
    blind = view.blind_ns(episode)
    if blind > 0.5 * episode.value:
        yield Verdict("cpu", 0.8, "", f"tickscope itself, which asked, got no CPU for {span(blind)}",
                      (item("syscall_latency", "time that tickscope did not run", blind, "ns"), seen))
    elif starved > 0.5 * episode.value:
        yield blocked.waiting_for_cpu(process(*server) if server else "", starved, server[1] if server else None, 0.88)
    elif worst is None:
        yield Verdict("broker_slow", 0.8, where, f"{who} held its answer back, as far as was seen: the network RTT to it is not known", (seen,))
    elif usual is not None and worst > 2 * usual and (worst - usual) * 1e3 >= _LEAST * episode.value:
        yield Verdict("network_rtt", 0.85, where, f"the network RTT to it rose from {span(usual * 1e3)} to {span(worst * 1e3)}", (rtt, seen))
    else:
        yield Verdict("broker_slow", 0.9, where, f"{who} held its answer back {blocked.steadily(usual, worst)}", (seen, rtt))


def accepting(episode: Episode, view: View) -> Iterator[Verdict]:
    """The listener itself, where nothing that held it up was seen."""
    if episode.symptom != "accept_overflow":
        return
    lost = int(episode.facts.get("drops", 0))
    yield Verdict("accept_overflow", 0.5, episode.scope, f"{process(episode.comm, episode.pid)} accepted connections more slowly than they came"
                  + (f", and {plural(lost, 'connection')} did not fit" if lost else ""),
                  (item("socket_queue", "accept queue", episode.value, "connections", limit=episode.facts.get("limit"), drops=lost,
                        pid=episode.pid),))


RULES: tuple[Rule, ...] = (clock, beliefs.moved, broker, blocked.peers, blocked.tls, blocked.syscall, blocked.cpu, config, consumers, accepting, load)


def rank(episode: Episode, view: View) -> list[Verdict]:
    """All verdicts, best first; those with a score below what explains anything are ruled out (score 0)."""
    verdicts = [v if v.score >= _LEAST else Verdict(v.cause, 0.0, v.scope, v.words, v.evidence) for rule in RULES for v in rule(episode, view)]
    return sorted(verdicts, key=lambda v: -v.score)


def usual_and_now(episode: Episode) -> tuple[str, str]:
    """(value, baseline) of an episode in words."""
    if episode.unit == "ns":
        return span(episode.value), span(episode.base)
    if episode.unit == "s":
        return seconds(episode.value), seconds(episode.base)
    return number(episode.value), number(episode.base)
