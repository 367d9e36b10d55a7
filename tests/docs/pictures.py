"""Pictures of commands for the documents, from recordings of the laboratory: ``python -m tests.docs`` draws them."""

from __future__ import annotations

import tempfile
from typing import NamedTuple

from tests.docs.screen import svg
from tests.replayed import filled
from tests.screens import Program


class Picture(NamedTuple):
    """What a command shows of a recording, on a terminal with so many columns."""

    argv: tuple[str, ...]
    recording: str
    columns: int


_DAY = ("--since", "2026-11-20", "--until", "2026-11-21")
_LATER = ("--since", "2026-11-20T09:15:00Z")
_VIEWS = {
    "findings": ("findings",),
    "explain": ("explain", "last"),
    "clock-history": ("clock", "history", *_LATER),
    "limiters-show": ("limiters", "show", "lab:api-redis", *_DAY),
}
#: By the file in docs/.
PICTURES = {
    f"{name}-{columns}.svg": Picture(argv, "0020-0", columns)
    for name, argv in _VIEWS.items()
    for columns in (80, 120, 200)
}
_LINES = 60


def drawn(one: Picture) -> str:
    """The picture as SVG, with as many lines as there are."""
    with tempfile.TemporaryDirectory() as folder:
        filled(f"{folder}/store", one.recording)
        env = {"TICKSCOPE_STORE": f"{folder}/store", "TZ": "UTC"}
        with Program([*one.argv, "--no-pager"], one.columns, _LINES, **env) as program:
            assert program.ended() == 0, program.text()
            lines = len(program.text().rstrip().split("\n"))
            assert lines < _LINES
            return svg(program.screen, f"tickscope {' '.join(one.argv)}", lines)
