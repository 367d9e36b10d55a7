"""What the documents hold beside prose: what is made from the code (``python -m tests.docs``), and what a real run said
(``python -m tests.docs.session``).
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The settings with their defaults, and the JSON Schema of such a file.
SETTINGS, SCHEMA = ROOT / "deploy" / "tickscope.yaml", ROOT / "docs" / "settings.schema.json"
#: The JSON Schema of the chart's values: written by hand, but for the settings in it.
VALUES = ROOT / "deploy" / "helm" / "tickscope" / "values.schema.json"


def pages() -> list[Path]:
    """All documents for readers, the landing page first."""
    return [
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "HACKING.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
