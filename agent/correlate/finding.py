"""A finding: one cause at one time, with all the symptoms that it explains, and its row and sentence."""

from __future__ import annotations

import json
from _blake2 import blake2b  # hashlib would load OpenSSL
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.common.sentence import Piece, plain
from agent.correlate.catalogue import causes, order_of, symptom_of, symptoms
from agent.correlate.episode import UNKNOWN, UNKNOWN_CULPRIT, Episode, Verdict
from agent.correlate.named import others
from agent.correlate.rank import best_first
from agent.correlate.steps import JumpSeries
from agent.correlate.thresholds import SECOND
from agent.correlate.walk import IMPACTS
from agent.correlate.words import Words, amid, fit, fit_pieces, listing, pieces, process, render, value, when
from agent.tables import TABLES

_FINDING = TABLES["finding"]
_LISTED, _ALIKE = 5, 2
_NO_CAUSE = Verdict(UNKNOWN, 0.0, "", "no recorded row explains it")


@dataclass
class Finding:
    """verdicts: of each episode, best first, as last ranked. last_bad: the last second with a symptom, or with its
    cause active.
    """

    start_ns: int
    end_ns: int
    last_bad: int
    finding_id: str = ""
    episodes: list[Episode] = field(default_factory=list)
    verdicts: dict[int, list[Verdict]] = field(default_factory=dict)
    steps: JumpSeries | None = None
    closed: bool = False
    merged_into: Finding | None = None
    emitted_state: tuple[object, ...] = ()
    emitted_second: int = 0
    shown: dict[str, bytes] = field(default_factory=dict)  # by table, its verdicts and evidence as last emitted
    dropped_evidence: int = 0  # pieces of evidence that were left out
    provisional: set[int] = field(
        default_factory=set
    )  # ids of episodes that are here unless a later verdict of theirs disagrees (agent/correlate/same_fault.py)
    _ranked: list[Verdict] | None = None

    def name(self, cause: str, subject: str, taken: Iterable[str] = ()) -> None:
        """Sets the id: the same whenever the same rows are read, and none of those taken."""
        seed = f"{cause}|{subject}|{self.start_ns}"
        while True:
            self.finding_id = blake2b(seed.encode(), digest_size=8).hexdigest()
            if self.finding_id not in taken:
                return
            seed += "|"

    def ranked(self) -> list[Verdict]:
        """The best verdict of each cause over all episodes, best first; in the words of the first episode that it
        explains.
        """
        if self._ranked is None:
            self._ranked = self._rank()
        return self._ranked

    def add_verdicts(self, episode: Episode, verdicts: list[Verdict]) -> None:
        """Takes the current verdicts of an episode."""
        if id(episode) not in self.verdicts:
            self.episodes.append(episode)
        elif self.verdicts[id(episode)] is verdicts:
            return
        self.verdicts[id(episode)], self._ranked = verdicts, None

    def release(self, episode: Episode) -> None:
        """Removes an episode that belongs to another fault."""
        self.episodes.remove(episode)
        del self.verdicts[id(episode)]
        self.provisional.discard(id(episode))
        self._ranked = None

    def merge(self, other: Finding) -> None:
        """Takes the symptoms of a finding with the same cause; that one is closed."""
        for episode in other.episodes:
            self.add_verdicts(episode, other.verdicts[id(episode)])
        self.end_ns, self.last_bad = max(self.end_ns, other.end_ns), max(self.last_bad, other.last_bad)
        other.closed, other.merged_into = True, self

    def explained(self) -> list[Episode]:
        return [e for e in self.episodes if (its := self.verdicts[id(e)]) and its[0].score > 0]

    def _rank(self) -> list[Verdict]:
        best: dict[str, Verdict] = {}
        main = self.main if self.episodes else None
        for episode in sorted(self.episodes, key=lambda e: (id(e) in self.provisional, order_of(e))):
            for verdict in self.verdicts[id(episode)]:
                if verdict.short and episode is not main:
                    verdict = replace(verdict, short="")
                held = best.get(verdict.cause)
                if held is None or verdict.score > held.score == 0:
                    best[verdict.cause] = replace(verdict, scope=verdict.scope or (held.scope if held else ""))
                elif verdict.score > 0:
                    more = replace(
                        held,
                        score=max(verdict.score, held.score),
                        scope=(verdict.score > held.score and verdict.scope) or held.scope,
                    )
                    unnamed = (
                        held.culprit == UNKNOWN_CULPRIT and verdict.culprit != UNKNOWN_CULPRIT
                    )  # one episode may know more than the first
                    best[verdict.cause] = (
                        replace(more, culprit=verdict.culprit, detail=verdict.detail) if unnamed else more
                    )
        return sorted(best.values(), key=best_first)

    @property
    def cause(self) -> Verdict:
        if self.steps is not None:
            return self.steps.verdict
        top = self.ranked()[:1]
        return top[0] if top and top[0].score > 0 else _NO_CAUSE

    def considered(self) -> list[Verdict]:
        """Its cause, then the other verdicts, best first."""
        ranked, cause = self.ranked(), self.cause
        if self.steps is not None:
            cause = replace(cause, words=self.steps.sentence())
        return ranked if ranked and cause is ranked[0] else [cause, *ranked]

    @property
    def main(self) -> Episode:
        """The one that names it: the first, but not one that only another one's cause blames: "X was late because X did
        not answer".
        """
        top = self._ranked[0] if self._ranked else None
        first = min(self.episodes, key=order_of)
        if top is None or top.cause not in IMPACTS or process(first.comm, first.pid) not in str(top.words):
            return first
        its = [e for e in self.episodes if any(v.cause == top.cause and v.score > 0 for v in self.verdicts[id(e)])]
        return min(its or self.episodes, key=order_of)

    def repeats(self, earlier: Finding, merge_ns: int) -> bool:
        """Whether it turned out to be the same fault as another finding that began before it."""
        mine, its = self.cause, earlier.cause
        return (
            self is not earlier
            and not (self.steps or earlier.steps or self.merged_into or earlier.merged_into or self.closed)
            and (earlier.start_ns, earlier.finding_id) <= (self.start_ns, self.finding_id)
            and mine.score > 0
            and (mine.cause, mine.scope) == (its.cause, its.scope)
            and bool(mine.scope)
            and self.start_ns <= max(earlier.end_ns, (earlier.last_bad + 1) * SECOND) + merge_ns
        )

    def accepts(self, cause: Verdict, episode: Episode, merge_ns: int) -> bool:
        """Whether an episode with this best cause belongs here."""
        mine = self.cause
        if self.merged_into:
            return False
        if self.steps is not None:
            return cause.cause == mine.cause and cause.scope == mine.scope
        near = (
            episode.start_ns <= max(self.end_ns, (self.last_bad + 1) * SECOND) + merge_ns
            and episode.end_ns >= self.start_ns - merge_ns
        )
        same = cause.cause == mine.cause or _merge_group(cause.cause) == _merge_group(mine.cause) != ""
        if cause.cause == UNKNOWN and symptom_of(episode).shared and near and self._about(episode):
            return True
        if cause.cause == UNKNOWN:
            return (
                near
                and (same or causes()[mine.cause].locates_only)
                and any(e.scope == episode.scope for e in self.episodes)
            )
        return near and same and (cause.scope == mine.scope or "" in (cause.scope, mine.scope))

    def _about(self, episode: Episode) -> bool:
        """Whether the episode is about the culprit process, or what it serves."""
        by = self.cause.culprit
        port = f":{episode.facts.get('port', 0):.0f}"
        where = self.cause.scope.split(" in ")[0]
        unix = where.startswith("unix:") and episode.subject.endswith(f" on {where}")  # whichever process answers there
        known = by.pid == episode.pid or by.object.endswith(port) or where.endswith(port) or unix
        return known or any(e.scope == episode.scope for e in self.episodes)

    def state(self) -> tuple[object, ...]:
        """A change of this makes a new row worth emitting at once."""
        steps = self.steps
        counts = (
            (
                steps.count,
                *((a.inside_allowed, a.inside_refused, a.straddling, a.excess) for a in steps.affected.values()),
            )
            if steps
            else ()
        )
        return self.closed, self.cause.cause, len(self.episodes), counts

    @property
    def severity(self) -> str:
        """``alarm``, except for a clock jump below the threshold without symptoms."""
        return "notice" if self.steps is not None and not self.steps.alarm and not self.episodes else "alarm"

    @property
    def about(self) -> tuple[str, str]:
        """The symptom that names it, and its subject; empty if there is none yet."""
        if self.steps is not None:
            jump = symptoms()["clock_jump"]
            return jump.name, jump.subject
        return (self.main.symptom, self.main.subject) if self.episodes else ("", "")

    def row(self, t_ns: int, *, whole: bool = True) -> Batch:
        """The finding as one row of its table; t_ns is the watermark at which this was known. With ``whole`` false, the
        sentence is plain, without the text of rules, so that it cannot fail with them.
        """
        cause = self.cause
        symptom, subject = self.about
        parts = fit_pieces(pieces(self.sentence() if whole else self._plainly()), 480)
        return make(
            "finding",
            1,
            t_ns=t_ns,
            finding_id=self.finding_id.encode(),
            state=_FINDING.code("state", "closed" if self.closed else "open"),
            severity=_FINDING.code("severity", self.severity),
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            symptom=symptom.encode(),
            subject=fit(subject, 128),
            impacted_pid=next((e.pid for e in sorted(self.episodes, key=order_of) if e.pid is not None), NULL_I64),
            cause=cause.cause.encode(),
            cause_detail=fit(cause.detail, 24),
            culprit_pid=NULL_I64 if cause.culprit.pid is None else cause.culprit.pid,
            culprit_comm=fit(cause.culprit.comm, 16),
            culprit_object=fit(cause.culprit.object, 128),
            merged_into=self.merged_into.finding_id.encode() if self.merged_into else b"",
            via=fit(", ".join(cause.via), 128),
            confidence=round(cause.score, 2) if cause.cause != UNKNOWN else 0.3,
            sentence=plain(parts).encode(),
            sentence_parts=_in_json(parts),
        )

    def _plainly(self) -> Words:
        symptom, subject = self.about
        meaning = symptoms()[symptom].meaning if symptom in symptoms() else "something is wrong"
        cause = f", cause: {self.cause.cause.replace('_', ' ')}" if self.cause.cause != UNKNOWN else ""
        return render(
            "{meaning}: {subject}, {when}{cause} (a rule failed, see tickscope status).",
            meaning=meaning[:1].upper() + meaning[1:],
            subject=subject,
            when=when(self),
            cause=cause,
        )

    def sentence(self) -> Words:
        if self.steps is not None:
            after = (
                render(" After it, {what}.", what=amid(_clause(self.main), self.main.subject)) if self.episodes else ""
            )
            return render("{moved}{after}", moved=self.steps.sentence(), after=after)
        cause = self.cause
        if cause.cause == UNKNOWN:
            ruled_out = sorted({v.cause.replace("_", " ") for v in self.ranked() if v.checked})
            why: Words = f"; cause unknown; ruled out: {', '.join(ruled_out)}" if ruled_out else "; cause unknown"
        elif cause.short:
            why = render(" ({cause})" if cause.score >= 0.7 else " (probably {cause})", cause=cause.short)
        else:
            why = render(" because {cause}" if cause.score >= 0.7 else ", probably because {cause}", cause=cause.words)
        beside = self._others()
        also = render(" Also affected: {others}.", others=listing(beside, _LISTED)) if beside else ""
        return render("{clause}{why}.{also}", clause=_clause(self.main), why=why, also=also)

    def _others(self) -> list[Words]:
        """Impacted subjects, beside the main one and the culprit. Processes of one program that stopped or ended
        together are counted.
        """
        rest = others(self.main, self.episodes, self.cause.culprit)
        reported = {e.subject for e in rest}
        terminations = {
            e.subject: e.comm for e in self.episodes if symptom_of(e).table == "process_event" and e.subject in reported
        }
        alike = Counter(terminations.values())
        several = {comm for comm, n in alike.items() if n > _ALIKE}
        single = [e.subject for e in rest if terminations.get(e.subject) not in several]
        more = {comm: " more" if comm == self.main.comm else "" for comm in several}
        return [
            *single,
            *(
                render("{n}{more} processes of {comm}", n=value(alike[comm]), more=more[comm], comm=comm)
                for comm in sorted(several)
            ),
        ]


def _in_json(parts: list[Piece]) -> bytes:
    """Empty if the escaped text is too long for the column."""
    raw = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    return raw if len(raw) <= _FINDING.by_name["sentence_parts"].width else b""


def _clause(e: Episode) -> Words:
    """What was wrong with what, how much, and when."""
    return symptom_of(e).clause(e)


def _merge_group(cause: str) -> str:
    return causes()[cause].merge_group
