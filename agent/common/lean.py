"""Saves memory: no docstrings, no imports of large modules that are not needed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any


def without_docstrings() -> tuple[str, ...]:
    """Options of an interpreter that loads no docstrings (4 MB of the agent's), no columns of tracebacks (0.7 MB) and
    no assertions. None where deploy/install.sh has not compiled the modules for it: to compile them at each start takes
    more than it saves.
    """
    compiled = Path(sys.prefix) / "pycache"
    return ("-OO", "-X", "no_debug_ranges", "-X", f"pycache_prefix={compiled}") if compiled.is_dir() else ()


@contextmanager
def without(name: str) -> Iterator[None]:
    """Imports within the block fail to import module ``name``, unless it is already loaded. It can be imported
    afterwards.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop(name, None)  # another thread may be here, too


@contextmanager
def hollow(name: str, **members: Any) -> Iterator[None]:
    """Imports of module ``name`` within the block get an empty one with only these members, unless it is already
    loaded. For large modules of which an imported library needs nothing, or only these.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = module = ModuleType(name)
    vars(module).update(members)
    try:
        yield
    finally:
        sys.modules.pop(name, None)  # another thread may be here, too


def without_inspect() -> AbstractContextManager[None]:
    """For the block that imports dataclasses and numpy first: without inspect (0.5 MB), with which they make
    docstrings. Python 3.13's dataclasses also get a class's own annotations by it.
    """
    if sys.flags.optimize < 2:
        return nullcontext()
    return hollow(
        "inspect",
        signature=lambda _: "",
        cleandoc=lambda doc: doc,
        get_annotations=lambda of: dict(vars(of).get("__annotations__", {})),
    )


class _NoMaskedArrays:
    """Replaces numpy.ma while there are no masked arrays; other attributes come from the real module."""

    @staticmethod
    def is_masked(_: object) -> bool:
        return False

    isMaskedArray = is_masked  # noqa: N815 - numpy's name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("numpy.ma"), name)


def without_masked_arrays() -> None:
    """Prevents the import of numpy.ma (1.3 MB), which numpy loads at the first ``np.unique`` or ``np.median`` to test
    for masked arrays. For processes without masked arrays. An explicit import of numpy.ma still works, before and
    afterwards.
    """
    if "numpy.ma" not in sys.modules:
        import numpy as np

        setattr(np, "ma", _NoMaskedArrays())  # noqa: B010 - mypy refuses a plain assignment
