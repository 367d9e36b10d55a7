"""The names of symptoms and causes, without what declares them (agent/correlate/catalogue.py): that needs the
tables.
"""

from __future__ import annotations

from pathlib import Path


def _declared(room: str, later: str) -> str:
    """Of those that are there, a file each, and of those that will be: they are taken already."""
    folder = Path(__file__).parents[1] / "correlate" / room
    return " ".join(sorted({path.stem for path in folder.glob("[a-z]*.py")} | set(later.split())))


#: What a finding may say. The counters of findings start at 0 for each of them.
SYMPTOMS = _declared("symptoms", "redelivery rebalancing duplicates")
CAUSES = _declared("causes", "")
