"""Writes docs/lab-score.md from a bench: ``python -m tests.lab.page DIR [SEED...]``. SEED: of sessions by which rules
were mended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.lab.plan import HELD_BACK
from agent.lab.replay import reported, sessions
from agent.lab.report import figures, notes
from agent.lab.score import Score
from agent.lab.truth import RECORDING, Truth

PAGE = Path(__file__).parents[2] / "docs" / "lab-score.md"
COLUMNS = {
    "what": "",
    "faults": "with impact",
    "without_impact": "without impact",
    "detected": "detected",
    "top1_cause": "cause right",
    "top1": "right in full",
    "top3_cause": "cause among three",
    "median_s": "median s",
    "p95_s": "p95 s",
}


def table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> Iterator[str]:
    yield f"| {' | '.join(columns.values())} |"
    yield "|" + "---|" * len(columns)
    yield from (f"| {' | '.join(_cell(row.get(c)) for c in columns)} |" for row in rows)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.0%}" if isinstance(value, float) and value <= 1 else str(value)


def page(directory: Path, mended: Collection[int] = ()) -> Iterator[str]:
    score, fresh, truths = Score(), Score(), []
    for place in sessions(directory):
        truth, found = Truth.read(place), reported(place / RECORDING)
        truths.append(truth)
        for one in (score,) if truth.seed in mended else (score, fresh):
            one.add(truth, found)
    whole = score.to_json()
    rows = figures(whole)
    if mended:
        rows.insert(1, figures(fresh.to_json())[0] | {"what": "all that were not examined"})
    for row in rows:  # seconds are no shares
        row.update({c: None if row.get(c) is None else f"{row[c]:.1f}" for c in ("median_s", "p95_s")})
    held = all(t.seed >= HELD_BACK for t in truths)
    tuned = (
        ""
        if not held
        else (
            "These seeds are held back: nothing was tuned by them. "
            if not mended
            else (
                f"Rules were changed after examining {len(mended)} of these sessions; the others were not examined"
                " before. All are replays of what was recorded. "
            )
        )
    )
    yield "# The score of the diagnosis\n"
    yield (
        f"`tickscope lab bench`, {sum(len(t.faults) for t in truths)} faults in {len(truths)} sessions, seeds"
        f" {min(t.seed for t in truths)} to {max(t.seed for t in truths)}, kernel"
        f" {os.uname().release.partition('-')[0]}, {os.cpu_count()} processors. What the figures mean:"
        " [lab.md](lab.md). " + tuned + "Written by `python -m tests.lab.page`.\n"
    )
    yield from table(rows, COLUMNS)
    yield ""
    yield from (f"- {text[0].upper()}{text[1:]}." for text in notes(whole))
    yield "\n## Causes that were reported\n"
    yield from table(
        [
            {"kind": kind, "causes": ", ".join(f"{cause} {n}" for cause, n in causes.items())}
            for kind, causes in whole["confusion"].items()
        ],
        {"kind": "fault", "causes": "first cause of the surest finding"},
    )


if __name__ == "__main__":
    PAGE.write_text("\n".join(page(Path(sys.argv[1]), {int(seed) for seed in sys.argv[2:]})) + "\n")
