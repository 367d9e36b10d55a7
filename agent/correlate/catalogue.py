"""The catalogue of findings: each symptom, cause and kind of wait is one file; no other registration is needed.

A file of ``symptoms/`` defines ``SYMPTOM``, one of ``causes/`` defines ``CAUSE``, one of ``edges/`` defines ``EDGE``,
each with the name of the file. Each
declares its place in the order of evaluation, so that findings do not depend on file names. Either side may declare
which cause can explain which symptom; ``causes`` merges both declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from agent.common.declared import all_declared
from agent.errors import AgentError
from agent.tables import TABLES

if TYPE_CHECKING:
    import numpy as np

    from agent.correlate.episode import Episode, Verdict, Waited
    from agent.correlate.steps import Jumping
    from agent.correlate.view import View
    from agent.correlate.watch import Second, Watch
    from agent.correlate.words import Words

Rule = Callable[["Episode", "View"], "Iterator[Verdict]"]
Reads = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Symptom:
    """Something that is wrong with a subject for a while.

    order: the lowest of several symptoms names a finding, and is evaluated first. meaning: one line. unit: of an
    episode's value (empty: a share or a count).

    table: the table that shows it, also of the finding's own evidence; measured: its column, by the metric that rose;
    tables: other tables, by metric. reads: columns by table. watch: the class that keeps its subjects' series; None if
    it is not judged by seconds. judge: (watch, second): opens episodes, and extends active ones.
    also: other kinds of subjects that it is judged for, by the class of their series.

    clause: what was wrong with what, how much, and when. todo: what to check first.

    polled_by_agent: the impacted process is tickscope's own poller. inside: its explanation lies inside the slow
    decisions.

    bare: whether it is reported without a known cause; not if the episode's metric is one of ``alone``. shared: without
    a known cause it joins any finding about its process, or about its port, at that time.

    adopted: whether it becomes the new baseline once it has lasted for ``adopt_s``. Failures do not: they stay open.

    explained_by: causes that may explain it and do not list it themselves, by name: the rule, or the name of a symptom
    with the same rule. The rule yields verdicts of that cause only; columns that only this rule reads belong to
    ``reads``.
    """

    name: str
    order: int
    meaning: str
    subject: str
    unit: str
    table: str
    reads: Reads
    clause: Callable[[Episode], Words]
    todo: str
    watch: type[Watch] | None = None
    judge: Callable[[Any, Second], None] | None = None
    also: Mapping[type[Watch], Callable[[Any, Second], None]] = field(default_factory=dict)
    polled_by_agent: bool = False
    inside: bool = False
    bare: bool = True
    alone: tuple[str, ...] = ()
    shared: bool = False
    adopted: bool = True
    measured: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    explained_by: Mapping[str, Rule | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cause:
    """Why something was wrong.

    order: decides between verdicts of equal score, the lowest wins. explains: by symptom, the rule that decides whether
    this cause holds for an episode; a rule is pure, and yields verdicts of this cause only. reads: columns by table of
    the rows that rules read; facts: names of the episode's facts that rules use (``NAME_base``: the usual value). todo:
    what to do about it. jumps: set if it moves the wall clock.

    locates_only: it shows where a thread was, not why: other causes take precedence, and its episodes join findings
    like those without a cause.

    merge_group: causes of one group become one finding if they are near in time. still_active: (view, from_ns, to_ns,
    now_ns) -> whether it still lasts, so that a pause of its symptoms does not end the finding.
    """

    name: str
    order: int
    meaning: str
    reads: Reads
    todo: str
    explains: Mapping[str, Rule] = field(default_factory=dict)
    facts: tuple[str, ...] = ()
    merge_group: str = ""
    locates_only: bool = False
    jumps: Jumping | None = None
    still_active: Callable[[View, int, int, int], bool] | None = None


@dataclass(frozen=True)
class EdgeKind:
    """A kind of wait of one process for another: one file of ``edges/`` defines it as ``EDGE``.

    reads: columns by table. waits: (episode, view) -> the processes that the episode's process waited for. symptoms:
    those of which it may be a part.
    """

    name: str
    reads: Reads
    waits: Callable[[Episode, View], Iterator[Waited]]
    symptoms: tuple[str, ...] = ("service_latency", "decision_latency", "blocked_time")


@cache
def edges() -> tuple[EdgeKind, ...]:
    """Raises AgentError for a file without a valid declaration."""
    from agent.correlate import edges as room

    return tuple(all_declared(room, "EDGE", EdgeKind, named=True))


@cache
def symptoms() -> dict[str, Symptom]:
    """All of them by name, in order. Raises AgentError for a file without a valid declaration."""
    from agent.correlate import symptoms as room

    return _in_order(all_declared(room, "SYMPTOM", Symptom, named=True))


@cache
def causes() -> dict[str, Cause]:
    """All of them by name, in order, merged with the declarations of symptoms. Raises AgentError for an unknown
    name.
    """
    from agent.correlate import causes as room

    return joined(symptoms(), _in_order(all_declared(room, "CAUSE", Cause, named=True)))


def symptom_of(episode: Episode) -> Symptom:
    return symptoms()[episode.symptom]


def order_of(episode: Episode) -> tuple[int, str, int, str]:
    """Sort key: the lowest of several symptoms names a finding."""
    return symptom_of(episode).order, episode.symptom, episode.start_ns, episode.subject


_Ordered = TypeVar("_Ordered", Symptom, Cause)


def _in_order(found: list[_Ordered]) -> dict[str, _Ordered]:
    return {one.name: one for one in sorted(found, key=lambda one: (one.order, one.name))}


def joined(symptoms: Mapping[str, Symptom], causes: Mapping[str, Cause]) -> dict[str, Cause]:
    """The causes, each with all that it explains, whichever side declares it. Raises AgentError for an unknown name,
    and for a pair that both sides declare.
    """
    for cause in causes.values():
        for name in cause.explains.keys() - symptoms.keys():
            raise _unknown(f"cause {cause.name}: explains", name, symptoms)
    explains = {cause.name: dict(cause.explains) for cause in causes.values()}
    for symptom in symptoms.values():
        where = f"symptom {symptom.name}: explained_by"
        for name, rule in symptom.explained_by.items():
            if name not in causes:
                raise _unknown(where, name, causes)
            if symptom.name in causes[name].explains:
                raise AgentError(f"{where}: cause {name} lists it too", remedy="declare it in one of the two files")
            if isinstance(rule, str):
                if rule not in causes[name].explains:
                    raise _unknown(f"{where}: {name} as for", rule, causes[name].explains)
                rule = causes[name].explains[rule]
            explains[name][symptom.name] = rule
    return {name: replace(cause, explains=explains[name]) for name, cause in causes.items()}


def _unknown(where: str, name: str, known: Iterable[str]) -> AgentError:
    return AgentError(f"{where}: there is no {name!r}", remedy=f"one of: {', '.join(sorted(known))}")


#: Columns that every reader of rows may use.
_ALWAYS = ("t_ns", "pid", "proc_start_ns", "comm")


@cache
def kept() -> dict[str, tuple[str, ...]]:
    """By table, the columns that some symptom, cause or kind of wait reads, both in the order of declaration. Raises
    AgentError for an unknown table or column.
    """
    read: dict[str, set[str]] = {}
    every: list[Symptom | Cause | EdgeKind] = [*symptoms().values(), *causes().values(), *edges()]
    for one in every:
        for table, columns in one.reads.items():
            where = f"{type(one).__name__.lower()} {one.name}: reads"
            if table not in TABLES:
                raise _unknown(where, table, TABLES)
            for column in {*columns} - {*_ALWAYS} - {*TABLES[table].by_name}:
                raise _unknown(f"{where} {table}", column, TABLES[table].by_name)
            read.setdefault(table, {*_ALWAYS}).update(columns)
    return {name: tuple(c for c in table.by_name if c in read[name]) for name, table in TABLES.items() if name in read}


@cache
def dtypes() -> dict[str, np.dtype[np.void]]:
    """Of the rows that are kept."""
    import numpy as np

    return {table: np.dtype([(c, TABLES[table].by_name[c].dtype) for c in names]) for table, names in kept().items()}
