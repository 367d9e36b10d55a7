"""A terminal's screen as a picture: text with bold words, nothing else, since the live summary writes nothing else."""

from __future__ import annotations

import re
from html import escape

_ADVANCE, _LEADING, _SIZE, _MARGIN, _BAR = 7.83, 18, 13, 16, 30
_STYLE = "font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"


def last_frame(written: str) -> str:
    """The lines of the last whole screen that was drawn; bold words stay between their escapes. Raises ValueError where
    there was none.
    """
    frames = re.findall(r"\x1b\[H(.*?)\x1b\[J", written, re.DOTALL)
    if not frames:
        raise ValueError("nothing was drawn")
    return re.sub(r"\x1b\[(?![01]m)[?0-9;]*[A-Za-z]|\r", "", frames[-1])


def svg(text: str, title: str) -> str:
    """An SVG of these lines in a window with that title."""
    lines = text.rstrip("\n").split("\n")
    plain = [re.sub(r"\x1b\[[01]m", "", line) for line in lines]
    width, height = round(2 * _MARGIN + _ADVANCE * max(map(len, plain))), _BAR + 2 * _MARGIN + _LEADING * len(lines)
    rows = []
    for i, line in enumerate(lines):
        column, y = 0, _BAR + _MARGIN + _LEADING * i + _SIZE
        for j, piece in enumerate(re.split(r"\x1b\[[01]m", line)):
            # Each word has its place, so that a viewer's other font does not move the columns.
            for word in re.finditer(r"\S+(?: \S+)*", piece):
                x, length = _MARGIN + _ADVANCE * (column + word.start()), _ADVANCE * len(word[0])
                bold = ' font-weight="bold" fill="#e6b450"' if j % 2 else ""
                rows.append(
                    f'<text x="{x:.1f}" y="{y}" textLength="{length:.1f}"'
                    f' lengthAdjust="spacingAndGlyphs"{bold}>{escape(word[0])}</text>'
                )
            column += len(piece)
    dots = "".join(f'<circle cx="{_MARGIN + 16 * i}" cy="{_BAR // 2}" r="5" fill="#5b6370"/>' for i in range(3))
    return (
        "\n".join(
            (
                (
                    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
                    f' height="{height}" font-size="{_SIZE}" style="{_STYLE}" role="img">'
                ),
                f"<title>{escape(title)}</title>",
                f'<rect width="{width}" height="{height}" rx="8" fill="#14181f"/>{dots}',
                (
                    f'<text x="{width / 2:.0f}" y="{_BAR // 2 + 4}" fill="#8b949e"'
                    f' text-anchor="middle">{escape(title)}</text>'
                ),
                '<g fill="#d6dbe2">',
                *rows,
                "</g>",
                "</svg>",
            )
        )
        + "\n"
    )
