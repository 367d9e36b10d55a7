"""A drawing as a list of shapes, written as SVG with nothing but the standard library, or as PNG with Pillow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

from agent.errors import USAGE, AgentError

Point = tuple[float, float]
FORMATS = (".svg", ".png")
_FINER = 2  # a PNG has this many pixels a unit


@dataclass(frozen=True)
class Line:
    points: Sequence[Point]
    colour: str
    width: float = 1
    dash: tuple[int, int] | None = None


@dataclass(frozen=True)
class Area:
    points: Sequence[Point]
    colour: str


@dataclass(frozen=True)
class Text:
    """anchor: start, middle or end of the text lies at ``at``, which is on its base line."""

    at: Point
    words: str
    colour: str = "#444444"
    size: int = 12
    anchor: str = "start"


@dataclass
class Picture:
    """Shapes in the order in which they are painted; y grows downwards. Colours as #rrggbb."""

    width: int
    height: int
    shapes: list[Line | Area | Text] = field(default_factory=list)

    def add(self, *shapes: Line | Area | Text) -> None:
        self.shapes += shapes

    def write(self, path: Path) -> None:
        """In the format that the name's end says. Raises AgentError."""
        if path.suffix.lower() not in FORMATS:
            raise AgentError(
                f"cannot draw {path}", why=f"its name ends in none of {', '.join(FORMATS)}", exit_code=USAGE
            )
        data = self.png() if path.suffix.lower() == ".png" else self.svg().encode()
        try:
            path.write_bytes(data)
        except OSError as error:
            raise AgentError(f"cannot write {path}", why=str(error.strerror)) from error

    def svg(self) -> str:
        """SVG 1.1, with a white ground."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
        ]
        for s in self.shapes:
            if isinstance(s, Text):
                out.append(
                    f'<text x="{s.at[0]:.1f}" y="{s.at[1]:.1f}" font-size="{s.size}" fill="{s.colour}"'
                    f' text-anchor="{s.anchor}">{escape(s.words)}</text>'
                )
                continue
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in s.points)
            if isinstance(s, Area):
                out.append(f'<polygon points="{points}" fill="{s.colour}"/>')
            else:
                dash = f' stroke-dasharray="{s.dash[0]} {s.dash[1]}"' if s.dash else ""
                out.append(
                    f'<polyline points="{points}" fill="none" stroke="{s.colour}" stroke-width="{s.width:g}"'
                    f' stroke-linejoin="round"{dash}/>'
                )
        return "\n".join([*out, "</svg>", ""])

    def png(self) -> bytes:
        """The same as PNG. Raises AgentError where Pillow cannot be imported."""
        import io

        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError as error:
            raise AgentError(
                "a PNG needs Pillow, which cannot be imported",
                why=str(error),
                remedy=f"name a file that ends in .svg, or: sudo {sys.executable} -m pip install 'pillow>=10.1,<13'",
            ) from error
        scale = 2 * _FINER  # painted larger, then reduced: that smooths the edges
        image = Image.new("RGB", (self.width * scale, self.height * scale), "#ffffff")
        draw = ImageDraw.Draw(image)
        fonts = {
            size: ImageFont.load_default(size * scale) for size in {s.size for s in self.shapes if isinstance(s, Text)}
        }
        for s in self.shapes:
            if isinstance(s, Text):
                x, y = s.at
                draw.text(
                    (x * scale, y * scale),
                    s.words,
                    s.colour,
                    fonts[s.size],
                    {"start": "ls", "middle": "ms", "end": "rs"}[s.anchor],
                )
                continue
            points = [(x * scale, y * scale) for x, y in s.points]
            if isinstance(s, Area):
                draw.polygon(points, s.colour)
            elif s.dash:
                for piece in _dashes(points, s.dash[0] * scale, s.dash[1] * scale):
                    draw.line(piece, s.colour, round(s.width * scale))
            else:
                draw.line(points, s.colour, round(s.width * scale), joint="curve")
        out = io.BytesIO()
        image.resize((self.width * _FINER, self.height * _FINER), Image.Resampling.LANCZOS).save(
            out, "PNG", optimize=True
        )
        return out.getvalue()


def _dashes(points: Sequence[Point], on: float, off: float) -> list[list[Point]]:
    """The pieces of a dashed line."""
    pieces: list[list[Point]] = []
    left, drawing, piece = on, True, [points[0]]
    for (x0, y0), (x1, y1) in pairwise(points):
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        done = 0.0
        while length - done > left:
            done += left
            here = (x0 + (x1 - x0) * done / length, y0 + (y1 - y0) * done / length)
            if drawing:
                pieces.append([*piece, here])
            drawing, piece = not drawing, [here]
            left = on if drawing else off
        left -= length - done
        piece.append((x1, y1))
    if drawing and len(piece) > 1:
        pieces.append(piece)
    return pieces
