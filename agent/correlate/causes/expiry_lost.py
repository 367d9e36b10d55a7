"""A counter lost its expiry: INCR without its EXPIRE."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.view import View
from agent.correlate.words import Words, render, value


def goes_on(episode: Episode, _view: View) -> Iterator[Verdict]:
    age_s, window_s = episode.facts.get("unexpired_s"), episode.facts["window_s"]
    if age_s is None:
        words: Words = "none of its counters in Redis outlived its window"
        yield Verdict(CAUSE.name, 0.0, "", words, checked=False)
        return
    words = render(
        "its counter no longer expires: no EXPIRE was seen since its first count at {begun} (its window is {window})",
        begun=int(episode.facts["begun_ns"]),
        window=value(window_s, "s"),
    )
    entry = item(
        "limiter_decision",
        "age of its counter",
        age_s * 1e9,
        "ns",
        column="unexpired_ns",
        baseline=window_s * 1e9,
        keys=episode.keys,
    )
    yield Verdict(CAUSE.name, 0.95, episode.scope, words, (entry,))


CAUSE = Cause(
    "expiry_lost",
    92,
    "the counter of a limiter's key in Redis no longer expires: INCR was not followed by EXPIRE",
    {"limiter_decision": ("limiter_id", "key", "unexpired_ns")},
    "delete the counter (DEL KEY); count and set the expiry in one step: a script, MULTI, or SET KEY 0 EX SECONDS NX"
    " before INCR",
    {"key_stuck": goes_on},
    facts=("unexpired_s", "begun_ns", "window_s"),
)
