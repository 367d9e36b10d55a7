"""Queues from a page of metrics (Prometheus's text format) or a JSON document (expvar), by a mapping. Pure.

A source of a figure is a metric with labels, ``NAME`` or ``NAME{label="value"}`` (``{"a.b",label="value"}`` if the name
needs quotes), or a path in JSON, ``/queues/*/len``
(RFC 6901 with ``*`` for each member or element). The name of a queue is a text with ``{label}`` in it; what the n-th
``*`` of a path stands for is the label ``n``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.common.settings import setting, text
from agent.errors import USAGE, AgentError
from agent.queues.age_bounds import EARLIEST_S, age_since
from agent.queues.prometheus_text import NotPrometheus, metric_name, metric_samples, selector, whole_number
from agent.queues.queue import Row
from agent.queues.redis_reading import shown

MAX_QUEUES = 1024
#: Of one source, in one answer.
MAX_SAMPLES = 20_000
#: Counts -> column of ``queue_lag``, or member of a row (agent/queues/judged.py).
_COUNTS = {
    "length": "lag_messages",
    "pending": "pending",
    "delayed": "delayed",
    "consumers": "consumers",
    "added": "added",
    "done": "acked",
}
_TOTALS = ("added", "done")
#: Ages, and what they are.
_TIMES = {"oldest_s": "an age in seconds", "oldest_at_s": "a past time in seconds"}
_PLACE = re.compile(r"\{([^{}]+)\}")
_TYPE = re.compile(rb'^#[ \t]+TYPE[ \t]+"?([^\s"]+)"?[ \t]+(\S+)[ \t]*$', re.MULTILINE)
_PART = re.compile(rb"_(total|count|sum|bucket)$")
_CUMULATIVE = ("le", "quantile")  # labels of samples that must not be added up

Samples = Iterator[tuple[Mapping[str, str], Any]]  #: labels and value
#: What an answer has for a figure and its source. Raises Problem.
Find = Callable[[str, "MetricSource"], Samples]


class Problem(ValueError):
    """A figure cannot be had; the text is the reason."""


@dataclass(frozen=True)
class MetricSource:
    """A metric, or a path in JSON. labels: that a sample of the metric must have."""

    text: str
    name: bytes = b""
    labels: Mapping[bytes, bytes] = field(default_factory=dict)
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, given: str) -> MetricSource:
        """Raises ValueError."""
        if given.startswith("/"):
            return cls(given, path=tuple(part.replace("~1", "/").replace("~0", "~") for part in given[1:].split("/")))
        try:
            name, its = selector(given.encode())
            return cls(given, name, its)
        except NotPrometheus:
            raise ValueError('must be a metric, NAME or NAME{label="value"}, or a JSON path, /queues/*/len') from None


_SOURCE = text("a metric, or a path in JSON", MetricSource.parse)


@dataclass(frozen=True)
class MappedQueues:
    """Queues of one endpoint that have the same metrics."""

    name: str = setting("", text("a text with {label} in it"), "name of the queue")
    group: str = setting("", text("a text with {label} in it"), "consumer group")
    length: MetricSource | None = setting(None, _SOURCE, "messages that wait")
    pending: MetricSource | None = setting(None, _SOURCE, "messages that are being processed")
    delayed: MetricSource | None = setting(None, _SOURCE, "messages that wait for a set time")
    consumers: MetricSource | None = setting(None, _SOURCE, "consumers, workers")
    limit: MetricSource | None = setting(None, _SOURCE, "capacity of the queue")
    added: MetricSource | None = setting(None, _SOURCE, "counter of the messages that were added")
    done: MetricSource | None = setting(None, _SOURCE, "counter of the messages that were taken or done")
    oldest_s: MetricSource | None = setting(None, _SOURCE, "age of the oldest message, in seconds")
    oldest_at_s: MetricSource | None = setting(None, _SOURCE, "time of the oldest message, in seconds since 1970")

    def check(self) -> None:
        wrong = (
            (not self.name, "a queue has no name"),
            (self.length is None, f"queue {self.name[:40]} has no length"),
            (self.oldest_s and self.oldest_at_s, "oldest_s and oldest_at_s are the same figure: give one of them"),
            (
                len({bool(one.path) for one in self.sources().values()}) > 1,
                "its sources must be either metrics or paths in JSON, not both",
            ),
        )
        if why := next((why for is_wrong, why in wrong if is_wrong), ""):
            raise AgentError("a mapping of queues cannot be used", why=why, exit_code=USAGE)

    def sources(self) -> dict[str, MetricSource]:
        names = (*_COUNTS, "limit", *_TIMES)
        return {name: source for name in names if (source := getattr(self, name)) is not None}


def read(mapped: Sequence[MappedQueues], answer: bytes, wall_s: float) -> list[Row]:
    """The rows of an answer: one for each queue, and one for each problem. wall_s: now, seconds since 1970. Raises
    NotPrometheus, or ValueError and RecursionError if the answer is no JSON.
    """
    sources = [source for one in mapped for source in one.sources().values()]
    find = _in_json(json.loads(answer)) if sources and sources[0].path else _in_page(answer, sources)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    problems: dict[str, None] = {}
    for one in mapped:
        for figure, source in one.sources().items():
            try:
                for labels_of, value in find(figure, source):
                    try:
                        key = _named(one.name, labels_of, source), _named(one.group, labels_of, source)
                        if not key[0]:
                            raise Problem(f"a sample of {source.text} has no name: its label is empty")
                    except Problem as problem:  # other samples may have what this one lacks
                        problems[f"{figure}: {problem}"] = None
                        continue
                    if key in found or (figure == "length" and len(found) < MAX_QUEUES):
                        _add(found.setdefault(key, {}), figure, value)
                    elif figure == "length":
                        problems[f"more than {MAX_QUEUES} queues are not watched: choose by labels"] = None
            except Problem as problem:
                problems[f"{figure}: {problem}"] = None
    rows: list[Row] = [_row(*key, figures, wall_s) for key, figures in found.items()]
    return [*rows, *({"reason": why} for why in problems)]


def _in_page(answer: bytes, sources: Sequence[MetricSource]) -> Find:
    wanted = {source.name for source in sources}
    kinds = dict(_TYPE.findall(answer))
    # Of samples with the same labels the last one counts: OpenMetrics has several of them with their times.
    by_name: dict[bytes, dict[frozenset[tuple[bytes, bytes]], tuple[Mapping[bytes, bytes], float]]] = {}
    unread: list[bytes] = []
    for sample in metric_samples(answer, wanted, unread):
        samples = by_name.setdefault(sample.name, {})
        if len(samples) <= MAX_SAMPLES:
            samples[frozenset(sample.labels.items())] = sample.labels, sample.value
    if unread and not by_name:
        raise NotPrometheus(unread[0][:40].decode(errors="replace"))
    malformed = {metric_name(line): line for line in unread}

    def find(figure: str, source: MetricSource) -> Samples:
        kind = kinds.get(source.name) or kinds.get(_PART.sub(b"", source.name), b"")
        samples = [
            ({name.decode(errors="replace"): its.decode(errors="replace") for name, its in one.items()}, value)
            for one, value in by_name.get(source.name, {}).values()
            if source.labels.items() <= one.items()
        ]
        if (line := malformed.get(source.name)) is not None:  # a sum without it would be wrong
            raise Problem(f"a line of the page cannot be read: {line[:80].decode(errors='replace')}")
        if not samples:
            raise Problem(f"the page has no {source.text}")
        if len(samples) > MAX_SAMPLES:
            raise Problem(f"more than {MAX_SAMPLES} samples of {source.text}")
        if figure not in _TOTALS and kind in (b"counter", b"histogram", b"summary"):
            raise Problem(f"{source.text} is a {kind.decode()}, not a gauge: a counter is for added or done")
        for label in _CUMULATIVE:
            if label.encode() not in source.labels and any(label in one for one, _ in samples):
                raise Problem(f"{source.text} is of a histogram or summary: take its _count, or choose one {label}")
        yield from samples

    return find


def _in_json(document: Any) -> Find:
    def find(_: str, source: MetricSource) -> Samples:
        found: list[tuple[dict[str, str], Any]] = [({}, document)]
        for part in source.path:
            found = [step for stars, value in found for step in _step(stars, value, part)]
            if len(found) > MAX_SAMPLES:
                raise Problem(f"more than {MAX_SAMPLES} values of {source.text}")
        if not found:
            raise Problem(f"the document has no {source.text}")
        yield from found

    return find


def _step(stars: dict[str, str], value: Any, part: str) -> Iterator[tuple[dict[str, str], Any]]:
    members: Mapping[Any, Any] = {}
    if isinstance(value, dict):
        members = value
    elif isinstance(value, list):
        members = {str(at): element for at, element in enumerate(value)}
    if part == "*":
        number = str(len(stars) + 1)
        yield from (({**stars, number: key}, member) for key, member in members.items())
    elif part in members:
        yield stars, members[part]


def _named(form: str, labels_of: Mapping[str, str], source: MetricSource) -> str:
    def fill(match: re.Match[str]) -> str:
        if match[1] not in labels_of:
            raise Problem(f"{source.text} has no label {match[1]}")
        return labels_of[match[1]]

    return _PLACE.sub(fill, form)


def _add(figures: dict[str, Any], figure: str, value: Any) -> None:
    """Samples of one queue are added up; of ages the largest counts, without those of samples that have none. What is
    no number is kept as a text.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        value = json.dumps(value)
    before = figures.get(figure)
    if before is None or (figure in _TIMES and not _is_time(figure, before)):
        figures[figure] = value
    elif figure in _TIMES:
        if _is_time(figure, value):
            figures[figure] = max(before, value) if figure == "oldest_s" else min(before, value)
    elif isinstance(before, str) or isinstance(value, str):
        figures[figure] = before if isinstance(before, str) else value
    else:
        try:
            figures[figure] = before + value
        except OverflowError:
            figures[figure] = math.inf


def _is_time(figure: str, value: float | str) -> bool:
    """Whether an age, or a time, is one: an empty shard has 0, NaN or null."""
    return not isinstance(value, str) and value >= (EARLIEST_S if figure == "oldest_at_s" else 0)


def _row(name: str, group: str, figures: Mapping[str, Any], wall_s: float) -> Row:
    row: dict[str, Any] = {"destination": shown(name.encode(errors="replace")), "lag_messages": None}
    if group:
        row["consumer_group"] = shown(group.encode(errors="replace"))
    odd = []
    for figure, column in _COUNTS.items():
        if figure in figures:
            row[column] = count = _count(figures[figure])
            if count is None:
                odd.append(f"{figure} is {_short(figures[figure])}, not a count")
    limit = _count(figures.get("limit"))
    if row["lag_messages"] is not None and limit:
        row["room"] = row["lag_messages"], limit, "queue full"
    age = _age(figures, wall_s)
    if row["lag_messages"] == 0:
        row["lag_s"] = 0.0
    elif age is not None:
        row["lag_s"] = row["oldest_undelivered_s"] = age
    else:
        odd += [f"{name} is {_short(figures[name])}, not {what}" for name, what in _TIMES.items() if name in figures]
    if "done" in figures:
        row["position"] = row["acked"]
    if odd:
        row["inexact_reason"] = ", ".join(odd)
    return row


def _count(value: float | str | None) -> int | None:
    """None if it is no count."""
    try:
        return None if value is None or isinstance(value, str) else whole_number(float(value))
    except OverflowError:
        return None


def _short(value: float | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:20]


def _age(figures: Mapping[str, Any], wall_s: float) -> float | None:
    """Seconds; None if unknown, or no age."""
    try:
        given = (figures.get(name, math.nan) for name in _TIMES)
        age, at = (math.nan if isinstance(one, str) else float(one) for one in given)
    except OverflowError:
        return None
    age = age if math.isnan(at) else age_since(at, wall_s)
    return age if math.isfinite(age) and age >= 0 else None  # a program writes -1 for none
