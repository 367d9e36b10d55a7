"""What the numbers of the diagnosis are worth: how many faults of the kept recordings are right in full, and how many
findings are wrong, if one number after the other is 25 % lower, or higher.

python -m tests.lab.sensitivity [--dir DIR] [NAME...]

NAME: modules of ``agent.correlate`` (``waits``, ``causes.busy``), or numbers (``waits.SHARE``, ``config.stall_ns``).
All of them, if there is none, take hours. Numbers that are used while modules are imported are not changed: tuples of
windows, fields of declarations.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import agent.correlate
from agent.correlate.thresholds import CorrelatorConfig
from agent.lab.replay import sessions
from agent.lab.score import Score
from tests.lab.ablate import replayed
from tests.lab.page import table
from tests.lab.small import unpacked

KEPT = Path(__file__).parents[1] / "unit" / "data" / "lab"
FACTORS = (0.75, 1.25)
COLUMNS = {"number": "number", "value": "value", "lower": "x 0.75", "higher": "x 1.25"}
_CONFIG, _PACKAGE = "config", "agent.correlate"


@dataclass(frozen=True)
class Number:
    """module: without ``agent.correlate.``; ``config`` stands for the fields of CorrelatorConfig."""

    module: str
    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def numbers() -> Iterator[Number]:
    for field in fields(CorrelatorConfig):
        yield Number(_CONFIG, field.name, field.default)  # type: ignore[arg-type]
    for module in _modules():
        names = [name for node in _tree(module).body for name in _assigned(node)]
        for name in names:
            value = getattr(module, name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value:
                yield Number(module.__name__.removeprefix(f"{_PACKAGE}."), name, value)


def _modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(agent.correlate.__path__, f"{_PACKAGE}.")
    return [importlib.import_module(one.name) for one in found if not one.ispkg]


def _tree(module: ModuleType) -> ast.Module:
    assert module.__file__
    return ast.parse(Path(module.__file__).read_text())


def _assigned(node: ast.stmt) -> Iterator[str]:
    """Names of constants that a statement sets to numbers, not to the results of calls (codes of tables)."""
    if not isinstance(node, ast.Assign) or any(isinstance(part, ast.Call) for part in ast.walk(node.value)):
        return
    for target in node.targets:
        for name in ast.walk(target):
            if isinstance(name, ast.Name) and name.id.isupper():
                yield name.id


@contextmanager
def changed(number: Number, factor: float) -> Iterator[None]:
    """The number is different wherever it is used at run time."""
    value = type(number.value)(number.value * factor)
    if number.module == _CONFIG:
        init = CorrelatorConfig.__init__
        usual = init.__defaults__
        assert usual is not None
        at = [field.name for field in fields(CorrelatorConfig)].index(number.name)
        init.__defaults__ = (*usual[:at], value, *usual[at + 1 :])
        try:
            yield
        finally:
            init.__defaults__ = usual
        return
    users = [(module, name) for module in _modules() for name in _uses(module, number)]
    for module, name in users:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name in users:
            setattr(module, name, number.value)


def _uses(module: ModuleType, number: Number) -> Iterator[str]:
    home = f"{_PACKAGE}.{number.module}"
    if module.__name__ == home:
        yield number.name
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and node.module == home:
            yield from (name.asname or name.name for name in node.names if name.name == number.name)


def score(places: Sequence[Path], number: Number | None = None, factor: float = 1.0) -> tuple[int, int]:
    """(faults that are right in full, findings that are wrong)."""
    if number is not None:
        with changed(number, factor):
            return score(places)
    result = Score()
    for truth, findings in replayed(places):
        result.add(truth, findings)
    return result.whole.right, result.wrong_cause + result.wrong_symptom


def _words(before: tuple[int, int], after: tuple[int, int]) -> str:
    parts = [
        f"{now - was:+} {what}" for what, was, now in zip(("right", "wrong"), before, after, strict=True) if now != was
    ]
    return ", ".join(parts)


def rows(places: Sequence[Path], wanted: Sequence[str]) -> Iterator[dict[str, str]]:
    some = [one for one in numbers() if not wanted or {one.module, str(one)} & {*wanted}]
    with ProcessPoolExecutor(mp_context=get_context("forkserver")) as pool:
        usual = pool.submit(score, places)
        found = [(one, [pool.submit(score, places, one, factor) for factor in FACTORS]) for one in some]
        right, wrong = usual.result()
        yield {"number": f"all {len(some)} as they are", "value": f"{right} right, {wrong} wrong"}
        for one, results in found:
            lower, higher = (_words((right, wrong), result.result()) for result in results)
            yield {"number": str(one), "value": f"{one.value:g}", "lower": lower, "higher": higher}


def main() -> None:
    parser = argparse.ArgumentParser(description="What the numbers of the diagnosis are worth.")
    parser.add_argument("--dir", type=Path, help="sessions of a bench, in place of those that are kept")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    with TemporaryDirectory() as room:
        places = list(sessions(given.dir)) if given.dir else unpacked(KEPT, Path(room))
        print("\n".join(table(list(rows(places, given.names)), COLUMNS)))


if __name__ == "__main__":
    main()
