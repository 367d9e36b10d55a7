"""Completion of names that other programs chose, in a real bash."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent.batch import make
from agent.common.clocks import boot_ns
from agent.common.host import boot_id
from agent.store.hot import HotStore
from tests.commands import tickscope_text
from tests.screens import ROOT, Program

NAMES = ("shop:api", "shop:web", "main.(*Handler).Pay", "a b'c", "x;$(touch owned)", "two\nlines", "\x1b[2J")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with these limiters and a queue; beside it, a command ``tickscope``."""
    store, now = HotStore(tmp_path / "store", boot_id(), "web1", seal_command=()), boot_ns()
    for i, name in enumerate(NAMES):
        store.append([make("limiter_decision", 1, t_ns=now + i, limiter_id=name.encode(), pid=7, cost=1.0)])
    store.append([make("queue_lag", 1, t_ns=now, system=b"redis", cluster=b"c", destination=b"orders", exact=1)])
    store.close()
    command = tmp_path / "tickscope"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m agent "$@"\n')
    command.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("limiters", "show", ""), {"shop:api", "main.(*Handler).Pay", "x;$(touch owned)"}),
        (("queues", "show", "or"), {"orders"}),
        (("lab", "run", "network_"), {"network_delay"}),
        (("lab", "bench", "--kind", "network_"), {"network_delay"}),
    ],
)
def test_names_are_offered(place: Path, words: tuple[str, ...], some: set[str]) -> None:
    env = {"COMP_WORDS": " ".join(["tickscope", *words, *(["''"] if words[-1] == "" else [])]), "COMP_CWORD": "-1"}
    done = tickscope_text(_TICKSCOPE_COMPLETE="bash_complete", TICKSCOPE_STORE=str(place / "store"), **env)
    offered = {line.partition(",")[2] for line in done.stdout.splitlines()}
    assert some <= offered and done.stdout.isascii() and "\x1b" not in done.stdout and "two" not in offered


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("tickscope limiters show sh\tap\t", "limiters show shop:api"),
        ("tickscope limiters show shop:\tw\t", "limiters show shop:web"),
        ("tickscope limiters show mai\t", r"limiters show main.\(\*Handler\).Pay"),
        ("tickscope limiters show main.\\(\\*Ha\t", r"limiters show main.\(\*Handler\).Pay"),
        ("tickscope limiters show a\t", r"limiters show a\ b\'c"),
        ("tickscope limiters show x\t", r"limiters show x\;\$\(touch\ owned\)"),
        ("tickscope find\t", "tickscope findings"),
        ("tickscope query tcp_rtt --columns peer,srt\t", "--columns peer,srtt_us"),
    ],
)
def test_bash_puts_whole_names_on_the_line_and_runs_none(place: Path, typed: str, line: str) -> None:
    env = {"PATH": f"{place}:/usr/bin:/bin", "TICKSCOPE_STORE": str(place / "store"), "PS1": "$ ", "HOME": str(place)}
    argv = ["bash", "--norc", "--noprofile", "-i"]
    with Program(argv, 100, 24, program="", **env) as shell:
        shell.press(f"cd {place}; source <(tickscope completion bash); clear; echo rea''dy\r")
        shell.until(lambda text: "ready" in text)
        *parts, rest = typed.split("\t")
        for part in parts:
            shell.press(part, "\t")
            shell.read(2.0)
        shell.press(rest)
        shell.until(lambda text: text.rstrip().endswith(line), 5)
        shell.press("\r")
        shell.read(0.5)
    assert not (place / "owned").exists()
