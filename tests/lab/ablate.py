"""What each rule of the diagnosis is worth: the score of a bench, or of what is kept, with one rule after the other
left out.

python -m tests.lab.ablate DIR
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.lab.judge import Reported, cause_right, judge
from agent.lab.kind import kinds
from agent.lab.replay import reported, rules, sessions
from agent.lab.truth import RECORDING, Truth
from tests.lab.page import table

COLUMNS = {"rule": "without", "right": "right", "lost": "its kinds lose", "others": "others lose", "won": "win"}
Findings = Sequence[tuple[Truth, Sequence[Reported]]]


def right_by_kind(findings: Findings) -> Counter[str]:
    """Of how many faults that were felt the first cause is right, by kind."""
    return Counter(
        v.fault.kind
        for truth, some in findings
        for v in judge(truth, some)[0]
        if v.counts and v.reported and cause_right(v.reported[0].last, v.fault)
    )


def its_kinds(rule: str) -> set[str]:
    """The kinds of which this cause is a right answer."""
    return {name for name, kind in kinds().items() if rule in {right.cause for right in kind.right}}


def replayed(places: Sequence[Path], without: Sequence[str] = ()) -> list[tuple[Truth, list[Reported]]]:
    return [(Truth.read(place), reported(place / RECORDING, without)) for place in places]


def rows(directory: Path) -> Iterator[dict[str, str]]:
    places = list(sessions(directory))
    all_ = right_by_kind(replayed(places))
    yield {"rule": "nothing", "right": str(all_.total())}
    for rule in rules():
        some = right_by_kind(replayed(places, [rule]))
        mine = its_kinds(rule)
        lost = all_ - some
        yield {
            "rule": rule,
            "right": str(some.total()),
            "lost": _words(lost, mine),
            "others": _words(lost, set(lost) - mine),
            "won": _words(some - all_, set(some)),
        }


def _words(counts: Counter[str], among: set[str]) -> str:
    return ", ".join(f"{kind} {n}" for kind, n in sorted(counts.items()) if kind in among)


if __name__ == "__main__":
    print("\n".join(table(list(rows(Path(sys.argv[1]))), COLUMNS)))
