"""Columns that files of earlier versions do not have, filled from the words that these have instead. Goes with the next format."""

from __future__ import annotations

import json
import re

import numpy as np

from agent.columns import NULL_I64
from agent.tables import TABLES

_FAILURE = TABLES["queue_lag"].by_name["failure"]
_NO_ANSWER = ("timed out", "timeout", "no answer", "did not answer")
_INSTANT = re.compile(r"boot\+(\d{1,9})\.(\d{3})(?!\d)")


def fill(table: str, stored: set[str], rows: np.ndarray) -> None:
    """rows: in today's dtype; stored: the columns that the file has."""
    if table == "queue_lag" and "failure" not in stored:
        down = np.flatnonzero(rows["status"] == b"down")
        rows["failure"][down] = [_FAILURE.code("no_answer" if _unanswered(reason) else "other") for reason in rows["reason"][down].tolist()]
    elif table == "clock_change" and "unwatched_ns" not in stored:
        rows["unwatched_ns"] = [unwatched_ns(modes) for modes in rows["modes"].tolist()]


def _unanswered(reason: bytes) -> bool:
    return any(phrase in reason.decode("utf-8", "replace").lower() for phrase in _NO_ANSWER)


def unwatched_ns(modes: bytes) -> int:
    """Of ``unwatched=42.0s``."""
    key, _, span = modes.decode("utf-8", "replace").partition("=")
    try:
        ns = round(float(span.removesuffix("s")) * 1e9) if key == "unwatched" else NULL_I64
    except (ValueError, OverflowError):
        return NULL_I64
    return ns if abs(ns) < 2**63 else NULL_I64


def said(sentence: str) -> list[str | int]:
    """``finding.said`` of a sentence."""
    pieces: list[str | int] = []
    end = 0
    for found in _INSTANT.finditer(sentence):
        pieces += [sentence[end : found.start()], int(found[1]) * 10**9 + int(found[2]) * 10**6]
        end = found.end()
    return [*pieces, sentence[end:]]


def pieces(raw: object, sentence: object) -> list[str | int]:
    """Those of a row of ``finding``: its ``said`` as JSON, else its sentence taken apart. Both as text or bytes, or None."""
    as_text = (v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v or "") for v in (raw, sentence))
    told, words = as_text
    try:
        found = json.loads(told)
    except (ValueError, RecursionError):
        found = None
    return found if found and isinstance(found, list) and all(map(_is_piece, found)) else said(words)


def _is_piece(part: object) -> bool:
    return isinstance(part, str) or (isinstance(part, int) and not isinstance(part, bool) and abs(part) < 2**63)
