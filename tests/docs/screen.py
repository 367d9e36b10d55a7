"""A terminal's screen, as an emulator holds it, as a picture."""

from __future__ import annotations

from html import escape

import pyte

_ADVANCE, _LEADING, _SIZE, _MARGIN, _BAR = 7.83, 18, 13, 16, 30
_STYLE = "font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
#: On a light and on a dark ground: of the window, of its title, and of what a terminal calls so.
_COLOURS = {
    "ground": ("#ffffff", "#14181f"),
    "title": ("#59636e", "#8b949e"),
    "default": ("#1f2328", "#d6dbe2"),
    "red": ("#b91c1c", "#ff7b72"),
    "green": ("#116329", "#7ee787"),
    "brown": ("#7d4e00", "#e3b341"),
    "cyan": ("#0f6b73", "#56b6c2"),
}


def _style(dark: int) -> str:
    return " ".join(f".{name} {{ fill: {shades[dark]} }}" for name, shades in _COLOURS.items())


_STYLES = (
    f"<style>{_style(0)} rect.ground {{ stroke: #d0d7de }}"
    f" @media (prefers-color-scheme: dark) {{ {_style(1)} rect.ground {{ stroke: none }} }}</style>"
)


def svg(screen: pyte.Screen, title: str, lines: int | None = None) -> str:
    """An SVG of the screen, or of its first lines, in a window with that title, light or dark as its reader prefers."""
    lines = screen.lines if lines is None else lines
    width = round(2 * _MARGIN + _ADVANCE * screen.columns)
    height = _BAR + 2 * _MARGIN + _LEADING * lines
    room = screen.columns - 16  # beside the dots
    title = title if len(title) <= room else f"{title[: room - 1]}…"
    rows = [part for y in range(lines) for part in _line(screen, y)]
    dots = "".join(f'<circle cx="{_MARGIN + 16 * i}" cy="{_BAR // 2}" r="5" class="title"/>' for i in range(3))
    return (
        "\n".join(
            (
                (
                    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
                    f' height="{height}" font-size="{_SIZE}" style="{_STYLE}" role="img">'
                ),
                f"<title>{escape(title)}</title>{_STYLES}",
                f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" class="ground"/>{dots}',
                (
                    f'<text x="{width / 2:.0f}" y="{_BAR // 2 + 4}" class="title"'
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
        front = "ground" if (cell.reverse and fg == "default") or fg == "black" else fg
        back = "" if bg == "default" and not cell.reverse else bg
        look = (front, back, cell.bold)
        if runs and runs[-1][2] == look:
            runs[-1] = (runs[-1][0], runs[-1][1] + cell.data, look)
        else:
            runs.append((x, cell.data, look))
    for start, text, (front, back, bold) in runs:
        if back:
            x, length = _MARGIN + _ADVANCE * start, _ADVANCE * len(text)
            out.append(f'<rect x="{x:.1f}" y="{top}" width="{length:.1f}" height="{_LEADING}" class="{back}"/>')
        at = 0
        for word in text.split("  "):
            if shown := word.strip():
                x = _MARGIN + _ADVANCE * (start + at + word.index(shown))
                weight = ' font-weight="bold"' if bold else ""
                out.append(
                    f'<text x="{x:.1f}" y="{top + _SIZE}" textLength="{_ADVANCE * len(shown):.1f}"'
                    f' lengthAdjust="spacingAndGlyphs" class="{front}"{weight}>{escape(shown)}</text>'
                )
            at += len(word) + 2
    return out
