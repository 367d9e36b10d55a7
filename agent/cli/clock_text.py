"""Plots the clock's history with Braille dots on a terminal: eight dots per character (Unicode 2800-28FF)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from agent.cli.cells import cell, duration
from agent.cli.clock_series import NAMED, ClockSeries, Timed, WallStep
from agent.cli.output import coloured

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_NO_ZONE = timedelta(0)
_TIMES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


class Dots:
    """A grid of dots, two by four per character; (0, 0) is at the bottom left."""

    def __init__(self, columns: int, rows: int) -> None:
        self.width, self.height = columns * 2, rows * 4
        self._cells = [[0] * columns for _ in range(rows)]

    def set(self, x: int, y: int) -> None:
        if 0 <= x < self.width and 0 <= y < self.height:
            down = self.height - 1 - y
            self._cells[down // 4][x // 2] |= _DOTS[down % 4][x % 2]

    def line(self, x0: int, y0: int, x1: int, y1: int) -> None:
        length = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(length + 1):
            self.set(round(x0 + (x1 - x0) * i / length), round(y0 + (y1 - y0) * i / length))

    def rows(self, plain: bool) -> list[str]:
        """Lines from the top. plain: for a terminal without Braille, one asterisk per character."""
        return [
            "".join((" " if not c else "*") if plain else chr(0x2800 + c) if c else " " for c in cells)
            for cells in self._cells
        ]


def nice(low: float, high: float, most: int) -> list[float]:
    """At most ``most`` round numbers that divide the range evenly."""
    size = 10 ** math.floor(math.log10((high - low) / most))
    step = next(size * m for m in (1, 2, 5, 10, 20) if (high - low) / (size * m) <= most)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def times(series: Timed, most: int) -> list[tuple[int, str]]:
    """Round local times in the range: (t_ns, label)."""
    span = (series.to_ns - series.from_ns) / 1e9
    every = next((s for s in _TIMES_S if span / s <= most), _TIMES_S[-1] * math.ceil(span / most / _TIMES_S[-1]))
    zone = int(
        (
            datetime.fromtimestamp((series.to_ns + series.wall_ns) / 1e9).astimezone().utcoffset() or _NO_ZONE
        ).total_seconds()
    )
    first = math.ceil(((series.from_ns + series.wall_ns) / 1e9 + zone) / every) * every - zone
    form = "%H:%M:%S" if every < 60 else "%H:%M" if every < 43200 else "%m-%d %H:%M" if every < 86400 else "%m-%d"
    seconds = range(first, (series.to_ns + series.wall_ns) // 10**9 + 1, every)
    return [(second * 10**9 - series.wall_ns, datetime.fromtimestamp(second).strftime(form)) for second in seconds]


def scaled(low: float, high: float) -> tuple[float, str]:
    """(nanoseconds per unit, name of the unit) for a range."""
    most = max(abs(low), abs(high))
    return next(((size, unit) for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")) if most >= size), (1.0, "ns"))


def title(series: ClockSeries) -> str:
    begin, end = (
        datetime.fromtimestamp((t + series.wall_ns) / 1e9).astimezone() for t in (series.from_ns, series.to_ns)
    )
    what = f"{series.jumps:,} jump{'s' * (series.jumps != 1)} of the wall clock"
    zone = f"{end:%z}"
    zone = "UTC" if zone == "+0000" else f"UTC{zone[:3]}:{zone[3:]}"
    return (
        f"{series.host}, {begin:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} {zone}: {what}"
        if begin.date() == end.date()
        else (f"{series.host}, {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} {zone}: {what}")
    )


def text(series: ClockSeries, columns: int, rows: int = 12) -> list[str]:
    """Lines of at most ``columns`` characters: the offset over time, an arrow under each jump, and the largest jumps
    with their actors.
    """
    plain = not can("⣿▲▼┤└─", sys.stdout.encoding)
    colour = coloured(sys.stdout)
    low, high = series.reach(1000)
    size, unit = scaled(low, high)
    labels = {
        round((v * size - low) / (high - low) * (rows - 1)): f"{v:+.6g} {unit}" if v else f"0 {unit}"
        for v in nice(low / size, high / size, 5)
    }
    left = max(map(len, labels.values())) + 1
    room = max(columns - left - 2, 20)
    dots = Dots(room, rows)

    at_x = across(series, room)

    def at_y(value: float) -> int:
        return round((value - low) / (high - low) * (dots.height - 1))

    for corners in series.corners():
        for by in (-1, 0, 1):
            marks = [(at_x(t), at_y(m + by * e)) for t, m, e in corners]
            for i, (here, there) in enumerate(pairwise(marks)):
                if by == 0 or i % 2 == 0:
                    dots.line(*here, *there)
    axis = ["-" if plain else "─"] * room
    for begin, end in series.blank:
        for column in range(at_x(begin) // 2 + 1, at_x(end) // 2):
            axis[column] = "?"
    lines = [paint(line, "36", colour) for line in dots.rows(plain)]
    out = [title(series)[:columns], *framed(lines, labels, "".join(axis), plain)]
    out += timeline(series, left, room, plain, colour)
    if more := series.jumps - min(len(series.steps), NAMED):
        out.append(f"  and {more:,} smaller")
    longest = sorted(series.unwatched, key=lambda span: span[0] - span[1])[:NAMED]
    out += [
        f"  ? not watched for {duration(end - begin)}, until {cell('wall_ns', end + series.wall_ns)}"
        for begin, end in sorted(longest)
    ]
    if more := len(series.unwatched) - len(longest):
        out.append(f"  ? and {more} more times")
    return out


def across(series: Timed, room: int) -> Callable[[int], int]:
    """The column of dots of a time, in a plot of ``room`` characters."""

    def at_x(t: int) -> int:
        return round((t - series.from_ns) / (series.to_ns - series.from_ns) * (2 * room - 1))

    return at_x


def framed(lines: Sequence[str], labels: Mapping[int, str], axis: str, plain: bool) -> list[str]:
    """The lines of a plot, the topmost first, with their labels (by line, from the bottom) and the axis below."""
    left = max(map(len, labels.values())) + 1
    out = []
    for i, line in enumerate(lines):
        label = labels.get(len(lines) - 1 - i, "")
        out.append(f"{label:>{left}} {'|' if plain else '┤' if label else '│'}{line}")
    return [*out, " " * (left + 1) + ("+" if plain else "└") + axis]


def timeline(series: Timed, left: int, room: int, plain: bool, colour: bool) -> list[str]:
    """The lines below a plot: an arrow under each jump, times, and the largest jumps. left: width of the labels."""
    at_x, indent = across(series, room), " " * (left + 2)
    out = [indent + line for line in arrows(series, room, at_x, plain, colour)]
    out.append(indent + clock_line(series, room, at_x))
    largest = sorted(sorted(series.steps, key=lambda s: -abs(s.size_ns))[:NAMED])
    return [*out, *(step_line(step, plain, colour) for step in largest)]


def arrow(step: WallStep, plain: bool) -> str:
    return ("^" if plain else "▲") if step.size_ns > 0 else ("v" if plain else "▼")


def arrows(series: Timed, room: int, at_x: Callable[[int], int], plain: bool, colour: bool) -> list[str]:
    """A line with an arrow under each jump; two, one for each direction, if both have an arrow in the same column."""
    columns: tuple[set[int], set[int]] = (set(), set())
    for step in series.steps:
        columns[step.size_ns < 0].add(min(at_x(step.t_ns) // 2, room - 1))
    up, down = (paint("^" if plain else "▲", "32", colour), paint("v" if plain else "▼", "31", colour))
    marks = [{**dict.fromkeys(columns[0], up), **dict.fromkeys(columns[1], down)}]
    if columns[0] & columns[1]:
        marks = [dict.fromkeys(columns[0], up), dict.fromkeys(columns[1], down)]
    return ["".join(line.get(x, " ") for x in range(room)).rstrip() for line in marks if line]


def clock_line(series: Timed, room: int, at_x: Callable[[int], int]) -> str:
    line = ""
    for t, label in times(series, max(room // 12, 1)):
        column = max(0, at_x(t) // 2 - len(label) // 2)
        if column >= len(line) + 2 * bool(line) and column + len(label) <= room:
            line = line.ljust(column) + label
    return line


def step_line(step: WallStep, plain: bool, colour: bool) -> str:
    mark = paint(arrow(step, plain), "32" if step.size_ns > 0 else "31", colour)
    return (
        f"  {mark} {cell('wall_ns', step.wall_ns)}  {'+' if step.size_ns > 0 else '-'}{duration(abs(step.size_ns))} "
        f" {step.actor}"
    )


def paint(words: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{words}\x1b[0m" if colour and words.strip() else words


def can(characters: str, encoding: str | None) -> bool:
    try:
        characters.encode(encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
