"""The correlator: batches in, findings out. It does no I/O and reads no clock; the same rows give the same findings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np

from agent.batch import Batch
from agent.common.copies import together
from agent.correlate import evidence, same_fault
from agent.correlate.catalogue import Cause, Symptom, causes, dtypes, kept, order_of, symptom_of, symptoms
from agent.correlate.clock import ClockWatch
from agent.correlate.episode import UNKNOWN, Episode, Verdict
from agent.correlate.finding import Finding
from agent.correlate.guard import Guard
from agent.correlate.hours import HourWatch
from agent.correlate.in_progress import ActiveEpisode, active_episodes
from agent.correlate.inbox import Inbox, compact
from agent.correlate.processes import ProcessWatch
from agent.correlate.queues import QueueWatch
from agent.correlate.rank import Judge
from agent.correlate.recurrence import Recurrences, reason
from agent.correlate.rows import OfSecond
from agent.correlate.steps import JumpSeries
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.view import View
from agent.correlate.watch import Watch

_OTHERS_S = 3  # how long a shared symptom waits for a finding that it may belong to
_UNKNOWN = Verdict(UNKNOWN, 0.0, "", "")


class Correlator:
    """Makes findings from batches.

    ``feed`` takes batches of any table in any order; ``advance`` processes all rows up to a watermark. Symptoms are
    evaluated once for each whole second, clock changes at once. Memory is bounded; dropped rows are counted in
    ``losses``. causes_to_judge: the causes that are evaluated, all by default; fewer only to measure what each
    contributes. clock: for the cost of each rule, counted in ``guard``.
    """

    def __init__(
        self,
        config: CorrelatorConfig | None = None,
        causes_to_judge: Collection[Cause] | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._config, self.guard = config or CorrelatorConfig(), Guard(clock)
        self._judge_of = Judge(causes().values() if causes_to_judge is None else causes_to_judge, self.guard)
        self._inbox = Inbox(self._config.pending_rows)
        read = {table: dtypes()[table] for cause in causes().values() for table in cause.reads}
        self._view = View(self._config, read, [one.name for one in symptoms().values() if one.polled_by_agent])
        self._view.guard = self.guard
        self._clock = ClockWatch(self._config, self.guard)
        self._watches = self._of_symptoms()
        self.hours = next(watch for watch in self._watches if isinstance(watch, HourWatch))
        self._view.watched = next(watch.watched for watch in self._watches if isinstance(watch, QueueWatch))
        self._judged = {table for symptom in symptoms().values() for table in symptom.reads}
        self._second: int | None = None
        self._gathered: dict[str, list[np.ndarray]] = {}
        self._recurrences = Recurrences()
        self._pending: list[Episode] = []
        self._findings: list[Finding] = []
        self._pending_jumps: list[JumpSeries] = []
        self._mark_ns = -1
        self._late = 0
        self._forced = 0
        self._dropped_evidence = 0
        self._peers_left_out = 0  # 1 per process and second

    def _of_symptoms(self) -> list[Watch]:
        """The watches, each with its symptoms."""
        by_watch: dict[type[Watch], list[Symptom]] = {}
        for symptom in symptoms().values():
            if symptom.watch is not None:
                by_watch.setdefault(symptom.watch, []).append(symptom)
            for watch, judge in symptom.also.items():
                by_watch.setdefault(watch, []).append(replace(symptom, judge=judge))
        return [watch(self._config).judged_by(its, self.guard) for watch, its in by_watch.items()]

    def feed(self, batch: Batch) -> None:
        """Takes a batch of any table; rows of other tables are ignored. ``batch.rows`` is not kept."""
        if batch.table in kept() and len(batch.rows):
            self._inbox.add(batch.table, compact(batch.table, batch.rows))

    def judge_jumps(self, config: CorrelatorConfig) -> None:
        """Sets the thresholds for later clock jumps."""
        self._clock.judge(config)

    def active_episodes(self) -> list[ActiveEpisode]:
        """What is wrong now, with the processes."""
        return list(active_episodes(self._pending, self._findings, self._second or 0, self._view.serving))

    def to_follow(self) -> list[int]:
        """The processes of active episodes, then the servers of this host that they call: one of these may be late."""
        active = [e for found in self._findings if not found.closed for e in found.episodes] + self._pending
        called = [pid for e in active if e.pid is not None for pid in self._view.callees(e)]
        return list(dict.fromkeys([*(pid for one in self.active_episodes() for pid, _ in one.pids), *called]))

    def losses(self) -> dict[str, int]:
        """Rows that could not be taken into account, by reason.

        pending: dropped before the watermark came; late: came after their second was evaluated, of tables that symptoms
        read (still used as evidence); evidence: no longer kept, or beyond the limit of a finding; subjects: too many to
        watch, and processes with more peers than are considered, each counted in each second; findings: closed early or
        not made, too many; servers: forgotten, too many; rules: evaluations of symptoms and causes that failed, or that
        were skipped because the rule is disabled.
        """
        rings = sum(ring.dropped for ring in self._view.rings.values()) + self._view.decisions.dropped
        return {
            "pending": self._inbox.dropped,
            "late": self._late,
            "evidence": rings + self._dropped_evidence,
            "subjects": sum(w.dropped for w in self._watches) + self._peers_left_out,
            "findings": self._forced + self._clock.skipped,
            "servers": self._view.servers.dropped,
            "rules": self.guard.missed(),
        }

    def advance(self, watermark_ns: int) -> list[Batch]:
        """Processes rows with ``t_ns <= watermark_ns`` in time order. Returns findings that are new, changed or closed,
        each after those of its ``verdict`` and ``evidence`` rows that have changed; and ``limiter_jump``.

        A watermark that does not grow does nothing. Rows of one call come in the order of their start and id.
        """
        return [batch for batches in self.advancing(watermark_ns) for batch in batches]

    def advancing(self, watermark_ns: int) -> Iterator[list[Batch]]:
        """Like ``advance``, in steps of at most some milliseconds, for a caller that pauses between them. The caller
        must finish all steps before any other call.
        """
        if watermark_ns <= self._mark_ns:
            return
        taken = self._inbox.take(watermark_ns)
        # All rows at once: after a pause of the agent, later rows explain earlier ones.
        self._view.add(taken)
        yield []
        if self._second is None:
            first = [int(rows["t_ns"][0]) for rows in taken.values()]
            self._second = min([watermark_ns, *first]) // SECOND
        end = watermark_ns // SECOND
        while self._second < end:
            if not self._gathered and not self._findings and not self._pending:
                ahead = min([int(rows["t_ns"][0]) // SECOND for rows in taken.values() if len(rows)], default=end)
                self._second = max(self._second, min(ahead, end))
                if self._second == end:
                    break
            self._take(taken, (self._second + 1) * SECOND - 1)
            yield []
            for _ in self._judge(self._second):
                yield []
            self._second += 1
            if self._second < end:
                yield self._emit(self._second * SECOND)
        self._take(taken, watermark_ns)
        self._mark_ns = watermark_ns
        yield self._emit(watermark_ns)

    def _take(self, taken: dict[str, np.ndarray], until_ns: int) -> None:
        """Moves rows up to ``until_ns`` into the rings and the current second."""
        part: dict[str, np.ndarray] = {}
        assert self._second is not None
        for table, rows in taken.items():
            n = _until(rows, until_ns + 1)
            if not n:
                continue
            part[table], taken[table] = rows[:n], rows[n:]
            late = _until(rows[:n], self._second * SECOND)
            self._late += late if table in self._judged else 0
            if late < n:
                self._gathered.setdefault(table, []).append(rows[late:n])
        changes, timers = part.get("clock_change"), part.get("timer_effect")
        for series in self._clock.feed(changes, part.get("limiter_decision"), until_ns, timers):
            self._view.jumps = [*self._view.jumps, *(j for j in series.last_jumps if j not in self._view.jumps)][-64:]
            if series not in self._pending_jumps:
                self._pending_jumps.append(series)
        for series in [s for s in self._pending_jumps if s.matters]:
            self._stepped(series)
        self._pending_jumps = [s for s in self._pending_jumps if not s.matters and s.until_ns > until_ns]

    def _stepped(self, series: JumpSeries) -> None:
        """Makes a finding of the clock, or adds a step to an existing one."""
        found = next((f for f in self._findings if f.steps is series), None)
        if found is None:
            found = Finding(series.first.t_ns, series.end_ns, series.first.t_ns // SECOND, steps=series)
            found.name(
                series.first.cause, f"{series.first.size_ns}|{series.first.pid}", {f.finding_id for f in self._findings}
            )
            self._findings.append(found)
        found.closed, found.end_ns = False, max(found.end_ns, series.end_ns)

    def _judge(self, second: int) -> Iterator[None]:
        """Evaluates a second, step by step."""
        rows = OfSecond({table: together(parts) for table, parts in self._gathered.items()})
        self._gathered = {}
        for watch in self._watches:
            self._pending += watch.step(second, rows)
            yield
        self._view.note(e for watch in self._watches for e in watch.active.values())
        for found in self._findings:
            self._follow(found, second)
            yield
        self._merge()
        due = [
            e for e in self._pending if self._view.informed(e) or second - e.start_ns // SECOND > self._config.hold_s
        ]
        self._pending = [e for e in self._pending if e not in due]
        for episode in sorted(
            due, key=lambda e: (symptom_of(e).watch is not ProcessWatch, order_of(e))
        ):  # the ends of processes are the most certain
            verdicts = self._judge_of.rank(episode, self._view)
            bare = symptom_of(episode).bare and episode.metric not in symptom_of(episode).alone
            bare &= not symptom_of(episode).shared or second - episode.start_ns // SECOND >= _OTHERS_S
            usual = self._recurrences.has(episode, reason(verdicts), second)
            if not usual and (bare or (verdicts and verdicts[0].score > 0)):
                self._place(episode, verdicts)
            elif second - episode.last_bad < self._config.quiet_s and second - episode.start_ns // SECOND <= 60:
                self._pending.append(episode)  # its cause may show later
            yield
        for found in self._findings:
            if not found.finding_id:
                found.name(found.cause.cause, found.main.subject, {f.finding_id for f in self._findings})
            self._close(found, second)
        if (over := sum(not f.closed for f in self._findings) - self._config.max_findings) > 0:
            for found in [f for f in self._findings if not f.closed][:over]:
                found.closed = True
                self._forced += 1
        self._peers_left_out += len(self._view.with_more_peers)
        self._view.with_more_peers.clear()

    def _place(self, episode: Episode, verdicts: list[Verdict]) -> None:
        best = _best(verdicts)
        target = next((f for f in self._findings if f.accepts(best, episode, self._config.merge_ns)), None)
        if target is None:
            candidates = [f for f in self._findings if self._same_fault(f, best, episode)]
            target = max(candidates, key=lambda f: f.start_ns, default=None)  # the latest one that began before it
            if target is not None:
                target.provisional.add(id(episode))
        if target is None:
            target = Finding(episode.start_ns, episode.end_ns, episode.last_bad)
            self._findings.append(target)
        elif not target.finding_id:
            target.start_ns = min(target.start_ns, episode.start_ns)
        target.closed = False
        target.add_verdicts(episode, verdicts)
        target.end_ns, target.last_bad = max(target.end_ns, episode.end_ns), max(target.last_bad, episode.last_bad)

    def _follow(self, found: Finding, second: int) -> None:
        """Updates active symptoms, and their verdicts with what is known now."""
        for episode in found.episodes:
            found.end_ns = max(found.end_ns, episode.end_ns)
            found.last_bad = max(found.last_bad, episode.last_bad)
            if not found.closed and second - episode.start_ns // SECOND <= 60:
                found.add_verdicts(episode, self._judge_of.rank(episode, self._view))
        blame = reason([found.cause])
        for episode in found.episodes:
            episode.blame = blame
        for episode in [e for e in found.explained() if id(e) in found.provisional and not found.closed]:
            best = _best(found.verdicts[id(episode)])
            if not found.accepts(best, episode, self._config.merge_ns) and not self._same_fault(found, best, episode):
                found.release(episode)
                self._pending.append(episode)

    def _merge(self) -> None:
        """Findings whose verdicts have become the same."""
        for found in self._findings:
            earlier = next((one for one in self._findings if found.repeats(one, self._config.merge_ns)), None)
            if earlier is not None and found.finding_id:
                earlier.closed = False
                earlier.merge(found)

    def _same_fault(self, found: Finding, best: Verdict, episode: Episode) -> bool:
        return self.guard.attempt("story", same_fault.same, found, best, episode, self._view, otherwise=False)

    def _close(self, found: Finding, second: int) -> None:
        steps = found.steps
        if steps is not None and not found.closed:
            found.end_ns = max(found.end_ns, min(steps.until_ns - self._config.clock_settle_ns, (second + 1) * SECOND))
        counting = steps is not None and max(steps.until_ns, steps.open_until_ns) > (second + 1) * SECOND
        lasting = any(
            w.active.get(w.place(e.symptom, e.slot, e.metric)) is e for e in found.episodes for w in self._watches
        )
        young = second - found.start_ns // SECOND < self._config.adopt_s
        still_active = causes()[found.cause.cause].still_active if not found.closed and young else None
        if still_active and self.guard.attempt(
            f"cause {found.cause.cause} lasts",
            still_active,
            self._view,
            found.start_ns,
            found.end_ns,
            (second + 1) * SECOND,
            otherwise=False,
        ):
            found.last_bad = second  # pauses between its symptoms do not end it
        quiet = not found.episodes or second - found.last_bad >= self._config.quiet_s
        found.closed = found.closed or (not counting and not lasting and quiet)

    def _emit(self, t_ns: int) -> list[Batch]:
        """Findings that changed since they were last emitted, after the effects of clock jumps on limiters. Closed
        findings are dropped when nothing can join them any more.
        """
        out = self._clock.outcomes()
        for found in sorted(self._findings, key=lambda f: (f.start_ns, f.finding_id)):
            if not found.finding_id:
                continue
            state, second = found.state(), t_ns // SECOND
            fresh = state[:3] != found.emitted_state[:3]
            older = second - found.emitted_second
            if (
                fresh
                or (state != found.emitted_state and older >= 1)
                or (not found.closed and found.episodes and older >= self._config.repeat_s)
            ):
                found.emitted_state, found.emitted_second = state, second
                symptom, _ = found.about
                before = found.dropped_evidence
                out += self.guard.attempt(f"evidence of {symptom}", evidence.changed, found, t_ns, otherwise=())
                self._dropped_evidence += max(0, found.dropped_evidence - before)
                row = self.guard.attempt(f"words of {symptom}", found.row, t_ns, otherwise=None)
                out.append(found.row(t_ns, whole=False) if row is None else row)
        keep = self._config.merge_ns + self._config.quiet_s * SECOND
        self._findings = [
            f
            for f in self._findings
            if not f.closed or f.end_ns + (max(keep, self._config.keep_ns) if f.steps else keep) > t_ns
        ]
        return out


def _best(verdicts: list[Verdict]) -> Verdict:
    """The verdict that decides which finding an episode joins."""
    return (
        verdicts[0] if verdicts and verdicts[0].score > 0 and not causes()[verdicts[0].cause].locates_only else _UNKNOWN
    )


def _until(rows: np.ndarray, end_ns: int) -> int:
    """How many rows were before ``end_ns``, in time order: usually all, or none."""
    t = rows["t_ns"]
    if not len(t) or t[0] >= end_ns:
        return 0
    return len(t) if t[-1] < end_ns else int(np.searchsorted(t, end_ns, "left"))
