"""The names of symptoms and causes, without what declares them (agent/correlate/catalogue.py): that needs the
tables.
"""

from __future__ import annotations

from pathlib import Path


def _declared(room: str) -> str:
    """A file each."""
    folder = Path(__file__).parents[1] / "correlate" / room
    return " ".join(sorted(path.stem for path in folder.glob("[a-z]*.py")))


#: What a finding may say. The counters of findings start at 0 for each of them.
SYMPTOMS = _declared("symptoms")
CAUSES = _declared("causes")
