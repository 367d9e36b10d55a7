"""Output that is longer than the screen, in a real pager on a real pseudo-terminal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.batch import make
from agent.common.clocks import boot_ns
from tests.screens import Program
from tests.unit.test_gaps_cli import store

ROWS = "select range as n from range(200)"
SHORT = "select 7 as n"
ENDLESS = "select range as n from range(100000000)"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store that lost a record, which is reported on stderr."""
    now = boot_ns()
    loss = make("loss", 1, t_ns=now, stage=0, source=b"ring-7", count=1, to_ns=now)
    store(tmp_path, make("tcp_reset", 1, t_ns=now), loss)
    return tmp_path


def sql(place: Path, text: str, *argv: str, **env: str) -> Program:
    return Program(["sql", text, "--store", place, *argv], 80, 24, **{"PAGER": "less", "LESS": "FRSX", **env})


def test_a_long_output_waits_for_the_reader_and_a_short_one_does_not(place: Path) -> None:
    assert shutil.which("less"), "tests need less"
    with sql(place, ROWS) as program:
        text = program.until(lambda text: text.rstrip().endswith(":"))
        assert "\n  0\n" in text and "199" not in text
        program.press(" ")
        program.until(lambda text: "\n 40" in text)
        program.press("\x03")  # less stops what it does; the command waits for less
        program.read(0.5)
        program.press("G")
        program.until(lambda text: "199" in text)
        program.press("q")
        assert program.ended() == 0
        assert "\x1b[?1049h" not in program.raw.decode()  # what was shown stays on the screen
    with sql(place, SHORT) as program:
        assert program.ended() == 0
        assert "7" in program.text().split()


def test_notes_are_in_the_pager_too(place: Path) -> None:
    with Program(["query", "tcp_reset", "--store", place], 80, 24, PAGER="sed s/^/paged:/") as program:
        assert program.ended() == 0
        assert "gap: 1 record lost" in program.text() and "paged:" in program.text()


@pytest.mark.parametrize(
    ("argv", "env"),
    [
        (["--no-pager"], {}),
        ([], {"PAGER": ""}),
        ([], {"PAGER": "cat"}),
        ([], {"TERM": "dumb"}),
        ([], {"PAGER": "no-such-pager -x"}),
        ([], {"PAGER": "'"}),
    ],
)
def test_all_is_printed_where_there_is_no_pager(place: Path, argv: list[str], env: dict[str, str]) -> None:
    with sql(place, ROWS, *argv, **env) as program:
        assert program.ended() == 0
        assert "199" in program.text().split()
        odd = env.get("PAGER", "") not in ("", "cat")
        assert (b"no pager: " in program.raw) == odd


@pytest.mark.parametrize("pager", ["true", "head -3", "less"])
def test_a_pager_that_was_left_ends_the_command_quietly(place: Path, pager: str) -> None:
    with sql(place, ENDLESS, PAGER=pager) as program:
        if pager == "less":
            program.until(lambda text: text.rstrip().endswith(":"))
            program.press("q")
        assert program.ended(20) == 0
        assert b"Traceback" not in program.raw and b"Broken" not in program.raw


def test_ctrl_c_ends_the_command_and_leaves_the_pager_to_its_reader(place: Path) -> None:
    with sql(place, ENDLESS) as program:
        program.until(lambda text: text.rstrip().endswith(":"))
        program.press("\x03")
        program.read(0.5)
        assert program.process.poll() is None
        program.press("q")
        assert program.ended() == 130
        assert b"Traceback" not in program.raw


def test_the_pager_starts_no_shell(place: Path) -> None:
    """A command that sudo allows gives no shell."""
    with sql(place, ROWS) as program:
        program.until(lambda text: text.rstrip().endswith(":"))
        program.press("!")
        program.until(lambda text: "not available" in text)
        program.press("\r", "q")
        program.ended()
