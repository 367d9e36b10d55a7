"""Imports without what they bring along and few need."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without(name: str) -> Iterator[None]:
    """What is imported within finds no module of that name, unless it is already there. It can be imported
    afterwards.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


class _NoMaskedArrays:
    """Stands for numpy.ma where nothing is one; all else that is asked of it is the module's."""

    @staticmethod
    def is_masked(_: object) -> bool:
        return False

    isMaskedArray = is_masked  # noqa: N815 - numpy's name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("numpy.ma"), name)


def without_masked_arrays() -> None:
    """numpy imports numpy.ma, 1.3 MB, at the first ``np.unique`` or ``np.median``, to ask whether the argument is a
    masked array. In a process that has none this answers instead. Whoever imports numpy.ma gets it, before and
    afterwards.
    """
    if "numpy.ma" not in sys.modules:
        import numpy as np

        setattr(np, "ma", _NoMaskedArrays())  # noqa: B010 - which mypy lets nobody assign
