"""Families: what they need of each other is said, so that no order of names matters; and there are counters for all
their losses.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import permutations
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from agent.arch import host
from agent.batch import Batch
from agent.columns import NULL_I64
from agent.errors import AgentError
from agent.instruments.kind import extended
from agent.kernel import compiler
from agent.kernel.loaded_families import BPF_DIR, LOST_COUNTERS, _job, load, loss_counted
from agent.kernel.plan import plan
from agent.kernel.probe import Probe, Program, Ring, ordered
from agent.kernel.wire_structs import OUTSIDE, Wire, wire_records
from agent.probes import discover
from agent.probes.exec import decode_started
from agent.probes.limiter import decode_stacks
from agent.tables import TABLES


def family(name: str, *after: str) -> Probe:
    return Probe(name, (), after=after)


def text(probe: Probe) -> str:
    return _without_comments("\n".join((BPF_DIR / source).read_text() for source in probe.sources))


def _without_comments(raw: str) -> str:
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
def test_a_family_reports_whose_text_it_uses(name: str) -> None:
    """Everything in a family's text begins with its name, so names of another's text are what it uses of that; but for
    what the kernel has of that name.
    """
    words = {
        other: set(re.findall(r"\w+", text(probe))) - {"unix_sock", "unix_address", "tcp_sock"}
        for other, probe in discover().items()
    }
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


#: x86-64's registers in struct pt_regs, but for ip, and what else is of that processor.
X86 = r"orig_ax|[re]?[abcd]x|[re]?[sd]i|[re]?[sb]p|[re]ip|r(?:8|9|1[0-5])|PT_REGS_\w+|__x86_64__"


def test_only_one_file_knows_the_processor() -> None:
    """bpf/include/ stands in for the kernel's own headers."""
    named = {
        path.name: set(re.findall(rf"\b(?:{X86})\b|->ip\b", _without_comments(path.read_text())))
        for path in (*BPF_DIR.glob("*.h"), *BPF_DIR.glob("*.c"))
    }
    assert {"di", "->ip", "r14"} <= named.pop("arch_x86.h")
    assert {name: words for name, words in named.items() if words} == {}


def test_the_programs_numbers_of_system_calls_are_those_of_the_agent() -> None:
    found = re.findall(r"#define (COMPAT_)?NR_(\w+) (\d+)", (BPF_DIR / "arch_x86.h").read_text())
    assert len(found) > 10
    for compat, name, number in found:
        assert host.syscalls(host.COMPAT if compat else "x86_64")[int(number)] == name


def test_there_is_a_counter_for_the_losses_of_each_map() -> None:
    some = discover()["exec"]
    rings = tuple(Ring(f"ring_{i}", "exec_event", decode=lambda records: ()) for i in range(LOST_COUNTERS))
    whole = replace(some, rings=rings)
    assert len(loss_counted(whole)) == LOST_COUNTERS
    job, _ = _job([whole], {}, BPF_DIR, "btf")
    assert f"-DLOST_COUNTERS={LOST_COUNTERS}" in job["cflags"]  # type: ignore[operator]
    with pytest.raises(ValueError, match=f"65 maps want a counter of what they lose, there are {LOST_COUNTERS}"):
        load([replace(some, rings=(*rings, some.rings[0]))])


@cache
def wire() -> Wire:
    return _job(ordered(discover().values()), {}, BPF_DIR, "btf")[1]


@pytest.mark.parametrize("ring", [ring for probe in discover().values() for ring in probe.rings], ids=attrgetter("map"))
def test_each_ring_has_a_decoder_that_returns_its_batch(ring: Ring) -> None:
    batch = ring.decode(np.zeros(3, wire().dtype(ring.wire)))
    if isinstance(batch, Batch):
        assert batch.rows.dtype == TABLES[batch.table].dtype
    rows = batch.rows if isinstance(batch, Batch) else batch
    assert len(rows) == 3 and rows.dtype.names


def test_started_programs_outside_of_the_pid_namespace_are_left_out() -> None:
    records = np.zeros(3, wire().dtype("exec_event"))
    records["proc"]["pid"], records["proc"]["cgroup_id"] = [7, OUTSIDE | 7, 8], [5, 5, 2**64 - 1]
    records["root_inode"], records["proc"]["comm"] = [1, 2, 3], b"shop"
    started = decode_started(records)
    assert started[["pid", "cgroup_id", "root_inode", "comm"]].tolist() == [
        (7, 5, 1, b"shop"),
        (8, NULL_I64, 3, b"shop"),
    ]


def test_places_of_a_call_stack_are_offsets_from_the_start_of_the_code() -> None:
    records = np.zeros(2, wire().dtype("limiter_stack"))
    records["start_code"] = [0x400000, 0x500000]
    records["frames"][:, :3] = [[0x400010, 0x400020, 0], [0x500001, 0x1000, 0x500002]]
    places = decode_stacks(records)["places"].tolist()
    assert [[place for place in one if place] for one in places] == [[0x10, 0x20], [1, 2]]


def test_calls_of_kernel_functions_are_asked_to_the_kernel_as_such() -> None:
    call = compiler.INSTRUCTION.pack
    code = (
        call(0x85, 0, 0, 12)
        + call(0x85, 0, 0, 0x40000000 + 63_866)
        + call(0x18, 1, 0, 0x40000001)
        + call(0, 0, 0, 0x40000002)
    )
    made = list(compiler.INSTRUCTION.iter_unpack(compiler.with_kernel_functions(code)))
    assert made == [(0x85, 0, 0, 12), (0x85, 0x20, 0, 63_866), (0x18, 1, 0, 0x40000001), (0, 0, 0, 0x40000002)]


def test_a_program_that_needs_what_a_kernel_lacks_reports_why() -> None:
    declared: dict[str, object] = {
        "name": "redis",
        "maps": [],
        "programs": [vars(program) for program in discover()["redis"].programs],
    }
    words = {"TP_tcp_probe": 2, "TP_net_dev_queue": 1, "TP_consume_skb": 2, "KFUNC_bpf_path_d_path": 0}
    (old,) = plan([declared], words)
    assert (
        old.state == "degraded" and "before Linux 6.12" in old.reason and "decisions of limiters in Redis" in old.reason
    )
    (new,) = plan([declared], words | {"KFUNC_bpf_path_d_path": 7})
    assert new.state == "attached"


@pytest.mark.parametrize(
    ("there", "state"), [("begin", "attached"), ("begin end", "attached"), ("end", "degraded"), ("", "unavailable")]
)
def test_what_is_optional_is_no_degradation_unless_nothing_else_is_there(there: str, state: str) -> None:
    begin, end = Program("x_on_begin", target="begin"), Program("x_on_end", target="end", optional=True)
    words = {"TP_other": 1} | {f"TP_{name}": 3 for name in there.split()}
    both, alone = plan(
        [{"name": n, "maps": [], "programs": [vars(p) for p in ps]} for n, ps in (("x", (begin, end)), ("y", (end,)))],
        words,
    )
    assert both.state == state
    assert (alone.state, "no tracepoint end" in alone.reason) == (
        ("attached", False) if "end" in there else ("unavailable", True)
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"parts": ("exec_nowhere.h",)}, "exec_nowhere.h does not exist"),
        (
            {"rings": (Ring("exec_events", "exec_nothing", wire_records),)},
            "probe exec: struct exec_nothing is declared nowhere",
        ),
    ],
)
def test_a_wrong_declaration_names_its_source(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(AgentError) as error:
        _job([replace(discover()["exec"], **changed)], {}, BPF_DIR, "btf")
    assert message in error.value.what


def test_a_kind_of_binary_of_an_unknown_family_is_refused() -> None:
    with pytest.raises(AgentError, match="has an unknown family 'dns'"):
        extended({name: probe for name, probe in discover().items() if name != "dns"})
