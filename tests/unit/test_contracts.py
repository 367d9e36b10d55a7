"""Sources and sinks say what they have beside what all must have: by deriving, so that it is found by its type."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from agent import contracts
from agent.contracts import Due, Failing, Finishing, Owning, Readable, Stating

ROOT = Path(contracts.__file__).parents[1]
OPTIONAL = {
    "fds": Readable,
    "finish": Finishing,
    "due_ns": Due,
    "state": Stating,
    "failures": Failing,
    "processes": Owning,
}
#: They are no sinks of the loop, which calls the store by itself.
STORE = {"agent/store/hot.py:HotStore", "agent/store/writer.py:Writer"}


def texts() -> Iterator[tuple[Path, str]]:
    for path in [*ROOT.glob("agent/**/*.py"), *ROOT.glob("exporters/*.py")]:
        yield path, path.read_text()


@cache
def parts() -> list[tuple[str, set[str], set[str]]]:
    """Classes that can be sources or sinks: name, methods, names of their bases."""
    found = list[tuple[str, set[str], set[str]]]()
    for path, text in texts():
        if "def drain(" in text or "def offer(" in text:
            for node in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)):
                methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                if {"drain", "close"} <= methods or {"offer", "losses"} <= methods:
                    found.append((f"{path.relative_to(ROOT)}:{node.name}", methods, bases))
    return found


@pytest.mark.parametrize(("method", "contract"), OPTIONAL.items())
def test_who_has_an_optional_part_derives_from_its_contract(method: str, contract: type) -> None:
    having = {name: bases for name, methods, bases in parts() if method in methods and name not in STORE}
    assert having
    assert [name for name, bases in having.items() if contract.__name__ not in bases] == []


def test_a_method_of_the_same_name_alone_makes_no_contract() -> None:
    class Other:
        def failures(self) -> int:
            return 3

    assert not isinstance(Other(), Failing)
    with pytest.raises(TypeError, match="abstract"):
        type("Empty", (Finishing,), {})()


def test_nothing_of_the_agent_is_found_by_hasattr() -> None:
    assert [path for path, text in texts() if "lab" not in path.parts and re.search(r"\bhasattr\(", text)] == []
