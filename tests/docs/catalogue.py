"""The symptoms and causes, as data: what the diagnosis says today from its catalogue, and words for the names that are
kept for rules to come.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """output: the diagnosis of today can say it; else the word is kept for a rule to come, and for counters and queries
    that name it. todo: the next step.
    """

    name: str
    meaning: str
    output: bool
    todo: str = ""


def symptoms() -> list[Entry]:
    """In the order of the table's declaration. Raises KeyError for one without words."""
    from agent.correlate import catalogue
    from agent.tables import SYMPTOMS

    output = catalogue.symptoms()
    return [
        Entry(name, output[name].meaning, True, output[name].todo)
        if name in output
        else Entry(name, _SYMPTOMS[name], False)
        for name in SYMPTOMS.split()
    ]


def causes() -> list[Entry]:
    """The same of causes."""
    from agent.correlate import catalogue
    from agent.tables import CAUSES

    output = catalogue.causes()
    return [
        Entry(name, output[name].meaning, True, output[name].todo)
        if name in output
        else Entry(name, _CAUSES[name], False)
        for name in CAUSES.split()
    ]


_SYMPTOMS = {
    "redelivery": "messages are delivered more than once",
    "rebalancing": "a consumer group changes again and again",
    "duplicates": "the same entry was produced twice",
}
_CAUSES = {}
