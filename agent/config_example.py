"""The settings as a commented YAML file, and their JSON Schema: ``tickscope config example`` and ``config schema``."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from agent.common.settings import Setting, described, every, json_schema
from agent.config import Config
from agent.queues.catalogue import brokers

#: Where deploy/install.sh puts the schema.
SCHEMA_FILE = "/opt/tickscope/docs/settings.schema.json"
_HEAD = f"""\
# yaml-language-server: $schema={SCHEMA_FILE}
# All settings of tickscope with their defaults. To change a setting, remove the # before it, and
# that before the line of its section. A flag overrides an environment variable, which overrides
# this file. To check a file: tickscope config check FILE
"""
_WIDTH = 100


def example(chosen: tuple[str, ...] = ()) -> str:
    """The commented YAML file. A line that begins with ``#`` and a letter is a setting, one with ``# `` a comment.
    chosen: the keys of one setting or section; empty for all, with a heading.
    """
    lines = list[str]() if chosen else _HEAD.splitlines()
    for keys, one in described(Config):
        least = min(len(keys), len(chosen))
        if keys[:least] == chosen[:least]:
            lines += ["", *_lines(keys, one)] if lines else _lines(keys, one)
    return "".join(f"{line}\n" for line in lines)


def _lines(keys: tuple[str, ...], one: Setting) -> Iterator[str]:
    indent = "  " * (len(keys) - 1)
    about = [one.doc]
    if one.kind.section is None:
        about.append(f"Values: {one.kind.form}.{beside(one)}")
    for text in about:
        yield from textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    yield f"{indent}#{one.key}:" + ("" if one.kind.section is not None else f" {yaml_text(one.shown)}")


def beside(one: Setting) -> str:
    """What else sets it, and the keys of a server."""
    section = brokers()[one.key].section if one.key in brokers() else None
    names = f" Keys of a server: {', '.join(key.key for key in every(section))}." if section is not None else ""
    others = [f"--{one.key.replace('_', '-')}"] if one.flag else []
    others += [one.variable] if one.variable else []
    return names + (f" Also: {', '.join(others)}." if others else "")


def yaml_text(shown: Any) -> str:
    """A value as one line of YAML."""
    if isinstance(shown, str):
        return shown or "''"
    return f"{shown:g}" if isinstance(shown, float) else json.dumps(shown, ensure_ascii=False, default=str)


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the file of settings."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of tickscope",
        **json_schema(Config),
        "type": ["object", "null"],
    }


def schema_text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
