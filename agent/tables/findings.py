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
        enum("state", "open closed", "still going on?"),
        enum(
            "severity",
            "notice alarm",
            "notice: a clock jump below the threshold (--jump-threshold) with no symptom after it",
        ),
        i64("start_ns", "first seen, CLOCK_BOOTTIME", "ns"),
        i64("end_ns", "last seen, CLOCK_BOOTTIME", "ns"),
        text("symptom", 24, "what was wrong", names=SYMPTOMS),
        text("subject", 128, "with what"),
        text("cause", 24, "the first cause", names=CAUSES),
        text(
            "cause_detail",
            24,
            "the finer word of the first cause: of syscall the call, of cpu preempted, throttled or steal ...",
        ),
        i64("culprit_pid", "the process that did it, where that is known"),
        text("culprit_comm", 16, "its command name"),
        text(
            "culprit_object",
            128,
            "what did it, where that is no process, or not only: a server's ip:port, a consumer, a device, a cgroup",
        ),
        f64("confidence", "0 to 1"),
        text(
            "sentence",
            480,
            "the finding in words, times in UTC; boot+SECONDS where nothing was known of the wall clock yet",
        ),
        json_text(
            "said",
            1024,
            "the same in pieces: texts, instants (CLOCK_BOOTTIME ns) and values ([value, unit]), which whoever shows it"
            " puts into words, by the clock of who reads it",
        ),
        measure="confidence",
        latest_by="finding_id",
    ),
    table(
        "verdict",
        "one cause that was considered for a finding; the latest of them are its causes and what was ruled out",
        text("finding_id", 32, "of which finding", "tickscope.finding.id"),
        i64("rank", "1: the best; those that are ruled out come last"),
        text("cause", 24, "the cause", names=CAUSES),
        text("cause_detail", 24, "the finer word of it, as in finding"),
        f64("score", "how well it explains the finding, 0 to 1"),
        boolean("ruled_out", "it was considered and does not explain the finding"),
        text("reason", 256, "why, in words"),
        measure="score",
        latest_by="finding_id",
        as_of="t_ns",
    ),
    table(
        "evidence",
        "one piece of evidence of a finding: t_ns to end_ns is the time that it is about. SELECT * FROM table WHERE"
        " keys AND t_ns BETWEEN t_ns AND end_ns gives its rows",
        i64("as_of_ns", "when it was known, CLOCK_BOOTTIME; of a finding, queries show the latest", "ns"),
        text("finding_id", 32, "of which finding", "tickscope.finding.id"),
        text(
            "cause",
            24,
            "the cause that it speaks for or against; of a time line, empty where it is the symptom",
            names=CAUSES,
        ),
        enum("role", "for against timeline", "it speaks for a cause, or against it, or says what happened when"),
        text("table", 24, "the table that it was seen in (a word of SQL: quote it there)"),
        text("column", 24, "the column (quote it, too); empty where rows were counted"),
        json_text("keys", 256, "what selects its rows in that table: values by column, as queries show them"),
        text("what", 48, "what the value is"),
        f64("value", "in its unit"),
        text("unit", 16, "of value and baseline"),
        f64("baseline", "what was usual"),
        i64("end_ns", "until when, CLOCK_BOOTTIME", "ns"),
        text("object", 128, "of which limiter, queue, peer or process, for people"),
        json_text("details", 512, "more of it, by name"),
        measure="value",
        latest_by="finding_id",
        as_of="as_of_ns",
    ),
)
