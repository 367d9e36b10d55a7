"""Selects the wall clock jumps for ``tickscope limiters replay --jump``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from agent.errors import NO_ROWS, USAGE, AgentError

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource

#: Time before and after a jump from which decisions are read.
REACH_NS = 600 * 10**9
_NEAR_NS = 2 * 10**9  # distance from a jump to a given time
_MOST = 1000


def steps(source: RowSource) -> list[dict[str, Any]]:
    """All known jumps by boot and time: boot_id, t_ns, size_ns."""
    from agent.ask.question import Question, Where

    jumped = (Where("kind", "in", ("step", "leap")), Where("size_ns", "<>", 0), Where("ret", ">=", 0, or_unknown=True))
    return source.rows(Question("clock_change", ("boot_id", "t_ns", "size_ns"), jumped, within=False))


def chosen(source: RowSource, which: str) -> list[tuple[str, list[dict[str, Any]], list[int]]]:
    """(boot, its selected jumps in order of time, the times of all its jumps). Raises AgentError: exit 3 if there is
    none, 2 for a malformed name.
    """
    known = steps(source)
    if not known:
        raise AgentError(
            "the store has no jump of the clock",
            remedy="replay a hypothetical jump: --what-if -500ms",
            exit_code=NO_ROWS,
        )
    if which == "all":
        picked = known[-_MOST:]
    elif which == "last":
        picked = known[-1:]
    elif re.fullmatch(r"[0-9a-fA-F]{4,32}", which):
        picked = _of_finding(source, which.lower(), known)
    else:
        picked = _at(source, which, known)
    boots = dict.fromkeys(one["boot_id"] for one in picked)
    return [
        (
            boot,
            [one for one in picked if one["boot_id"] == boot],
            [one["t_ns"] for one in known if one["boot_id"] == boot],
        )
        for boot in boots
    ]


def _of_finding(source: RowSource, name: str, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from agent.ask.question import Question, Where

    columns = ("finding_id", "boot_id", "start_ns", "end_ns", "cause")
    found = source.rows(
        Question("finding", columns, (Where("finding_id", "starts", name),), within=False, order=("t_ns",))
    )
    names = sorted({one["finding_id"] for one in found})
    if not found:
        raise AgentError(
            f"no finding's id starts with {name}",
            remedy="see: tickscope findings, or use --jump last",
            exit_code=NO_ROWS,
        )
    if len(names) > 1:
        raise AgentError(
            f"{len(names)} findings have an id that starts with {name}",
            why=", ".join(names[:5]),
            remedy="give more characters of the id",
            exit_code=USAGE,
        )
    last = found[-1]
    picked = [
        one for one in known if one["boot_id"] == last["boot_id"] and last["start_ns"] <= one["t_ns"] <= last["end_ns"]
    ]
    if not picked:
        raise AgentError(
            f"finding {last['finding_id']} is not about a jump of the clock",
            why=f"its cause is {last['cause']}",
            remedy="see: tickscope clock history",
            exit_code=USAGE,
        )
    return picked


def _at(source: RowSource, text: str, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The jump nearest to a time."""
    import numpy as np

    try:
        bound = source.bound(text)
    except AgentError as error:
        raise AgentError(
            f"no jump {text!r}",
            remedy="use last, all, a finding's id, or its time: boot+SECONDS or ISO 8601",
            exit_code=USAGE,
        ) from error

    def away(one: dict[str, Any]) -> float:
        if bound.boot_id == one["boot_id"]:
            return float(abs(one["t_ns"] - bound.t_ns))
        wall = int(source.wall(one["boot_id"], np.array([one["t_ns"]], np.int64))[0])
        return (
            float("inf")
            if bound.wall_ns is None
            else float(min(abs(wall - bound.wall_ns), abs(wall - one["size_ns"] - bound.wall_ns)))
        )

    nearest = min(known, key=away)
    if away(nearest) > _NEAR_NS:
        raise AgentError(
            f"no jump within two seconds of {text}", remedy="see: tickscope clock history", exit_code=NO_ROWS
        )
    return [nearest]
