"""The score of the diagnosis, from truths and the findings of replayed recordings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from agent.lab.judge import UNKNOWN, Judgement, Reported, cause_right, fully_right, judge
from agent.lab.truth import Truth

BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)
#: By the largest impact: how much worse than usual it was.
SIZES = (("below 10 times", 10.0), ("10 to 30 times", 30.0), ("30 to 100 times", 100.0), ("more", float("inf")))
HOUR_NS = 3_600_000_000_000


@dataclass
class Tally:
    """Faults with an impact: how many, how many were detected, with the right cause first, right in full, with the
    right cause among the first three.
    """

    faults: int = 0
    detected: int = 0
    cause: int = 0
    right: int = 0
    top3: int = 0
    seconds: list[float] = field(default_factory=list)

    def add(self, verdict: Judgement, truth: Truth) -> None:
        self.faults += 1
        if not verdict.reported:
            return
        self.detected += 1
        first = verdict.reported[0]
        answers = {right["cause"] for right in verdict.fault.right}
        self.cause += cause_right(first.last, verdict.fault)
        self.right += fully_right(first, verdict.fault, truth)
        self.top3 += bool(answers & set(first.causes[:3]))
        when = [
            t_ns for reported in verdict.reported for t_ns, row in reported.states if cause_right(row, verdict.fault)
        ]
        if when:
            self.seconds.append((min(when) - verdict.fault.since_ns) / 1e9)

    def to_json(self) -> dict[str, Any]:
        n = max(self.faults, 1)
        ordered = sorted(self.seconds)
        return {
            "faults": self.faults,
            "detected": _share(self.detected, n),
            "top1_cause": _share(self.cause, n),
            "top1": _share(self.right, n),
            "top3_cause": _share(self.top3, n),
            "median_s": round(median(ordered), 2) if ordered else None,
            "p95_s": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 2) if ordered else None,
        }


class Score:
    """Adds up sessions."""

    def __init__(self) -> None:
        self.whole = Tally()
        self.kinds: dict[str, Tally] = {}
        self.sizes: dict[str, Tally] = {name: Tally() for name, _ in SIZES}
        self.without_impact: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.confusion: dict[str, Counter[str]] = {}
        self.answers: Counter[str] = Counter()
        self.bins = [[0, 0] for _ in BINS[1:]]
        self.wrong_cause = self.wrong_symptom = 0
        self.ns = 0
        self.wrong: list[dict[str, Any]] = []

    def add(self, truth: Truth, reported: Sequence[Reported]) -> None:
        verdicts, stray = judge(truth, reported)
        self.ns += truth.until_ns - truth.from_ns
        for verdict in verdicts:
            self._fault(verdict, truth)
        for one in stray:
            self.wrong_symptom += 1
            if one.last["cause"] != UNKNOWN:
                self._bin(one, right=False)
            self._wrong(one, truth, "no fault")
        self.left_out.update(fault["kind"] for fault in truth.left_out)

    def _fault(self, verdict: Judgement, truth: Truth) -> None:
        fault = verdict.fault
        if verdict.counts:
            for tally in (
                self.whole,
                self.kinds.setdefault(fault.kind, Tally()),
                self.sizes[next(n for n, top in SIZES if fault.ratio < top)],
            ):
                tally.add(verdict, truth)
            self.answers.update(dict.fromkeys(right["cause"] for right in fault.right).keys())
            causes = verdict.reported[0].last["cause"] if verdict.reported else "(nothing)"
            self.confusion.setdefault(fault.kind, Counter())[causes] += 1
        elif fault.right:
            self.without_impact[fault.kind] += 1
        for one in verdict.reported:
            right = cause_right(one.last, fault)
            if one.last["cause"] == UNKNOWN or (right and not verdict.counts):
                continue
            self._bin(one, right)
            if not right:
                self.wrong_cause += 1
                self._wrong(one, truth, fault.kind)

    def _bin(self, one: Reported, right: bool) -> None:
        at = next(n for n, top in enumerate(BINS[1:]) if float(one.last["confidence"] or 0) < top)
        self.bins[at][0] += 1
        self.bins[at][1] += right

    def _wrong(self, one: Reported, truth: Truth, during: str) -> None:
        row = one.last
        self.wrong.append(
            {
                "seed": truth.seed,
                "during": during,
                "symptom": row["symptom"],
                "cause": row["cause"],
                "confidence": row["confidence"],
                "subject": row["subject"],
                "start_ns": row["start_ns"],
            }
        )

    def to_json(self) -> dict[str, Any]:
        hours = self.ns / HOUR_NS
        common = self.answers.most_common(1)
        return {
            "hours": round(hours, 3),
            "all": self.whole.to_json(),
            "kinds": {name: tally.to_json() for name, tally in sorted(self.kinds.items())},
            "sizes": {name: tally.to_json() for name, tally in self.sizes.items() if tally.faults},
            "without_impact": dict(sorted(self.without_impact.items())),
            "left_out": dict(sorted(self.left_out.items())),
            "wrong_causes_per_hour": round(self.wrong_cause / hours, 2) if hours else None,
            "wrong_symptoms_per_hour": round(self.wrong_symptom / hours, 2) if hours else None,
            "calibration": [
                {"from": low, "to": min(high, 1.0), "findings": n, "right": _share(good, n)}
                for low, high, (n, good) in zip(BINS, BINS[1:], self.bins, strict=False)
                if n
            ],
            "confusion": {kind: dict(causes.most_common()) for kind, causes in sorted(self.confusion.items())},
            "always_guessing": (
                {"cause": common[0][0], "top1_cause": _share(common[0][1], self.whole.faults)} if common else None
            ),
            "wrong": self.wrong,
        }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None
