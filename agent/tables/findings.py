"""Findings, the causes that were considered for them, and their evidence."""

from __future__ import annotations

from agent.columns import boolean, enum, f64, i64, json_text, text
from agent.tables.names import CAUSES, SYMPTOMS
from agent.tables.shared import table

DECLARED = (
    table(
        "finding",
        "a finding, its latest state",
        text("finding_id", 32, "its id", "tickscope.finding.id"),
        enum("state", "open closed", "open: still going on"),
        enum(
            "severity",
            "notice alarm",
            "notice: a clock jump below the threshold (--jump-threshold) with no symptom after it",
        ),
        i64("start_ns", "first seen, CLOCK_BOOTTIME", "ns"),
        i64("end_ns", "last seen, CLOCK_BOOTTIME", "ns"),
        text("symptom", 24, "the symptom (docs/symptoms-causes.md)", names=SYMPTOMS),
        text("subject", 128, "what had the symptom"),
        text("cause", 24, "the cause with the highest score", names=CAUSES),
        text(
            "cause_detail",
            24,
            "detail of the cause: for syscall the call; for cpu preempted, throttled or steal; ...",
        ),
        i64("culprit_pid", "the process that caused it, if known"),
        text("culprit_comm", 16, "command name of that process"),
        text(
            "culprit_object",
            128,
            "the object that caused it, instead of or beside a process: ip:port of a server, a consumer,"
            " a device, a cgroup",
        ),
        f64("confidence", "score of the best verdict, 0 to 1"),
        text(
            "sentence",
            480,
            "the finding as one sentence, times in UTC; boot+SECONDS while the wall clock was not known yet",
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
        "one cause that was considered for a finding. The rows with the latest t_ns hold: the"
        " finding's causes, and the causes that were ruled out",
        text("finding_id", 32, "id of the finding", "tickscope.finding.id"),
        i64("rank", "1: the best; ruled-out causes come last"),
        text("cause", 24, "the cause", names=CAUSES),
        text("cause_detail", 24, "detail of the cause, as in finding"),
        f64("score", "how well it explains the finding, 0 to 1"),
        boolean("ruled_out", "whether the cause was ruled out; a score of 0 without it: it was not checked"),
        text("reason", 256, "reason, in words"),
        measure="score",
        latest_by="finding_id",
        as_of="t_ns",
    ),
    table(
        "evidence",
        "one piece of evidence of a finding, about the time from t_ns to end_ns. SELECT * FROM table"
        " WHERE keys AND t_ns BETWEEN t_ns AND end_ns gives the rows behind it",
        i64(
            "as_of_ns", "when the evidence was recorded, CLOCK_BOOTTIME; queries show the latest set of a finding", "ns"
        ),
        text("finding_id", 32, "id of the finding", "tickscope.finding.id"),
        text(
            "cause",
            24,
            "the cause; with role timeline, empty for the symptom itself",
            names=CAUSES,
        ),
        enum(
            "role",
            "for against timeline",
            "for: supports the cause; against: speaks against it; timeline: what happened when",
        ),
        text("table", 24, "table of the rows behind it (a keyword of SQL: quote it)"),
        text("column", 24, "column of the value (also a keyword); empty: the value is a count of rows"),
        json_text("keys", 256, "values by column that select the rows in that table, as queries show them"),
        text("what", 48, "what the value is"),
        f64("value", "in its unit"),
        text("unit", 16, "of value and baseline"),
        f64("baseline", "usual value"),
        i64("end_ns", "end of that time, CLOCK_BOOTTIME", "ns"),
        text("object", 128, "limiter, queue, peer or process, as text"),
        json_text("details", 512, "further values, by name"),
        measure="value",
        latest_by="finding_id",
        as_of="as_of_ns",
    ),
)
