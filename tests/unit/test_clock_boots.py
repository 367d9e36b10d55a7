"""A store that outlives restarts of the agent and reboots of the machine: every boot's times are reported by that
boot's own history.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.common.host import boot_id as this_boot
from agent.store.hot import HotStore
from agent.tables import TABLES
from tests.commands import tickscope_text

S = 10**9
ROOT = Path(__file__).resolve().parents[2]
EARLIER = "11111111-2222-3333-4444-555555555555"
#: REALTIME - BOOTTIME: the earlier boot began at 1,800,000,000; it ran for an hour, and the machine was off for ten
#: minutes.
FIRST, SECOND = 1_800_000_000 * S, 1_800_004_200 * S
STEP = -2 * S


def samples(first_s: int, last_s: int, offset: int) -> np.ndarray:
    t = np.arange(first_s, last_s + 1, 10) * S
    return make("clock_offset", len(t), t_ns=t, real_mono_ns=offset, boot_mono_ns=0, err_ns=50, cut=0).rows


def decision(at_s: float, name: bytes) -> Batch:
    return make("limiter_decision", 1, t_ns=int(at_s * S), limiter_id=name, result=0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Of the earlier boot: an agent up to 1000 s, one from 2000 s (the clock was set back by 2 s while none ran), a
    step back to where it was at 3000 s; it crashes. Then this boot. All but the newest agent's rows are sealed.
    """
    path, step = tmp_path / "store", TABLES["clock_change"]
    for batches in (
        [Batch("clock_offset", samples(10, 1000, FIRST)), decision(500, b"first agent")],
        [
            Batch("clock_offset", np.concatenate([samples(2000, 2990, FIRST + STEP), samples(3010, 3600, FIRST)])),
            decision(2500, b"second agent"),
            make("clock_offset", 1, t_ns=3000 * S, real_mono_ns=FIRST, boot_mono_ns=0, err_ns=60, cut=1),
            make(
                "clock_change",
                1,
                t_ns=3000 * S,
                kind=step.code("kind", "step"),
                via=b"clock_settime",
                size_ns=-STEP,
                err_ns=110,
                pid=77,
                comm=b"date",
                ret=0,
            ),
            decision(3500, b"after the step"),
        ],
    ):
        hot = HotStore(path, EARLIER, "host", seal_command=())
        hot.append(batches)
        hot.close()
    seal = [
        sys.executable,
        "-m",
        "agent.store.seal",
        "--below",
        "99999999",
        "--max-bytes",
        str(1 << 30),
        "--max-age-s",
        "1e9",
    ]
    subprocess.run(seal, cwd=path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    hot = HotStore(path, this_boot(), "host", seal_command=())
    hot.append([Batch("clock_offset", samples(10, 900, SECOND)), decision(500, b"this boot")])
    hot.close()
    return path


def ask(store: Path, *argv: str, status: int = 0) -> list[dict[str, object]]:
    done = tickscope_text(*argv, "-o", "json", "--store", store)
    assert done.returncode == status, done.stderr
    return list(json.loads(done.stdout)["rows"]) if done.stdout else []


def iso(wall_ns: int) -> str:
    return f"{datetime.fromtimestamp(wall_ns // S, UTC):%Y-%m-%dT%H:%M:%S}.{wall_ns % S // 1000:06d}+00:00"


def test_rows_of_each_boot_have_that_boot_s_wall_time(store: Path) -> None:
    rows = ask(
        store, "query", "limiter_decision", "--columns", "limiter_id,boot_id,t_ns,wall_ns,wall_state,wall_err_ns"
    )
    seen = {r["limiter_id"]: r for r in rows}
    assert [r["limiter_id"] for r in rows] == ["first agent", "second agent", "after the step", "this boot"]
    assert {n: r["wall_ns"] for n, r in seen.items()} == {
        "first agent": FIRST + 500 * S,
        "second agent": FIRST + STEP + 2500 * S,
        "after the step": FIRST + 3500 * S,
        "this boot": SECOND + 500 * S,
    }
    assert {r["wall_state"] for r in rows} == {"exact"}
    assert all(50 <= int(str(r["wall_err_ns"])) <= 60 for r in rows)
    assert seen["first agent"]["t_ns"] == seen["this boot"]["t_ns"]
    assert (seen["first agent"]["boot_id"], seen["this boot"]["boot_id"]) == (EARLIER, this_boot())


def test_a_window_in_wall_time_goes_across_the_reboot(store: Path) -> None:
    rows = ask(
        store,
        "query",
        "limiter_decision",
        "--since",
        iso(FIRST + 3400 * S),
        "--until",
        iso(SECOND + 600 * S),
        "--columns",
        "limiter_id",
    )
    assert [r["limiter_id"] for r in rows] == ["after the step", "this boot"]


def test_convert_answers_for_whichever_boot_had_that_time(store: Path) -> None:
    (row,) = ask(store, "clock", "convert", iso(FIRST + 3500 * S))
    assert (row["boot_id"], row["t_ns"], row["state"]) == (EARLIER, 3500 * S, "exact")
    (row,) = ask(store, "clock", "convert", iso(SECOND + 500 * S))
    assert (row["boot_id"], row["t_ns"]) == (this_boot(), 500 * S)
    assert ask(store, "clock", "convert", iso(FIRST + 3900 * S), status=3) == []  # the machine was off


def test_ago_reaches_back_into_the_boot_before(tmp_path: Path) -> None:
    now, up = time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    off = 10 * 86_400 * S  # between the boots
    for boot, offset in ((EARLIER, now - up - off), (this_boot(), now - up)):
        hot = HotStore(tmp_path / "store", boot, "host", seal_command=())
        hot.append([Batch("clock_offset", samples(10, 1000, offset))])
        hot.close()
    (row,) = ask(tmp_path / "store", "clock", "convert", f"{(up + off) // S - 500}s", "ago")
    assert row["boot_id"] == EARLIER
    assert isinstance(row["t_ns"], int)
    assert 490 * S < row["t_ns"] < 530 * S
    assert row["err_ns"] is not None
    ask(tmp_path / "store", "clock", "convert", f"{up // S + 500}s", "ago", status=3)  # the machine was off


def test_convert_counts_from_the_boot_that_is_named(store: Path) -> None:
    (row,) = ask(store, "clock", "convert", "boot+500")
    assert (row["boot_id"], row["wall_ns"]) == (this_boot(), SECOND + 500 * S)
    for boot in ("-1", "1111", EARLIER):
        (row,) = ask(store, "clock", "convert", "boot+500", "--boot", boot)
        assert (row["boot_id"], row["wall_ns"]) == (EARLIER, FIRST + 500 * S)
    (row,) = ask(store, "clock", "convert", "mono+2500.000000001", "--boot", "-1")
    assert row["wall_ns"] == FIRST + STEP + 2500 * S + 1
    for boot in ("-2", "9999"):
        ask(store, "clock", "convert", "boot+500", "--boot", boot, status=2)


def test_what_happened_while_no_agent_ran_is_in_the_error(store: Path) -> None:
    """Somewhere between 1000 and 2000 s the clock went back: the row that would say when is missing, and both offsets
    are within the bound.
    """
    (row,) = ask(store, "clock", "convert", "boot+1500", "--boot", "-1")
    assert row["wall_ns"] == FIRST + 1500 * S
    assert int(str(row["err_ns"])) >= -STEP


def test_history_shows_both_boots_and_who_stepped(store: Path) -> None:
    rows = ask(store, "clock", "history")
    assert [(r["boot_id"] == EARLIER, r["step_ns"], r["comm"]) for r in rows] == [
        (True, None, None),
        (True, STEP, None),
        (True, -STEP, "date"),
        (False, None, None),
    ]
    since = ask(store, "clock", "history", "--since", iso(SECOND))
    assert [r["boot_id"] for r in since] == [this_boot()]
