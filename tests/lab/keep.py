"""Makes kept recordings of a bench: of each kind of fault one that was felt, some pairs, and quiet times; each cut out
of its session with the quarter of a minute before it, with only what the correlator reads. And today's figures as the
floor of CI.

    python -m tests.lab.keep BENCH tests/unit/data/lab [--add]

Whatever was kept there before is replaced, or, with --add, what is missing there of today's kinds is added to it.
Sessions whose seed is held back are refused: what is kept is what the diagnosis is tuned by.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.batch import Batch
from agent.lab import oplog
from agent.lab.effect import measured
from agent.lab.judge import Judgement, judge
from agent.lab.plan import HELD_BACK
from agent.lab.replay import reported, score, sessions
from agent.lab.truth import LOGS, RECORDING, Done, Truth
from agent.store.frames import Head
from agent.store.recording import Recording
from tests.lab.small import NAME, unpacked, write

BEFORE_NS, AFTER_NS = 14_000_000_000, 6_000_000_000
#: What a fault leaves is over this long after it was felt for the last time.
LEFT_NS = 4_000_000_000
PAIRS, QUIET, LEAST = 5, 3, 40
#: So many of a kind are tried until one is judged alone as it was within its session.
TRIES = 3


@dataclass
class Piece:
    """One fault, two at once, or a quiet time, of a session. verdicts: what each fault's cause was said to be in the
    whole session.
    """

    session: LabSession
    faults: list[Done]
    from_ns: int
    causes: list[str]

    @property
    def name(self) -> str:
        return f"{self.session.truth.seed:04d}-{self.faults[0].id.partition('-')[2].rstrip('ab')}"

    @property
    def until_ns(self) -> int:
        return max(fault.until_ns for fault in self.faults) + AFTER_NS

    @property
    def has_impact(self) -> bool:
        return all(fault.effect or not fault.right for fault in self.faults)

    @property
    def begin_ns(self) -> int:
        return self.faults[0].start_ns - BEFORE_NS

    def write(self, place: Path) -> None:
        place.mkdir(parents=True)
        write(place / NAME, self.session.head, part(self.session.events, self.begin_ns, self.until_ns))
        truth = self.session.truth
        life = [event for event in truth.life if self.begin_ns <= event["t_ns"] <= self.until_ns]
        replace(
            truth,
            from_ns=self.from_ns,
            until_ns=min(truth.until_ns, self.until_ns),
            faults=self.faults,
            life=life,
            left_out=[],
        ).write(place)


class LabSession:
    """Of a bench. Its recording is read when it is needed."""

    def __init__(self, place: Path) -> None:
        truth = Truth.read(place)
        if truth.seed >= HELD_BACK:
            raise SystemExit(f"{place}: seeds from {HELD_BACK} on are never used for tuning")
        self.place = place
        self.truth = measured(truth, oplog.read(place / LOGS))  # by today's rule
        self._events: list[Batch | int] = []

    @property
    def head(self) -> Head:
        return Recording(self.place / RECORDING).head

    @property
    def events(self) -> list[Batch | int]:
        self._events = self._events or list(Recording(self.place / RECORDING).events())
        return self._events

    def pieces(self) -> Iterator[Piece]:
        verdicts, _ = judge(self.truth, reported(self.place / RECORDING))
        groups: dict[str, list[Judgement]] = {}
        for verdict in verdicts:
            groups.setdefault(verdict.fault.id.rstrip("ab"), []).append(verdict)
        free_ns = self.truth.from_ns
        for group in groups.values():
            faults = [verdict.fault for verdict in group]
            yield Piece(
                self, faults, min(faults[0].start_ns, max(free_ns, faults[0].start_ns - BEFORE_NS // 2)), causes(group)
            )
            free_ns = max(fault.until_ns for fault in faults) + LEFT_NS


def causes(verdicts: Sequence[Judgement]) -> list[str]:
    return [verdict.reported[0].last["cause"] if verdict.reported else "" for verdict in verdicts]


def part(events: Iterable[Batch | int], from_ns: int, until_ns: int) -> Iterator[Batch | int]:
    """What happened in a time, and the watermarks that the correlator gets past it."""
    for event in events:
        if isinstance(event, Batch):
            t = event.rows["t_ns"]
            rows = event.rows[(t >= from_ns) & (t <= until_ns)]
            if len(rows):
                yield Batch(event.table, rows)
        elif event >= from_ns:
            yield event
            if event > until_ns:
                return


def like_the_whole(piece: Piece) -> bool:
    """Whether it is judged alone as it was within its session."""
    with tempfile.TemporaryDirectory() as room:
        piece.write(Path(room) / "packed" / piece.name)
        (place,) = unpacked(Path(room) / "packed", Path(room))
        verdicts, stray = judge(Truth.read(place), reported(place / RECORDING))
    return causes(verdicts) == piece.causes and not stray


def chosen(pieces: Sequence[Piece]) -> list[Piece]:
    """Pairs, quiet times, then of each kind that is not among them yet one; and more until there are enough."""
    by_worth = sorted(pieces, key=lambda p: (not p.has_impact, p.until_ns - p.begin_ns))
    pairs = first([p for p in by_worth if len(p.faults) == 2 and p.has_impact], PAIRS)
    quiet = first([p for p in by_worth if not p.faults[0].right], QUIET)
    taken = [*pairs, *quiet]
    for kind in sorted({fault.kind for piece in pieces for fault in piece.faults}):
        if not any(fault.kind == kind for piece in taken for fault in piece.faults):
            taken += first([p for p in by_worth if kind in {fault.kind for fault in p.faults}], 1)
    rest = [p for p in by_worth if p not in taken]
    return [*taken, *first(rest, max(0, LEAST - len(taken)))]


def first(pieces: Sequence[Piece], count: int) -> list[Piece]:
    """The best so many: before others those that are judged alone as within their session, as far as they are tried."""
    tried = list(pieces[: count * TRIES])
    good = [piece for piece in tried if like_the_whole(piece)][:count]
    return [*good, *[piece for piece in tried if piece not in good]][:count]


def floor(kept: Path) -> None:
    """Today's figures of all that is kept, which CI does not let fall."""
    with tempfile.TemporaryDirectory() as room:
        unpacked(kept, Path(room))
        whole = score(Path(room)).to_json()
    (kept / "floor.json").write_text(
        json.dumps({k: whole[k] for k in ("all", "wrong_causes_per_hour", "wrong_symptoms_per_hour")}, indent=1) + "\n"
    )


def missing(pieces: Sequence[Piece], kept: Path) -> list[Piece]:
    """One of each kind that is not kept yet, and whose session has no piece of that name there."""
    there = {fault.kind for place in sessions(kept) for fault in Truth.read(place).faults}
    new = [p for p in pieces if p.has_impact and not (kept / p.name).exists()]
    wanted = sorted({fault.kind for piece in new for fault in piece.faults} - there)
    alone = {kind: [p for p in new if [fault.kind for fault in p.faults] == [kind]] for kind in wanted}
    return [piece for kind in wanted for piece in first(alone[kind], 1)]


def main(bench: Path, kept: Path, add: bool) -> None:
    pieces = [piece for place in sessions(bench) for piece in LabSession(place).pieces()]
    taken = missing(pieces, kept) if add else chosen(pieces)
    if not add:
        shutil.rmtree(kept, ignore_errors=True)
    for piece in taken:
        piece.write(kept / piece.name)
    floor(kept)
    size = sum(file.stat().st_size for file in kept.rglob("*") if file.is_file())
    odd = sum(not like_the_whole(p) for p in taken)
    print(f"{len(taken)} of {len(pieces)} taken, {size} bytes; {odd} are judged otherwise than within their session")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), "--add" in sys.argv[3:])
