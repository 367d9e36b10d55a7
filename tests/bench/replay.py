"""What a replay of 1 M decisions across ten jumps takes of a processor, by model: ``python -m tests.bench.replay
[--decisions 1000000] [--only gcra]``. No root.

One limiter that is asked all the time and refuses two of five; its clock is stepped each minute, so that each decision
is near a jump and decided twice at least. What was decided is what the model itself says. Processor time (user and
system), so that others on the machine do not count. Linear: a tenth of the decisions should take a tenth.
"""

from __future__ import annotations

import time

import numpy as np

from agent.batch import make
from agent.limiters.model_settings import Declared
from agent.limiters.models.catalogue import MODELS
from agent.limiters.models.model import SECOND, Arrivals, Model
from agent.limiters.replay.grouped import starts_of
from agent.limiters.replay.jump import Decisions, Jump
from agent.limiters.replay.outcome import TwoClocks
from agent.limiters.replay.ruled import ruled
from agent.tables import TABLES
from tests.bench.common import Figure, arguments, report

JUMPS, EVERY_S, BASE = 10, 60, 1_790_000_000 * SECOND
STEPS_S = (-0.5, 2.0, 0.063, -2.0, 3600.0, -1.0, 0.5, -0.1, 10.0, -0.9)
RESULT = TABLES["limiter_decision"].by_name["result"]


def recorded(model: Model, n: int, keys: int = 1, seed: int = 7) -> tuple[Decisions, list[Jump]]:
    """n decisions in eleven minutes, and the ten jumps between them."""
    rng = np.random.default_rng(seed)
    length_s = EVERY_S * (JUMPS + 1)
    t = 1_000 * SECOND + np.sort(rng.integers(0, length_s * SECOND, n))
    at = [1_000 * SECOND + EVERY_S * SECOND * (k + 1) for k in range(JUMPS)]
    sizes = [int(size * SECOND) for size in STEPS_S]
    wall = t + BASE + sum(size * (t >= one) for one, size in zip(at, sizes, strict=True))
    key = rng.integers(0, keys, n)
    per_s = max(round(0.6 * n / length_s / keys), 1)
    declared = Declared(
        "*",
        model.name,
        "wall",
        per_s=per_s,
        burst=per_s,
        count=per_s,
        window_ns=SECOND,
        slots=2 if "leap" in model.name else 10,
    )
    rows = make(
        "limiter_decision",
        n,
        t_ns=t,
        pid=77,
        proc_start_ns=5,
        comm=b"api",
        limiter_id=b"checkout",
        cost=1.0,
        limit_per_s=float(per_s),
        burst=float(per_s),
        window_ns=SECOND,
        program_wall_ns=wall,
        sample_rate=1.0,
    )[1]
    limit = ruled(rows[0], (declared,)).limit
    if keys > 1:
        rows["key"] = key.astype("S8")
    by_key = np.argsort(key, kind="stable")
    admitted = np.empty(n, np.bool_)
    admitted[by_key] = model.decide(Arrivals.of(wall[by_key], starts=starts_of(key[by_key])), limit)
    output = RESULT.code("delayed" if model.delays else "refused")
    rows["result"] = np.where(admitted, RESULT.code("allowed"), output)
    ends = [*at[1:], int(t[-1])]
    jumps = [
        Jump(one, size, one + BASE + sum(sizes[:k]), end - 1)
        for k, (one, size, end) in enumerate(zip(at, sizes, ends, strict=True))
    ]
    return Decisions(rows, int(t[0]), declarations=(declared,)), jumps


def replayed_s(decisions: Decisions, jumps: list[Jump]) -> tuple[float, list[TwoClocks]]:
    """(processor time, what came out)."""
    begun = time.process_time()
    found = [one for jump in jumps for one in decisions.around(jump)]
    return time.process_time() - begun, found


def main() -> None:
    given = arguments(
        __doc__,
        decisions=(1_000_000, "of one limiter"),
        keys=(1, "that it counts apart"),
        only=("", "a model's name, or a part of it"),
    )
    for model in (one for one in MODELS.values() if given.only in one.name):
        whole, part = recorded(model, given.decisions, given.keys), recorded(model, given.decisions // 10, given.keys)
        runs = [replayed_s(*whole) for _ in range(given.pairs)]
        small = Figure([replayed_s(*part)[0] for _ in range(given.pairs)])
        took = Figure([took for took, _ in runs])
        found = runs[0][1]
        report(
            f"replay of {given.decisions:,} decisions, ten jumps: {model.name}",
            f"{took.text('.2f')} s",
            f"a tenth of them {small.text('.3f')} s: {took.median / small.median:.1f} times; {len(found)} of 10,"
            f" {found[0].quality if found else '-'} {found[0].reason if found else ''}",
            "2 s",
        )


if __name__ == "__main__":
    main()
