"""``tickscope top`` on a real pseudo-terminal, read by a terminal emulator, over a store that recordings fill."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.batch import make
from agent.cli.terminal import Cell, columns, cut, drawn, keys
from agent.common.clocks import boot_ns
from agent.common.host import boot_id
from agent.store.hot import HotStore
from agent.tables import TABLES
from tests.commands import tickscope
from tests.lab.small import unpack
from tests.replayed import LAB, Standing, fill
from tests.screens import Program
from tests.unit.test_control_characters import EVIL

RECORDINGS = ("4038-4", "4038-5")
PANES = ("FINDINGS", "LIMITERS", "QUEUES", "CLOCKS", "PROCESSES")
S = 1_000_000_000
_FRESH_S = 10.0


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Path]]:
    """Gives a store that was filled some seconds ago: limiters and processes are shown for a minute."""
    made: list[tuple[float, Path]] = []
    with Standing() as standing:

        def fresh() -> Path:
            if not made or time.monotonic() - made[-1][0] > _FRESH_S:
                path = tmp_path_factory.mktemp("top") / "store"
                store = HotStore(path, boot_id(), "web1", seal_command=())
                fill(store, *RECORDINGS, standing=standing)
                store.close()
                made.append((time.monotonic(), path))
            return made[-1][1]

        yield fresh


@pytest.fixture
def filled(stores: Callable[[], Path]) -> Path:
    """A store with findings, limiters, queues and blocked processes, whose agent has ended."""
    return stores()


def top(path: Path, columns: int = 120, lines: int = 40, *argv: str, **env: str) -> Program:
    return Program(["top", "--store", path, *argv], columns, lines, **env)


def read_all(program: Program) -> str:
    """The screen once all its panes are read."""
    return program.until(lambda text: "FINDINGS" in text and "reading the store" not in text, 40)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60), (40, 12), (20, 4)])
def test_each_size_has_whole_lines_and_the_most_urgent_first(filled: Path, width: int, height: int) -> None:
    with top(filled, width, height) as program:
        text = read_all(program) if height > 4 else program.until(lambda text: "top" in text)
        lines = text.split("\n")
        assert len(lines) <= height
        if height >= 24:
            assert [name for name in re.findall(r"\b[A-Z]{6,}\b", text) if name in PANES] == list(PANES) or width >= 160
            assert set(PANES) <= set(re.findall(r"\b[A-Z]{6,}\b", text))
            found = json.loads(tickscope("findings", "--since", "1h", "--store", filled, "-o", "json").stdout)["rows"]
            first = lines[next(i for i, line in enumerate(lines) if line.startswith("FINDINGS")) + 1]
            newest = max(found, key=lambda row: row["start_ns"])
            assert newest["cause"] in first
            at = text.index(newest["cause"])
            for word in newest["sentence"].split()[:6]:  # its sentence stands below it
                assert word in text[at:], text
        if width >= 160:  # no half of the screen is empty
            assert any(line[width // 2 + 4 :].strip() for line in lines[height // 2 :])


def test_keys(filled: Path) -> None:
    with top(filled) as program:
        read_all(program)
        program.press("3")
        text = program.until(lambda text: "LIMITERS" not in text and "QUEUES" in text)
        assert "shipments" in text
        program.press("\t")
        program.until(lambda text: "CLOCKS" in text)
        program.press("0", "1", "0")
        program.until(lambda text: "QUEUES" in text)
        program.press("/", "jour", "nal", "\r")
        text = program.until(lambda text: "/journal" in text and "nothing contains" in text)
        assert re.search(r"^lab:api-journal", text, re.M) and "lab:api-redis" not in text
        program.press("\x1b")
        program.until(lambda text: "lab:api-redis" in text)
        program.press("\r")
        text = program.until(lambda text: re.search(r"symptom +\w+ of ", text), 40)
        assert "cause " in text and "tickscope explain" in text
        program.press("q", "?")
        program.until(lambda text: "Ctrl-L" in text)
        program.press("q", "q")
        assert program.ended() == 0
        assert program.raw.rstrip().endswith(b"\x1b[?25h\x1b[?1049l")


def test_sorted_by_a_column_and_back(filled: Path) -> None:
    def names(text: str) -> list[str]:
        lines = text.split("\n")
        start = next(i for i, line in enumerate(lines) if line.startswith("LIMITERS"))
        return [line.split()[0] for line in lines[start + 1 :] if line.startswith(("lab:", "goapi"))]

    with top(filled) as program:
        read_all(program)
        program.press("2", "s")
        by_name = names(program.until(lambda text: "LIMITERSv" in text))
        assert by_name == sorted(by_name) and len(by_name) > 5
        program.press("r")
        assert names(program.until(lambda text: "LIMITERS^" in text)) == by_name[::-1]
        program.press("s", "s", "s")
        text = program.until(lambda text: "per_sv" in text)
        rates = [
            float(line.split()[2 + line.split()[1:].index(next(w for w in line.split()[1:] if w.isdigit()))])
            for line in text.split("\n")
            if line.startswith("lab:")
        ]
        assert rates == sorted(rates, reverse=True)


def test_it_is_drawn_anew_for_each_size_and_only_where_it_changed(filled: Path) -> None:
    with top(filled, 80, 24) as program:
        read_all(program)
        program.resize(132, 50)
        program.until(lambda text: max(map(len, text.split("\n"))) > 100)
        program.resize(60, 15)
        text = program.until(lambda text: text.split("\n")[-1].startswith("? help"))
        assert max(map(len, text.split("\n"))) <= 60
        program.read(2)
        before = len(program.raw)
        program.read(2)
        drawn_again = program.raw[before:]
        assert b"\x1b[2J" not in drawn_again and len(drawn_again) < 2000  # no flicker: the clock ticks, little else


def test_it_stops_and_goes_on_like_any_program(filled: Path) -> None:
    with top(filled, 80, 24) as program:
        read_all(program)
        program.press("\x1a")
        stat = Path(f"/proc/{program.pid}/stat")
        for _ in range(100):
            program.read(0.1)
            if stat.read_text().rpartition(")")[2].split()[0] == "T":
                break
        assert stat.read_text().rpartition(")")[2].split()[0] == "T"
        assert program.raw.endswith(b"\x1b[?1049l")
        before = len(program.raw)
        os.kill(program.pid, signal.SIGCONT)
        program.read(2)
        assert b"\x1b[?1049h" in program.raw[before:] and "FINDINGS" in program.text()
        program.press("q")
        assert program.ended() == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_signals_leave_the_terminal_in_order(filled: Path, number: signal.Signals, status: int) -> None:
    with top(filled, 80, 24) as program:
        before = termios.tcgetattr(program._ours)
        program.until(lambda text: "FINDINGS" in text)
        assert termios.tcgetattr(program._ours) != before
        os.kill(program.pid, number)
        assert program.ended() == status
        assert termios.tcgetattr(program._ours) == before
        assert program.raw.rstrip().endswith(b"\x1b[?25h\x1b[?1049l")


def test_it_ends_with_its_terminal(filled: Path) -> None:
    with top(filled, 80, 24) as program:
        program.until(lambda text: "FINDINGS" in text)
        program.hang_up()
        assert program.ended() in (0, 129)


def test_without_colour_what_is_chosen_still_shows(filled: Path) -> None:
    with top(filled, 80, 24, NO_COLOR="1") as program:
        read_all(program)
        assert not re.search(rb"\x1b\[[0-9;]*[34][0-7]m", program.raw)
        assert any(cell.reverse for cell in program.screen.buffer[3].values())


def test_where_there_is_no_screen_it_is_one_page(filled: Path) -> None:
    done = tickscope("top", "--store", filled)
    assert done.returncode == 0 and b"\x1b" not in done.stdout
    assert all(name in done.stdout.decode() for name in PANES)
    found = json.loads(tickscope("findings", "--since", "1h", "--store", filled, "-o", "json").stdout)["rows"]
    sentences = [row["sentence"].split(" from ")[0] for row in found]
    for sentence in set(sentences):
        assert done.stdout.decode().count(sentence) == sentences.count(sentence), sentence
    with top(filled, 80, 24, TERM="dumb") as program:
        assert program.ended(40) == 0
        assert b"\x1b" not in program.raw and b"PROCESSES" in program.raw
    document = json.loads(tickscope("top", "--store", filled, "-o", "json").stdout)
    assert document["findings"][0]["command"].startswith("tickscope explain ") and document["limiters"]
    assert tickscope("top", "--store", filled, "-o", "csv").returncode == 2


def test_a_bad_time_is_a_usage_error(filled: Path) -> None:
    with top(filled, 80, 24, "--since", "the day before") as program:
        assert program.ended(40) == 2
        assert "cannot read the time" in program.text()


def test_a_recording_is_shown_as_it_was_at_its_end(tmp_path: Path) -> None:
    unpack(LAB / "4038-8/recording.tsr.xz", tmp_path / "trouble.tsr")
    done = tickscope("top", "--from", tmp_path / "trouble.tsr").stdout.decode()
    assert "shipments" in done and "lab:api-redis" in done and "synchronised" not in done


def test_it_says_that_no_agent_writes(filled: Path) -> None:
    with top(filled, 80, 24) as program:
        assert "no agent writes this store now" in read_all(program)


def test_new_rows_appear_and_a_store_may_vanish_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "store"
    assert tickscope("top", "--store", path).returncode == 4
    with top(path, 80, 24) as program:
        assert program.ended() == 4
        assert b"\x1b[?1049h" not in program.raw and "no store at" in program.text()
    store = HotStore(path, boot_id(), "web1", seal_command=())
    with top(path, 100, 30) as program:
        text = read_all(program)
        assert "no findings" in text
        alarm = TABLES["finding"].code("severity", "alarm")
        now = boot_ns()
        row = {"finding_id": b"aa11", "severity": alarm, "state": 0, "start_ns": now - S, "end_ns": now, "cause": 1}
        store.append([make("finding", 1, t_ns=now, symptom=1, subject=b"shop", sentence=b"shop waits", **row)], now)
        text = program.until(lambda text: "OPEN" in text and "shop waits" in text)
        assert "1 findings 1 (1!)" in text
        store.close()
        shutil.rmtree(path)
        program.until(lambda text: "no store at" in text)
        store = HotStore(path, boot_id(), "web1", seal_command=())
        program.until(lambda text: "no store at" not in text and "no findings" in text, 30)
        store.close()
        program.press("q")
        assert program.ended() == 0


def test_names_cannot_act_on_the_terminal_or_move_columns(tmp_path: Path) -> None:
    names = (EVIL, "日本語の制限", "e" + "\u0301" * 20, "שלום", "👩‍👩‍👧‍👦", "plain")
    store, now = HotStore(tmp_path, boot_id(), "web1", seal_command=()), boot_ns()
    for name in names:
        columns_of = {"pid": os.getpid(), "comm": name.encode()[:15], "sample_rate": 1.0, "result": 0, "cost": 1.0}
        t_ns = [now - S * i for i in range(5)]
        store.append([make("limiter_decision", 5, t_ns=t_ns, limiter_id=name.encode(), limit_per_s=10.0, **columns_of)])
    lag = {"system": b"redis", "cluster": b"c", "lag_messages": 7, "status": b"stalled", "exact": 1}
    store.append([make("queue_lag", 1, t_ns=now, destination=EVIL.encode(), reason=EVIL.encode(), **lag)])
    store.close()
    with top(tmp_path, 100, 40) as program:
        read_all(program)
        program.press("2")
        program.until(lambda text: "QUEUES" not in text)
        program.read(1)
        ours = rb"\x1b\[(?:\d*(?:;\d+)*[mGHKJ]|\?(?:1049|25|7|2026)[hl]|8[lh]|2J)"
        assert b"\x1b" not in re.sub(ours, b"", program.raw)
        assert not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x7f]", program.raw)
        assert "\u202e" not in program.raw.decode()
        screen = program.screen.buffer
        heading = next(y for y in range(40) if "limit/s" in program.screen.display[y])
        ends = {max(x for x, cell in screen[y].items() if cell.data.strip()) for y in range(heading + 1, heading + 7)}
        assert all(program.screen.display[heading + 1 + i].strip() for i in range(len(names))), program.text()
        assert len(ends) == 1, program.text()


def test_cells() -> None:
    assert (columns("日本"), columns("e\u0301"), columns("abc")) == (4, 1, 3)
    assert (cut("日本語", 5), cut("abcdef", 4), cut("abc", 3)) == ("日本…", "abc…", "abc")
    assert drawn([Cell("日", 4), Cell("x", 2, "alarm", right=True)], colour=True) == "日  \x1b[5G\x1b[31m x\x1b[0m"
    assert drawn([Cell("y", 2), Cell("x", 1, "alarm")], colour=False) == "y \x1b[1mx\x1b[0m"


def test_keys_by_name() -> None:
    pressed = list(keys("j\x1b[A\x1bOB\x1b[6~\x1b[200~\x1b[1;5Cä\t\r\x7f\x1b"))
    assert pressed == ["j", "up", "down", "page down", "ä", "tab", "enter", "backspace", "escape"]
