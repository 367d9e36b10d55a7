"""``python -m tests.docs``: writes the parts of the documents that are made from the code. tests/unit/test_docs.py fails where they are stale."""

from __future__ import annotations

import re

from tests.docs import pages
from tests.docs.made import BLOCKS

BLOCK = re.compile(r"(<!-- made by python -m tests\.docs: (\w+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)


def current(text: str) -> str:
    """A page with its blocks made anew. Raises KeyError for a block that nothing makes."""
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}{found[4]}", text)


if __name__ == "__main__":
    for page in pages():
        before = page.read_text()
        after = current(before)
        if after != before:
            page.write_text(after)
            print(page)
