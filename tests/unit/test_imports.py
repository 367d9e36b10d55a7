"""What may import what: the table of ARCHITECTURE.md is the contract, and has neither a missing line nor one that
nobody needs.

Third column: `room/` is a room with all in it, `module` that module alone (below agent/), anything else a package of
others; "in `x` `y`" narrows it down to files. Imports for types only do not count there; circles they do.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TOKEN = re.compile(r"`([^`]+)`(?: in ((?:`[^`]+` ?)+))?")
_OTHERS = "*"  #: modules of agent/ in no other line
_FREE = {*sys.stdlib_module_names, "numpy"}


@dataclass
class Room:
    """places: packages (ending in a dot) and modules. allowed: module or package -> files that may import it, empty for
    all. everything: nothing to check.
    """

    places: list[str]
    allowed: dict[str, list[str]] = field(default_factory=dict)
    everything: bool = False
    base: bool = False


def _module(token: str) -> str:
    """``agent/kernel/`` or ``kernel/`` -> agent.kernel., ``clock.timex`` -> agent.clock.timex, ``main.py`` ->
    agent.main, ``numpy`` as it is.
    """
    name = token.removesuffix(".py").replace("/", ".")
    if name.split(".")[0] in ("agent", "exporters", "dashboards", "bpf"):
        return name
    path = ROOT / "agent" / name.rstrip(".").replace(".", "/")
    return f"agent.{name}" if path.is_dir() or path.with_suffix(".py").exists() else name


def rooms() -> list[Room]:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("| may import |\n")[2].partition("\n\n")[0].splitlines()[1:]
    out = []
    for line in table:
        names, what, may = (cell.strip() for cell in line.strip("|").split(" | "))
        room = Room(
            [_module(token) for token in re.findall(r"`([^`]+)`", names)],
            everything=may.startswith("everything"),
            base=what.startswith("the base"),
        )
        room.allowed = {_module(token): re.findall(r"`([^`]+)`", only) for token, only in _TOKEN.findall(may)}
        out.append(room)
    return out


@cache
def sources() -> list[tuple[str, ast.Module]]:
    paths = [*ROOT.glob("agent/**/*.py"), *ROOT.glob("exporters/**/*.py"), *ROOT.glob("dashboards/**/*.py")]
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), ast.parse(path.read_bytes()))
        for path in paths
        if path != ROOT / "agent" / "__init__.py"
    ]


def imported(*nodes: ast.AST, types: bool = False) -> Iterator[str]:
    """Modules that these import, late ones too. types: also those for types only."""
    for node in nodes:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from imported(*node.orelse, *(node.body if types else ()), types=types)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, "imports are absolute"
            for alias in node.names:
                below = ROOT / node.module.replace(".", "/") / alias.name
                yield (
                    f"{node.module}.{alias.name}"
                    if below.is_dir() or below.with_suffix(".py").exists()
                    else node.module
                )
        elif not isinstance(node, ast.expr):  # expressions hold no statements, and are most nodes
            yield from imported(*ast.iter_child_nodes(node), types=types)


def _holds(place: str, module: str) -> bool:
    if place == _OTHERS:
        return module.count(".") == 1 and module.startswith("agent.")
    return module == place.rstrip(".") or (place.endswith(".") and module.startswith(place))


def room_of(module: str, known: list[Room]) -> Room | None:
    """The one that is said most closely."""
    fitting = [(len(place), room) for room in known for place in room.places if _holds(place, module)]
    return max(fitting, key=lambda one: one[0])[1] if fitting else None


def _own(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in ("agent", "exporters", "dashboards")


def test_every_import_is_in_the_table_and_every_entry_is_needed() -> None:
    known, wrong, used = rooms(), [], set()
    for module, tree in sources():
        room = room_of(module, known)
        if room is None:
            wrong.append(f"{module} is in no room of the table")
            continue
        for name in set(imported(tree)):
            if name.split(".")[0] in _FREE or (
                _own(name) and ((other := room_of(name, known)) is room or (other and other.base))
            ):
                continue
            allowed = {
                entry for entry in room.allowed if (_holds(entry, name) if _own(name) else name.split(".")[0] == entry)
            }
            files = {file for entry in allowed for file in room.allowed[entry]}
            used |= {
                (id(room), entry, file)
                for entry in allowed
                for file in (room.allowed[entry] and [module.rpartition(".")[2]]) or [""]
            }
            if not room.everything and (not allowed or (files and module.rpartition(".")[2] not in files)):
                wrong.append(f"{module} imports {name}")
    assert wrong == []
    needless = [
        f"{' '.join(room.places)} needs no {entry} {file}".rstrip()
        for room in known
        for entry, files in room.allowed.items()
        for file in files or [""]
        if not room.everything and (id(room), entry, file) not in used
    ]
    assert needless == []


@pytest.mark.parametrize("place", [place for room in rooms() for place in room.places if place != _OTHERS])
def test_every_room_is_there(place: str) -> None:
    path = ROOT / place.rstrip(".").replace(".", "/")
    assert path.is_dir() if place.endswith(".") else path.with_suffix(".py").exists()


def _circles(graph: dict[str, set[str]]) -> list[str]:
    """Those that lead back to themselves: what is left once all that depend on nothing left are taken away, and all on
    which nothing left depends.
    """
    left = dict(graph)
    while True:
        left = {one: (to & left.keys()) - {one} for one, to in left.items()}
        used = set[str]().union(*left.values())
        gone = {one for one, to in left.items() if not to or one not in used}
        if not gone:
            break
        left = {one: to for one, to in left.items() if one not in gone}
    return sorted(left)


def test_a_circle_is_found() -> None:
    assert _circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == ["b", "c"]


def test_no_modules_and_no_rooms_import_one_another() -> None:
    known = rooms()
    modules, between = dict[str, set[str]](), dict[str, set[str]]()
    for module, tree in sources():
        own = {name for name in imported(tree) if _own(name)}
        modules[module] = {name for name in imported(tree, types=True) if _own(name)} - {module}
        room = room_of(module, known)
        assert room is not None
        if room.places != [_OTHERS] and _OTHERS not in room.places:
            to = {other.places[0] for name in own if (other := room_of(name, known)) is not None and not other.base}
            between.setdefault(room.places[0], set()).update(to - {room.places[0]})
    assert _circles(modules) == []
    assert _circles(between) == []


def test_a_class_has_a_name_of_its_own() -> None:
    """A name that means two things is looked up twice."""
    where: dict[str, list[str]] = {}
    for module, tree in sources():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(module)
    assert {name: found for name, found in where.items() if len(found) > 1} == {}


def test_late_imports_count_and_those_for_types_do_not() -> None:
    tree = ast.parse(
        "if TYPE_CHECKING:\n    import bcc\nelse:\n    import duckdb\ndef f():\n    from agent.kernel import bpf\n   "
        " from agent.batch import make\n"
    )
    assert list(imported(tree)) == ["duckdb", "agent.kernel.bpf", "agent.batch"]
    assert list(imported(tree, types=True)) == ["duckdb", "bcc", "agent.kernel.bpf", "agent.batch"]
