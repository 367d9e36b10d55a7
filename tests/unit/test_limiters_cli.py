"""What the limiter family makes of its records, the catalogue, and ``tickscope limiters``."""

from __future__ import annotations

import json
import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.common.host import boot_id as this_boot
from agent.instruments.limiters.decisions import at_once, unnamed
from agent.instruments.limiters.limiter_waits import MOST, Waits
from agent.kernel.loaded_families import BPF_DIR
from agent.kernel.wire_structs import Wire
from agent.limiters.catalogue import CATALOGUE, look_up, seen
from agent.limiters.gotime import elapsed_ns, unix_ns
from agent.store.hot import HotStore
from agent.tables import TABLES
from tests.commands import tickscope_text

ROOT = Path(__file__).resolve().parents[2]
RESULT = TABLES["limiter_decision"].by_name["result"]
_SECOND_1_OF_1970 = 62_135_596_800  # seconds from the year 1


def monotonic(unix_s: int, ns: int, reading_ns: int) -> tuple[int, int]:
    """time.Time's two words with a monotonic reading."""
    return 1 << 63 | (unix_s + 2_682_288_000) << 30 | ns, reading_ns


def plain(unix_s: int, ns: int) -> tuple[int, int]:
    return ns, (unix_s + _SECOND_1_OF_1970) % (1 << 64)


def words(*times: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(times, np.uint64)
    return array[:, 0], array[:, 1]


def test_go_times() -> None:
    day = int(datetime(2031, 5, 6, tzinfo=UTC).timestamp())
    times = words(monotonic(day, 123_456_789, 42), plain(day, 5), plain(-1, 999_999_999), (0, 0), (7, 1 << 63))
    assert unix_ns(*times).tolist() == [day * 10**9 + 123_456_789, day * 10**9 + 5, -1, NULL_I64, NULL_I64]


def test_go_time_differences() -> None:
    later = words(monotonic(100, 0, 900), monotonic(100, 0, 900), plain(100, 7), (0, 0))
    earlier = words(monotonic(5000, 0, 400), plain(99, 999_999_000), plain(99, 0), plain(99, 0))
    assert elapsed_ns(*later, *earlier).tolist() == [500, 1000, 1_000_000_007, NULL_I64]


def records(n: int) -> np.ndarray:
    wire = Wire.read(BPF_DIR / "events.h", BPF_DIR / "tickscope.h", BPF_DIR / "limiter_decision.h")
    r = np.zeros(n, wire.dtype("limiter_decision"))
    r["library"] = list(seen()).index("golang.org/x/time/rate")
    r["limit"], r["tokens"] = np.float64(10).view(np.uint64), np.float64(2).view(np.uint64)
    r["burst"], r["n"], r["every"], r["reserved"], r["ok"] = 5, 3, 1, 1, 1
    r["limiter"] = 0xC000012340
    r["now_wall"], r["now_ext"] = monotonic(1000, 0, 2_000_000_000)
    r["act_wall"], r["act_ext"] = r["now_wall"], r["now_ext"]
    r["last_wall"], r["last_ext"] = monotonic(999, 0, 1_900_000_000)
    return r


def test_decisions() -> None:
    r = records(6)
    r["act_ext"][1] += np.uint64(70)
    r["ok"][2:5] = 0
    r["reserved"][2:4] = 0
    r["n"][2] = 6  # beyond the burst; what else ends without a reservation, its caller gave up
    r["last_wall"][4] = r["last_ext"][4] = 0
    r["limit"][5] = r["burst"][5] = r["tokens"][5] = ~np.uint64(0)  # could not be read
    r["every"][5] = 4
    (batch,) = at_once(r, unnamed)
    rows = batch.rows
    assert [RESULT.names[i] for i in rows["result"]] == [
        "allowed",
        "delayed",
        "refused",
        "cancelled",
        "refused",
        "allowed",
    ]
    assert rows["wait_ns"].tolist() == [0, 70, NULL_I64, NULL_I64, NULL_I64, 0]
    assert rows["remaining"][:5].tolist() == [
        2,
        2,
        3,
        3,
        5,
    ]  # 0.1 s at 10 a second since ``last``; a fresh bucket is full
    assert np.isnan([rows["remaining"][5], rows["burst"][5], rows["limit_per_s"][5]]).all()
    assert rows["sample_rate"].tolist() == [1, 1, 1, 1, 1, 0.25]
    assert set(rows["limiter_id"]) == {b"rate.Limiter@?"}
    assert set(rows["member"]) == {0xC000012340}
    assert set(rows["step_immune"]) == {1}


def test_no_limit_is_a_word_and_no_number() -> None:
    """rate.Inf is the largest double."""
    r = records(3)
    r["limit"] = np.array([np.finfo(np.float64).max, np.inf, 5.0]).view(np.uint64)
    (batch,) = at_once(r, unnamed)
    assert np.isnan(batch.rows["limit_per_s"][:2]).all()
    assert batch.rows["limit_per_s"][2] == 5
    assert batch.rows["unlimited"].tolist() == [1, 1, 0]


def asleep(goroutines: list[int], wait_ns: int = 50 * 10**6) -> np.ndarray:
    r = records(len(goroutines))
    r["act_ext"] += np.uint64(wait_ns)
    r["goroutine"], r["asleep"], r["t_ns"], r["duration_ns"] = goroutines, 1, 10**9, 1000
    return r


def woken(goroutines: list[int], ok: int, t_ns: int) -> np.ndarray:
    r = records(len(goroutines))
    r["goroutine"], r["woke"], r["ok"], r["t_ns"] = goroutines, 1, ok, t_ns
    return r


def lines(waits: Waits, now_ns: int) -> list[tuple[int, str, int, int]]:
    rows = np.concatenate(
        [TABLES["limiter_decision"].empty(0), *(b.rows for b in waits.drain(now_ns) if b.table == "limiter_decision")]
    )
    return [(int(r["goroutine"]), RESULT.names[r["result"]], int(r["t_ns"]), int(r["duration_ns"])) for r in rows]


def test_a_wait_is_reported_when_it_ends_however_records_are_cut() -> None:
    both = np.concatenate([asleep([1, 2, 3]), woken([2, 9], 0, 1_020_000_000), woken([1], 1, 1_050_000_000)])
    for cut in range(len(both) + 1):
        waits, out = Waits(unnamed), []
        for part in (both[:cut], both[cut:]):
            waits.feed(part)
            out += lines(waits, 1_060_000_000)
        assert sorted(out) == [(1, "delayed", 1_050_000_000, 50_001_000), (2, "cancelled", 1_020_000_000, 20_001_000)]
        assert lines(waits, 2_050_000_000) == []
        assert lines(waits, 2_050_000_001) == [(3, "delayed", 10**9, 1000)]  # nobody saw its end
        assert lines(waits, 1 << 62) == []


def test_a_goroutine_that_decides_anew_has_woken_up() -> None:
    waits = Waits(unnamed)
    waits.feed(np.concatenate([asleep([1]), asleep([1]), woken([1], 0, 1_020_000_000)]))
    assert [result for _, result, _, _ in lines(waits, 10**9)] == ["delayed", "cancelled"]


def test_a_reservation_that_is_given_back_is_refused_or_cancelled_however_records_are_cut() -> None:
    """At once, later, never; another one, too late, and that of another limiter."""
    reserved, given = asleep([1, 2, 3, 4, 5]), woken([1, 2, 4, 5], 0, 10**9 + 5000)
    reserved["asleep"], given["woke"] = 2, 2
    given["t_ns"][1] += 50_000_000
    given["limiter"][2] += np.uint64(80)
    given["n"][3] += np.uint64(1)
    both = np.concatenate([reserved, given])
    for cut in range(len(both) + 1):
        waits, out = Waits(unnamed), []
        for part in (both[:cut], both[cut:]):
            waits.feed(part)
            out += lines(waits, 1_060_000_000)
        out += lines(waits, 1_100_000_001)
        assert [(goroutine, result, t_ns) for goroutine, result, t_ns, _ in sorted(out)] == [
            (1, "refused", 10**9),
            (2, "cancelled", 10**9),
            (3, "delayed", 10**9),
            (4, "delayed", 10**9),
            (5, "delayed", 10**9),
        ]


def test_more_sleepers_than_are_held_are_reported_early_and_that_is_reported() -> None:
    waits = Waits(unnamed)
    waits.feed(asleep(list(range(1, MOST + 6)), wait_ns=10**12))
    batches = list(waits.drain(10**9))
    assert [(b.table, len(b.rows)) for b in batches] == [("limiter_decision", 5), ("probe_status", 1)]
    assert batches[1].rows["reason"][0].startswith(b"5 waits")
    (rest,) = waits.finish(10**9, lambda _s: None)
    assert len(rest.rows) == MOST


def test_catalogue() -> None:
    old, new = look_up("golang.org/x/time/rate", "v0.1.0"), look_up("golang.org/x/time/rate", "v0.16.0")
    assert old is not None
    assert new is not None
    assert old.back != new.back
    assert look_up("golang.org/x/time/rate") == new
    assert look_up("nobody/knows") is None
    assert all(one.clock in ("caller", "wall", "remote wall", "monotonic") for one in CATALOGUE)


def tickscope(store: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return tickscope_text("limiters", *argv, TICKSCOPE_STORE=str(store))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    exposed, immune = records(7), records(5)
    for r, pid in ((exposed, 11), (immune, 12)):
        r["t_ns"] = now - 1_000_000_000 + np.arange(len(r), dtype=np.uint64)
        r["proc"]["pid"], r["library_version"] = pid, b"v0.16.0"
    exposed["now_wall"], exposed["now_ext"] = plain(1000, 0)
    exposed["act_wall"], exposed["act_ext"] = plain(1000, 0)
    exposed["ok"][:3] = 0
    status = make(
        "probe_status",
        1,
        t_ns=now,
        probe=b"limiter:old",
        state=TABLES["probe_status"].code("state", "unavailable"),
        reason=b"/old: built by go1.16",
    )
    batches: list[Batch] = [*at_once(exposed, unnamed), *at_once(immune, unnamed), status]
    hot = HotStore(tmp_path, this_boot(), "host-a", seal_command=())
    hot.append(batches)
    hot.close()
    return tmp_path


def test_limiters_verb(store: Path) -> None:
    done = tickscope(store, "-o", "json")
    assert done.returncode == 0, done.stderr
    doc = json.loads(done.stdout)
    assert doc["schema"] == 1
    exposed, immune = sorted(doc["rows"], key=lambda row: row["pid"])
    assert (exposed["decisions"], exposed["allowed"], exposed["refused"], exposed["delayed"]) == (7, 4, 3, 0)
    assert (exposed["limit_per_s"], exposed["burst"], exposed["step_immune"]) == (10, 5, False)
    assert "nothing is admitted" in exposed["on_step_back"]
    assert (exposed["cancelled"], exposed["unlimited"]) == (0, False)
    assert (immune["step_immune"], immune["on_step_back"]) == (True, "none")
    assert doc["binaries"][0]["reason"] == "/old: built by go1.16"


@pytest.mark.parametrize(("high", "basis"), [(1_300, "within 30 %"), (NULL_I64, "at least"), (1_000, "exact")])
def test_a_sampled_limiter_is_listed_with_how_good_its_counts_are(store: Path, high: int, basis: str) -> None:
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    (row, *_) = json.loads(tickscope(store, "-o", "json").stdout)["rows"]
    who = {"limiter_id": row["limiter_id"].encode(), "pid": row["pid"], "proc_start_ns": row["proc_start_ns"]}
    sampled = {"allowed": 1_000, "allowed_low": 1_000, "allowed_high": high}
    refused = dict.fromkeys(("refused", "refused_low", "refused_high"), 0)
    seen = make("limiter_decision", 3, t_ns=now, sample_rate=0.1, **who)
    hot = HotStore(store, this_boot(), "host-a", seal_command=())
    hot.append([seen, make("limiter_rate", 1, t_ns=now, interval_ns=10**9, **who, **sampled, **refused)])
    hot.close()
    listed = {one["pid"]: one for one in json.loads(tickscope(store, "-o", "json").stdout)["rows"]}
    assert listed[row["pid"]]["basis"] == basis
    table = tickscope(store)
    assert table.returncode == 0, table.stderr
    assert (basis in table.stdout) == (basis != "exact")


def test_what_is_worked_out_of_a_limiter(tmp_path: Path) -> None:
    """Two of one place, 100 decisions in 10 s each, half refused; the process of the second is gone."""
    now, result = time.clock_gettime_ns(time.CLOCK_BOOTTIME), TABLES["limiter_decision"].by_name["result"]
    begun = int(Path("/proc/self/stat").read_bytes().rsplit(b")", 1)[1].split()[19]) * 10_000_000
    given = {
        "limiter_id": b"shop:rate.Limiter@shop/api.(*S).Pay",
        "library": b"golang.org/x/time/rate",
        "library_version": b"v0.5.0",
        "cost": 1.0,
        "limit_per_s": 4.0,
        "burst": 0.0,
        "unlimited": 0,
        "step_immune": 0,
        "sample_rate": 1.0,
        "source": 0,
        "comm": b"shop-main",
        "member": np.arange(100) % 2,
    }
    decided = np.where(np.arange(100) % 4 < 2, result.code("allowed"), result.code("refused"))
    t = now - 10_000_000_000 + np.arange(100) * 100_000_000
    batches = [
        make("limiter_decision", 100, t_ns=t, pid=pid, proc_start_ns=start, result=decided, **given)
        for pid, start in ((os.getpid(), begun), (4_100_000, 5))
    ]
    batches.append(
        make(
            "limiter",
            1,
            t_ns=t[0],
            limiter_id=given["limiter_id"],
            library=given["library"],
            program=b"shop",
            site=b"example.com/shop/api.(*S).Pay",
            file=b"api/pay.go",
            line=17,
            build_id=b"b1",
        )
    )
    batches.append(
        make(
            "clock_change",
            1,
            t_ns=t[50],
            kind=TABLES["clock_change"].code("kind", "step"),
            size_ns=-500_000_000,
            comm=b"chronyd",
            pid=7,
            ret=0,
        )
    )
    hot = HotStore(tmp_path, this_boot(), "host-a", seal_command=())
    hot.append(batches)
    hot.close()
    alive, dead = json.loads(tickscope(tmp_path, "-o", "json").stdout)["rows"]
    assert (alive["pid"], alive["state"], dead["state"]) == (os.getpid(), "alive", "gone")
    assert alive["per_s"] == pytest.approx(10, rel=0.5)
    assert dead["per_s"] == pytest.approx(100 / 9.9, rel=0.001)
    assert (dead["refused_share"], dead["members"], dead["program"], dead["clock"], dead["step_proof"]) == (
        0.5,
        2,
        "shop",
        "caller",
        False,
    )
    assert dead["limit_use"] == pytest.approx(50 / (2 * 4 * 9.9), rel=0.001)
    assert dead["watch_cost"] == pytest.approx(10.1 * 12e-6, rel=0.01)
    assert (dead["site"], dead["file"], dead["line"]) == ("example.com/shop/api.(*S).Pay", "api/pay.go", 17)
    for given_id in ("shop:rate", "S).Pay", "shop:rate.Limiter@shop/api.(*S).Pay"):
        shown = tickscope(tmp_path, "show", given_id, "-o", "json")
        assert shown.returncode == 0, shown.stderr
        doc = json.loads(shown.stdout)
        assert sum(
            piece["requested"] * (piece["to_ns"] - piece["from_ns"]) / 1e9 for piece in doc["rows"]
        ) == pytest.approx(200)
        assert sum(
            piece["admitted"] * (piece["to_ns"] - piece["from_ns"]) / 1e9 for piece in doc["rows"]
        ) == pytest.approx(100)
        assert {piece["limit"] for piece in doc["rows"]} == {16.0}  # two members in each of two processes
        assert [step["size_ns"] for step in doc["steps"]] == [-500_000_000]
    one = json.loads(tickscope(tmp_path, "show", "shop", "--pid", "4100000", "-o", "json").stdout)
    assert {piece["limit"] for piece in one["rows"]} == {8.0}
    screen = tickscope(tmp_path, "show", "shop")
    assert "200 units" in screen.stdout
    assert "* requested   # admitted   - limit" in screen.stdout  # without colours each has a character of its own
    assert {"*", "#", "-"} <= set("".join(screen.stdout.splitlines()[2:12]))
    assert "refused       100 (50%)" in screen.stdout
    assert "-500ms  chronyd 7" in screen.stdout
    assert "api/pay.go:17" in screen.stdout
    assert all(len(line) <= 100 for line in screen.stdout.split("\n")[:18])
    none = tickscope(tmp_path, "show", "nobody")
    assert none.returncode == 3
    assert "shop:rate.Limiter" in none.stderr


def test_limiters_verb_without_rows_and_known(store: Path) -> None:
    table = tickscope(store)
    assert "rate.Limiter@?" in table.stdout
    assert "built by go1.16" in table.stderr
    none = tickscope(store, "--since", "0s")
    assert none.returncode == 3, none.stderr
    known = tickscope(store / "nowhere", "--known", "-o", "json")
    assert known.returncode == 0, known.stderr
    assert {row["library"] for row in json.loads(known.stdout)["rows"]} == {one.library for one in CATALOGUE}
