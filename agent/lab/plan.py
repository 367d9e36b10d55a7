"""Which faults, of which size, when: all of it from a seed. Pure: the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.lab.kind import Fault, Kind
from agent.lab.program import LabProgram

#: Seeds from here on are never used for tuning.
HELD_BACK = 1_000_000
#: Share of the faults that overlap the previous one, of those that can.
PAIRS = 0.25
#: Faults at once: the second's ``gap_s`` is the delay after the first.
Group = tuple[Fault, ...]


def one(kind: Kind, seed: int) -> Fault:
    """The fault that ``run KIND --seed`` injects."""
    return kind.draw(random.Random(f"{kind.name}/{seed}"))


def session(kinds: Sequence[Kind], seed: int, faults: int, there: Mapping[str, LabProgram]) -> list[Group]:
    """Faults for one session: kinds in a random order, each as often as the others, give or take one. Some come in
    pairs, if no program of the workload (``there``) can be impacted by both. If the kinds are of several brokers, a
    session has those of one: each broker that runs costs processor time and memory.
    """
    chance = random.Random(f"sitting/{seed}")
    brokers = sorted({kind.system for kind in kinds} - {""})
    if len(brokers) > 1:
        brokers = [chance.choice(brokers)]
    kinds = [kind for kind in kinds if kind.system in ("", *brokers) and not set(brokers) & set(kind.ends)]
    names: list[Kind] = []
    while len(names) < faults:
        names += chance.sample(list(kinds), len(kinds))
    groups: list[Group] = []
    reached: frozenset[str] = frozenset(there)
    for n, kind in enumerate(names[:faults]):
        fault = kind.draw(random.Random(f"{kind.name}/{seed}/{n}"))
        reaches = kind.reach(fault, there)
        if groups and len(groups[-1]) == 1 and kind.right and not reached & reaches and chance.random() < PAIRS:
            groups[-1] = (groups[-1][0], replace(fault, gap_s=round(chance.uniform(0.0, 1.5), 3)))
        else:
            groups.append((fault,))
        reached = reaches if kind.right else frozenset(there)
    return groups


def seeds(first: int, runs: int, each: int) -> list[tuple[int, int]]:
    """(seed, faults) of the sessions that make ``runs`` faults."""
    return [(first + n, min(each, runs - n * each)) for n in range((runs + each - 1) // each)]
