"""A finding: one cause at one time, with all the symptoms that it explains, and its row and sentence."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace

from agent.batch import Batch, make
from agent.correlate.causes import usual_and_now
from agent.correlate.config import SECOND
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.steps import Series
from agent.correlate.words import fit, fit_json, instant, listing, number, percent, span
from agent.tables import TABLES

_FINDING = TABLES["finding"]
_NO_CAUSE = Verdict("unknown", 0.0, "", "no cause was seen")
_BROKER = ("broker_slow", "broker_down")


@dataclass
class Finding:
    """verdicts: of each episode, best first, as last ranked. last_bad: the last second with a symptom, or its cause at work."""

    start_ns: int
    end_ns: int
    last_bad: int
    finding_id: str = ""
    episodes: list[Episode] = field(default_factory=list)
    verdicts: dict[int, list[Verdict]] = field(default_factory=dict)
    steps: Series | None = None
    closed: bool = False
    said: tuple[object, ...] = ()
    said_second: int = 0

    def name(self, cause: str, subject: str) -> None:
        """The id: the same whenever the same rows are read."""
        self.finding_id = hashlib.blake2b(f"{cause}|{subject}|{self.start_ns}".encode(), digest_size=8).hexdigest()

    def ranked(self) -> list[Verdict]:
        """The best verdict of each cause over all episodes, best first; in the words of the first episode that it explains."""
        best: dict[str, Verdict] = {}
        for episode in sorted(self.episodes, key=lambda e: e.order):
            for v in self.verdicts[id(episode)]:
                held = best.get(v.cause)
                if held is None or v.score > held.score == 0:
                    best[v.cause] = Verdict(v.cause, v.score, v.scope or (held.scope if held else ""), v.words, v.evidence)
                elif v.score > held.score:
                    best[v.cause] = replace(held, score=v.score, scope=v.scope or held.scope)
        return sorted(best.values(), key=lambda v: -v.score)

    @property
    def cause(self) -> Verdict:
        if self.steps is not None:
            return self.steps.verdict
        top = self.ranked()[:1]
        return top[0] if top and top[0].score > 0 else _NO_CAUSE

    @property
    def main(self) -> Episode:
        return min(self.episodes, key=lambda e: e.order)

    def takes(self, cause: Verdict, episode: Episode, merge_ns: int) -> bool:
        """Whether an episode with this best cause belongs here."""
        mine = self.cause
        if self.steps is not None:
            return cause.cause == mine.cause and cause.scope == mine.scope
        near = episode.start_ns <= max(self.end_ns, (self.last_bad + 1) * SECOND) + merge_ns and episode.end_ns >= self.start_ns - merge_ns
        same = cause.cause == mine.cause or {cause.cause, mine.cause} <= set(_BROKER)
        if cause.cause == "unknown":
            return near and same and any(e.scope == episode.scope for e in self.episodes)
        return near and same and (cause.scope == mine.scope or "" in (cause.scope, mine.scope))

    def state(self) -> tuple[object, ...]:
        """What makes a new row worth emitting at once."""
        steps = self.steps
        counts = (steps.count, *((a.inside_allowed, a.inside_refused, a.straddling) for a in steps.affected.values())) if steps else ()
        return self.closed, self.cause.cause, len(self.episodes), counts

    @property
    def severity(self) -> str:
        """``alarm`` unless it is nothing but a clock jump below the threshold."""
        return "notice" if self.steps is not None and not self.steps.alarm and not self.episodes else "alarm"

    def row(self, t_ns: int) -> Batch:
        """The finding as one row of its table; t_ns is the watermark at which this was known."""
        cause, ranked = self.cause, self.ranked()
        held = [v for v in ranked if v.score > 0]
        first = self.main if self.episodes else None
        symptom, subject = ("clock_jump", "wall clock") if self.steps is not None else (first.symptom, first.subject) if first else ("", "")
        causes = [{"cause": v.cause, "confidence": round(v.score, 2), "words": v.words} for v in ([cause] if self.steps else []) + held]
        ruled_out = [{"cause": v.cause, "words": v.words} for v in ranked if v.score == 0]
        return make("finding", 1, t_ns=t_ns, finding_id=self.finding_id.encode(), state=_FINDING.code("state", "closed" if self.closed else "open"),
                    severity=_FINDING.code("severity", self.severity),
                    start_ns=self.start_ns, end_ns=self.end_ns, symptom=symptom.encode(), subject=fit(subject, 128), cause=cause.cause.encode(),
                    confidence=round(cause.score, 2) if cause.cause != "unknown" else 0.3, sentence=fit(self.sentence(), 480),
                    causes=fit_json(causes, 2048), evidence=fit_json(self.evidence(held), 6144), ruled_out=fit_json(ruled_out, 2048))

    def evidence(self, held: list[Verdict]) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = []
        if self.steps is not None:
            entries += self.steps.evidence()
        for v in held[:1]:
            entries += v.evidence
        for e in sorted(self.episodes, key=lambda e: e.order):
            entries.append(item(_TABLE[e.symptom], e.symptom, e.value, e.unit, baseline=e.base, t_ns=e.start_ns, end_ns=e.end_ns,
                                subject=e.subject, pid=e.pid))
        for v in held[1:]:
            entries += v.evidence
        return entries

    def sentence(self) -> str:
        if self.steps is not None:
            return self.steps.sentence() + (f" After it, {_lower(_clause(self.main))}." if self.episodes else "")
        cause = self.cause
        if cause.cause == "unknown":
            looked = sorted({v.cause.replace("_", " ") for v in self.ranked()})
            why = f"; no cause was seen ({'looked at: ' + ', '.join(looked) if looked else 'nothing else was recorded'})"
        else:
            why = f"{' because' if cause.score >= 0.7 else ', probably because'} {cause.words}"
        others = [e.subject for e in sorted(self.episodes, key=lambda e: e.order) if e is not self.main]
        also = f" Also affected: {listing(sorted(set(others) - {self.main.subject}))}." if set(others) - {self.main.subject} else ""
        return f"{_clause(self.main)}{why}.{also}"


_TABLE = {"decision_latency": "limiter_decision", "refusals": "limiter_decision", "queue_lag": "queue_lag", "accept_overflow": "socket_queue",
          "broker_down": "queue_lag", "broker_stall": "queue_lag", "clock_disagreement": "clock_daemon"}


def _lower(clause: str) -> str:
    return clause[0].lower() + clause[1:]


def _clause(e: Episode) -> str:
    """What was wrong with what, how much, and when."""
    value, base = usual_and_now(e)
    when = f"from {instant(e.start_ns)} to {instant(e.end_ns)}"
    if e.metric == "high_ns":
        return f"One in ten decisions of {e.subject} took {value} or more instead of {base} {when}"
    if e.symptom == "decision_latency":
        return f"Decisions of {e.subject} took {'up to ' if e.count > 1 else ''}{value} instead of {base} {when}"
    if e.symptom == "refusals":
        failed = e.facts.get("errors", 0) > e.facts.get("refused", 0)
        what = f"{'failed' if failed else 'refused'} up to {percent(e.value)} of decisions instead of {percent(e.base)}"
        return f"{e.subject[0].upper()}{e.subject[1:]} {what} {when}"
    if e.metric == "stuck":
        return f"{e.subject[0].upper()}{e.subject[1:]} stood still while messages arrived {when}"
    if e.symptom == "queue_lag":
        what = {"age_s": "its oldest undelivered message was", "pending_s": "its oldest unacknowledged message was", "lag": "its lag was"}[e.metric]
        unit = " messages" if e.metric == "lag" else " old"
        return f"{e.subject[0].upper()}{e.subject[1:]} fell behind: {what} {value}{unit} instead of {base} {when}"
    if e.symptom == "accept_overflow":
        return f"The {e.subject} held {number(e.value)} of {number(e.facts.get('limit', 0))} connections {when}"
    if e.symptom == "clock_disagreement":
        return f"{e.subject[0].upper()}{e.subject[1:]} was off by {value}, more than both bounds together ({span(e.facts['bound_ns'])}), {when}"
    if e.symptom == "broker_down":
        return f"{e.subject[0].upper()}{e.subject[1:]} was down {when}"
    usually = f" instead of {base}" if not math.isnan(e.base) else ""
    return f"{e.subject[0].upper()}{e.subject[1:]} did not answer for {value}{usually} {when}"
