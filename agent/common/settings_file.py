"""Reads a YAML file of settings as values, with the line of each. Untrusted input: bounded in size, and without
aliases, because a few lines of aliases can expand to gigabytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.errors import USAGE, AgentError

if TYPE_CHECKING:
    import yaml

MAX_FILE_BYTES = 1 << 18
Lines = dict[tuple[object, ...], int]


def read_text(path: Path, required: bool) -> str:
    """The text of a settings file; empty if it is missing and not required. Raises AgentError (exit code 2)."""
    try:
        with path.open("rb") as file:
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
        raise AgentError(
            f"{path}:{line}: not UTF-8 text (byte {error.start})", remedy="is this the right file?", exit_code=USAGE
        ) from error


def parse(path: Path, text: str) -> tuple[Any, Lines]:
    """The values of a YAML file, and the line of each by its path of keys and indices. Raises AgentError
    (exit code 2).
    """
    import yaml

    try:
        # A few lines of aliases can expand to gigabytes, and no setting needs one.
        alias = next(
            (event for event in yaml.parse(text, Loader=yaml.SafeLoader) if isinstance(event, yaml.AliasEvent)), None
        )
        if alias is not None:
            raise AgentError(
                f"{path}:{alias.start_mark.line + 1}: aliases are not supported",
                remedy="write the value out",
                exit_code=USAGE,
            )
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise AgentError(f"{path} is not YAML", why=str(error), exit_code=USAGE) from error
    except (RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise AgentError(f"{path} cannot be read", why=why, exit_code=USAGE) from error
    lines: Lines = {}
    _collect(node, (), lines, path)
    return values, lines


def _collect(node: yaml.Node | None, at: tuple[object, ...], lines: Lines, path: Path) -> None:
    """Raises AgentError for a duplicate key, whose first value would be lost."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below, line = (*at, key.value), key.start_mark.line + 1
            if below in lines:
                raise AgentError(
                    f"{path}:{line}: {key.value} is set twice", why=f"first on line {lines[below]}", exit_code=USAGE
                )
            lines[below] = line
            _collect(value, below, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            lines[(*at, number)] = value.start_mark.line + 1
            _collect(value, (*at, number), lines, path)
