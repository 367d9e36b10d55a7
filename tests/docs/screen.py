"""A terminal's screen, as an emulator holds it, as a picture."""

from __future__ import annotations

from html import escape

import pyte

_ADVANCE, _LEADING, _SIZE, _MARGIN, _BAR = 7.83, 18, 13, 16, 30
_STYLE = "font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
_TEXT, _GROUND = "#d6dbe2", "#14181f"
_COLOURS = {
    "default": _TEXT,
    "black": "#14181f",
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",
    "cyan": "#56b6c2",
}


def svg(screen: pyte.Screen, title: str) -> str:
    """An SVG of the screen in a window with that title."""
    width = round(2 * _MARGIN + _ADVANCE * screen.columns)
    height = _BAR + 2 * _MARGIN + _LEADING * screen.lines
    rows = [part for y in range(screen.lines) for part in _line(screen, y)]
    dots = "".join(f'<circle cx="{_MARGIN + 16 * i}" cy="{_BAR // 2}" r="5" fill="#5b6370"/>' for i in range(3))
    return (
        "\n".join(
            (
                (
                    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
                    f' height="{height}" font-size="{_SIZE}" style="{_STYLE}" role="img">'
                ),
                f"<title>{escape(title)}</title>",
                f'<rect width="{width}" height="{height}" rx="8" fill="{_GROUND}"/>{dots}',
                (
                    f'<text x="{width / 2:.0f}" y="{_BAR // 2 + 4}" fill="#8b949e"'
                    f' text-anchor="middle">{escape(title)}</text>'
                ),
                *rows,
                "</svg>",
            )
        )
        + "\n"
    )


def _line(screen: pyte.Screen, y: int) -> list[str]:
    """The parts of one line: what looks alike stands together, so that a viewer's other font moves no column."""
    out, top = [], _BAR + _MARGIN + _LEADING * y
    runs: list[tuple[int, str, tuple[str, str, bool]]] = []
    for x in range(screen.columns):
        cell = screen.buffer[y][x]
        fg, bg = (cell.bg, cell.fg) if cell.reverse else (cell.fg, cell.bg)
        front = _GROUND if cell.reverse and fg == "default" else _COLOURS.get(fg, _TEXT)
        back = "" if bg == "default" and not cell.reverse else _COLOURS.get(bg, _TEXT)
        look = (front, back, cell.bold)
        if runs and runs[-1][2] == look:
            runs[-1] = (runs[-1][0], runs[-1][1] + cell.data, look)
        else:
            runs.append((x, cell.data, look))
    for start, text, (front, back, bold) in runs:
        if back:
            x, length = _MARGIN + _ADVANCE * start, _ADVANCE * len(text)
            out.append(f'<rect x="{x:.1f}" y="{top}" width="{length:.1f}" height="{_LEADING}" fill="{back}"/>')
        at = 0
        for word in text.split("  "):
            if shown := word.strip():
                x = _MARGIN + _ADVANCE * (start + at + word.index(shown))
                weight = ' font-weight="bold"' if bold else ""
                out.append(
                    f'<text x="{x:.1f}" y="{top + _SIZE}" textLength="{_ADVANCE * len(shown):.1f}"'
                    f' lengthAdjust="spacingAndGlyphs" fill="{front}"{weight}>{escape(shown)}</text>'
                )
            at += len(word) + 2
    return out
