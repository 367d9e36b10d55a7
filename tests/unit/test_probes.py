"""Families: what they need of each other is said, so that no order of names matters; and there are counters for all their losses."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import permutations

import pytest

from agent.kernel.load import BPF_DIR, LOST_COUNTERS, _job, load, loss_counted
from agent.kernel.probe import Probe, Ring, ordered
from agent.probes import discover


def family(name: str, *after: str) -> Probe:
    return Probe(name, (), after=after)


def text(probe: Probe) -> str:
    raw = "\n".join((BPF_DIR / source).read_text() for source in probe.sources)
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", raw, flags=re.DOTALL)


def test_a_family_comes_behind_those_that_it_needs_whatever_order_they_are_in() -> None:
    families = [family("a", "c"), family("b"), family("c", "d", "not there"), family("d")]
    for order in permutations(families):
        names = [probe.name for probe in ordered(order)]
        assert sorted(names) == ["a", "b", "c", "d"]
        assert names.index("d") < names.index("c") < names.index("a")
    assert [probe.name for probe in ordered([family("z"), family("y")])] == ["z", "y"]


def test_families_that_come_after_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="families that come after each other: a, b"):
        ordered([family("a", "b"), family("b", "a"), family("c")])


@pytest.mark.parametrize("name", sorted(discover()))
def test_a_family_says_whose_text_it_uses(name: str) -> None:
    """Everything in a family's text begins with its name, so names of another's text are what it uses of that."""
    words = {other: set(re.findall(r"\w+", text(probe))) for other, probe in discover().items()}
    used = {
        other
        for other in words
        if other != name and any(word.startswith(f"{other}_") for word in words[name] & words[other])
    }
    assert used == set(discover()[name].after)


def test_the_order_of_names_changes_nothing_in_what_is_compiled() -> None:
    families = list(discover().values())
    first, _ = _job(ordered(families), {}, BPF_DIR, "btf")
    second, _ = _job(ordered(families[::-1]), {}, BPF_DIR, "btf")
    for job in (first, second):
        names = list(job["sources"])  # type: ignore[call-overload]
        assert names.index("tcp") < names.index("tls") and names.index("limiter") < names.index("syscalls")


def test_there_is_a_counter_for_the_losses_of_each_map() -> None:
    some = discover()["exec"]
    rings = tuple(Ring(f"ring_{i}", "exec_event", decode=lambda records: ()) for i in range(LOST_COUNTERS))
    whole = replace(some, rings=rings)
    assert len(loss_counted(whole)) == LOST_COUNTERS
    job, _ = _job([whole], {}, BPF_DIR, "btf")
    assert f"-DLOST_COUNTERS={LOST_COUNTERS}" in job["cflags"]  # type: ignore[operator]
    with pytest.raises(ValueError, match=f"65 maps want a counter of what they lose, there are {LOST_COUNTERS}"):
        load([replace(some, rings=(*rings, some.rings[0]))])
