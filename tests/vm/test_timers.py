"""What fires early or late after a step, by ``timer_effect``, equals what a real Celery and a real Redis did
(guest_timers.py); and each rule about a kind of timer equals what its server did (guest_timer_clocks.py).
"""

from __future__ import annotations

import json
import shlex
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.queues.timers import rule
from tests.releases import unpacked
from tests.vm import machine
from tests.vm.guest_timer_clocks import BEHIND, PACKAGES, other_root
from tests.vm.guest_timers import HELD, LASTING, LOCKS, RUNNING, SEEN, STEP_S, WAIT_S, S
from tests.vm.suite import CHECKOUT

KERNEL, LIMIT_S = "6.1", 3600.0
#: What of RULES one try is about: (system, kind, and where) of a rule, by (system, kind) of a try.
ABOUT: dict[tuple[str, str], list[tuple[str, ...]]] = {
    ("redis", "key expiry"): [("redis", kind) for kind in ("ttl", "lock", "lease", "dedup")],
    ("redis", "key expiry at a time"): [("redis", kind) for kind in ("ttl", "lock", "lease", "dedup")],
    ("kombu", "redelivery"): [("celery", "redelivery")],
    ("celery", "eta"): [("celery", "eta")],
    ("postgresql", "delayed job"): [("postgresql", "eta")],
    **{
        ("rabbitmq", f"message TTL of a {where}{how}"): [("rabbitmq", kind, f"{where}s") for kind in ("ttl", "eta")]
        for where in ("classic queue", "quorum queue")
        for how in ("", ", published to", ", consumed", BEHIND)
    },
    ("rabbitmq", "x-expires of a queue"): [("rabbitmq", "lease")],
    ("etcd", "lease"): [("etcd", "lease")],
    **{
        ("nats", f"{kind}{behind}"): [("nats", about)]
        for kind, about in (
            ("MaxAge, memory", "retention"),
            ("MaxAge, file", "retention"),
            ("AckWait", "redelivery"),
            ("duplicate window", "dedup"),
        )
        for behind in ("", BEHIND)
    },
}
#: Servers of Debian 13 beside those of this host, where they can be had: packages of each, or in a whole root.
UNPACKED = {"nats": ("nats-server", "libc6"), "etcd": ("etcd-server", "libc6")}


@dataclass(frozen=True)
class Booted:
    out: Path
    run: Future[machine.Outcome]


def begin(pool: ThreadPoolExecutor, folders: pytest.TempPathFactory) -> Booted:
    out = folders.mktemp("timers")
    guest = [sys.executable, "-m", "tests.vm.guest_timers", "/run/out/seen.json"]
    names = ["redis", "kombu", "celery", "nats", "etcd", "postgresql", "rabbitmq"]
    for name, packages in UNPACKED.items():
        with suppress(pytest.skip.Exception):
            unpacked(f"trixie-{name}", "trixie", packages)
            names.append(f"{name}@trixie")
    for name in PACKAGES:
        with suppress(pytest.skip.Exception):
            other_root(f"{name}@trixie")
            names.append(f"{name}@trixie")
    clocks = [sys.executable, "-m", "tests.vm.guest_timer_clocks", *names]
    script = f"{shlex.join(clocks)} | tee /run/out/clocks && {shlex.join(guest)}"
    run = pool.submit(machine.run, KERNEL, ["sh", "-c", script], limit_s=LIMIT_S, cwd=CHECKOUT, out=out)
    return Booted(out, run)


@pytest.fixture
def booted(machines: dict[str, Any]) -> Booted:
    found: Booted = machines["test_timers"]
    done = found.run.result()
    assert done.status == 0, done.output[-4000:] + done.console
    return found


def test_each_rule_equals_what_its_server_did(booted: Booted) -> None:
    tried = [json.loads(line) for line in (booted.out / "clocks").read_text().splitlines() if line.startswith("{")]
    assert {(one["system"], one["kind"]) for one in tried} >= set(ABOUT)
    for one in tried:
        for system, kind, *where in ABOUT.get((one["system"], one["kind"]), ()):
            known = rule(system, kind, one["version"], *where)
            assert known is None or seen_as(known.clock, one["kind"]) == one["clock"], one


def seen_as(clock: str, kind: str) -> str:
    """What a try of a checked timer shows: alone, its server looks when it is due by the monotonic clock."""
    if clock != "checked":
        return clock
    return "wall" if kind.endswith(BEHIND) else "both"


def test_what_the_table_says_is_what_was_delivered_again_and_expired(booted: Booted) -> None:
    late, early = steps = json.loads((booted.out / "seen.json").read_text())
    messages, keys = RUNNING + HELD, LOCKS + SEEN
    for one in steps:
        rows = one["effects"]
        assert one["ended"] == []  # no task with a set time began
        assert {(row["kind"], row["immune"]) for row in rows if row["clock"] == "monotonic"} == {("eta", True)}
        assert all(abs(row["size_ns"] - one["size_s"] * S) < S for row in rows)
        assert all(row["polled_ns"] <= row["jump_t_ns"] for row in rows)
        assert all(one["from_ns"] <= row["jump_t_ns"] <= one["to_ns"] + 30 * S for row in rows)  # when it was noticed

    def at_once(rows: list[dict[str, Any]]) -> list[str]:
        return sorted(row["object"] for row in rows if row["clock"] == "wall" and row["is_due_ns"] == row["jump_t_ns"])

    rows = [row for row in late["effects"] if row["clock"] == "wall"]
    due = [row for row in rows if row["was_due_ns"] < row["jump_t_ns"] + WAIT_S * S]
    assert len(due) == messages + keys  # without the step they would have fired while the guest waited
    assert len(rows) == messages + keys + LASTING
    assert all(abs(row["moved_ns"] - STEP_S * S) < S for row in rows)
    assert late["fired"] == at_once(late["effects"]) == at_once(late["would"]) == []

    assert early["fired"] == at_once(early["effects"]) == at_once(early["would"])
    assert len(early["fired"]) == messages + keys
