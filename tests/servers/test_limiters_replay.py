"""What a jump did to a window that a real Redis keeps, counted twice: by the script itself on two clocks, and by
``tickscope limiters replay``.

The script's time is an argument: the same arrivals are decided by a clock that is stepped, whose decisions are
recorded, and by one that is not.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from agent.batch import make
from agent.common.host import boot_id as this_boot
from agent.common.resp import RedisUrl, RespClient
from agent.demo.limiter_part import SCRIPT
from agent.store.hot import HotStore
from agent.tables import TABLES
from tests.servers.test_limiter_models import asked
from tests.servers.test_redis_streams import Redis

S, MS = 10**9, 10**6
N, LIMIT, PER_S = 3_001, 40, 60
BASE = 1_790_000_000 * S
STEPS = (-500 * MS, 2 * S, -3600 * S)
RESULT = TABLES["limiter_decision"].by_name["result"]


class Ran(NamedTuple):
    store: Path
    settings: Path
    jumps: list[int]
    arrivals: np.ndarray
    stepped: np.ndarray
    quiet: dict[int, np.ndarray]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """3,001 requests around three steps; of each step, also what the script says where it is left out."""
    if not shutil.which("redis-server"):
        pytest.skip("needs redis-server")
    here = tmp_path_factory.mktemp("replay")
    server = Redis(here)
    redis = RespClient(RedisUrl.parse(server.url), timeout_s=30)
    rng = np.random.default_rng(7)
    t = 1_000 * S + np.cumsum(rng.exponential(S / PER_S, N)).astype(np.int64)
    jumps = [int(t[N * k // 4]) - 5 for k in (1, 2, 3)]
    wall = t + BASE + sum(size * (t >= at) for at, size in zip(jumps, STEPS, strict=True))
    script = re.sub(r"redis\.call\('PEXPIRE'.*\n", "", SCRIPT)

    def decided(clock: np.ndarray, key: str) -> np.ndarray:
        replies = asked(
            redis, [("EVAL", script, 1, key, ns // MS, 1000, LIMIT, i) for i, ns in enumerate(clock.tolist())]
        )
        return np.array(replies) >= 0

    stepped = decided(wall, "stepped")
    quiet = {at: decided(wall - size * (t >= at), f"without {at}") for at, size in zip(jumps, STEPS, strict=True)}
    server.end()
    hot = HotStore(here / "store", this_boot(), "host-a", seal_command=())
    offsets = [BASE, *(BASE + sum(STEPS[: k + 1]) for k in range(3))]
    hot.append(
        [
            make(
                "clock_offset",
                4,
                t_ns=np.array([900 * S, *jumps]),
                real_mono_ns=np.array(offsets),
                boot_mono_ns=0,
                err_ns=50,
                cut=np.array([0, 1, 1, 1]),
            ),
            make(
                "clock_change",
                3,
                t_ns=np.array(jumps),
                kind=TABLES["clock_change"].code("kind", "step"),
                size_ns=np.array(STEPS),
                err_ns=50,
                pid=9,
                comm=b"date",
                ret=0,
            ),
            make(
                "limiter_decision",
                N,
                t_ns=t,
                pid=77,
                proc_start_ns=5,
                comm=b"api",
                limiter_id=b"checkout",
                result=np.where(stepped, RESULT.code("allowed"), RESULT.code("refused")),
                cost=1.0,
                limit_per_s=float(LIMIT),
                window_ns=S,
                program_wall_ns=wall,
                sample_rate=1.0,
            ),
        ],
        int(t[-1]) + S,
    )
    hot.close()
    settings = here / "tickscope.yaml"
    settings.write_text("limiter_models:\n  'check*': {model: sliding log, clock: wall}\n")
    return Ran(here / "store", settings, jumps, t, stepped, quiet)


def replay(store: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent", "limiters", "replay", *args, "--store", str(store)],
        capture_output=True,
        text=True,
        env={**os.environ, "TICKSCOPE_CONFIG": ""},
        check=False,
    )


def rows(store: Path, *args: str) -> list[dict[str, Any]]:
    done = replay(store, *args, "-o", "json")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["rows"])


def test_counts_are_those_of_the_script_itself(ran: Ran) -> None:
    """To the request, each jump by itself: until the next one, or a minute after it."""
    found = rows(ran.store, "--jump", "all", "--config", str(ran.settings))
    assert [(row["jump_t_ns"], row["size_ns"], row["quality"], row["reason"]) for row in found] == [
        (at, size, "exact", "") for at, size in zip(ran.jumps, STEPS, strict=True)
    ]
    for row in found:
        meant = (ran.arrivals >= row["jump_t_ns"]) & (ran.arrivals <= row["until_ns"])
        program, true = ran.stepped[meant], ran.quiet[row["jump_t_ns"]][meant]
        assert row["decisions"] == meant.sum() > 300
        assert (row["admitted_program"], row["refused_program"]) == (program.sum(), (~program).sum())
        assert (row["admitted_true"], row["refused_true"]) == (true.sum(), (~true).sum())
        assert (row["over_admitted"], row["wrongly_refused"]) == ((program & ~true).sum(), (true & ~program).sum())
    back, forward, hour = found
    assert back["excess"] < -5  # what lies ahead of the clock counts
    assert 5 < forward["excess"] <= LIMIT  # the window was skipped
    assert hour["wrongly_refused"] > 300
    assert forward["jump_t_ns"] <= forward["excess_from_ns"] <= forward["excess_to_ns"] <= forward["until_ns"]


def test_a_jump_that_did_not_happen(ran: Ran) -> None:
    """Asked of the quiet time before the first: the script itself decides by a clock that is stepped there."""
    t = ran.arrivals[ran.arrivals < ran.jumps[0]]
    at = int(t[len(t) // 2]) - 3
    (row,) = rows(
        ran.store,
        "--what-if",
        "2s",
        "--at",
        f"boot+{at / S:.9f}",
        "--since",
        "boot+0",
        "--until",
        f"boot+{(ran.jumps[0] - 1) / S:.9f}",
        "--config",
        str(ran.settings),
    )
    assert (row["size_ns"], row["quality"], row["jump_t_ns"]) == (2 * S, "exact", at)
    later = t >= at
    assert (row["decisions"], row["admitted_true"]) == (later.sum(), ran.stepped[: len(t)][later].sum())
    assert 5 < row["excess"] <= LIMIT


def test_two_replicas_with_clocks_apart(ran: Ran) -> None:
    (row,) = rows(
        ran.store,
        "--window",
        "100ms",
        "--skew",
        "63ms",
        "--since",
        "boot+0",
        "--until",
        f"boot+{(ran.jumps[0] - 1) / S:.9f}",
        "--model",
        "fixed window",
        "--limit",
        "4",
    )
    assert row["most_same"] <= 4 < row["most_apart"] <= 8
    assert row["in_other_window"] / row["decisions"] == pytest.approx(0.63, abs=0.08)  # the skew's share of the window
    assert row["over_admitted"] > row["wrongly_refused"]


def test_which_jump_is_meant(ran: Ran) -> None:
    assert [row["jump_t_ns"] for row in rows(ran.store, "--jump", "last", "--config", str(ran.settings))] == ran.jumps[
        -1:
    ]
    assert [row["jump_t_ns"] for row in rows(ran.store, "--jump", f"boot+{ran.jumps[1] / S + 0.5:.3f}")] == ran.jumps[
        1:2
    ]
    for args, status, words in (
        (("--jump", "boot+5"), 3, "no jump within two seconds"),
        (("--jump", "the day before"), 2, "no jump 'the day before'"),
        (("--jump", "deadbeef"), 3, "no finding's id starts with deadbeef"),
        (("--jump", "last", "--limiter", "none*"), 3, "no limiter decisions"),
        (("--what-if", "1s", "--since", "boot+0", "--at", "boot+1"), 2, "outside the time of the decisions"),
    ):
        done = replay(ran.store, *args)
        assert done.returncode == status, done.stderr
        assert words in done.stderr


def test_what_is_not_known_is_reported(ran: Ran) -> None:
    """Without its algorithm nothing is counted; without its clock it is an estimate."""
    (row,) = rows(ran.store, "--jump", "last")
    assert (row["over_admitted"], row["quality"]) == (None, "")
    assert "limiter_models" in row["reason"]
    (row,) = rows(ran.store, "--jump", "last", "--model", "sliding log")
    assert row["quality"] == "estimated"
    assert "its clock is not known" in row["reason"]
    (row,) = rows(ran.store, "--jump", "last", "--model", "sliding log, in order", "--config", str(ran.settings))
    assert "differently from the program" in row["reason"]
