"""A question as SQL, in DuckDB's dialect: every table is a view with the columns of ``names.columns``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.ask.names import quote
from agent.ask.question import Condition, GroupValue, Question, Where
from agent.ask.window import Window


def select(question: Question, boots: Sequence[str], window: Window) -> str:
    """boots: oldest first. window: where the rows lie, if ``question.within``."""
    picked = ", ".join(map(quote, question.columns)) or "*"
    source = f"{question.table} WHERE {conditions(question, window)}{_latest(question, boots)}"
    if question.group or question.values:
        keys = ", ".join(map(quote, question.group))
        made = ", ".join([*map(quote, question.group), *map(_value, question.values)])
        source = f"(SELECT {made} FROM {source}{f' GROUP BY {keys}' if keys else ''})"
    order = [f"abs({quote(question.largest)}) DESC NULLS LAST"] if question.largest else []
    grouped = {*question.group, *(value.name for value in question.values)}
    order += [_order(name, boots) for name in question.order if not grouped or name.removeprefix("-") in grouped]
    ordered = f" ORDER BY {', '.join(filter(None, order))}" if any(order) else ""
    return f"SELECT {picked} FROM {source}{ordered}{f' LIMIT {question.limit}' if question.limit is not None else ''}"


def conditions(question: Question, window: Window) -> str:
    """What all rows of the question meet."""
    return " AND ".join([*(window.rows() if question.within else ()), *map(_condition, question.where)]) or "true"


def literal(value: Any) -> str:
    """A number, a truth value or text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else "'" + str(value).replace("'", "''") + "'"


def _condition(where: Where | Condition) -> str:
    if isinstance(where, Condition):
        return f"({where.text}\n)"  # which may end in a comment
    column = quote(where.column)
    if where.op == "in":
        condition = f"{column} IN ({', '.join(map(literal, where.value)) or 'NULL'})"
    elif where.op == "starts":
        condition = f"starts_with({column}, {literal(where.value)})"
    else:
        condition = f"{column} {where.op} {literal(where.value)}"
    return f"({column} IS NULL OR {condition})" if where.or_unknown else condition


def _latest(question: Question, boots: Sequence[str]) -> str:
    if not question.latest:
        return ""
    newest = ", ".join(filter(None, (_order(name, boots) for name in ("-boot_id", "-t_ns"))))
    return f" QUALIFY rank() OVER (PARTITION BY {', '.join(map(quote, question.latest))} ORDER BY {newest}) = 1"


def _value(value: GroupValue) -> str:
    column = quote(value.column)
    made = {
        "count": "count(*)",
        "distinct": f"count(DISTINCT {column})",
        "sum": f"sum({column})",
        "min": f"min({column})",
        "max": f"max({column})",
        "last": f"last({column} ORDER BY t_ns)",
        "all": f"bool_and({column})",
    }[value.how]
    return f"{made}{f' FILTER ({_condition(value.where)})' if value.where else ''} AS {quote(value.name)}"


def _order(name: str, boots: Sequence[str]) -> str:
    """Nothing for boots where there are not two."""
    bare = name.removeprefix("-")
    expression = quote(bare)
    if bare == "boot_id":
        expression = f"list_position([{', '.join(map(literal, boots))}], boot_id)" if len(boots) > 1 else ""
    return f"{expression} DESC" if expression and name != bare else expression
