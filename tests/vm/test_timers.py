"""What fires early or late after a step, by ``timer_effect``, equals what a real Celery and a real Redis did
(guest_timers.py); and each rule about a kind of timer equals what its server did (guest_timer_clocks.py).
"""

from __future__ import annotations

import json
import shlex
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.queues.timers import rule
from tests.vm import machine
from tests.vm.guest_timers import HELD, LASTING, LOCKS, RUNNING, SEEN, SHORT_S, STEP_S, WAIT_S, S
from tests.vm.suite import CHECKOUT

KERNEL, LIMIT_S = "6.1", 2400.0
#: What of RULES one try is about: (system, kind) of a rule, by (system, kind) of a try.
ABOUT = {
    ("redis", "key expiry"): [("redis", kind) for kind in ("ttl", "lock", "lease", "dedup")],
    ("redis", "key expiry at a time"): [("redis", kind) for kind in ("ttl", "lock", "lease", "dedup")],
    ("kombu", "redelivery"): [("celery", "redelivery")],
    ("celery", "eta"): [("celery", "eta")],
}


@dataclass(frozen=True)
class Booted:
    out: Path
    run: Future[machine.Outcome]


def begin(pool: ThreadPoolExecutor, folders: pytest.TempPathFactory) -> Booted:
    out = folders.mktemp("timers")
    guest = [sys.executable, "-m", "tests.vm.guest_timers", "/run/out/seen.json"]
    clocks = [sys.executable, "-m", "tests.vm.guest_timer_clocks", "redis", "kombu", "celery"]
    script = f"{shlex.join(clocks)} > /run/out/clocks && {shlex.join(guest)}"
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
        for system, kind in ABOUT.get((one["system"], one["kind"]), ()):
            known = rule(system, kind, one["version"])
            assert known is None or known.clock == one["clock"], one


def test_what_the_table_says_is_what_was_delivered_again_and_expired(booted: Booted) -> None:
    seen = json.loads((booted.out / "seen.json").read_text())
    assert seen["ran"] == []  # no task ended, and none with a set time began
    early, back, late, return_ = seen["steps"]
    messages, keys = RUNNING + HELD, LOCKS + SEEN

    def effects(step: dict[str, Any]) -> list[dict[str, Any]]:
        rows = [row for row in seen["effects"] if step["from_ns"] <= row["jump_t_ns"] <= step["to_ns"] + S]
        return [row for row in rows if (row["cluster"] == seen["short"]) == (step in (late, return_))]

    for step in seen["steps"]:
        rows = effects(step)
        assert {(row["kind"], row["immune"]) for row in rows if row["clock"] == "monotonic"} <= {("eta", True)}
        assert {row["size_ns"] // S for row in rows} <= {step["size_s"], step["size_s"] - 1}
        assert all(row["polled_ns"] <= row["jump_t_ns"] for row in rows)

    for step in (early, return_):
        at_once = [row["object"] for row in effects(step) if row["clock"] == "wall" and row["is_due_ns"] == row["t_ns"]]
        assert sorted(at_once) == step["fired"]
        assert len(at_once) == messages + keys
    asked = [row["object"] for row in seen["what_if"] if row["clock"] == "wall" and row["is_due_ns"] == row["t_ns"]]
    assert sorted(asked) == early["fired"]

    rows = [row for row in effects(late) if row["clock"] == "wall"]
    due = [row for row in rows if row["was_due_ns"] < row["jump_t_ns"] + WAIT_S * S]
    assert len(due) == messages + keys  # without the step they would have fired while the guest waited
    assert len(rows) == messages + keys + LASTING
    assert all(abs(row["moved_ns"] - STEP_S * S) < S for row in rows)
    assert late["fired"] == []
    assert back["fired"] == []
    assert SHORT_S < WAIT_S

    (sentence, *_) = [one["sentence"] for one in seen["findings"] if one["symptom"] == "clock_jump"][::-1]
    assert f"{messages} messages to be delivered again" in sentence
