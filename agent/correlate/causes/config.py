"""The limit or the burst was lowered."""

from __future__ import annotations

import math
from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.view import View
from agent.correlate.words import render, value


def lowered(episode: Episode, _view: View) -> Iterator[Verdict]:
    for metric, unit in (("limit", "1/s"), ("burst", "")):
        now, was = episode.facts.get(metric), episode.facts.get(f"{metric}_base")
        if now is None or was is None or now >= was * 0.99:
            continue
        before = value(was) if math.isfinite(was) else "unlimited"
        words = render(
            "its {metric} was lowered from {before} to {now}", metric=metric, before=before, now=value(now, unit)
        )
        yield Verdict(
            CAUSE.name,
            0.92,
            episode.scope,
            words,
            (
                item(
                    "limiter_decision",
                    metric,
                    now,
                    unit,
                    column="limit_per_s" if unit else metric,
                    baseline=was,
                    keys={**episode.keys, "pid": episode.pid},
                ),
            ),
        )
        return
    yield Verdict(
        CAUSE.name,
        0.0,
        "",
        "its limit and burst did not change" if "limit" in episode.facts else "its limit is not known",
    )


CAUSE = Cause(
    "config",
    90,
    "a limiter's limit or burst was lowered",
    {},
    "see who changed it, and whether that was intended: tickscope limiters",
    {"refusals": lowered},
    facts=("limit", "burst"),
)
