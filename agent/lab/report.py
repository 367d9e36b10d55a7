"""Rows and text about a session or a score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agent.lab.judge import Reported, cause_right, fully_right, judge
from agent.lab.kind import Kind
from agent.lab.truth import Truth

ON_A_SCREEN = ("kind", "target", "size", "victims", "found", "right", "found_after_s", "confidence", "sentence")
SCORE_COLUMNS = (
    "what",
    "faults",
    "detected",
    "top1_cause",
    "top1",
    "top3_cause",
    "median_s",
    "p95_s",
    "without_impact",
    "causes",
)


def catalogue(kinds: Sequence[Kind]) -> list[dict[str, Any]]:
    """Rows of ``lab list``."""
    return [
        {
            "kind": k.name,
            "meaning": k.meaning,
            "size": k.size.what,
            "mild": k.size.mild,
            "hard": k.size.hard,
            "targets": list(k.targets),
            "causes": list(dict.fromkeys(r.cause for r in k.right)),
            "needs": [*([k.system] if k.system else []), *k.needs],
        }
        for k in kinds
    ]


def injected(truth: Truth, reported: Sequence[Reported]) -> list[dict[str, Any]]:
    """Rows of ``lab run``: what was injected, which programs were impacted, what was found and when."""
    verdicts, stray = judge(truth, reported)
    rows = []
    for verdict in verdicts:
        fault, first = verdict.fault, verdict.reported[0] if verdict.reported else None
        rows.append(
            {
                "id": fault.id,
                "kind": fault.kind,
                "target": fault.target,
                "size": f"{fault.size['what']} {fault.size['value']:.3g}",
                "start_ns": fault.start_ns,
                "end_ns": fault.end_ns,
                "victims": fault.victims,
                "times_usual": fault.ratio if fault.effect else None,
                "found": first.last["cause"] if first else None,
                "confidence": first.last["confidence"] if first else None,
                "cause_right": cause_right(first.last, fault) if first and fault.right else None,
                "right": fully_right(first, fault, truth) if first and fault.right else None,
                "found_after_s": round((first.states[0][0] - fault.since_ns) / 1e9, 2) if first else None,
                "sentence": first.last["sentence"] if first else None,
            }
        )
    rows += [
        {
            "id": None,
            "kind": "(no fault)",
            "found": one.last["cause"],
            "confidence": one.last["confidence"],
            "start_ns": one.last["start_ns"],
            "end_ns": one.last["end_ns"],
            "sentence": one.last["sentence"],
        }
        for one in stray
    ]
    return rows


def figures(score: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of ``lab score``: all faults, each kind, each size."""
    rows = [{"what": "all", **score["all"], "without_impact": sum(score["without_impact"].values())}]
    rows += [
        {
            "what": kind,
            "faults": 0,
            **score["kinds"].get(kind, {}),
            "without_impact": score["without_impact"].get(kind, 0),
            "causes": " ".join(f"{cause}:{n}" for cause, n in score["confusion"].get(kind, {}).items()),
        }
        for kind in sorted({*score["kinds"], *score["without_impact"]})
    ]
    rows += [{"what": size, **of_size} for size, of_size in score["sizes"].items()]
    return rows


def notes(score: dict[str, Any]) -> Iterator[str]:
    """Facts that a table of figures does not hold."""
    guess = score["always_guessing"]
    if guess:
        yield f"always guessing {guess['cause']} would name the cause of {guess['top1_cause']:.0%}"
    yield (
        f"in {score['hours']:.2f} h: {_number(score['wrong_causes_per_hour'])} wrong causes and"
        f" {_number(score['wrong_symptoms_per_hour'])} findings without a fault an hour"
    )
    if score["left_out"]:
        yield "could not be injected: " + ", ".join(f"{kind} ({n})" for kind, n in score["left_out"].items())
    for entry in score["calibration"]:
        yield (
            f"findings with a confidence of {entry['from']:.1f} to {entry['to']:.1f}: {entry['findings']}, right"
            f" {entry['right']:.0%}"
        )


def _number(value: float | None) -> str:
    return "no" if value is None else f"{value:.1f}"
