"""What a limiter did over time as a picture: asked, admitted, its limit, and the jumps of the clock."""

from __future__ import annotations

from collections.abc import Callable

from agent.cli.cells import duration
from agent.cli.clock_plot import nice, times
from agent.cli.limiters_course import LimiterCourse
from agent.cli.picture import Area, Line, Picture, Text
from agent.errors import printable

_YELLOW, _GREEN, _PALE_GREEN, _RED, _GREY, _PALE = "#b8860b", "#2e7d32", "#cfe8d0", "#c0392b", "#8a8a8a", "#e4e4e4"
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 84, 44
_NAMED = 10


def draw(course: LimiterCourse, width: int = 1000, height: int = 420) -> Picture:
    """One panel, with a line for each jump and its size beside it."""
    picture = Picture(width, height)
    right, bottom = width - _RIGHT, height - _BOTTOM
    most = course.most() * 1.05 or 1.0

    def at_x(t: float) -> float:
        return _LEFT + (t - course.from_ns) / (course.to_ns - course.from_ns) * (right - _LEFT)

    def at_y(value: float) -> float:
        return bottom - value / most * (bottom - _TOP)

    for value in nice(0.0, most, 6):
        y = at_y(value)
        picture.add(
            Line([(_LEFT, y), (right, y)], _PALE), Text((_LEFT - 8, y + 4), f"{value:g}", size=11, anchor="end")
        )
    for t, label in times(course, 9):
        picture.add(
            Line([(at_x(t), bottom), (at_x(t), bottom + 4)], _GREY),
            Text((at_x(t), bottom + 18), label, size=11, anchor="middle"),
        )
    for piece in course.pieces:
        begin, end, y = at_x(piece.from_ns), at_x(piece.to_ns), at_y(piece.admitted)
        picture.add(Area([(begin, bottom), (begin, y), (end, y), (end, bottom)], _PALE_GREEN))
    for name, colour, dash in (("asked", _YELLOW, None), ("admitted", _GREEN, None), ("limit", _RED, (5, 3))):
        for line in _lines(course, name, at_x, at_y):
            picture.add(Line(line, colour, 1.5, dash))
    for step in sorted(course.steps, key=lambda s: -abs(s.size_ns))[:_NAMED]:
        x, colour = at_x(step.t_ns), _RED if step.size_ns < 0 else _GREEN
        words = f"{'+' if step.size_ns > 0 else '-'}{duration(abs(step.size_ns))} {step.actor}"
        picture.add(
            Line([(x, _TOP - 8), (x, bottom)], colour, 1, (3, 3)),
            Text((min(x + 4, right - 6 * len(words)), _TOP - 12), words, colour, 11),
        )
    each = duration(course.pieces[0].to_ns - course.pieces[0].from_ns)
    said = (
        f"Units a second, each {each}: asked (yellow), admitted (green), limit (red dashes); {len(course.steps):,}"
        " jumps of the wall clock"
    )
    picture.add(
        Line([(_LEFT, _TOP), (_LEFT, bottom), (right, bottom)], _GREY),
        Text((_LEFT, 26), printable(course.limiter_id), "#111111", 15),
        Text((_LEFT, 48), said),
    )
    return picture


def _lines(
    course: LimiterCourse, name: str, at_x: Callable[[float], float], at_y: Callable[[float], float]
) -> list[list[tuple[float, float]]]:
    """Steps along the intervals, a line for each run of those that are known."""
    out: list[list[tuple[float, float]]] = [[]]
    for piece in course.pieces:
        value = getattr(piece, name)
        if value is None:
            out.append([])
        else:
            out[-1] += [(at_x(piece.from_ns), at_y(value)), (at_x(piece.to_ns), at_y(value))]
    return [line for line in out if line]
