"""The clock's history as a picture and as text on a terminal: how far the wall clock was moved, by whom, and how fast it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from agent.cli.cells import duration
from agent.cli.picture import Area, Line, Picture, Text

if TYPE_CHECKING:
    import numpy as np

_BLUE, _BAND, _RED, _GREEN, _GREY, _PALE = "#1f5fa8", "#c9dcf2", "#c0392b", "#2e7d32", "#8a8a8a", "#e4e4e4"
_LEFT, _RIGHT, _TOP, _GAP = 84, 24, 64, 58
_LABELLED = 10
_LETTER = 5.7  # width of a letter at size 11, about
_LABEL_LEVELS = 3
_LOOK_S = 10
_NO_ZONE = timedelta(0)
_TIMES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


class Step(NamedTuple):
    """A jump of the wall clock: when (CLOCK_BOOTTIME ns), how far, who, in words, and the wall time just after it."""

    t_ns: int
    size_ns: int
    actor: str
    wall_ns: int


@dataclass(frozen=True)
class Course:
    """What is drawn, of one boot. Times CLOCK_BOOTTIME ns, increasing.

    start_ns, moved_ns, err_ns (k,): the segments, and how far from the first one's offset each lies, with its error bound. rate_t_ns,
    rate_ppm (m,): measured rate against MONOTONIC_RAW; asked_t_ns, asked_ppm (n,): the kernel's frequency correction.
    wall_ns: what to add to a time to get the wall time it has by the last offset.
    """

    host: str
    from_ns: int
    to_ns: int
    wall_ns: int
    start_ns: np.ndarray
    moved_ns: np.ndarray
    err_ns: np.ndarray
    steps: Sequence[Step]
    rate_t_ns: np.ndarray
    rate_ppm: np.ndarray
    asked_t_ns: np.ndarray
    asked_ppm: np.ndarray

    def corners(self) -> list[tuple[int, int, int]]:
        """(t_ns, moved_ns, err_ns) along the line: both ends of each segment."""
        ends = [*self.start_ns[1:].tolist(), self.to_ns]
        out = []
        for start, end, moved, err in zip(self.start_ns.tolist(), ends, self.moved_ns.tolist(), self.err_ns.tolist(), strict=True):
            out += [(max(start, self.from_ns), moved, err), (end, moved, err)]
        return out


def rates(t_ns: np.ndarray, mono_raw_ns: np.ndarray, pieces: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """(times, ppm): the rate of MONOTONIC against MONOTONIC_RAW between samples at least 10 s apart, in at most so many pieces."""
    import numpy as np

    if len(t_ns) < 2:
        return np.zeros(0, np.int64), np.zeros(0)
    apart = max(_LOOK_S * 10**9 * 0.9, (t_ns[-1] - t_ns[0]) / pieces)
    kept = [0]
    for i in range(1, len(t_ns)):
        if t_ns[i] - t_ns[kept[-1]] >= apart:
            kept.append(i)
    t, y = t_ns[kept], mono_raw_ns[kept]
    return (t[1:] + t[:-1]) // 2, np.diff(y) / np.diff(t) * 1e6


def nice(low: float, high: float, most: int) -> list[float]:
    """At most ``most`` round numbers that divide the range evenly."""
    size = 10 ** math.floor(math.log10((high - low) / most))
    step = next(size * m for m in (1, 2, 5, 10, 20) if (high - low) / (size * m) <= most)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def times(course: Course, most: int) -> list[tuple[int, str]]:
    """Round local times in the range: (t_ns, label)."""
    span = (course.to_ns - course.from_ns) / 1e9
    every = next((s for s in _TIMES_S if span / s <= most), _TIMES_S[-1] * math.ceil(span / most / _TIMES_S[-1]))
    zone = int((datetime.fromtimestamp((course.to_ns + course.wall_ns) / 1e9).astimezone().utcoffset() or _NO_ZONE).total_seconds())
    first = math.ceil(((course.from_ns + course.wall_ns) / 1e9 + zone) / every) * every - zone
    form = "%H:%M:%S" if every < 60 else "%H:%M" if every < 43200 else "%m-%d %H:%M" if every < 86400 else "%m-%d"
    seconds = range(first, (course.to_ns + course.wall_ns) // 10**9 + 1, every)
    return [(second * 10**9 - course.wall_ns, datetime.fromtimestamp(second).strftime(form)) for second in seconds]


def extent(values: Sequence[float], least: float) -> tuple[float, float]:
    """A range that holds the values with some room, at least ``least`` wide."""
    low, high = min(values), max(values)
    room = max((high - low) * 0.1, (least - (high - low)) / 2)
    return low - room, high + room


def scaled(low: float, high: float) -> tuple[float, str]:
    """Nanoseconds a unit, and its name, for a range."""
    most = max(abs(low), abs(high))
    return next(((size, unit) for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")) if most >= size), (1.0, "ns"))


def title(course: Course) -> str:
    begin, end = (datetime.fromtimestamp((t + course.wall_ns) / 1e9) for t in (course.from_ns, course.to_ns))
    what = f"{len(course.steps)} jump{'s' * (len(course.steps) != 1)} of the wall clock"
    return f"{course.host}, {begin:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S}: {what}" if begin.date() == end.date() else (
        f"{course.host}, {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}: {what}")


def _frame(picture: Picture, box: tuple[float, float, float, float], low: float, high: float, size: float,
           course: Course, clocks: bool) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Axes of one panel. box: left, top, right, bottom. Returns what maps a time and a value to the picture."""
    left, top, right, bottom = box

    def at_x(t: float) -> float:
        return left + (t - course.from_ns) / (course.to_ns - course.from_ns) * (right - left)

    def at_y(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    for value in nice(low / size, high / size, 6):
        y = at_y(value * size)
        picture.add(Line([(left, y), (right, y)], _PALE), Text((left - 8, y + 4), f"{value:+.6g}" if value else "0", size=11, anchor="end"))
    for t, label in times(course, 9):
        picture.add(Line([(at_x(t), bottom), (at_x(t), bottom + 4)], _GREY))
        if clocks:
            picture.add(Text((at_x(t), bottom + 18), label, size=11, anchor="middle"))
    picture.add(Line([(left, top), (left, bottom), (right, bottom)], _GREY))
    return at_x, at_y


def draw(course: Course, width: int = 1000, height: int = 560) -> Picture:
    """Two panels: how far the wall clock was moved, with its error band and each jump with its actor; and how fast it runs."""
    picture = Picture(width, height)
    middle = _TOP + (height - _TOP - 2 * _GAP) * 0.64
    _moved(picture, course, (_LEFT, _TOP, width - _RIGHT, middle))
    _rate(picture, course, (_LEFT, middle + _GAP, width - _RIGHT, height - _GAP + 14))
    picture.add(Text((_LEFT, 26), title(course), "#111111", 15))
    return picture


def _moved(picture: Picture, course: Course, box: tuple[float, float, float, float]) -> None:
    corners = course.corners()
    low, high = extent([m + sign * e for _, m, e in corners for sign in (-1, 1)], 1000)
    labelled = sorted(course.steps, key=lambda s: -abs(s.size_ns))[:_LABELLED]
    high += (high - low) * 0.09 * min(_LABEL_LEVELS, len(labelled))
    size, unit = scaled(low, high)
    at_x, at_y = _frame(picture, box, low, high, size, course, clocks=False)
    upper, lower = [(at_x(t), at_y(m + e)) for t, m, e in corners], [(at_x(t), at_y(m - e)) for t, m, e in corners]
    for i in range(0, len(corners), 2):
        picture.add(Area([*upper[i : i + 2], *lower[i : i + 2][::-1]], _BAND))
    for step in course.steps:
        x = at_x(step.t_ns)
        picture.add(Line([(x, box[1]), (x, box[3])], _RED if step.size_ns < 0 else _GREEN, 1, (3, 3)))
    picture.add(Line([(at_x(t), at_y(m)) for t, m, _ in corners], _BLUE, 2))
    _labels(picture, labelled, at_x, box)
    err = duration(int(course.err_ns.max()))
    picture.add(Text((box[0], box[1] - 10), f"Moved by jumps, {unit} (REALTIME - BOOTTIME, from the left edge on; band: error bound, at most {err})"))


def _labels(picture: Picture, steps: Sequence[Step], at_x: Callable[[float], float], box: tuple[float, float, float, float]) -> None:
    """Size and actor beside each step's line, as long as there is room; the first steps come first."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(_LABEL_LEVELS)]
    for step in steps:
        words = f"{'+' if step.size_ns > 0 else '-'}{duration(abs(step.size_ns))} {step.actor}"
        x, wide = at_x(step.t_ns), len(words) * _LETTER
        left = x + 5 + wide > box[2]
        begin, end = (x - 5 - wide, x - 5) if left else (x + 5, x + 5 + wide)
        level = next((i for i, others in enumerate(taken) if all(end < b or begin > e for b, e in others)), None)
        if level is not None:
            taken[level].append((begin - 8, end + 8))
            y = box[1] + 12 + 15 * level
            picture.add(Area([(begin - 2, y - 11), (end + 2, y - 11), (end + 2, y + 3), (begin - 2, y + 3)], "#ffffff"))
            picture.add(Text((end if left else begin, y), words, _RED if step.size_ns < 0 else _GREEN, 11, "end" if left else "start"))


def _rate(picture: Picture, course: Course, box: tuple[float, float, float, float]) -> None:
    values = [*course.rate_ppm.tolist(), *course.asked_ppm.tolist()]
    low, high = extent(values or [0.0], 0.2)
    at_x, at_y = _frame(picture, box, low, high, 1, course, clocks=True)
    asked = [(max(int(t), course.from_ns), v) for t, v in zip(course.asked_t_ns.tolist(), course.asked_ppm.tolist(), strict=True)]
    line = [p for (t, v), (end, _) in zip(asked, [*asked[1:], (course.to_ns, 0.0)], strict=True) for p in ((at_x(t), at_y(v)), (at_x(end), at_y(v)))]
    if line:
        picture.add(Line(line, _GREY, 1.5, (5, 3)))
    measured = [(at_x(t), at_y(v)) for t, v in zip(course.rate_t_ns.tolist(), course.rate_ppm.tolist(), strict=True)]
    if len(measured) > 1:
        picture.add(Line(measured, _BLUE, 1.5))
    picture.add(Text((box[0], box[1] - 10), "Rate against the raw oscillator, ppm (line: measured; dashes: the kernel's frequency correction)"))
