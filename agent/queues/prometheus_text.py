"""Parses the text format of Prometheus (prometheus.io/docs/instrumenting/exposition_formats), and what OpenMetrics has
beside it: times as fractions, exemplars. Names in quotes, ``{"a.b",c="d"}``, too. Pure, strict and bounded: a text that
is not of this format is refused as a whole, unless the caller takes the lines that are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

#: Of one text.
MAX_LINES = 200_000
MAX_LINE_BYTES = 16 << 10
MAX_LABELS = 32
#: Sets of labels that are kept between texts.
MAX_KNOWN = 20_000
_METRIC = rb'([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:\{((?:[^"{}\\]|"(?:[^"\\]|\\.)*")*)\}[ \t]*)?'
_SELECTOR = re.compile(_METRIC)
_LINE = re.compile(
    _METRIC
    + rb"(?<=[ \t}])([+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[Ii]nf|NaN|nan))"
    rb"(?:[ \t]+-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)?[ \t]*(?:[ \t]# \{.*)?"
)
_LABEL = re.compile(
    rb'[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|"((?:[^"\\]|\\.)+)")[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)'
)
_QUOTED = re.compile(rb'[ \t]*\{[ \t]*"((?:[^"\\]|\\.)+)"[ \t]*(?:,|(?=\}))')
_ESCAPED = re.compile(rb"\\(.)")
_PLAIN = {b"\\": b"\\", b'"': b'"', b"n": b"\n"}
_MOST = 1 << 63


class NotPrometheus(ValueError):
    """The text is not of the format, or larger than the bounds."""


class MetricSample(NamedTuple):
    """raw: the labels as they are in the text, as a key."""

    name: bytes
    labels: Mapping[bytes, bytes]
    value: float
    raw: bytes


def metric_samples(
    text: bytes,
    wanted: Collection[bytes],
    left_out: list[bytes] | None = None,
    sparse: Collection[bytes] = frozenset(),
    known: dict[bytes, dict[bytes, bytes]] | None = None,
) -> Iterator[MetricSample]:
    """The samples of the metrics ``wanted``, in their order; those of ``sparse`` without samples of 0. left_out: takes
    the malformed lines. known: labels of earlier texts, which are not parsed again.

    Raises NotPrometheus, also for a line of another metric; with ``left_out`` only if the text is cut off or too large.
    """
    if text and not text.endswith(b"\n"):
        raise NotPrometheus("its last line does not end: it may be cut off")
    known = {} if known is None else known
    if len(known) > MAX_KNOWN:
        known.clear()
    for number, line in enumerate(text.split(b"\n"), 1):
        if number > MAX_LINES:
            raise NotPrometheus(f"more than {MAX_LINES:,} lines")
        if not line or line.startswith(b"#") or line.isspace():
            continue
        if left_out is not None:
            name, labelled, _ = line.partition(b"{")
            name = name.rstrip()
            if labelled and (not name or b" " in name):
                name = metric_name(line)
            if labelled and (name not in wanted or (name in sparse and line.endswith(b"} 0"))):
                continue
        if len(line) > MAX_LINE_BYTES:
            raise NotPrometheus(f"line {number} is longer than {MAX_LINE_BYTES:,} bytes")
        try:
            sample = _sample(line, wanted, known)
        except NotPrometheus as error:
            if left_out is None:
                raise NotPrometheus(f"line {number}: {error}") from None
            left_out.append(line)
        else:
            if sample is not None:
                yield sample


def metric_name(line: bytes) -> bytes:
    """The part before the labels, or the name in quotes; anything if the line is malformed."""
    name = line.partition(b"{")[0].strip()
    if name:
        return name.split(None, 1)[0] if b" " in name or b"\t" in name else name
    quoted = _QUOTED.match(line)
    return _unescaped(quoted[1]) if quoted else b""


def selector(text: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Name and labels of a metric as it is on a page, without a value. Raises NotPrometheus."""
    quoted = _QUOTED.match(text)
    found = _SELECTOR.fullmatch(text if quoted is None else b"_{" + text[quoted.end() :])
    if found is None:
        raise NotPrometheus("no metric")
    return metric_name(text), labels(found[2] or b"")


def whole_number(value: float) -> int | None:
    """A count; None if it is none."""
    return int(value) if math.isfinite(value) and 0 <= value < _MOST and value.is_integer() else None


def _sample(line: bytes, wanted: Collection[bytes], known: dict[bytes, dict[bytes, bytes]]) -> MetricSample | None:
    found = _LINE.fullmatch(line)
    quoted = _QUOTED.match(line) if found is None else None
    if quoted is not None:
        found = _LINE.fullmatch(b"_{" + line[quoted.end() :])
    if found is None:
        raise NotPrometheus("no sample")
    name, raw, number = found.groups()
    if quoted is not None:
        name = _unescaped(quoted[1])
    if name not in wanted:
        return None
    raw = raw or b""
    its = known.get(raw)
    if its is None:
        its = known[raw] = labels(raw)
    return MetricSample(name, its, float(number), raw)


def labels(raw: bytes) -> dict[bytes, bytes]:
    """The labels between the braces. Raises NotPrometheus."""
    found: dict[bytes, bytes] = {}
    at = 0
    while raw[at:].strip(b" \t"):
        one = _LABEL.match(raw, at)
        name = b"" if one is None else one[1] or _unescaped(one[2])
        if one is None or name in found or len(found) == MAX_LABELS:
            raise NotPrometheus("labels")
        found[name] = _ESCAPED.sub(_plain, one[3])
        at = one.end()
    return found


def _unescaped(text: bytes) -> bytes:
    return _ESCAPED.sub(lambda escape: _PLAIN.get(escape[1], escape[0]), text)


def _plain(escape: re.Match[bytes]) -> bytes:
    if escape[1] not in _PLAIN:
        raise NotPrometheus("an escaped letter")
    return _PLAIN[escape[1]]
