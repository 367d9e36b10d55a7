"""One way to ask: a store and a recording of the same rows give the same answers, by every verb."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from agent.ask.question import Condition, GroupValue, Question, Where
from agent.batch import Batch, make
from agent.cli.main import cli
from agent.common.host import boot_id as this_boot
from agent.errors import UNREACHABLE, USAGE, AgentError
from agent.store.follow import Follower
from agent.store.frames import Head
from agent.store.hot import HotStore
from agent.store.recorder import Recorder
from agent.store.segments import open_dir
from agent.store.sources import opened
from agent.tables import TABLES
from tests.unit.test_query import write

S = 10**9
V4 = np.array([b"\0" * 10 + b"\xff\xff" + bytes([10, 0, 0, i]) for i in range(7)], "V16")
VERBS = (
    ["query", "tcp_connect"],
    ["query", "tcp_connect", "--group-by", "comm,result"],
    ["query", "tcp_connect", "--top", "3", "--columns", "comm"],
    ["query", "tcp_connect", "--limit", "4", "--columns", "wall_ns,pid"],
    ["query", "tcp_connect", "--where", "comm IN (SELECT comm FROM limiter_decision)"],
    ["query", "finding"],
    ["sql", "SELECT comm, count(*) n FROM tcp_connect GROUP BY ALL ORDER BY ALL", "--since", "boot+70"],
    ["findings"],
    ["findings", "--open"],
    ["explain", "abc"],
    ["limiters", "--since", "boot+1"],
    ["queues", "--since", "boot+1"],
    ["clock", "history"],
    ["clock", "convert", "boot+75"],
)


def batches() -> list[Batch]:
    """A boot's first minutes, with something for every verb."""
    t = np.arange(60, 130, 10) * S
    output = {
        "finding_id": [b"abc", b"def", b"abc"],
        "symptom": [b"refusals"] * 3,
        "cause": [b"clock_step"] * 3,
        "confidence": 0.5,
        "start_ns": [60 * S, 61 * S, 60 * S],
        "end_ns": 70 * S,
        "sentence": [b"it was so", b"one 'quoted'", b"it was not so"],
    }
    return [
        make(
            "clock_offset",
            3,
            t_ns=[10 * S, 60 * S, 80 * S],
            real_mono_ns=[10**18, 10**18, 10**18 - S],
            boot_mono_ns=0,
            err_ns=7,
            freq_ppb=5,
            cut=[0, 0, 1],
        ),
        make("clock_change", 1, t_ns=80 * S, kind=0, via=b"clock_settime", pid=5, comm=b"date", size_ns=-S),
        make(
            "tcp_connect",
            7,
            t_ns=t,
            comm=[b"a", b"b", b"a", b"", b"a", b"b", b"c"],
            pid=np.arange(7),
            daddr=V4,
            result=[0, 0, 2, 1, 0, -1, 0],
            duration_ns=t // 7,
        ),
        make(
            "limiter_decision",
            7,
            t_ns=t,
            comm=[b"a", b"b"] + [b"a"] * 5,
            pid=[1, 2, 1, 1, 1, 1, 1],
            limiter_id=b"l",
            library=b"golang.org/x/time/rate",
            result=[0, 1, 2, 3, 4, 0, 0],
            limit_per_s=[1, 2, 3, 4, 5, 6, np.nan],
            step_immune=1,
            sample_rate=[1, 1, 0.5, 1, 1, 1, 1],
        ),
        make(
            "probe_status",
            2,
            t_ns=t[:2],
            probe=b"limiter:/bin/x",
            state=[1, 2],
            reason=b"no symbols",
            remedy=[b"a", b"b"],
        ),
        make(
            "queue_lag",
            4,
            t_ns=t[[0, 1, 1, 0]],
            system=b"redis",
            destination=[b"q", b"q", b"p", b"p"],
            consumer_group=[b"g", b"g", b"g", b"h"],
            lag_messages=[5, 6, 7, 8],
        ),
        make(
            "socket_queue",
            4,
            t_ns=t[[0, 1, 1, 1]],
            kind=[0, 0, 0, 2],
            sport=[80, 80, 81, TABLES["socket_queue"].by_name["sport"].null],
            queue=[9, 3, 4, 0],
            device=[b"", b"", b"", b"eth0"],
            saddr=V4[:4],
        ),
        make("finding", 3, t_ns=[60 * S, 61 * S, 70 * S], state=[0, 0, 1], **output),
        make("loss", 1, t_ns=90 * S, stage=1, source=b"tcp_events", count=3, from_ns=85 * S, to_ns=90 * S),
    ]


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """(a store, partly sealed, whose agent has ended; a recording of the same)."""
    store, file = tmp_path / "store", tmp_path / "trouble.rec"
    given = batches()
    hot = HotStore(tmp_path / "recorded", this_boot(), "host-a", seal_command=())
    follower = Follower(open_dir(tmp_path / "recorded"))
    follower.poll()
    with file.open("wb") as out:
        recorder = Recorder(out, Head(this_boot(), "host-a", "", 0, 0))
        hot.append(given, 130 * S)
        recorder.add(follower.poll())
        recorder.close()
    follower.close()
    hot.close()
    write(store, *given[:3], seal=True)
    write(store, *given[3:])
    return store, file


def answer(place: Path, *argv: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, [*argv, "--from", str(place), "-o", "json"])
    assert done.exit_code in {0, 3}, (done.stderr, done.exception)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("argv", VERBS, ids=" ".join)
def test_a_recording_answers_like_the_store(both: tuple[Path, Path], argv: list[str]) -> None:
    store, file = (answer(place, *argv) for place in both)
    assert store == file
    assert store.get("rows") or store.get("finding") or argv == ["findings", "--open"]


def test_what_the_verbs_make_of_it(both: tuple[Path, Path]) -> None:
    for place in both:
        (one, _other) = rows = answer(place, "limiters", "--since", "boot+1")["rows"]
        assert sum(r["decisions"] for r in rows) == 7
        assert (one["decisions"], one["allowed"], one["delayed"], one["cancelled"], one["errors"]) == (6, 3, 1, 1, 1)
        assert (one["comm"], one["sample_rate"], one["last_ns"], one["step_immune"]) == ("a", 0.5, 120 * S, True)
        assert answer(place, "limiters", "--since", "boot+1")["binaries"] == [
            {"probe": "limiter:/bin/x", "state": "unavailable", "reason": "no symbols", "remedy": "b"}
        ]
        queues = [
            (q["system"], q["queue"], q["consumer_group"], q["length"])
            for q in answer(place, "queues", "--since", "boot+1")["rows"]
        ]
        assert queues == [
            ("redis", "p", "g", 7),
            ("redis", "p", "h", 8),
            ("redis", "q", "g", 6),
            ("accept", "10.0.0.2:81", None, 4),
            ("accept", "10.0.0.1:80", None, 3),
            ("qdisc", "eth0", None, 0),
        ]
        assert [g["count"] for g in answer(place, "findings")["gaps"]] == [3]
        assert [r["sentence"] for r in answer(place, "findings")["rows"]] == ["it was not so", "one 'quoted'"]


def test_times_that_count_back_do_so_from_a_recordings_end(both: tuple[Path, Path]) -> None:
    end_s = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // S  # its head is dated when it was begun
    back = [
        answer(both[1], "query", "tcp_connect", "--columns", "t_ns", "--since", f"{end_s - s}s")["rows"]
        for s in (100, 0)
    ]
    assert len(back[0]) < len(back[1]) == 7


def test_what_is_no_recording_is_reported(tmp_path: Path, both: tuple[Path, Path]) -> None:
    (tmp_path / "text").write_text("no rows")
    for place, output in ((tmp_path / "text", "not a readable recording"), (tmp_path / "none", "no store")):
        with pytest.raises(AgentError, match=output):
            opened(place, ["loss"])
    with pytest.raises(AgentError) as none:
        opened(tmp_path / "none", ["loss"])
    assert none.value.exit_code == UNREACHABLE
    torn = tmp_path / "torn.rec"
    torn.write_bytes(both[1].read_bytes()[:-20])
    with opened(torn, ["loss"]) as source:
        assert "torn.rec is cut off" in source.notes[0]
    with opened(both[1], ["loss"]) as source, pytest.raises(AgentError, match="no column 'pear'") as wrong:
        source.rows(Question("loss", where=(Condition("pear = 1"),)))
    assert wrong.value.exit_code == USAGE
    # "loss" is read for gaps, and has the column
    with (
        opened(both[1], ["tcp_connect", "loss"]) as source,
        pytest.raises(AgentError, match="no column 'from_ns'") as wrong,
    ):
        source.run("SELECT from_ns FROM tcp_connect")
    assert "from_ns" not in wrong.value.remedy
    with opened(both[1], ["loss"]) as source, pytest.raises(AgentError, match="disabled"):
        source.run("SELECT * FROM read_text('/etc/passwd')")


@pytest.mark.parametrize("name", ["closed/store", "x" * 300])
def test_a_place_that_cannot_be_checked_is_no_store(tmp_path: Path, name: str) -> None:
    (tmp_path / "closed").mkdir(0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(AgentError) as error:
            opened(tmp_path / name, ["loss"])
    finally:
        os.seteuid(0)
    assert error.value.exit_code == UNREACHABLE


def test_verbs_of_a_place_that_is_no_directory(
    tmp_path: Path, both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("no rows")
    assert (
        CliRunner()
        .invoke(cli, ["findings", "--from", str(tmp_path / "text")], standalone_mode=False)
        .exception.exit_code
        == UNREACHABLE
    )  # type: ignore[union-attr]
    assert CliRunner().invoke(cli, ["clock", "--from", str(both[1])]).exit_code == 0
    monkeypatch.setenv("TICKSCOPE_STORE", str(both[1]))
    for argv in (["tables"], ["symptoms"], ["causes"], ["replay", str(both[1])], ["clock", "history"]):
        assert "is a file" not in (output := CliRunner().invoke(cli, argv)).output
        assert output.exit_code in (0, 3), argv
    assert CliRunner().invoke(cli, ["status"]).exit_code != USAGE


def test_a_recordings_5m_ago_is_before_its_end(both: tuple[Path, Path]) -> None:
    with opened(both[1], ["clock_offset"], since="1s") as source:
        assert source.window.since is not None
        (row,) = answer(both[1], "clock", "convert", "1s", "ago")["rows"]
        assert row["t_ns"] == source.window.since.t_ns


def test_a_recordings_end_is_not_its_agents(both: tuple[Path, Path]) -> None:
    for place, ended in zip(both, ("agent", "recording"), strict=True):
        assert f"when the {ended} ended" in " ".join(
            CliRunner().invoke(cli, ["explain", "def", "--from", str(place)]).stdout.split()
        )


def test_questions(both: tuple[Path, Path]) -> None:
    for place in both:
        with opened(place, ["tcp_connect", "finding"], since="boot+65") as source:

            def pids(*where: Where | Condition, **more: Any) -> list[int]:
                return [row["pid"] for row in source.rows(Question("tcp_connect", ("pid",), where, **more))]

            assert pids() == [1, 2, 3, 4, 5, 6]
            assert pids(within=False) == [0, 1, 2, 3, 4, 5, 6]
            assert pids(Where("comm", "=", "a"), Where("pid", "<>", 4)) == [2]
            assert pids(Where("comm", "in", ("b", "c"))) == [1, 5, 6]
            assert pids(Where("comm", "in", ())) == []
            assert pids(Where("comm", "<>", "a", or_unknown=True)) == [1, 3, 5, 6]
            assert pids(Where("comm", "=", "it's")) == []
            assert pids(Condition("pid > 4 -- why")) == [5, 6]
            assert pids(latest=("comm",)) == [3, 4, 5, 6]
            assert pids(largest="duration_ns", limit=2) == [6, 5]
            assert pids(order=("-result", "-pid")) == [6, 4, 1, 3, 2, 5]  # by name; the unknown one last
            counts = Question(
                "tcp_connect",
                ("comm", "n", "ok"),
                group=("comm",),
                order=("-n", "comm"),
                values=(GroupValue("n", "count"), GroupValue("ok", "count", where=Where("result", "=", "ok"))),
            )
            assert [tuple(row.values()) for row in source.rows(counts)] == [
                ("a", 2, 1),
                ("b", 2, 1),
                ("c", 1, 1),
                (None, 1, 0),
            ]
            assert [
                row["finding_id"]
                for row in source.rows(Question("finding", where=(Where("finding_id", "starts", "a"),)))
            ] == ["abc"]
