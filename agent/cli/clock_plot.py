"""The clock's history as a picture and as text on a terminal: how far the wall clock was moved, by whom, and how fast
it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from agent.cli.cells import duration
from agent.cli.clock_course import NAMED, Course, Timed, extent
from agent.cli.picture import Area, Line, Picture, Text

_BLUE, _BAND, _RED, _GREEN, _GREY, _PALE = "#1f5fa8", "#c9dcf2", "#c0392b", "#2e7d32", "#8a8a8a", "#e4e4e4"
_UNWATCHED = "#ececec"
_LEFT, _RIGHT, _TOP, _GAP = 84, 24, 64, 58
_LETTER = 5.7  # width of a letter at size 11, about
_LEVEL = 15  # height of a line of labels
_NO_ZONE = timedelta(0)
_TIMES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


def nice(low: float, high: float, most: int) -> list[float]:
    """At most ``most`` round numbers that divide the range evenly."""
    size = 10 ** math.floor(math.log10((high - low) / most))
    step = next(size * m for m in (1, 2, 5, 10, 20) if (high - low) / (size * m) <= most)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def times(course: Timed, most: int) -> list[tuple[int, str]]:
    """Round local times in the range: (t_ns, label)."""
    span = (course.to_ns - course.from_ns) / 1e9
    every = next((s for s in _TIMES_S if span / s <= most), _TIMES_S[-1] * math.ceil(span / most / _TIMES_S[-1]))
    zone = int(
        (
            datetime.fromtimestamp((course.to_ns + course.wall_ns) / 1e9).astimezone().utcoffset() or _NO_ZONE
        ).total_seconds()
    )
    first = math.ceil(((course.from_ns + course.wall_ns) / 1e9 + zone) / every) * every - zone
    form = "%H:%M:%S" if every < 60 else "%H:%M" if every < 43200 else "%m-%d %H:%M" if every < 86400 else "%m-%d"
    seconds = range(first, (course.to_ns + course.wall_ns) // 10**9 + 1, every)
    return [(second * 10**9 - course.wall_ns, datetime.fromtimestamp(second).strftime(form)) for second in seconds]


def scaled(low: float, high: float) -> tuple[float, str]:
    """Nanoseconds a unit, and its name, for a range."""
    most = max(abs(low), abs(high))
    return next(((size, unit) for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")) if most >= size), (1.0, "ns"))


def title(course: Course) -> str:
    begin, end = (
        datetime.fromtimestamp((t + course.wall_ns) / 1e9).astimezone() for t in (course.from_ns, course.to_ns)
    )
    what = f"{course.jumps:,} jump{'s' * (course.jumps != 1)} of the wall clock"
    zone = f"{end:%z}"
    zone = "UTC" if zone == "+0000" else f"UTC{zone[:3]}:{zone[3:]}"
    return (
        f"{course.host}, {begin:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} {zone}: {what}"
        if begin.date() == end.date()
        else (f"{course.host}, {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} {zone}: {what}")
    )


def _frame(
    picture: Picture,
    box: tuple[float, float, float, float],
    low: float,
    high: float,
    size: float,
    course: Course,
    clocks: bool,
) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Axes of one panel. box: left, top, right, bottom. Returns what maps a time and a value to the picture."""
    left, top, right, bottom = box

    def at_x(t: float) -> float:
        return left + (t - course.from_ns) / (course.to_ns - course.from_ns) * (right - left)

    def at_y(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    for value in nice(low / size, high / size, 6):
        y = at_y(value * size)
        picture.add(
            Line([(left, y), (right, y)], _PALE),
            Text((left - 8, y + 4), f"{value:+.6g}" if value else "0", size=11, anchor="end"),
        )
    for t, label in times(course, 9):
        picture.add(Line([(at_x(t), bottom), (at_x(t), bottom + 4)], _GREY))
        if clocks:
            picture.add(Text((at_x(t), bottom + 18), label, size=11, anchor="middle"))
    picture.add(Line([(left, top), (left, bottom), (right, bottom)], _GREY))
    return at_x, at_y


def draw(course: Course, width: int = 1000, height: int = 560) -> Picture:
    """Two panels: how far the wall clock was moved, with its error band and each jump with its actor; and how fast it
    runs.
    """
    labels = _labels(course, _LEFT, width - _RIGHT)
    higher = _LEVEL * max((label.level for label in labels), default=-1) + _LEVEL
    picture = Picture(width, height + max(0, higher - 3 * _LEVEL))
    height = picture.height
    middle = _TOP + higher + (height - _TOP - higher - 2 * _GAP) * 0.64
    _moved(picture, course, (_LEFT, _TOP + higher, width - _RIGHT, middle), labels)
    _rate(picture, course, (_LEFT, middle + _GAP, width - _RIGHT, height - _GAP + 14))
    picture.add(Text((_LEFT, 26), title(course), "#111111", 15))
    return picture


def _moved(picture: Picture, course: Course, box: tuple[float, float, float, float], labels: Sequence[_Label]) -> None:
    low, high = course.reach(1000)
    size, unit = scaled(low, high)
    at_x, at_y = _frame(picture, box, low, high, size, course, clocks=False)
    for begin, end in course.blank:
        picture.add(
            Area([(at_x(begin), box[1]), (at_x(end), box[1]), (at_x(end), box[3]), (at_x(begin), box[3])], _UNWATCHED)
        )
    for corners in course.corners():
        upper, lower = [(at_x(t), at_y(m + e)) for t, m, e in corners], [(at_x(t), at_y(m - e)) for t, m, e in corners]
        for i in range(0, len(corners), 2):
            picture.add(Area([*upper[i : i + 2], *lower[i : i + 2][::-1]], _BAND))
    top = box[1] - _LEVEL * (max((label.level for label in labels), default=-1) + 1)
    for step in course.steps:
        x = at_x(step.t_ns)
        picture.add(Line([(x, top), (x, box[3])], _RED if step.size_ns < 0 else _GREEN, 1, (3, 3)))
    for corners in course.corners():
        picture.add(Line([(at_x(t), at_y(m)) for t, m, _ in corners], _BLUE, 2))
    for label in labels:
        y = box[1] - 4 - _LEVEL * label.level
        picture.add(
            Area(
                [(label.begin - 2, y - 11), (label.end + 2, y - 11), (label.end + 2, y + 3), (label.begin - 2, y + 3)],
                "#ffffff",
            )
        )
        picture.add(Text((label.begin, y), label.words, label.colour, 11))
    err = duration(int(course.err_ns.max()))
    unnamed = course.jumps - len(labels)
    narrow = len(course.unwatched) - len(course.blank)
    notes = ["; grey: nobody watched"] * bool(course.blank) + [f"; nor {narrow:,} times too short to be drawn"] * bool(
        narrow
    )
    notes += [f"; {unnamed:,} smaller jumps have no name"] * bool(unnamed)
    said = (
        f"Moved by jumps, {unit} (REALTIME - BOOTTIME, from the left edge on; band: error bound, at most"
        f" {err}{''.join(notes)})"
    )
    picture.add(Text((box[0], top - 10), said))


class _Label(NamedTuple):
    """Size and actor of a jump, above the panel. begin, end: where it lies across; level: how many others lie below
    it.
    """

    words: str
    colour: str
    begin: float
    end: float
    level: int


def _labels(course: Course, left: float, right: float) -> list[_Label]:
    """One for each of the largest jumps, beside its line, in as many levels as they need."""
    out: list[_Label] = []
    for step in sorted(course.steps, key=lambda s: -abs(s.size_ns))[:NAMED]:
        words = f"{'+' if step.size_ns > 0 else '-'}{duration(abs(step.size_ns))} {step.actor}"
        x, wide = (
            left + (step.t_ns - course.from_ns) / (course.to_ns - course.from_ns) * (right - left),
            len(words) * _LETTER,
        )
        begin = x + 5 if x + 5 + wide <= right else x - 5 - wide
        taken = {o.level for o in out if begin < o.end + 8 and begin + wide > o.begin - 8}
        out.append(
            _Label(
                words,
                _RED if step.size_ns < 0 else _GREEN,
                begin,
                begin + wide,
                next(i for i in range(NAMED) if i not in taken),
            )
        )
    return out


def _rate(picture: Picture, course: Course, box: tuple[float, float, float, float]) -> None:
    values = [*course.rate_ppm.tolist(), *course.asked_ppm.tolist()]
    low, high = extent(values or [0.0], 0.2)
    at_x, at_y = _frame(picture, box, low, high, 1, course, clocks=True)
    asked = [
        (max(int(t), course.from_ns), v)
        for t, v in zip(course.asked_t_ns.tolist(), course.asked_ppm.tolist(), strict=True)
    ]
    line = [
        p
        for (t, v), (end, _) in zip(asked, [*asked, (course.to_ns, 0.0)][1:], strict=True)
        for p in ((at_x(t), at_y(v)), (at_x(end), at_y(v)))
    ]
    if line:
        picture.add(Line(line, _GREY, 1.5, (5, 3)))
    measured = [(at_x(t), at_y(v)) for t, v in zip(course.rate_t_ns.tolist(), course.rate_ppm.tolist(), strict=True)]
    if len(measured) > 1:
        picture.add(Line(measured, _BLUE, 1.5))
    picture.add(
        Text(
            (box[0], box[1] - 10),
            "Rate against the raw oscillator, ppm (line: measured; dashes: the kernel's frequency correction)",
        )
    )
