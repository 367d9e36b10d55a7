"""Keys of limiters that are refused every time while others pass, or whose counter no longer expires."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.limiter_keys import READS, KeyHistory, KeyWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.watch import Second
from agent.correlate.words import Words, opening, render, value, when


def judge(watch: KeyWatch, second: Second) -> None:
    """Lasts as long as the key is asked for and is stuck (agent/correlate/limiter_keys.py)."""
    for _, one, slot in watch.episodes(second.at):
        episode = watch.active.get((SYMPTOM.name, slot))
        if episode is None:
            episode = watch.describe(SYMPTOM.name, slot)
            watch.open(episode, second.at, 0.0, 1)
        _measure(episode, one)
        watch.extend(episode, second.at, episode.value, one.counted_ns)


def _measure(episode: Episode, one: KeyHistory) -> None:
    """Sets its numbers: of a key that is refused, decisions; else the age of its counter."""
    facts = episode.facts
    facts["window_s"] = one.window_s
    if one.limit == one.limit:  # not NaN
        facts["limit"] = one.limit
    if one.unexpired_ns:
        facts["unexpired_s"] = one.unexpired_ns / SECOND
        facts.setdefault("begun_ns", float(one.counted_ns - one.unexpired_ns))
    if one.refused_ns:
        episode.metric, episode.unit, episode.value = "refused", "", float(one.refused)
        episode.start_ns = one.refused_ns
        facts["asked"], facts["asked_base"] = one.asked_per_s, one.usual_per_s
    elif episode.metric != "refused":
        episode.metric, episode.unit, episode.value = "unexpired", "ns", float(one.unexpired_ns)
        episode.base = one.window_s * SECOND
        episode.start_ns = int(facts["begun_ns"])
    #: Blocks of one limiter that recur, without a known cause, are meant.
    episode.recurs_by = "" if "unexpired_s" in facts else "refused"


def asked_within(episode: Episode, _view: View) -> Iterator[Verdict]:
    """Never: a key that is asked for more than it may is not stuck."""
    rate, usual, limit = (episode.facts.get(name) for name in ("asked", "asked_base", "limit"))
    if rate is None:
        return
    words = render(
        "the key was requested at {rate} (before: {usual}), which is {within}",
        rate=value(rate, "1/s"),
        usual=value(usual),
        within="not more than usual" if limit is None else "below its limit",
    )
    entry = item("limiter_decision", "requested units", rate, "1/s", column="cost", baseline=usual, keys=episode.keys)
    yield Verdict("load", 0.0, "", words, (entry,))


def clause(episode: Episode) -> Words:
    facts = episode.facts
    if episode.metric == "unexpired":
        return render(
            "The counter of {key} did not expire for {age}, although its window is {window}, {when}",
            key=episode.subject,
            age=value(episode.value, "ns"),
            window=value(facts.get("window_s"), "s"),
            when=when(episode),
        )
    window, limit = value(facts.get("window_s"), "s"), facts.get("limit")
    may = (
        render("its limit is {limit} in {window}", limit=value(limit), window=window)
        if limit is not None
        else render("its window is {window}", window=window)
    )
    return render(
        "{key} was refused every time ({n}) while other keys passed (requested: {rate}; {may}) {when}",
        key=opening(episode.subject),
        n=value(episode.value, "decision"),
        rate=value(facts.get("asked"), "1/s"),
        may=may,
        when=when(episode),
    )


SYMPTOM = Symptom(
    "key_stuck",
    32,
    "one key of a limiter is refused every time while others pass, or its counter no longer expires",
    "a key of a limiter",
    "",
    "limiter_decision",
    READS,
    clause,
    "check whether the key is blocked on purpose; else see whether its counter still expires (Redis: TTL KEY is -1 if"
    " not), and reset it",
    KeyWatch,
    judge,
    adopted=False,
    measured={"refused": "result", "unexpired": "unexpired_ns"},
    explained_by={"load": asked_within},
)
