"""Assigns findings to faults, and decides whether they are right. Pure.

A finding belongs to a fault if their times overlap (a finding's start may be rounded down to a second). Among several
faults it belongs to the one with a victim or culprit that it names, else with its cause, else with an impact. A finding
that began while there was no fault belongs to none, however long it lasts. If two faults of one cause overlap, one
finding may name victims of both: a fault without a finding of its own shares it, if it names that fault's victim and
its cause is right.

It is right by cause if its cause is one of the fault's right answers. It is right in full if ``cause_detail`` and the
culprit match, too, as far as that answer has them, and its subject is a victim, the culprit, or a server between the
two that the fault reached: callers see that server's answers. If several findings belong to one fault, the one with the
highest confidence counts, of those that name a victim or the culprit if there are any: others come from this host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.lab.program import programs
from agent.lab.truth import Done, Truth

EARLY_NS, LATE_NS = 1_000_000_000, 3_000_000_000
UNKNOWN = "unknown"
Row = Mapping[str, Any]


@dataclass
class Reported:
    """One finding. states: (time of the report, its row), in that order."""

    states: list[tuple[int, Row]] = field(default_factory=list)

    @property
    def last(self) -> Row:
        return self.states[-1][1]

    @property
    def text(self) -> str:
        """All fields that may name something."""
        return " ".join(
            str(self.last.get(c) or "") for c in ("subject", "sentence", "evidence", "culprit_comm", "culprit_object")
        )

    @property
    def causes(self) -> list[str]:
        """Best first."""
        return list(dict.fromkeys([self.last["cause"], *self.last.get("causes", ())]))


@dataclass
class Judgement:
    """One fault and its findings, those that name a victim or the culprit first, then by confidence."""

    fault: Done
    reported: list[Reported] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        """Whether it had an impact. A quiet time (kind ``nothing``) is no fault."""
        return bool(self.fault.effect) and bool(self.fault.right)


def by_finding(states: Iterable[tuple[int, Row]]) -> list[Reported]:
    found: dict[str, Reported] = {}
    for t_ns, row in states:
        found.setdefault(row["finding_id"], Reported()).states.append((t_ns, row))
    return list(found.values())


def names(truth: Truth, programs: Iterable[str]) -> list[str]:
    """Names of programs in findings: their names, their command name where no other program has it, and their pids."""
    comms = Counter(program["comm"] for program in truth.programs.values())
    found = []
    for program in (truth.programs[p] for p in programs if p in truth.programs):
        found += [*program["names"], *(f"pid {pid}" for pid in program["pids"])]
        if comms[program["comm"]] == 1:
            found.append(program["comm"])
    return found


def concerns(reported: Reported, fault: Done, truth: Truth) -> bool:
    """Whether it names a victim of the fault, or its culprit."""
    return _named(reported.text, fault, truth)


def _named(text: str, fault: Done, truth: Truth) -> bool:
    pids = (f"pid {pid}" for pid in fault.culprit["pids"])  # includes processes that the fault itself started
    known = [*names(truth, [*fault.victims, *_asked(fault), fault.culprit["process"]]), fault.culprit["object"], *pids]
    return any(name and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in known)


def _asked(fault: Done) -> list[str]:
    """Servers between the victims and the target."""
    there, used = programs(), set(fault.victims)
    while more := {name for user in used & there.keys() for name in there[user].uses if name in fault.reach} - used:
        used |= more
    return [name for name in fault.reach if name in used and there[name].server]


def cause_right(row: Row, fault: Done) -> bool:
    return any(row["cause"] == right["cause"] for right in fault.right)


def fully_right(reported: Reported, fault: Done, truth: Truth) -> bool:
    return _named(str(reported.last["subject"]), fault, truth) and any(
        _agrees(reported.last, right, fault.culprit) for right in fault.right
    )


def _agrees(row: Row, right: Row, culprit: Row) -> bool:
    if row["cause"] != right["cause"] or (right["detail"] and row.get("cause_detail") != right["detail"]):
        return False
    if not right["culprit"]:
        return True
    by_process = row.get("culprit_pid") in culprit["pids"]
    by_object = bool(culprit["object"]) and culprit["object"] in (row.get("culprit_object") or "")
    return by_process or by_object


def judge(truth: Truth, reported: Sequence[Reported]) -> tuple[list[Judgement], list[Reported]]:
    """(each fault's judgement, findings that belong to no fault). Findings that began during the warm-up are
    left out.
    """
    verdicts = [Judgement(fault) for fault in truth.faults]
    stray: list[Reported] = []
    for finding in reported:
        if finding.last["start_ns"] < truth.from_ns - EARLY_NS:
            continue
        near = (
            [v for v in verdicts if _overlap(finding.last, v.fault)]
            if any(_begins(finding.last, v.fault) for v in verdicts)
            else []
        )
        near.sort(
            key=lambda v: (not concerns(finding, v.fault, truth), not cause_right(finding.last, v.fault), not v.counts)
        )
        (near[0].reported if near else stray).append(finding)
    belonging = [finding for verdict in verdicts for finding in verdict.reported]
    for verdict in verdicts:
        verdict.reported = verdict.reported or [
            finding
            for finding in belonging
            if _overlap(finding.last, verdict.fault)
            and concerns(finding, verdict.fault, truth)
            and cause_right(finding.last, verdict.fault)
        ]
    for verdict in verdicts:
        fault = verdict.fault
        verdict.reported.sort(
            key=lambda t: (not concerns(t, fault, truth), -float(t.last["confidence"] or 0), t.states[0][0])
        )
    return verdicts, stray


def _begins(row: Row, fault: Done) -> bool:
    return bool(fault.right) and fault.start_ns - EARLY_NS <= row["start_ns"] <= fault.until_ns + LATE_NS


def _overlap(row: Row, fault: Done) -> bool:
    return (
        bool(fault.right) and row["start_ns"] <= fault.until_ns + LATE_NS and row["end_ns"] >= fault.start_ns - EARLY_NS
    )
