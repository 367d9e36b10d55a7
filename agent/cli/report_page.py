"""Makes the document of a report (what its page shows, as JSON) and the page: one HTML file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.ask.question import Question
from agent.cli import explain
from agent.cli.findings import in_wall_time, left_open
from agent.cli.report_read import ReportSpan, bounds, clock, evidence_panels, findings_in, marks, panels
from agent.columns import NULL_I64
from agent.common.duration import brief, instant
from agent.common.instants import iso
from agent.common.places import PLACE, place_text
from agent.common.printable import printable
from agent.common.version import VERSION

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource

#: Findings whose evidence is drawn: the chosen one, or the newest.
DRAWN = 12
_SCRIPTS, _STYLES = ("uplot.js", "page.js"), ("uplot.css", "page.css")


def document(source: RowSource, span: ReportSpan, chosen: str = "", words: str = "") -> dict[str, Any]:
    """What a page shows of a span; texts have no control characters. chosen: the id of the finding that it is about.
    words: only findings and curves with this in them.
    """
    rows = [row for row in findings_in(source, span) if words.lower() in _words(row)]
    drawn = {row["finding_id"] for row in rows if row["finding_id"] == chosen} or {
        row["finding_id"] for row in [one for one in rows if one["severity"] == "alarm"][-DRAWN:]
    }
    findings = [_finding(source, span, row, drawn=row["finding_id"] in drawn) for row in rows]
    concerned = {pid for row in rows if row["finding_id"] in drawn for pid in _pids(row)}
    host = source.rows(Question("clock_offset", ("host",), within=False, limit=1))
    made: dict[str, Any] = {
        "version": VERSION,
        "host": host[0]["host"] if host else "",
        "boot_id": span.boot_id,
        "from_boot_s": span.from_ns / 1e9,
        "length_s": (span.to_ns - span.from_ns) / 1e9,
        "options": bounds(source, span),
        "chosen": chosen,
        "findings": findings,
        "panels": [one for one in (clock(source, span), *panels(source, span, concerned, words)) if one],
        "notes": list(source.notes),
        **marks(source, span),
    }
    clean: dict[str, Any] = safe(made)
    return clean


def _words(row: dict[str, Any]) -> str:
    names = ("finding_id", "cause", "symptom", "subject", "sentence", "culprit_comm", "culprit_object", *PLACE)
    return " ".join(str(row[name]) for name in names).lower()


def safe(value: Any) -> Any:
    """The same with each text safe to show: names come from programs."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {name: safe(one) for name, one in value.items()}
    return [safe(one) for one in value] if isinstance(value, (list, tuple)) and not _numbers(value) else value


def _numbers(values: Sequence[Any]) -> bool:
    """Whether it is the line of a curve, by its first value."""
    return len(values) > 0 and isinstance(values[0], (int, float, type(None))) and not isinstance(values[-1], str)


def _pids(row: dict[str, Any]) -> list[int]:
    pids = [row.get("culprit_pid"), *(one.get("keys", {}).get("pid") for one in row["evidence"])]
    return [pid for pid in pids if isinstance(pid, int)]


def _finding(source: RowSource, span: ReportSpan, row: dict[str, Any], *, drawn: bool) -> dict[str, Any]:
    began_ns = int(source.wall(row["boot_id"], np.array([row["start_ns"]], np.int64))[0])
    lasted = row["end_ns"] - row["start_ns"]
    state = "left open" if left_open(source, row) else row["state"]
    drawings = drawings_of(source, span, row) if drawn else []
    return {
        "id": row["finding_id"],
        "state": state,
        "severity": row["severity"],
        "start": span.at(row["start_ns"]),
        "end": span.at(row["end_ns"]),
        "began": "" if began_ns == NULL_I64 else iso(began_ns, 3, utc=True),
        "lasted": "" if instant(lasted) else brief(lasted / 1e9),
        "symptom": row["symptom"],
        "subject": row["subject"],
        "cause": row["cause"],
        "meaning": explain.meaning_of(row["cause"]).removeprefix(": "),
        "confidence": row["confidence"],
        "sentence": in_wall_time(source, row, utc=True),
        "where": place_text(row),
        "culprit": explain.culprit_of(row),
        "next": explain.filled(explain.next_step(row), row, began_ns),
        "about": explain.page_name(row),
        "others": [one for one in row["causes"] if one["cause"] != row["cause"]],
        "ruled_out": row["ruled_out"],
        "not_checked": row["not_checked"],
        "evidence": [
            {
                "role": one["role"],
                "cause": one.get("cause", ""),
                "text": explain.entry_text(one),
                "t": span.at(one["t_ns"]),
                "end": span.at(one["end_ns"]),
                "panel": one.get("panel"),
                "part": _part(row, one),
            }
            for one in row["evidence"]
        ],
        "panels": drawings,
    }


def drawings_of(source: RowSource, span: ReportSpan, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels of a finding's evidence: its timeline first, then what speaks for its cause."""
    evidence = [one for one in row["evidence"] if one["role"] != "against"]
    its = sorted(
        evidence, key=lambda one: (one["role"] != "timeline", one.get("cause") not in ("", None, row["cause"]))
    )
    return evidence_panels(source, span, its, row["start_ns"])


def _part(row: dict[str, Any], entry: dict[str, Any]) -> str:
    """Whether an entry of the timeline is the finding's cause or its symptom; empty if neither."""
    if entry["role"] != "timeline":
        return ""
    if entry["what"] == row["cause"]:
        return "cause"
    return "symptom" if (entry["what"], entry.get("object")) == (row["symptom"], row["subject"]) else ""


def page(made: dict[str, Any]) -> str:
    """The HTML of a document. A policy in it allows its own scripts and styles only, and no request at all."""
    scripts, styles = ([asset(name) for name in names] for names in (_SCRIPTS, _STYLES))
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; base-uri 'none';"
        " form-action 'none'"
    )
    data = json.dumps(made, separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        data = data.replace(char, f"\\u{ord(char):04x}")
    title = html.escape(f"{made['host'] or 'tickscope'}: {_title(made)}")
    plain = "".join(f"<li>{html.escape(one['sentence'])}</li>" for one in made["findings"])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n"
        + "".join(f"<style>{style}</style>\n" for style in styles)
        + f"</head>\n<body>\n<noscript><h1>{title}</h1><ul>{plain}</ul></noscript>\n"
        + f'<script type="application/json" id="document">{data}</script>\n'
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body>\n</html>\n"
    )


def _title(made: dict[str, Any]) -> str:
    for one in made["findings"]:
        if one["id"] == made["chosen"]:
            return str(one["sentence"])
    count = len(made["findings"])
    return f"{count} finding{'' if count == 1 else 's'}"


def asset(name: str) -> str:
    return files("agent.cli").joinpath("web", name).read_text(encoding="utf-8")


def _hashes(texts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
