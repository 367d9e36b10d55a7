"""Findings, the causes that were considered for them, and their evidence."""

from __future__ import annotations

from dataclasses import replace

from agent.columns import boolean, enum, f64, i64, json_text, text
from agent.tables.names import CAUSES, SYMPTOMS
from agent.tables.shared import CONTAINER, PROC, UNIT, table

DECLARED = (
    table(
        "finding",
        "a finding, its latest state",
        text("finding_id", 32, "id of the finding", "tickscope.finding.id"),
        enum("state", "open closed", "open: the symptom or its cause continues"),
        enum(
            "severity",
            "notice alarm",
            "notice: a clock jump below the threshold (--jump-threshold) without a symptom; alarm: all others",
        ),
        i64("start_ns", "start of the symptom, CLOCK_BOOTTIME", "ns"),
        i64("end_ns", "end of the symptom so far, CLOCK_BOOTTIME", "ns"),
        text("symptom", 24, "the symptom (docs/symptoms-causes.md)", names=SYMPTOMS),
        text("subject", 128, "what had the symptom"),
        i64("impacted_pid", "the process with the symptom, or the first that a clock jump affected, if known"),
        UNIT,
        PROC[-1],
        *CONTAINER,
        text("cause", 24, "the cause with the highest score", names=CAUSES),
        text(
            "cause_detail",
            24,
            "detail of the cause: for syscall the call; for cpu preempted, throttled or steal; ...",
        ),
        i64("culprit_pid", "the process that caused it, if known"),
        text("culprit_comm", 16, "command name of that process"),
        *(replace(one, name=f"culprit_{one.name}", attribute="") for one in (UNIT, PROC[-1], *CONTAINER)),
        text(
            "culprit_object",
            128,
            "the object that caused it, instead of or beside a process: ip:port of a server, a consumer,"
            " a device, a cgroup",
        ),
        text("merged_into", 16, "the finding that has its symptoms now, since they turned out to have one cause"),
        text("via", 128, "processes between the subject and the culprit that waited, too: from the subject on"),
        f64("confidence", "score of the cause, 0 to 1; 0.3 if the cause is unknown"),
        text(
            "sentence",
            480,
            "the finding as one sentence. Times are in UTC, or boot+SECONDS if wall time was not known yet",
        ),
        json_text(
            "sentence_parts",
            1024,
            "the sentence as a list of texts, instants (CLOCK_BOOTTIME ns) and values ([value, unit]); a"
            " reader formats them in its own time zone",
        ),
        measure="confidence",
        latest_by="finding_id",
    ),
    table(
        "verdict",
        "one cause that was considered for a finding, whether it fits or was ruled out. The rows with the latest t_ns"
        " are valid",
        text("finding_id", 32, "id of the finding", "tickscope.finding.id"),
        i64("rank", "1: the best; ruled-out causes come last"),
        text("cause", 24, "the cause", names=CAUSES),
        text("cause_detail", 24, "detail of the cause, as in finding"),
        f64("score", "how well it explains the finding, 0 to 1"),
        boolean("ruled_out", "whether the cause was ruled out; false with a score of 0: the cause was not checked"),
        text("reason", 256, "reason of the score, in words"),
        measure="score",
        latest_by="finding_id",
        as_of="t_ns",
    ),
    table(
        "evidence",
        "one piece of evidence of a finding, for the time from t_ns to end_ns. Its source is the rows of `table` that"
        " match `keys` in that time",
        i64(
            "as_of_ns", "when the evidence was recorded, CLOCK_BOOTTIME; queries show the latest set of a finding", "ns"
        ),
        text("finding_id", 32, "id of the finding", "tickscope.finding.id"),
        text(
            "cause",
            24,
            "the cause that it supports or contradicts; empty: the symptom itself (role timeline)",
            names=CAUSES,
        ),
        enum(
            "role",
            "for against timeline",
            "for: supports the cause; against: contradicts it; timeline: an event in the course of the finding",
        ),
        text("table", 24, "table of the source rows (a keyword of SQL: quote it)"),
        text("column", 24, "column of the value (also a keyword); empty: the value is a count of rows"),
        json_text("keys", 256, "column values that select the source rows, as queries show them"),
        text("what", 48, "what the value is"),
        f64("value", "the value, in `unit`"),
        text("unit", 16, "unit of value and baseline"),
        f64("baseline", "usual value, in `unit`"),
        i64("end_ns", "end of the time of the evidence, CLOCK_BOOTTIME", "ns"),
        text("object", 128, "limiter, queue, peer or process, as text"),
        json_text("details", 512, "further values, by name"),
        measure="value",
        latest_by="finding_id",
        as_of="as_of_ns",
    ),
)
