"""The limiters that made decisions, with derived values."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.ask.question import Question, Where
    from agent.ask.row_source import RowSource

_LIMITER = ("limiter_id", "library", "library_version", "source", "pid")
_RESULTS = {
    "allowed": "allowed",
    "refused": "refused",
    "delayed": "delayed",
    "cancelled": "cancelled",
    "errors": "error",
}
_PROCESS = ("boot_id", "pid", "proc_start_ns", "library")
#: Columns that may differ between members and keys of one limiter.
_DIFFERING = ("limit_per_s", "burst")
#: Columns that are used only here.
_WITHIN = ("apart", "free", "sums", "others_units", *(f"{name}_{how}" for name in _DIFFERING for how in ("min", "max")))
_PLACES = ("program", "path", "build_id", "site", "file", "line")


def seen_in(source: RowSource, *where: Where) -> list[dict[str, Any]]:
    """Each limiter in each process, those with the most decisions first. where: conditions on the decisions."""
    from agent.common.host import boot_id as this_boot

    boot, now_ns = this_boot(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    places = {(row["limiter_id"], row["library"]): row for row in source.rows(_limiters())}
    out = []
    for row in map(_rated, _whole(source, *where)):
        place = places.get((row["limiter_id"], row["library"]), {})
        basis = {name: place.get(name) for name in _PLACES} | {
            "program": place.get("program") or row["comm"],
            "version": row["library_version"],
        }
        one = {**row, **basis, **_judged(row), **_worked_out(row, boot, now_ns)}
        out.append({name: value for name, value in one.items() if name not in _WITHIN})
    return sorted(out, key=lambda one: one["state"] == "gone")


def _whole(source: RowSource, *where: Where) -> list[dict[str, Any]]:
    """Replaces the observed counts of sampled programs' limiters by estimates of all decisions; ``seen`` keeps the
    observed ones.
    """
    from agent.ask.question import Question, Where
    from agent.cli.limiters_totals import COLUMNS, KEY, Total, added, basis

    rows = [{**row, "seen": row["decisions"], **_apart(row)} for row in source.rows(_decisions(*where))]
    if any(row["differing"] for row in rows):
        _sum_up(source, rows, *where)
    _join(source, rows, *where)
    rates = added(source.rows(Question("limiter_rate", COLUMNS, where=where)))
    always = source.rows(_decisions(*where, Where("sample_rate", "=", 1.0))) if rates else []
    whole = {tuple(row[name] for name in KEY): row for row in always}
    for row in rows:
        key = tuple(row[name] for name in KEY)
        if key not in rates:
            sampled = row["sample_rate"] is not None and row["sample_rate"] < 1
            row["basis"] = "as seen" if sampled else "exact"
            continue
        seen = whole.get(key, dict.fromkeys(_RESULTS, 0))
        allowed, refused = (
            Total(seen[n], seen[n], seen[n]) + more for n, more in zip(("allowed", "refused"), rates[key], strict=True)
        )
        row.update({n: seen[n] for n in _RESULTS}, allowed=allowed.n, refused=refused.n, units=None)
        row.update(decisions=sum(row[n] for n in _RESULTS), basis=basis(allowed, refused))
        for name, total in (("allowed", allowed), ("refused", refused)):
            row[f"{name}_low"], row[f"{name}_high"] = total.least, total.most
    return sorted(rows, key=lambda row: -row["decisions"])


def _join(source: RowSource, rows: list[dict[str, Any]], *where: Where) -> None:
    """Joins limiters that a process calls at several places: ``also_asked_by`` names the other places of its members,
    ``others_units`` is the sum of units admitted there.
    """
    from agent.ask.question import Question
    from agent.ask.sql import conditions

    which = conditions(
        Question("limiter_decision", where=tuple(w for w in where if w.column != "limiter_id")), source.window
    )
    each = (
        f"SELECT {', '.join(_PROCESS)}, member, limiter_id, coalesce(sum(coalesce(cost, 1)) FILTER (result IN"
        f" ('allowed', 'delayed')), 0) AS units FROM limiter_decision WHERE ({which}) AND member IS NOT NULL GROUP BY"
        f" {', '.join(_PROCESS)}, member, limiter_id"
    )
    found = source.run(
        f"SELECT *, count(*) OVER (PARTITION BY {', '.join(_PROCESS)}, member) AS places FROM ({each}) QUALIFY"
        " places > 1"
    )
    members: dict[tuple[Any, ...], dict[str, float]] = {}
    for *key, limiter, units, _ in found.rows:
        members.setdefault(tuple(key), {})[limiter] = float(units)
    of: dict[tuple[Any, ...], list[dict[str, float]]] = {}
    for member, places in members.items():
        for name in places:
            of.setdefault((*member[:-1], name), []).append(places)
    for row in rows:
        name = row["limiter_id"]
        asked_places = of.get((*(row[column] for column in _PROCESS), name), [])
        row["also_asked_by"] = sorted({other for places in asked_places for other in places} - {name})
        row["others_units"] = sum(sum(places.values()) - places[name] for places in asked_places)


def _decisions(*where: Where) -> Question:
    """The query for each limiter in each process: its decisions by result, and its last values."""
    from agent.ask.question import GroupValue, Question, Where

    results = (GroupValue(name, "count", where=Where("result", "=", result)) for name, result in _RESULTS.items())
    admitted = Where("result", "in", ("allowed", "delayed"))
    return Question(
        "limiter_decision",
        where=where,
        group=("boot_id", *_LIMITER, "proc_start_ns"),
        order=("-decisions", "limiter_id", "pid"),
        values=(
            GroupValue("comm", "last", "comm"),
            GroupValue("decisions", "count"),
            *results,
            GroupValue("units", "sum", "cost", admitted),
            GroupValue("limit_per_s", "last", "limit_per_s"),
            GroupValue("unlimited", "last", "unlimited"),
            GroupValue("burst", "last", "burst"),
            GroupValue("window_ns", "last", "window_ns"),
            *(GroupValue(f"{name}_{how}", how, name) for name in _DIFFERING for how in ("min", "max")),
            GroupValue("free", "count", where=Where("unlimited", "=", True)),
            GroupValue("step_immune", "all", "step_immune"),
            GroupValue("sample_rate", "min", "sample_rate"),
            GroupValue("members", "distinct", "member"),
            GroupValue("keys", "distinct", "key"),
            GroupValue("first_ns", "min", "t_ns"),
            GroupValue("last_ns", "max", "t_ns"),
        ),
    )


def _apart(row: dict[str, Any]) -> dict[str, Any]:
    """The number of members or keys and, if their limits differ, the smallest and largest limit."""
    several = max(row["members"] or 0, 1) * max(row["keys"] or 0, 1)
    differing = several > 1 and (
        0 < row["free"] < row["decisions"] or any(row[f"{name}_min"] != row[f"{name}_max"] for name in _DIFFERING)
    )
    out: dict[str, Any] = {
        "apart": several,
        "differing": differing,
        "limit_most": None,
        "burst_most": None,
        "sums": None,
    }
    if differing:
        out.update(limit_per_s=row["limit_per_s_min"], limit_most=None if row["free"] else row["limit_per_s_max"])
        out.update(burst=row["burst_min"], burst_most=row["burst_max"], unlimited=row["free"] == row["decisions"])
    return out


def _sum_up(source: RowSource, rows: list[dict[str, Any]], *where: Where) -> None:
    """``sums``: limit and burst of all members together, if each member has one known limit."""
    from agent.ask.question import Question
    from agent.ask.sql import conditions

    group = ("boot_id", "limiter_id", "pid", "proc_start_ns")
    each = (
        f"SELECT {', '.join(group)}, last(limit_per_s ORDER BY t_ns) FILTER (limit_per_s IS NOT NULL) AS most,"
        " last(burst ORDER BY t_ns) FILTER (burst IS NOT NULL) AS burst, bool_or(unlimited) AS free FROM"
        f" limiter_decision WHERE {conditions(Question('limiter_decision', where=where), source.window)} GROUP BY"
        f" {', '.join(group)}, member, key"
    )
    found = source.run(
        f"SELECT {', '.join(group)}, CASE WHEN count(most) = count(*) AND NOT coalesce(bool_or(free), false) THEN"
        f" sum(most) END, sum(burst) FROM ({each}) GROUP BY {', '.join(group)}"
    )
    sums = {tuple(one[: len(group)]): one[len(group) :] for one in found.rows}
    for row in rows:
        row["sums"] = sums.get(tuple(row[name] for name in group))


def _limiters() -> Question:
    """The query for the place of each limiter's calls, as reported last."""
    from agent.ask.question import Question

    return Question("limiter", ("limiter_id", "library", *_PLACES), within=False, order=("boot_id", "t_ns"))


def _rated(row: dict[str, Any]) -> dict[str, Any]:
    """Fills in the rate from a reported burst and window."""
    if row["limit_per_s"] is None and row["burst"] is not None and row["window_ns"] and not row["differing"]:
        return {**row, "limit_per_s": row["burst"] / row["window_ns"] * 1e9}
    return row


def _judged(row: dict[str, Any]) -> dict[str, Any]:
    """Adds the limiter's clock, and the effect of a step."""
    from agent.limiters.catalogue import CATALOGUE, look_up

    library = next((one for one in CATALOGUE if one.library == row["library"]), None)
    entry = look_up(row["library"] or "", row["library_version"] or "")
    back, forward = ("none", "none") if row["step_immune"] else (entry.back, entry.forward) if entry else (None, None)
    proof = None if back is None else back == forward == "none"
    clock = "monotonic" if row["step_immune"] else library.clock if library else None
    return {"on_step_back": back, "on_step_forward": forward, "step_proof": proof, "clock": clock}


def _worked_out(row: dict[str, Any], boot: str, now_ns: int) -> dict[str, Any]:
    """Adds the decision rate: from the first decision in the window until now, or until the last one if the process has
    ended.
    """
    from agent.common.alive import gone
    from agent.tables.limiters import WATCHED_NS

    dead = row["boot_id"] != boot or (row["pid"] is not None and gone(row["pid"], row["proc_start_ns"]))
    state = "gone" if dead else None if row["pid"] is None else "alive"
    seconds = max(((row["last_ns"] if dead else max(now_ns, row["last_ns"])) - row["first_ns"]) / 1e9, 1.0)
    per_s, failed = row["decisions"] / seconds, row["refused"] + row["errors"]
    judged = sum(
        row[name] for name in _RESULTS
    )  # counters without a limit on the wire have none, or only for the first decisions
    units = row["units"] if row["units"] is not None else float(row["allowed"] + row["delayed"])
    limit, burst = (
        row["sums"]
        if row["differing"]
        else (
            (None, None)
            if row["limit_per_s"] is None
            else (row["apart"] * row["limit_per_s"], row["apart"] * (row["burst"] or 0.0))
        )
    )
    most = limit * seconds + (burst or 0.0) if limit is not None else 0.0
    return {
        "state": state,
        "per_s": round(per_s, 3),
        "refused_share": failed / judged if judged > 0.5 * row["decisions"] else None,
        "limit_use": (units + row["others_units"]) / most if most and not row["unlimited"] else None,
        "watch_cost": row["seen"] / seconds * WATCHED_NS / 1e9 if row["source"] == "uprobe" else None,
    }
