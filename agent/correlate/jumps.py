"""What moves of the wall clock explain. Shared by several causes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent.correlate.catalogue import Rule
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.steps import ClockJump
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.words import process, render, span

#: Columns that rules about jumps read.
READS = {
    "clock_change": (
        "kind",
        "via",
        "unwatched_ns",
        "size_ns",
        "err_ns",
        "real_mono_before_ns",
        "real_mono_after_ns",
        "ret",
    )
}
_REACH_NS = 900 * SECOND  # how far back a comparison of time daemons may reach


def near(episode: Episode, view: View) -> list[ClockJump]:
    """Jumps shortly before it began."""
    found = []
    for jump in view.jumps:
        lead = episode.start_ns - jump.t_ns
        if (
            -(view.config.persist_s + 1) * SECOND <= lead <= max(2 * SECOND, min(abs(jump.size_ns), 600 * SECOND))
            and jump.t_ns <= episode.end_ns
        ):
            found.append(jump)
    return found


def after(cause: str, enough: Callable[[Episode], float]) -> Rule:
    """A rule: a jump of that cause shortly before, of at least ``enough`` ns (infinite if no jump can cause the
    symptom).
    """

    def rule(episode: Episode, view: View) -> Iterator[Verdict]:
        for jump in near(episode, view):
            if jump.cause != cause:
                continue
            size, lead = abs(jump.size_ns), episode.start_ns - jump.t_ns
            mine = [a for a in jump.series.affected.values() if a.limiter == episode.key[0] and a.pid == episode.pid]
            if any(a.immune for a in mine):
                yield Verdict(cause, 0.0, "", "that limiter does not use the wall clock")
            elif size < enough(episode):
                yield Verdict(
                    cause,
                    0.0,
                    "",
                    render("the clock moved by only {size}", size=span(size)),
                    (
                        item(
                            "clock_change",
                            "size",
                            jump.size_ns,
                            "ns",
                            column="size_ns",
                            t_ns=jump.t_ns,
                            keys={"pid": jump.pid or None},
                        ),
                    ),
                )
            else:
                who = f" by {process(jump.comm, jump.pid)}" if jump.pid or jump.comm else ""
                words = render(
                    "the wall clock was moved {direction} by {size}{who}",
                    direction="back" if jump.backward else "forward",
                    size=span(size),
                    who=who,
                )
                yield Verdict(
                    cause,
                    0.93 if abs(lead) <= 2 * SECOND else 0.8,
                    str(jump.series.first.t_ns),
                    words,
                    (
                        item(
                            "clock_change",
                            "size",
                            jump.size_ns,
                            "ns",
                            column="size_ns",
                            t_ns=jump.t_ns,
                            lead_ns=lead,
                            keys={"pid": jump.pid or None},
                        ),
                    ),
                )

    return rule


def unknown_to(cause: str) -> Rule:
    """A rule: the clock was moved by as much as a time daemon is wrong, and the daemon does not know."""

    def rule(episode: Episode, view: View) -> Iterator[Verdict]:
        jump = moved(episode, view)
        if jump is None or jump.cause != cause:
            return
        who = process(jump.comm, jump.pid) if jump.pid or jump.comm else "an unknown process"
        words = render(
            "{who} moved the wall clock {direction} by {size}, which {daemon} did not know",
            who=who,
            direction="back" if jump.backward else "forward",
            size=span(jump.size_ns),
            daemon=str(episode.key[0]),
        )
        yield Verdict(
            cause,
            0.93,
            str(jump.t_ns),
            words,
            (
                item(
                    "clock_change",
                    "size",
                    jump.size_ns,
                    "ns",
                    column="size_ns",
                    t_ns=jump.t_ns,
                    keys={"pid": jump.pid or None},
                ),
            ),
        )

    return rule


def moved(episode: Episode, view: View) -> ClockJump | None:
    """The last jump by as much as a time daemon is wrong."""
    apart, bound = episode.facts["apart_ns"], episode.facts["bound_ns"]
    right = (
        j
        for j in view.jumps[::-1]
        if -SECOND <= episode.start_ns - j.t_ns <= _REACH_NS and abs(j.size_ns - apart) <= bound
    )
    return next(right, None)


def rules(cause: str) -> dict[str, Rule]:
    """What any move of the wall clock explains, by symptom."""
    risen = after(cause, _of_rise)
    return {
        "refusals": after(cause, lambda _: 10e6),
        "decision_latency": risen,
        "queue_lag": risen,
        "duplicates": after(cause, lambda _: 1e9),
        "clock_disagreement": unknown_to(cause),
    }


def _of_rise(episode: Episode) -> float:
    if episode.unit not in ("s", "ns"):
        return float("inf")
    return 0.3 * (episode.value - episode.base) * (1e9 if episode.unit == "s" else 1)
