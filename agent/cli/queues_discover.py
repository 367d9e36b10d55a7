"""``tickscope queues discover``: the brokers of this node, with the settings that would watch them."""

from __future__ import annotations

import os
from typing import Any

import click

from agent.cli import options
from agent.errors import NO_ROWS, AgentError

_COLUMNS = ("system", "address", "how", "found_by", "process", "pid", "configured", "setting", "remark")
_UNSUPPORTED = "this version cannot watch it"
_UNKNOWN = "see docs/queues-reference.md for its setting"


@click.command("discover")
@options.common
def command(fmt: str, store: str) -> None:
    """List the brokers that run on this node or that its processes talk to, with the setting that watches each. Reads
    sockets and processes; queries no broker and changes nothing.

    A local broker is recognised by its process or its usual port, a remote one by its usual port. Only root sees
    processes of other users.

    \b
    sudo tickscope queues discover
    """
    from agent.cli.output import emit_rows, note

    servers, problem = settings()
    rows = [row(one) for one in found(servers)]
    if problem:
        note(f"note: the settings cannot be read, so all brokers are shown as not configured: {problem}")
    if fmt == "table":
        words = [{**one, "setting": one["setting"] or one["remark"] or "the settings name it"} for one in rows]
        emit_rows(words, fmt, _COLUMNS[:-1], below="setting")
    else:
        emit_rows(rows, fmt, _COLUMNS)
    if not rows:
        note("no brokers: no process here listens on a known port or is connected to one")
        click.get_current_context().exit(NO_ROWS)
    if fmt == "table" and any(one["setting"] and not one["configured"] for one in rows):
        note("to watch a broker, add its setting to the settings file, with user and password if required")


def settings() -> tuple[dict[str, Any], str]:
    """(the servers in the settings by kind, why they cannot be read)."""
    from agent.config import resolve

    try:
        return dict(resolve({}, os.environ).queues.brokers), ""
    except AgentError as error:
        return {}, error.what


def found(servers: dict[str, Any]) -> list[Any]:
    """Raises AgentError if sockets cannot be listed."""
    from agent.queues.discover import discover

    try:
        return discover(servers)
    except OSError as error:
        raise AgentError("cannot list the sockets of this host", why=str(error.strerror)) from error


def row(one: Any) -> dict[str, Any]:
    first = one.processes[0] if one.processes else None
    more = f" and {len(one.processes) - 1} more" if len(one.processes) > 1 else ""
    return {
        "system": one.system,
        "address": one.address,
        "how": one.how,
        "found_by": one.by,
        "process": None if first is None else f"{first.comm}{more}",
        "pid": None if first is None else first.pid,
        "configured": one.configured,
        "setting": None if one.configured else one.setting,
        "remark": _UNSUPPORTED if not one.supported else one.lacks or (_UNKNOWN if one.setting is None else None),
    }
