"""findings and explain: on a real store that the correlator's findings were written to."""

from __future__ import annotations

import csv
import io
import json
import lzma
import os
import re
import shlex
import subprocess
import sys
import time
from datetime import datetime
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.ask.names import columns
from agent.batch import Batch, make
from agent.cli.explain import filled as filled_in
from agent.cli.findings import decoded, joined
from agent.cli.main import cli
from agent.columns import NULL_I64
from agent.common.host import boot_id as this_boot
from agent.common.instants import iso
from agent.common.sentence import pieces, plain, text_of
from agent.correlate.catalogue import causes, symptoms
from agent.store.hot import HotStore
from agent.tables import TABLES
from tests.commands import on_terminal, tickscope
from tests.found import PLACES
from tests.unit.correlate_scenarios import (
    ALL,
    APP_PID,
    MS,
    T0,
    UNTIL,
    Host,
    S,
    broker_slow,
    clock_step,
    latest,
    refusing,
    run,
)
from tests.unit.test_control_characters import harmless
from tests.unit.test_correlate_asleep import slow
from tests.unit.test_replay_cli import HEAD, record

HIDDEN = "empty or less important columns hidden: -o json shows all all, --columns chooses"


def store(path: Path, *findings: list[Batch]) -> Path:
    hot = HotStore(path, HEAD.boot_id, HEAD.host, seal_command=())
    for batches in findings:
        hot.append(batches, T0 + 60 * S)
    hot.close()
    return path


@cache
def emitted() -> tuple[list[Batch], list[Batch]]:
    return run(broker_slow(), 60), run(clock_step(), 47)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    return store(tmp_path / "store", *emitted())


def test_each_finding_once_in_its_latest_state_in_order_of_the_beginning(filled: Path) -> None:
    """The clock step began earlier and was reported later, which is not what the table shows."""
    doc = json.loads(tickscope("findings", "--store", filled, "-o", "json").stdout)
    assert [(r["cause"], r["state"]) for r in doc["rows"]] == [("clock_step", "open"), ("broker_slow", "closed")]
    starts, text_of = ([r[name] for r in doc["rows"]] for name in ("start_ns", "t_ns"))
    assert starts == sorted(starts) and text_of != sorted(text_of)
    assert all(isinstance(r[c], list) for r in doc["rows"] for c in ("causes", "evidence", "ruled_out"))


def test_the_process_with_the_symptom_is_named_and_where_it_ran_is_shown(tmp_path: Path) -> None:
    slow_broker, step = (batches[-1].rows.copy() for batches in emitted())
    assert slow_broker["impacted_pid"].tolist() == step["impacted_pid"].tolist() == [APP_PID]
    for name, text in PLACES.items():
        slow_broker[name] = text.encode()
    slow_broker["culprit_comm"] = b"redis-server"
    path = store(tmp_path, [Batch("finding", slow_broker)])
    where = "pod shop/api-7c9d, container api, image shop:1.4"
    listed = " ".join(tickscope("findings", "--store", path).stdout.decode().split())
    assert f"In {where}." in listed
    explained = tickscope("explain", "last", "--store", path).stdout.decode()
    assert f"  where    {where}\n" in explained
    assert "redis-server pid 900, in unit redis.service" in explained


def test_query_and_sql_report_each_finding_once_too(filled: Path) -> None:
    doc = json.loads(tickscope("query", "finding", "--columns", "cause,state", "--store", filled, "-o", "json").stdout)
    assert [(r["cause"], r["state"]) for r in doc["rows"]] == [("broker_slow", "closed"), ("clock_step", "open")]
    done = tickscope(
        "sql", "select count(*) n, count(distinct finding_id) m from finding", "--store", filled, "-o", "ndjson"
    )
    assert json.loads(done.stdout) == {"n": 2, "m": 2}
    then = tickscope(
        "query",
        "finding",
        "--until",
        f"boot+{T0 // S + 59}",
        "--where",
        "cause = 'broker_slow'",
        "--store",
        filled,
        "-o",
        "ndjson",
    )
    assert len(then.stdout.splitlines()) == 1


def test_open_ones_only(filled: Path) -> None:
    then = f"boot+{T0 // S + 60}"
    done = tickscope("findings", "--open", "--until", then, "--store", filled, "-o", "ndjson")
    assert [json.loads(line)["cause"] for line in done.stdout.splitlines()] == ["clock_step"]


def test_what_its_agent_left_open_does_not_go_on(filled: Path) -> None:
    assert tickscope("findings", "--open", "--store", filled).returncode == 3
    assert tickscope("findings", "--store", filled).stdout.count(b"left open") == 1
    step = next(str(f["finding_id"]) for f in latest(run(clock_step(), 47)))
    assert b"when the agent ended" in tickscope("explain", step, "--store", filled).stdout
    with (filled / "lock").open() as lock:
        assert not lock.read()


def test_what_a_running_agent_follows_goes_on(tmp_path: Path) -> None:
    live = HotStore(tmp_path, this_boot(), HEAD.host, seal_command=())
    rows = run(clock_step(), 47)[-1].rows.copy()
    rows["t_ns"] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    live.append([Batch("finding", rows)])
    done = tickscope("findings", "--open", "--store", tmp_path)
    assert (done.returncode, done.stdout.count(b"left open"), done.stdout.count(b"clock_step")) == (0, 0, 1)
    assert b"still going on" in tickscope("explain", "--store", tmp_path).stdout
    live.close()


def test_since_takes_what_changed_since_then(filled: Path) -> None:
    done = tickscope("findings", "--since", f"boot+{T0 // S + 40}", "--store", filled, "-o", "json")
    assert [r["cause"] for r in json.loads(done.stdout)["rows"]] == ["clock_step"]
    assert tickscope("findings", "--since", f"boot+{T0 // S + 59}", "--store", filled).returncode == 3


def test_the_table_shows_the_sentence(filled: Path) -> None:
    out = tickscope("findings", "--store", filled).stdout.decode()
    assert (
        "The wall clock jumped back by 30 s" in out and "did not answer for 1.4 s" in out and len(out.splitlines()) == 3
    )


def test_ids_of_findings_are_completed(filled: Path) -> None:
    found = latest(run(broker_slow(), 60))[0]
    typed = str(found["finding_id"])[:5]
    env = {
        **os.environ,
        "_TICKSCOPE_COMPLETE": "bash_complete",
        "COMP_WORDS": f"tickscope explain {typed}",
        "COMP_CWORD": "2",
        "TICKSCOPE_STORE": str(filled),
    }
    done = subprocess.run([sys.executable, "-m", "agent"], env=env, capture_output=True, text=True)
    assert done.stdout == f"plain,{found['finding_id']}\n"


def test_at_eighty_columns_words_stay_whole(filled: Path) -> None:
    for argv in (
        ["findings"],
        ["explain"],
        ["tables"],
        ["tables", "clock_change"],
        ["limiters", "--known"],
        ["query", "finding"],
    ):
        whole, narrow = (
            tickscope(*argv, "--store", filled),
            on_terminal(*argv, "--store", filled, columns=80, errors=True, NO_COLOR="1"),
        )
        assert max((len(line) for line in narrow.splitlines()), default=0) <= 80, argv
        words = set((whole.stdout + whole.stderr).decode().split()) | set(HIDDEN.split())
        assert not [word for word in narrow.split() if word not in words and not word.isdigit()], argv


def test_a_pipe_gets_one_line_each_whatever_columns_reports(filled: Path) -> None:
    """readline, where any program that starts the verb has it, sets COLUMNS."""
    command = [sys.executable, "-m", "agent", "findings", "--store", filled]
    output = subprocess.run(command, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True).stdout
    assert len(output.splitlines()) == 3


def test_the_answer_is_what_a_narrow_screen_shows(filled: Path, tmp_path: Path) -> None:
    def heading(*argv: object) -> list[str]:
        return on_terminal(*argv, "--store", filled, columns=80, NO_COLOR="1").splitlines()[0].split()

    recording = record(tmp_path / "a.rec", broker_slow())
    assert {"finding_id", "state", "cause"} <= set(heading("replay", recording))
    assert {"finding_id", "state", "cause"} <= set(heading("findings"))
    assert heading("limiters", "--known")[0] == "library"
    assert heading("query", "finding", "--group-by", "boot_id,host,sentence_parts")[:3] == [
        "boot_id",
        "host",
        "sentence_parts",
    ]


def test_no_findings_is_exit_3(tmp_path: Path) -> None:
    empty = store(tmp_path / "empty", [])
    for args in (["findings"], ["explain", "last"]):
        done = tickscope(*args, "--store", empty)
        assert (done.returncode, done.stdout) == (3, b"") and b"no findings" in done.stderr


def test_explain_last_reports_the_newest_with_what_was_ruled_out(tmp_path: Path) -> None:
    out = tickscope("explain", "last", "--store", store(tmp_path / "store", run(clock_step(), 47))).stdout.decode()
    for part in (
        "The wall clock jumped back by 30 s",
        "Timeline",
        "chronyd",
        "Ruled out",
        "clock_step, confidence 0.99: the wall clock was stepped: set to another time at once",
        "culprit  chronyd pid 812\n",
        "next     let only one time daemon set the clock",
        "about    tickscope causes clock_step\n",
    ):
        assert part in out


def test_names_in_a_finding_do_not_act_on_the_terminal(tmp_path: Path) -> None:
    host = refusing()
    host.step(29.5, -30 * S, comm=b"\xff\x1b[2J")
    path = store(tmp_path / "store", run(host, 47))
    for shown in (tickscope(verb, "--store", path).stdout for verb in ("explain", "findings")):
        assert b"\\x1b[2J" in shown and b"\x1b" not in shown


def test_neither_does_who_woke_a_thread_that_slept(tmp_path: Path) -> None:
    """What is reported of it goes by its name: that of the program itself."""
    host, evil = slow(syscall=b"epoll_wait", waker_pid=1707, waker_comm=b"shop"), b"\x1b[2J\r\n\xc2\x9b{who}"
    for batch in host.made:
        for name in {"comm", "waker_comm"} & {*(batch.rows.dtype.names or ())}:
            batch.rows[name][batch.rows[name] == b"shop"] = evil
    path = store(tmp_path / "store", [*host.made, *run(host, UNTIL)])
    for verb in (
        ["explain", "last"],
        ["findings"],
        ["findings", "-o", "json"],
        ["query", "off_cpu", "--columns", "waker_pid,waker_comm"],
    ):
        shown = tickscope(*verb, "--store", path).stdout.decode()
        assert "[2J" in shown and "1707" in shown and harmless(shown), verb


def test_people_are_reported_what_the_wall_clock_reported_then(tmp_path: Path) -> None:
    """Of a finding with a step in its middle: the start by the time before it, the end by the time after it."""
    batches = run(broker_slow(), 60)
    finding = latest(batches)[0]
    start, end = int(finding["start_ns"]), int(finding["end_ns"])
    base, middle = 1_700_000_000 * S - T0, (start + end) // 2
    before, after = (
        [make("clock_offset", 1, t_ns=t, real_mono_ns=now, boot_mono_ns=0, err_ns=50, cut=cut) for t, cut in times]
        for now, times in ((base, ((T0, 0), (middle - 1, 0))), (base - 30 * S, ((middle, 1), (T0 + 60 * S, 0))))
    )
    path = store(tmp_path / "store", [*batches, *before, *after])

    def output(wall_ns: int) -> str:
        at = datetime.fromtimestamp((wall_ns + 500_000) // 10**6 / 1000).astimezone()
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    out = " ".join(tickscope("explain", "last", "--store", path).stdout.decode().split())
    assert f"from {output(start + base)} to {output(end + base - 30 * S)} because" in out
    assert f"began {output(start + base)[:23]}" in out and f"boot+{start / 1e9:.3f}" in out
    assert (
        f"from {output(start + base)} to {output(end + base - 30 * S)} because"
        in tickscope("findings", "--store", path).stdout.decode()
    )
    (row,) = json.loads(tickscope("findings", "--store", path, "-o", "json").stdout)["rows"]
    assert (
        f"from {iso(start + base + 500_000, 3, utc=True)} to {iso(end + base - 30 * S + 500_000, 3, utc=True)} because"
        in row["sentence"]
    )


def test_a_recording_without_findings_names_the_verb_that_computes_them(tmp_path: Path) -> None:
    recorded = lzma.decompress((Path(__file__).parent / "data/lab/6001-3/recording.tsr.xz").read_bytes())
    (file := tmp_path / "incident.tsr").write_bytes(recorded)
    done = tickscope("findings", "--from", file)
    assert (done.returncode, done.stdout) == (3, b"")
    assert f"this recording has no findings; `tickscope replay {file}` computes them" in done.stderr.decode()


def test_a_name_cannot_pass_for_an_instant() -> None:
    host = refusing()
    host.step(29.5, -30 * S, comm=b"boot+1.000 \x1e5\x1e")
    found = latest(run(host, 47))[0]
    output = pieces(json.dumps(found["sentence_parts"]), None)
    instants = [part for part in output if isinstance(part, int)]
    assert instants[0] == T0 + 29_500 * MS and min(instants) >= T0 and len(instants) == 3
    assert "boot+1.000" in text_of(output, lambda t_ns: t_ns)
    assert plain(output) == found["sentence"]


def test_explain_by_the_start_of_an_id(filled: Path) -> None:
    found = latest(run(broker_slow(), 60))[0]
    doc = json.loads(tickscope("explain", str(found["finding_id"])[:6], "--store", filled, "-o", "json").stdout)
    assert doc["schema"] == 1 and doc["finding"]["finding_id"] == found["finding_id"]
    out = tickscope("explain", found["finding_id"], "--store", filled).stdout.decode()
    for part in (
        "broker_slow: time waiting on the peer, 127.0.0.1:6399: 1.4s",
        "network_rtt: smoothed RTT, 127.0.0.1:6399: 55us (usually 46us)",
        "network_rtt: the network RTT to 127.0.0.1:6399 stayed at 55 us (usually 46 us)",
        "lasted 1.4s",
    ):
        assert part in out, out


def test_explain_as_csv_is_one_row_with_the_details(filled: Path) -> None:
    done = tickscope("explain", "last", "--store", filled, "-o", "csv")
    (row,) = csv.DictReader(io.StringIO(done.stdout.decode()))
    found = json.loads(tickscope("explain", "last", "--store", filled, "-o", "json").stdout)["finding"]
    assert row["finding_id"] == found["finding_id"] and json.loads(row["evidence"]) == found["evidence"]


def test_explain_refuses_what_is_no_id_and_misses_what_is_none(filled: Path) -> None:
    assert tickscope("explain", "x' OR 1", "--store", filled).returncode == 2
    assert tickscope("explain", "ffffffffffff", "--store", filled).returncode == 3


def test_no_store_is_exit_4(tmp_path: Path) -> None:
    assert tickscope("findings", "--store", tmp_path / "none").returncode == 4


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.__name__)
def test_rows_fit_their_columns_and_sentences_are_plain(scenario: object) -> None:
    for row in (rows[0] for table, rows in run(scenario(), 60) if table == "finding"):  # type: ignore[operator]
        sentence = row["sentence"].decode()
        assert (
            sentence.endswith(".")
            and "nan" not in sentence
            and "None" not in sentence
            and "_" not in sentence.replace("clock_settime", "").replace("sched_yield", "")
        )


def test_many_limiters_still_make_valid_json_and_utf8() -> None:
    host = Host()
    for i in range(150):
        host.decisions(4, 6, rate=40, limiter=f"lim-é-{i:03d}".encode(), pid=1000 + i)
    host.step(5, -S)
    found = latest(run(host, 15))
    assert found[0]["cause"] == "clock_step" and len(found[0]["evidence"]) == 64


def test_a_refusal_names_the_share_and_the_time() -> None:
    assert "refused up to" in str(latest(run(refusing(), 60))[0]["sentence"])


def test_json_that_somebody_else_wrote_ends_no_verb() -> None:
    (row,) = decoded([{"sentence_parts": "{no json", "finding_id": "a"}])
    assert row == {"sentence_parts": [], "finding_id": "a"}
    piece = dict.fromkeys(TABLES["evidence"].by_name) | {"finding_id": "a", "keys": "{no", "details": "3", "t_ns": 1}
    assert joined(row, [], [piece])["evidence"] == [{"t_ns": 1}]
    assert pieces('[[2.5e299, "s"]]', "as it was") == ["as it was"]


def test_json_reports_times_by_the_wall_clock(tmp_path: Path) -> None:
    known = make("clock_offset", 1, t_ns=1, real_mono_ns=1_770_000_000 * S, boot_mono_ns=0, err_ns=100)
    filled = store(tmp_path / "store", [known], run(broker_slow(), 60), run(clock_step(), 47))
    for row in json.loads(tickscope("findings", "--store", filled, "-o", "json").stdout)["rows"]:
        began = datetime.fromisoformat(row["began"])
        assert began.tzinfo is not None and abs(began.timestamp() - 1_770_000_000 - row["start_ns"] / 1e9) < 120
        assert row["lasted_s"] == (row["end_ns"] - row["start_ns"]) / 1e9
        if row["state"] == "open":
            assert row["ended"] is None
        else:
            assert abs((datetime.fromisoformat(row["ended"]) - began).total_seconds() - row["lasted_s"]) < 1e-5
    text_of = json.loads(tickscope("explain", "--store", filled, "-o", "json").stdout)["finding"]
    assert (text_of["began"], text_of["ended"], text_of["lasted_s"]) == (row["began"], row["ended"], row["lasted_s"])


def test_findings_are_chosen_by_cause_symptom_severity_and_process(filled: Path) -> None:
    rows = json.loads(tickscope("findings", "--store", filled, "-o", "json").stdout)["rows"]
    slow = next(row for row in rows if row["cause"] == "broker_slow")
    pids = {row["culprit_pid"] for row in rows} | {
        int(pid) for r in rows for pid in re.findall(r"pid (\d+)", r["subject"])
    }
    pid = max(pid for pid in pids if pid)
    of = [r["finding_id"] for r in rows if r["culprit_pid"] == pid or f"pid {pid}" in r["subject"]]
    for argv, wanted in (
        (("--cause", "broker_slow"), [slow["finding_id"]]),
        (("--symptom", slow["symptom"]), [r["finding_id"] for r in rows if r["symptom"] == slow["symptom"]]),
        (("--severity", "alarm"), [r["finding_id"] for r in rows if r["severity"] == "alarm"]),
        (("--pid", str(pid)), of),
        (("--cause", "tls"), []),
    ):
        done = tickscope("findings", "--store", filled, "-o", "ndjson", *argv)
        assert [json.loads(line)["finding_id"] for line in done.stdout.splitlines()] == wanted
    done = tickscope("findings", "--store", filled, "--cause", "broker_slov")
    assert done.returncode == 2 and b"did you mean broker_slow" in done.stderr


@pytest.mark.parametrize("began_ns", [1_770_000_000 * S, NULL_I64], ids=["wall", "boot"])
def test_what_to_do_next_is_narrowed_to_the_finding(tmp_path: Path, began_ns: int) -> None:
    """Every command that a cause or a symptom names can be run as it stands there, and asks for few rows."""
    row = {"start_ns": T0, "end_ns": T0 + 3 * S, "subject": "worker pid 11", "culprit_pid": 12, "finding_id": "3f" * 16}
    place = store(tmp_path, [make("tcp_reset", 1, t_ns=T0)])
    asked = 0
    for one in (*causes().values(), *symptoms().values()):
        todo = filled_in(one.todo, row, began_ns)
        assert todo.count("tickscope query") == one.todo.count("tickscope query")
        for text in re.findall(r"tickscope (query \w+(?: --[\w-]+ (?:\"[^\"]*\"|[^\s;]+))*)", todo):
            command = shlex.split(text)
            asked += 1
            assert ("--since" in command) and ("--until" in command)
            if "pid" in columns(command[1]):
                assert "pid IN (11, 12)" in text
            done = CliRunner().invoke(cli, [*command, "--store", str(place)])
            assert done.exit_code == 3, (text, done.output)
    assert asked > 40


@pytest.mark.parametrize("name", ["broker_slow", "silence", "network_loss"])
def test_one_cause_or_symptom_in_words(name: str) -> None:
    out = tickscope("causes", name).stdout.decode()
    for kind in (causes(), symptoms()):
        if name in kind:
            assert kind[name].meaning in out and kind[name].todo in out
    assert json.loads(tickscope("causes", "broker_slow", "-o", "json").stdout)["rows"][0]["cause"] == "broker_slow"
    assert tickscope("causes", "broker_slov").returncode == 2
