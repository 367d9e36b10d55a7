"""Reads a YAML file of settings as values, with the line of each. Untrusted input: bounded in size, and without
aliases, because a few lines of aliases can expand to gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.common.settings import SettingError
from agent.errors import USAGE, AgentError

if TYPE_CHECKING:
    import yaml

MAX_FILE_BYTES = 1 << 18
Lines = dict[tuple[object, ...], int]


def read_text(path: Path, required: bool, opened: int | None = None) -> str:
    """The text of a settings file; empty if it is missing and not required. opened: its descriptor, which is closed,
    where the caller cannot open it. Raises AgentError (exit code 2).
    """
    try:
        with open(path if opened is None else opened, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        if required:
            raise AgentError(f"there is no configuration file {path}", exit_code=USAGE) from error
        return ""
    except OSError as error:
        raise AgentError(f"cannot read {path}", why=str(error.strerror), exit_code=USAGE) from error
    if len(data) > MAX_FILE_BYTES:
        raise AgentError(
            f"{path} is not a configuration file", why=f"it is larger than {MAX_FILE_BYTES >> 10} KiB", exit_code=USAGE
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingError(
            (), f"not UTF-8 text (byte {error.start})", remedy="is this the right file?", where=f"{path}:{line}"
        ) from error


def _raise(error: SettingError) -> None:
    raise error


def parse(path: Path, text: str, repeated: Callable[[SettingError], None] = _raise) -> tuple[Any, Lines]:
    """The values of a YAML file, and the line of each by its path of keys and indices. repeated: called for each
    duplicate key, whose first value is lost. Raises AgentError (exit code 2).
    """
    import yaml

    try:
        # A few lines of aliases can expand to gigabytes, and no setting needs one.
        alias = next(
            (event for event in yaml.parse(text, Loader=yaml.SafeLoader) if isinstance(event, yaml.AliasEvent)), None
        )
        if alias is not None:
            where = f"{path}:{alias.start_mark.line + 1}"
            raise SettingError((), "aliases are not supported", remedy="write the value out", where=where)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.reader.ReaderError as error:
        where = f"{path}:{text.count(chr(10), 0, error.position) + 1}"
        raise SettingError((), "not YAML", why=f"{error.reason}: {chr(error.character)!r}", where=where) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        why = ", ".join(filter(None, (error.problem, error.context)))
        raise SettingError((), "not YAML", why, where=f"{path}:{line}") from error
    except (RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise AgentError(f"{path} cannot be read", why=why, exit_code=USAGE) from error
    lines: Lines = {}
    _collect(node, (), lines, path, repeated)
    return values, lines


def _collect(
    node: yaml.Node | None,
    at: tuple[object, ...],
    lines: Lines,
    path: Path,
    repeated: Callable[[SettingError], None],
) -> None:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below, line = (*at, key.value), key.start_mark.line + 1
            if below in lines:
                what, why = f"{key.value} is set twice", f"first on line {lines[below]}"
                repeated(SettingError(below, what, why, where=f"{path}:{line}"))
            lines[below] = line
            _collect(value, below, lines, path, repeated)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            lines[(*at, number)] = value.start_mark.line + 1
            _collect(value, (*at, number), lines, path, repeated)
