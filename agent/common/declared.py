"""Declarations that are registered by the presence of their file: a package's files each define one variable, such as
``PROBE``. A wrong declaration is an AgentError that names its file.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from agent.errors import AgentError

T = TypeVar("T")


def files(package: ModuleType) -> list[str]:
    """Names of the package's modules, sorted. Imports none of them."""
    listed = (
        name.removesuffix(".py") for path in package.__path__ for name in os.listdir(path) if name.endswith(".py")
    )
    return sorted(  # pkgutil would load inspect, 0.5 MB
        name for name in listed if name.isidentifier() and name != "__init__"
    )


def load(package: str, file: str) -> ModuleType:
    """A module of a package. Raises ModuleNotFoundError if there is none, AgentError with file and line if it fails."""
    name = f"{package}.{file}"
    try:
        return import_module(name)
    except AgentError:
        raise
    except ModuleNotFoundError as error:
        if error.name == name:
            raise
        raise _failed(name, error) from error
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> AgentError:
    """The error, at the last line of the module itself that it passed."""
    where, at = name, error.__traceback__
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    while at is not None:
        if at.tb_frame.f_globals.get("__name__") == name:
            where = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
        at = at.tb_next
    return AgentError(f"{where}: {error or type(error).__name__}", remedy="correct this declaration")


def declared(
    package: str, file: str, variable: str, kind: type[T], *, named: bool = False, optional: bool = False
) -> tuple[T, ...]:
    """What a file declares: ``variable`` is one ``kind``, or a tuple of them. named: its ``name`` must be the file's.
    optional: a file without any is none of them. Raises AgentError, and ModuleNotFoundError if there is no such file.
    """
    module = load(package, file)
    value = getattr(module, variable, ())
    found: tuple[T, ...] = value if isinstance(value, tuple) else (value,)
    if not found and optional and not any(isinstance(one, kind) for one in vars(module).values()):
        return ()
    if not found or not all(isinstance(one, kind) for one in found):
        what = f"its {variable} is no {kind.__name__}" if variable in vars(module) else f"it has no {variable}"
        raise AgentError(f"{module.__file__}: {what}", remedy=f"declare {variable} = {kind.__name__}(...)")
    for one in found:
        if named and one.name != file:  # type: ignore[attr-defined]
            raise AgentError(
                f"{module.__file__}: {variable} has the name {one.name!r}",  # type: ignore[attr-defined]
                remedy=f"its name is the file's: {file!r}",
            )
    return found


def all_declared(
    package: ModuleType, variable: str, kind: type[T], *, named: bool = False, optional: bool = False
) -> list[T]:
    """What all files of a package declare, in the order of the files. Raises AgentError, also if two have one name."""
    found, of = list[T](), dict[str, str]()
    for file in files(package):
        for one in declared(package.__name__, file, variable, kind, named=named, optional=optional):
            name = getattr(one, "name", "")
            if name and of.setdefault(name, file) != file:
                raise AgentError(f"{package.__name__}: {of[name]}.py and {file}.py both declare {name!r}")
            found.append(one)
    return found
