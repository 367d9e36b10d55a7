"""Clock jumps that belong together, and their description."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.correlate.episode import Culprit, Evidence, Verdict, item
from agent.correlate.thresholds import CorrelatorConfig
from agent.correlate.words import Words, aside, joined, listing, process, render, span, value

_AFFECTED = ("decisions in the interval", "not affected: ignores the wall clock")
_FIRST = 16  # jumps of a series that are listed as evidence
#: Words for kinds of timers: what is counted, and more.
_TIMERS = {
    "redelivery": ("message", " to be redelivered"),
    "eta": ("task", " with a set time"),
    "lock": ("lock", ""),
    "lease": ("lease", ""),
    "dedup": ("deduplication key", ""),
    "ttl": ("key", " with an expiry"),
    "retention": ("record", " to be deleted"),
    "id": ("sequence", " of ids"),
}
_NEAR = 64  # jumps of a series that are checked for a decision, so that it counts once


@dataclass
class Affected:
    """Decisions of one limiter of one process near the jumps of a series, as seen so far; each counts once."""

    limiter: str
    library: str
    pid: int | None
    comm: str
    immune: bool | None
    inside_allowed: int = 0
    inside_refused: int = 0
    straddling: int = 0
    #: How many more it let through (below 0: fewer) than on true time, between two instants, CLOCK_BOOTTIME; 0 if
    #: unknown.
    excess: int = 0
    excess_ns: tuple[int, int] = (0, 0)
    excess_exact: bool = True

    @property
    def inside(self) -> int:
        return self.inside_allowed + self.inside_refused


@dataclass(frozen=True)
class MovedTimers:
    """Timers of one queue that a jump moved (``timer_effect``). most_ns: how far one of them, at most."""

    system: str
    destination: str
    kind: str
    count: int
    most_ns: int


@dataclass(frozen=True)
class Jumping:
    """For a cause that moves the wall clock: how its jumps are found (agent/correlate/clock.py) and described.

    change: the kind of a ``clock_change`` row. one, several: the verb for the clock. takes_actor: whether the sentence
    names an actor. least_ns: the smallest change that counts. moves: it skips time or repeats it.
    """

    change: str
    one: str = "jumped"
    several: str = "jumped"
    takes_actor: bool = True
    moves: bool = True
    least_ns: Callable[[CorrelatorConfig], int] = lambda _: 0


@dataclass(eq=False)
class ClockJump:
    """One clock change that matters. size_ns < 0: backward. until_ns: from then on no decision is affected. alarm:
    whether it is large enough for one. minor: below the threshold, a finding only if a decision fell into it.
    unwatched_ns: how long no agent had run when it was found.
    """

    cause: str
    declared: Jumping
    t_ns: int
    size_ns: int
    err_ns: int | None
    pid: int | None
    comm: str
    via: str
    until_ns: int
    wall_before_ns: int | None = None
    wall_after_ns: int | None = None
    alarm: bool = False
    minor: bool = False
    unwatched_ns: int | None = None
    series: JumpSeries = field(init=False, repr=False)

    @property
    def backward(self) -> bool:
        return self.size_ns < 0

    @property
    def actor(self) -> tuple[str, str | None]:
        """Common to the jumps of one series. A command that is run again and again is one actor with many pids."""
        unwatched = None if self.unwatched_ns is None else f"unwatched for {self.unwatched_ns} ns"
        return self.cause, unwatched or self.comm or (str(self.pid) if self.pid else None)


class JumpSeries:
    """Jumps of one kind by one actor, each soon after the one before; or jumps by several actors that undo each
    other's, such as two time daemons: one finding.

    rivals: by command name, the last pid of each of these actors; empty for a single actor. open_until_ns: the end of
    the wait for the next such jump. run_ns: the sum of the last jumps of one actor. count, sum_ns, back, least_ns,
    most_ns are of all jumps; timers of the first one; ``first_jumps`` holds the first, ``last_jumps`` the last of them
    in detail. complete: False if some decisions near them may not have been counted.
    """

    def __init__(self, first: ClockJump) -> None:
        self.first_jumps: list[ClockJump] = []
        self.last_jumps: deque[ClockJump] = deque(maxlen=_NEAR)
        self.pids: dict[int, None] = {}
        self.rivals: dict[str, int | None] = {}
        self.affected: dict[tuple[bytes, int, int], Affected] = {}
        self.timers: list[MovedTimers] = []
        self.count = self.sum_ns = self.back = self.most_ns = self.run_ns = self.open_until_ns = 0
        self.least_ns = abs(first.size_ns)
        self.end_ns = self.until_ns = first.t_ns
        self.complete = self.certain = self.minor = True
        self.alarm = False
        self.add(first)

    def add(self, jump: ClockJump) -> None:
        jump.series = self
        size = abs(jump.size_ns)
        last = self.last_jumps[-1] if self.last_jumps else jump
        self.run_ns = jump.size_ns + (self.run_ns if last.comm == jump.comm else 0)
        if (self.rivals or last.comm != jump.comm) and len(self.rivals) < _NEAR:
            self.rivals |= {last.comm: last.pid, jump.comm: jump.pid}
        self.count += 1
        self.sum_ns += jump.size_ns
        self.back += jump.backward
        self.alarm |= jump.alarm
        self.minor &= jump.minor
        self.least_ns, self.most_ns = min(self.least_ns, size), max(self.most_ns, size)
        self.end_ns, self.until_ns = max(self.end_ns, jump.t_ns), max(self.until_ns, jump.until_ns)
        self.certain &= jump.err_ns is None or 2 * jump.err_ns < size
        self.last_jumps.append(jump)
        if len(self.first_jumps) < _FIRST:
            self.first_jumps.append(jump)
        if jump.pid and len(self.pids) < _NEAR:
            self.pids[jump.pid] = None

    def undone_by(self, jump: ClockJump) -> bool:
        """Whether another process undoes the last jumps, at least by half."""
        last, left = self.last_jumps[-1], self.run_ns + jump.size_ns
        return (
            bool(last.comm and jump.comm)
            and last.comm != jump.comm
            and (self.run_ns < 0) != jump.backward
            and 2 * abs(left) <= max(abs(self.run_ns), abs(jump.size_ns))
        )

    @property
    def first(self) -> ClockJump:
        return self.first_jumps[0]

    @property
    def matters(self) -> bool:
        """Whether it is a finding by now."""
        return not self.minor or any(a.inside for a in self.affected.values())

    @property
    def verdict(self) -> Verdict:
        sure = (1.0 if self.certain else 0.6) * (0.99 if self.pids or not self.first.declared.takes_actor else 0.9)
        others = [process(comm, pid) for comm, pid in self.rivals.items() if comm != self.first.comm]
        culprit = Culprit(self.first.pid or None, self.first.comm, ", ".join(others))
        return Verdict(self.first.cause, sure, str(self.first.t_ns), "", culprit=culprit)

    def evidence(self) -> list[Evidence]:
        """The first jump, the decisions, then the other jumps; the end of the list may be left out."""
        reach = max(self.most_ns, self.until_ns - self.end_ns)  # decisions up to this distance are affected
        many = (
            []
            if self.count == 1
            else [
                item(
                    "clock_change",
                    "steps",
                    self.count,
                    "",
                    sum_ns=self.sum_ns,
                    smallest_ns=self.least_ns,
                    largest_ns=self.most_ns,
                    t_ns=self.first.t_ns,
                    end_ns=self.end_ns,
                )
            ]
        )
        hit = [
            item(
                "limiter_decision",
                _AFFECTED[bool(a.immune)],
                a.inside,
                "decisions",
                library=a.library,
                comm=a.comm,
                allowed=a.inside_allowed,
                refused=a.inside_refused,
                straddling=a.straddling,
                excess=a.excess or None,
                at_least=None if self.complete else True,
                t_ns=self.first.t_ns - reach,
                end_ns=self.end_ns + reach,
                keys={"limiter_id": a.limiter, "pid": a.pid},
            )
            for a in self._sorted()
        ]
        moved = [
            item(
                "timer_effect",
                t.kind,
                t.count,
                "timers",
                column="timers",
                t_ns=self.first.t_ns,
                end_ns=self.first.t_ns,
                most_ns=t.most_ns,
                keys={"system": t.system, "destination": t.destination, "kind": t.kind},
            )
            for t in self.timers[:_FIRST]
        ]
        return [_change(self.first), *many, *hit, *moved, *map(_change, self.first_jumps[1:])]

    def sentence(self) -> Words:
        hit = [a for a in self._sorted() if not a.immune]
        inside, last_jumps = [a for a in hit if a.inside], [a for a in hit if not a.inside]
        immune = [f"limiter {a.limiter}" for a in self._sorted() if a.immune]
        it = "them" if self.count > 1 else "it"
        return joined(
            [
                render("The wall clock {moved}{by}.", moved=self._moved(), by=self._by()),
                self._inside(inside) if inside else "",
                *(_excess(a) for a in inside[:3] if a.excess),
                (
                    render(
                        " Windows of {limiters} straddle {it}.",
                        limiters=listing([f"limiter {a.limiter}" for a in last_jumps]),
                        it=it,
                    )
                    if last_jumps
                    else ""
                ),
                (
                    render(" Not affected (ignores the wall clock): {limiters}.", limiters=listing(immune))
                    if immune
                    else ""
                ),
                "" if hit or immune else f" No limiter decision was seen near {it}.",
                self._timers() if self.timers else "",
            ]
        )

    def _timers(self) -> Words:
        """Of the first jump."""
        moved = sorted(self.timers, key=lambda t: -t.count)
        each = []
        for t in moved:
            counted, more = _TIMERS.get(t.kind, ("timer", ""))
            queue = f" {t.destination}" if t.destination else ""
            each.append(render("{n}{more} ({of})", n=value(t.count, counted), more=more, of=f"{t.system}{queue}"))
        return render(
            " Up to {size} {how}: {timers}.",
            size=span(max(t.most_ns for t in moved)),
            how="late" if self.first.backward else "early",
            timers=listing(each),
        )

    def _inside(self, inside: list[Affected]) -> Words:
        least = "" if self.complete else "at least "
        if not self.first.declared.moves:
            where = "{size} around it" if self.count == 1 else "the time around them"
        elif self.count > 1:
            where = "time that occurred twice or was skipped"
        else:
            where = (
                "the {size} that occurred twice"
                if self.back
                else "the {size} before and after the time that was skipped"
            )
        limiters = [
            render(
                "limiter {limiter} ({process}; {least}{allowed} allowed, {refused} refused)",
                limiter=a.limiter,
                process=process(a.comm, a.pid),
                least=least,
                allowed=value(a.inside_allowed),
                refused=value(a.inside_refused),
            )
            for a in inside
        ]
        return render(
            " {least}{decisions} fell into {where}: {limiters}.",
            least=least.capitalize(),
            decisions=value(sum(a.inside for a in inside), "decision"),
            where=render(where, size=span(self.most_ns)),
            limiters=listing(limiters),
        )

    def _moved(self) -> Words:
        one, several = self.first.declared.one, self.first.declared.several
        moved = {
            "did": one,
            "direction": "back" if self.back else "forward",
            "size": span(self.most_ns),
            "at": self.first.t_ns,
        }
        if self.first.unwatched_ns is not None:
            return render(
                "{did} {direction} by {size} in the {unwatched} before {at}, while no agent was running",
                **moved,
                unwatched=span(self.first.unwatched_ns),
            )
        if self.count == 1:
            return render("{did} {direction} by {size} at {at}", **moved)
        forward = self.count - self.back
        directions = (
            render("{forward} forward and {back} back", forward=value(forward), back=value(self.back))
            if forward and self.back
            else "all back"
            if self.back
            else "all forward"
        )
        each = render(
            "by {least} each" if self.least_ns == self.most_ns else "by {least} to {most}",
            least=span(self.least_ns),
            most=span(self.most_ns),
        )
        return render(
            "{did} {count} ({directions}, {each}, {sum} {direction}in sum) from {start} to {end}",
            did=several if len({j.cause for j in self.last_jumps}) == 1 else "was moved",
            direction=("back " if self.sum_ns < 0 else "forward ") if forward and self.back and self.sum_ns else "",
            count=value(self.count, "time"),
            directions=directions,
            each=each,
            sum=span(self.sum_ns) if self.sum_ns else "nothing",
            start=self.first.t_ns,
            end=self.end_ns,
        )

    def _by(self) -> Words:
        first = self.first
        if self.rivals:
            who = listing([process(comm, pid) for comm, pid in self.rivals.items()])
            if self.count > 2:
                return render(" ({who} undo each other's corrections)", who=who)
            return render(" ({who} in turn; the second undid the first)", who=who)
        via = f"{first.via} from" if first.via else "by"
        if not self.pids and first.comm:  # its pid belongs to another PID namespace
            return f" ({via} {first.comm}, which is not visible from the agent's container)"
        if not self.pids:
            unknown = first.declared.takes_actor and first.unwatched_ns is None
            return f" ({via} an unknown process)" if unknown else ""
        return render(
            " ({via} {who})",
            via=via,
            who=listing([(aside if len(self.pids) == 1 else process)(first.comm, pid) for pid in self.pids]),
        )

    def _sorted(self) -> list[Affected]:
        return sorted(
            self.affected.values(), key=lambda a: (bool(a.immune), -a.inside, -a.straddling, a.limiter, a.pid or 0)
        )


def _excess(affected: Affected) -> Words:
    start, end = affected.excess_ns
    did = "admitted {about}{n} too many" if affected.excess > 0 else "wrongly refused {about}{n}"
    return render(
        f" Limiter {{limiter}} {did} between {{start}} and {{end}}.",
        limiter=affected.limiter,
        about="" if affected.excess_exact else "about ",
        n=value(abs(affected.excess), "request"),
        start=start,
        end=end,
    )


def _change(j: ClockJump) -> Evidence:
    return item(
        "clock_change",
        j.cause,
        j.size_ns,
        "ns",
        column="size_ns",
        t_ns=j.t_ns,
        end_ns=j.t_ns,
        comm=j.comm,
        via=j.via,
        err_ns=j.err_ns,
        real_mono_before_ns=j.wall_before_ns,
        real_mono_after_ns=j.wall_after_ns,
        keys={"pid": j.pid or None},
    )
