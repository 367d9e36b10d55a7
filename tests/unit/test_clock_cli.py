"""tickscope clock: state, history and its plots, conversion of times that occurred twice or never; on stores with known
steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.cli.clock_series import ClockSeries, WallStep
from agent.cli.clock_text import across, arrows
from agent.common.host import boot_id as this_boot
from agent.store.hot import HotStore
from agent.tables import TABLES
from tests import commands
from tests.commands import tickscope_text

S, MS = 10**9, 10**6
BASE = 1_800_000_000 * S
#: (seconds after T0, size): 2 s back, then 3 s forward.
STEPS = ((300, -2 * S), (600, 3 * S))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of this boot: 900 s of samples ending now, with two steps by chronyd."""
    end = (
        max(int(float(Path("/proc/uptime").read_text().split()[0])) - 1, 905) * S
    )  # also on a machine that has just started
    t0 = end - 900 * S
    change, samples = TABLES["clock_change"], []
    offset = BASE
    times = np.arange(t0, end + 1, 10 * S)
    for t in times[~np.isin(times, [t0 + at * S for at, _ in STEPS])]:
        offset = BASE + sum(size for at, size in STEPS if t0 + at * S <= t)
        samples.append(
            make(
                "clock_offset",
                1,
                t_ns=t,
                real_mono_ns=offset,
                boot_mono_ns=0,
                mono_raw_ns=(t - t0) // 100_000,
                err_ns=50,
                freq_ppb=10_000,
                cut=0,
            )
        )
    batches = [Batch("clock_offset", np.concatenate([b.rows for b in samples]))]
    for at, size in STEPS:
        now = BASE + sum(s for a, s in STEPS if a <= at)
        batches += [
            make(
                "clock_offset", 1, t_ns=t0 + at * S, real_mono_ns=now, boot_mono_ns=0, err_ns=60, freq_ppb=10_000, cut=1
            ),
            make(
                "clock_change",
                1,
                t_ns=t0 + at * S,
                kind=change.code("kind", "step"),
                via=b"adjtimex",
                size_ns=size,
                err_ns=110,
                pid=812,
                comm=b"chronyd",
                ret=0,
            ),
        ]
    daemon = TABLES["clock_daemon"]
    for age, state, source in (
        (700, "unsynchronised", b"10.1.2.3"),
        (60, "synchronised", b"10.9.9.9"),
        (5, "synchronised", b"10.1.2.3"),
    ):
        batches.append(
            make(
                "clock_daemon",
                1,
                t_ns=end - age * S,
                daemon=b"chrony",
                kind=daemon.code("kind", "system"),
                state=daemon.code("state", state),
                source=source,
                offset_ns=-12_000,
                distance_ns=3 * MS,
                root_delay_ns=MS,
                root_dispersion_ns=2 * MS,
                stratum=3,
                leap=1,
                ref_id=b"10.1.2.3",
                last_update_ns=end - 40 * S,
                update_interval_ns=64 * S,
                freq_ppb=-12_345,
                skew_ppb=21,
            )
        )
    batches.append(
        make(
            "clock_daemon",
            1,
            t_ns=end - 4 * S,
            daemon=b"sntp",
            kind=daemon.code("kind", "source"),
            state=daemon.code("state", "synchronised"),
            source=b"time.example.org",
            offset_ns=9 * MS,
            distance_ns=MS,
            stratum=2,
        )
    )
    batches.append(
        make(
            "clock_daemon",
            1,
            t_ns=end - 4 * S,
            daemon=b"chrony",
            kind=daemon.code("kind", "check"),
            state=daemon.code("state", "disagree"),
            source=b"sntp time.example.org",
            offset_ns=9 * MS,
            reason=b"apart by 9 ms, where 4 ms are allowed",
        )
    )
    batches.append(
        make(
            "clock_daemon",
            1,
            t_ns=end - 650 * S,
            daemon=b"ntpd",
            kind=daemon.code("kind", "system"),
            state=daemon.code("state", "silent"),
        )
    )
    hot = HotStore(tmp_path / "store", this_boot(), "host-a", seal_command=())
    hot.append(batches, end)
    hot.close()
    (tmp_path / "t0").write_text(str(t0))
    return tmp_path / "store"


def t0(store: Path) -> int:
    return int((store.parent / "t0").read_text())


def clock(store: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return tickscope_text("clock", *argv, "--store", store, **{"TICKSCOPE_RUN_DIR": str(store.parent), **env})


def on_terminal(store: Path, *argv: str, columns: int = 100, **env: str) -> str:
    return commands.on_terminal(
        "clock", *argv, "--store", store, columns=columns, TICKSCOPE_RUN_DIR=str(store.parent), **env
    )


def test_the_state_at_a_glance(store: Path) -> None:
    done = clock(store)
    lines = dict(
        line.split(maxsplit=1) for line in done.stdout.splitlines() if line and line[0].isalpha() and " " in line
    )
    assert done.returncode == 0
    assert lines["synchronised"].startswith(("yes;", "NO: "))
    assert "forward by 3s, " in done.stdout and "by chronyd pid 812 (adjtimex)" in done.stdout
    assert "no agent answers" in done.stderr
    doc = json.loads(clock(store, "-o", "json").stdout)
    (row,) = doc["rows"]
    assert (row["last_jump"]["size_ns"], row["last_jump"]["comm"]) == (3 * S, "chronyd")
    assert (row["drift_ppb"], row["pending_reanchorings"]) == (None, None)
    assert len(doc["changes"]) == 2
    assert abs(row["real_mono_ns"]) > 0 and row["leap_indicator"] in (0, 1, 2, 3)


def test_the_state_reports_what_the_daemons_believe_and_who_disagrees(store: Path) -> None:
    shown = clock(store).stdout
    assert "chrony          synchronised to 10.1.2.3, stratum 3; our clock is 12us fast, within 3ms; updated " in shown
    assert (
        "root delay 1ms, root dispersion 2ms, updates each 64s, frequency -12.345 ppm, skew 0.021 ppm, leap insert,"
        " reference 10.1.2.3" in shown
    )
    assert "DISAGREES with sntp time.example.org: apart by 9 ms" in shown
    assert "sntp            synchronised to time.example.org, stratum 2; our clock is 9ms slow, within 1ms" in shown
    assert "ntpd" not in shown  # it has not been heard of for long
    assert "unsynchronised" not in shown.partition("chrony")[2]
    assert shown.count("\nchrony ") == 1  # what it believed of its source before is over
    reported = json.loads(clock(store, "-o", "json").stdout)["daemons"]
    assert [(d["daemon"], d["kind"], d["offset_ns"]) for d in reported] == [
        ("chrony", "system", -12_000),
        ("chrony", "check", 9 * MS),
        ("sntp", "source", 9 * MS),
    ]


def test_daemons_not_seen_for_long_are_gone_though_nobody_is_seen_since(store: Path) -> None:
    later = t0(store) + 1600 * S
    hot = HotStore(store, this_boot(), "host-a", seal_command=())
    hot.append([make("clock_offset", 1, t_ns=later, real_mono_ns=BASE + S, boot_mono_ns=0, err_ns=50, cut=0)], later)
    hot.close()
    assert "chrony " not in clock(store).stdout.partition("last jump")[0]


def test_history_rows_report_who_stepped(store: Path) -> None:
    rows = json.loads(clock(store, "history", "-o", "json").stdout)["rows"]
    assert [(r["step_ns"], r["comm"], r["via"]) for r in rows] == [
        (None, None, None),
        (-2 * S, "chronyd", "adjtimex"),
        (3 * S, "chronyd", "adjtimex"),
    ]


def test_history_since_then_still_reports_what_began_before(store: Path) -> None:
    argv = [
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
    subprocess.run(
        argv, cwd=store, env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}, check=True
    )
    end = t0(store) + 900 * S
    hot = HotStore(store, this_boot(), "host-a", seal_command=())
    hot.append(
        [
            make(
                "clock_offset",
                1,
                t_ns=end + S // 2,
                real_mono_ns=BASE + S,
                boot_mono_ns=0,
                err_ns=50,
                freq_ppb=10_000,
                cut=0,
            )
        ],
        end + S // 2,
    )
    hot.close()
    rows = json.loads(clock(store, "history", "--since", f"boot+{(end + 1) / S:.9f}", "-o", "json").stdout)["rows"]
    assert [(r["t_ns"], r["step_ns"], r["comm"], r["via"]) for r in rows] == [
        (t0(store) + 600 * S, 3 * S, "chronyd", "adjtimex")
    ]


def test_a_name_of_a_process_does_not_act_on_the_terminal(tmp_path: Path) -> None:
    now, change = time.clock_gettime_ns(time.CLOCK_BOOTTIME), TABLES["clock_change"]
    hot = HotStore(tmp_path / "store", this_boot(), "host-a", seal_command=())
    sample = {"boot_mono_ns": 0, "err_ns": 50, "mono_raw_ns": 0, "freq_ppb": 0}
    hot.append(
        [
            *(
                make("clock_offset", 1, t_ns=now - age * S, real_mono_ns=BASE + at, cut=cut, **sample)
                for age, at, cut in ((20, 0, 0), (10, MS, 1), (1, MS, 0))
            ),
            make(
                "clock_change",
                1,
                t_ns=now - 10 * S,
                kind=change.code("kind", "step"),
                via=b"adjtimex",
                size_ns=MS,
                err_ns=99,
                pid=812,
                comm=b"\xff\x1b[2J\n",
                ret=0,
            ),
        ],
        now,
    )
    hot.close()
    for shown in (
        clock(tmp_path / "store").stdout,
        clock(tmp_path / "store", "history").stdout,
        on_terminal(tmp_path / "store", "history", NO_COLOR="1"),
    ):
        assert "\\x1b[2J" in shown and "\x1b" not in shown


def test_a_pipe_gets_rows_only_and_a_terminal_a_plot_too(store: Path) -> None:
    rows = clock(store, "history").stdout
    assert "▲" not in rows and {"-2s", "3s"} <= set(rows.split())
    shown = on_terminal(store, "history")
    for part in (
        "2 jumps of the wall clock",
        "▲",
        "▼",
        "⡇",
        "-2s  chronyd 812 (adjtimex)",
        "+3s",
        "\x1b[36m",
        "step_ns",
    ):
        assert part in shown, shown
    assert "\x1b[" not in on_terminal(store, "history", NO_COLOR="1")
    assert (
        "comm" in on_terminal(store, "history", NO_COLOR="1", columns=80).split()
    )  # before it, the offset itself is left out
    assert max(len(line) for line in on_terminal(store, "history", NO_COLOR="1", columns=60).splitlines()[:14]) <= 60


@pytest.mark.parametrize(
    ("jumps", "lines"),
    [
        (((100, -2), (101, 3), (400, 3)), [f"{'▲':>9}{'▲':>24}", f"{'▼':>9}"]),
        (((100, -2), (400, 3)), [f"{'▼':>9}{'▲':>24}"]),
        (((100, 2), (101, 3)), [f"{'▲':>9}"]),
        ((), []),
    ],
)
def test_each_jump_has_an_arrow(jumps: Sequence[tuple[int, int]], lines: list[str]) -> None:
    """Also of two jumps in opposite directions in one column."""
    steps = [WallStep(at * S, size * S, "", BASE + at * S) for at, size in jumps]
    series = ClockSeries("h", 0, 900 * S, BASE, np.array([0]), np.array([0]), np.array([50]), steps, len(steps))
    assert arrows(series, 73, across(series, 73), plain=False, colour=False) == lines


def test_a_plot_can_be_asked_for_in_a_pipe(store: Path) -> None:
    done = clock(store, "history", "--plot", PYTHONIOENCODING="utf-8")
    assert "▲" in done.stdout and "boot_id" not in done.stdout and "\x1b" not in done.stdout
    plain = clock(store, "history", "--plot", PYTHONIOENCODING="ascii").stdout
    assert "^" in plain and "*" in plain and "\\u" not in plain


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["history", "--plot", "--until", "2h"], 3, "no offset history"),
        (["convert", "the day before"], 2, "boot+SECONDS"),
        (["convert", "1999-01-01"], 3, "does not reach"),
        *(
            (["convert", far], 2, "cannot convert")
            for far in ("9999-12-31", "boot+99999999999999999999", "mono+99999999999", "@9999999999999", "99999999999d")
        ),
    ],
)
def test_what_cannot_be_done_reports_why(store: Path, argv: list[str], status: int, words: str) -> None:
    done = clock(store, *argv)
    assert done.returncode == status, done.stderr
    assert words in done.stderr


def convert(store: Path, wall_ns: int) -> dict[str, object]:
    moment = f"{datetime.fromtimestamp(wall_ns // S, UTC):%Y-%m-%dT%H:%M:%S}.{wall_ns % S // 1000:06d}+00:00"
    (row,) = json.loads(clock(store, "convert", moment, "-o", "json").stdout)["rows"]
    return dict(row)


def test_nanoseconds_count_and_what_json_reports_can_be_asked_again(store: Path) -> None:
    wall_ns = BASE + t0(store) + 123_456_789
    moment = f"{datetime.fromtimestamp(wall_ns // S, UTC):%Y-%m-%dT%H:%M:%S}.{wall_ns % S:09d}Z"
    for text in (moment, f"@{wall_ns // S}.{wall_ns % S:09d}"):
        (row,) = json.loads(clock(store, "convert", text, "-o", "json").stdout)["rows"]
        assert (row["wall_ns"], row["t_ns"]) == (wall_ns, wall_ns - BASE)


def test_a_time_that_occurred_twice_gives_both_answers(store: Path) -> None:
    step = t0(store) + 300 * S
    row = convert(store, BASE + step - S)
    assert (row["state"], row["t_ns"], row["alt_ns"]) == ("ambiguous", step - S, step + S)
    shown = clock(store, "convert", f"@{(BASE + step - S) / 1e9:.9f}").stdout
    assert f"boot+{(step + S) / 1e9:.6f}" in shown


def test_a_time_that_was_skipped_gives_the_step(store: Path) -> None:
    step = t0(store) + 600 * S
    row = convert(store, BASE - 2 * S + step + S)
    assert (row["state"], row["t_ns"], row["alt_ns"]) == ("skipped", step, None)


def test_a_plain_time_both_ways(store: Path) -> None:
    t = t0(store) + 100 * S
    row = convert(store, BASE + t)
    assert (row["state"], row["t_ns"], row["err_ns"]) == ("exact", t, 50)
    (back,) = json.loads(clock(store, "convert", f"boot+{t / S}", "-o", "json").stdout)["rows"]
    assert back["wall_ns"] == BASE + t


def test_what_nobody_watched_is_extrapolated_and_its_bound_grows(store: Path) -> None:
    """Years ahead, by either clock: not exact within nanoseconds."""
    end = t0(store) + 900 * S
    ahead = (
        "boot+99999999",
        "2031-01-01",
        f"boot+{(end + 100 * S) / S}",
        f"boot+{(t0(store) - 50 * S) / S}" if t0(store) > 50 * S else "boot+0",
    )
    rows = [json.loads(clock(store, "convert", text, "-o", "json").stdout)["rows"][0] for text in ahead]
    assert {row["state"] for row in rows} == {"extrapolated"}
    for row in rows:
        away = max(row["t_ns"] - end, t0(store) - row["t_ns"])
        seen = 5 / 900  # the steps of this store: 2 s and 3 s in 900 s
        assert row["err_ns"] == pytest.approx(50 + away * (500e-6 + seen), rel=1e-3)
    assert clock(store, "convert", "@1").returncode == 3  # before the boot there is nothing


def test_5m_ago(store: Path) -> None:
    """As --help offers it; and as bounds elsewhere."""
    now = int(float(Path("/proc/uptime").read_text().split()[0])) * S
    for words in (["5m ago"], ["5m", "ago"], ["5m"]):
        done = clock(store, "convert", *words, "-o", "json")
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(done.stdout)["rows"]
        assert now - 310 * S < row["t_ns"] < now - 280 * S
        assert row["wall_ns"] == row["t_ns"] + BASE + (S if row["t_ns"] >= t0(store) + 600 * S else -2 * S)
    assert clock(store, "history", "--since", "5m ago").returncode == 0
    assert clock(store, "convert", "ago").returncode == 2
    (row,) = json.loads(clock(store, "convert", f"boot+{now / S - 300}", "-o", "json").stdout)["rows"]
    assert row["state"] == "exact"


def test_rows_until_an_agent_ended_are_exact(store: Path) -> None:
    """Its last row of the offsets may be ten seconds old: a step would have made one."""
    end = t0(store) + 900 * S
    hot = HotStore(store, this_boot(), "host-a", seal_command=())
    hot.append([make("tcp_reset", 2, t_ns=[t0(store) - 10 * S, end + 9 * S])], end + 9 * S)
    hot.close()
    command = [
        sys.executable,
        "-m",
        "agent",
        "query",
        "tcp_reset",
        "--columns",
        "wall_state,wall_err_ns",
        "-o",
        "json",
        "--store",
        str(store),
    ]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["rows"]
    assert [row["wall_state"] for row in rows] == ["extrapolated", "exact"]
    assert rows[0]["wall_err_ns"] > 50_000_000 > rows[1]["wall_err_ns"]


def written(path: Path, t_ns: list[int], steps: dict[int, int]) -> Path:
    """A store with samples at these times, and jumps of these sizes at these."""
    change, offset, batches = TABLES["clock_change"], BASE, []
    for t in sorted({*t_ns, *steps}):
        offset += steps.get(t, 0)
        batches.append(
            make(
                "clock_offset",
                1,
                t_ns=t,
                real_mono_ns=offset,
                boot_mono_ns=0,
                mono_raw_ns=0,
                err_ns=50,
                freq_ppb=0,
                cut=int(t in steps),
            )
        )
        if t in steps:
            batches.append(
                make(
                    "clock_change",
                    1,
                    t_ns=t,
                    kind=change.code("kind", "step"),
                    via=b"clock_settime",
                    size_ns=steps[t],
                    pid=t % 1000 + 1,
                    comm=b"date",
                )
            )
    hot = HotStore(path, this_boot(), "host-a", seal_command=())
    hot.append(batches, max(t_ns))
    hot.close()
    return path


def test_every_one_of_six_jumps_close_together_is_named(tmp_path: Path) -> None:
    steps = {100 * S + i: (-1) ** i * (i + 1) * 100 * MS for i in range(6)}
    store = written(tmp_path / "store", [s * S for s in range(60, 200, 10)], steps)
    lines = clock(store, "history", "--plot", PYTHONIOENCODING="utf-8").stdout.splitlines()
    assert sorted(t.split()[-2] for t in lines if "(clock_settime)" in t) == [str(i + 1) for i in range(6)]
    assert not any(t.startswith("  and ") for t in lines)


def test_what_nobody_watched_is_not_drawn_as_known(tmp_path: Path) -> None:
    """Samples for 100 s, none for 800 s, then some again with another offset."""
    before, after = range(100, 200, 10), range(1000, 1100, 10)
    store = written(tmp_path / "store", [s * S for s in (*before, *after)], {1000 * S: 5 * S})
    shown = clock(store, "history", "--plot", PYTHONIOENCODING="utf-8").stdout
    assert "? not watched for 810s" in shown
    drawn = [line[30:70] for line in shown.splitlines()[1:13]]
    assert not any("\u2800" < c < "\u2900" for line in drawn for c in line)
    assert "?" * 40 in shown


def test_a_clock_that_was_stepped_without_end_is_shown_as_far_as_there_is_room(tmp_path: Path) -> None:
    """A step a minute for two weeks, back and forth, one of them larger."""
    n, change = 20_160, TABLES["clock_change"]
    t_ns, size = np.arange(n) * 60 * S, np.arange(n) % 2 * 600 * MS - 300 * MS
    size[7_000] = 40 * S
    hot = HotStore(tmp_path / "store", "0f0f0f0f-0000-4000-8000-000000000001", "host-a", seal_command=())
    sample = {
        "real_mono_ns": BASE + np.cumsum(size),
        "boot_mono_ns": 0,
        "err_ns": 60,
        "mono_raw_ns": 0,
        "freq_ppb": np.arange(n),
    }
    hot.append(
        [
            make("clock_offset", n, t_ns=t_ns, cut=1, **sample),
            make("clock_offset", n, t_ns=t_ns + 30 * S, cut=0, **sample),
            make(
                "clock_change",
                n,
                t_ns=t_ns,
                kind=change.code("kind", "step"),
                via=b"settimeofday",
                size_ns=size,
                pid=np.arange(n) + 1,
                comm=b"stepper",
                ret=0,
            ),
        ]
    )
    hot.close()
    store = tmp_path / "store"
    shown = clock(store, "history")
    assert len(shown.stdout.splitlines()) == 1_001
    assert "the newest 1,000 of 20,160 segments; --limit 20160 shows all" in shown.stderr
    rows = json.loads(clock(store, "history", "--limit", "3", "-o", "json").stdout)["rows"]
    assert [(r["t_ns"], r["step_ns"], r["pid"]) for r in rows] == [
        (i * 60 * S, int(size[i]), i + 1) for i in range(n - 3, n)
    ]
    some = clock(store, "history", "--since", "boot+600", "--until", "boot+900", "-o", "ndjson")
    assert [json.loads(line)["pid"] for line in some.stdout.splitlines()] == [10, 11, 12, 13, 14, 15]
    drawn = clock(store, "history", "--plot", PYTHONIOENCODING="utf-8").stdout
    assert "20,159 jumps of the wall clock" in drawn
    assert "+40s  stepper 7001 (settimeofday)" in drawn
    assert "and 20,153 smaller" in drawn
