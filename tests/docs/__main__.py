"""``python -m tests.docs``: writes the parts of the documents that are made from the code. tests/unit/test_docs.py
fails where they are stale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from agent.config_example import example, schema, schema_text
from tests.docs import ROOT, SCHEMA, SETTINGS, VALUES, pages
from tests.docs.made import BLOCKS
from tests.docs.pictures import PICTURES, drawn

BLOCK = re.compile(r"(<!-- made by python -m tests\.docs: (\w+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)


def current(text: str) -> str:
    """A page with its blocks made anew. Raises KeyError for a block that nothing makes."""
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}{found[4]}", text)


def with_settings(text: str) -> str:
    """A schema of the chart's values, with that of the settings made anew."""
    document = json.loads(text)
    document["properties"]["settings"] = {name: value for name, value in schema().items() if name != "$schema"}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def renew(file: Path, make: Callable[[str], str]) -> None:
    before = file.read_text() if file.exists() else ""
    after = make(before)
    if after != before:
        file.write_text(after)
        print(file)


if __name__ == "__main__":
    renew(SETTINGS, lambda _: example())
    renew(SCHEMA, lambda _: schema_text())
    renew(VALUES, with_settings)
    for page in pages():
        renew(page, current)
    for name, picture in PICTURES.items():
        renew(ROOT / "docs" / name, lambda _, one=picture: drawn(one))
