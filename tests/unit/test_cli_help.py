"""Every verb, option and argument: documented for a newcomer, and with the options that the contract promises."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from agent.cli.main import VERBS, cli
from agent.errors import AgentError
from agent.service.control import ask
from tests.commands import tickscope_text as tickscope

#: Verbs that print rows or a document; the others become the agent, write a script, or have ``-o`` for a file.
_WITHOUT_FORMAT = {"run", "demo", "record", "report", "ui", "completion", "config schema"}
_WITHOUT_STORE = {
    *("completion", "clock watch", "limiters try", "lab list", "lab run", "lab bench", "lab score"),
    *("config check", "config example", "config schema"),
}


def commands() -> Iterator[tuple[str, click.Command]]:
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        yield verb, command
        for name, sub in getattr(command, "commands", {}).items():
            yield f"{verb} {name}", sub


ALL = dict(commands())


@pytest.mark.parametrize("verb", ALL)
def test_every_verb_and_option_has_help(verb: str) -> None:
    command = ALL[verb]
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name


@pytest.mark.parametrize("verb", ALL)
def test_options_of_the_contract(verb: str) -> None:
    if getattr(ALL[verb], "no_args_is_help", False) and hasattr(ALL[verb], "commands"):
        return  # it only has verbs below it
    options = {text for p in ALL[verb].params for text in p.opts}
    if verb not in _WITHOUT_FORMAT:
        assert "-o" in options
        fmt = next(p for p in ALL[verb].params if "-o" in p.opts)
        assert isinstance(fmt.type, click.Choice)
        assert list(fmt.type.choices) == ["table", "json", "ndjson", "csv"]
    if verb not in _WITHOUT_STORE:
        assert "--store" in options


def test_every_argument_is_explained() -> None:
    for verb, command in ALL.items():
        for argument in command.params:
            if isinstance(argument, click.Argument):
                names = re.findall(r"\w+", argument.make_metavar(click.Context(command)))
                assert any(name in (command.help or "") for name in names), verb


def test_a_misspelt_verb_gets_the_near_one() -> None:
    done = tickscope("fndings")
    assert done.returncode == 2
    assert "Did you mean findings?" in done.stderr
    assert not done.stdout


def test_a_table_for_a_verb_gets_the_query() -> None:
    done = tickscope("tcp_rtt")
    assert done.returncode == 2
    assert "No such verb 'tcp_rtt'. Did you mean query tcp_rtt?" in done.stderr


def test_an_agent_that_does_not_answer_is_not_taken_for_none(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(tmp_path / "control.sock"))
        sock.listen()
        with pytest.raises(AgentError, match="does not answer") as reported:
            ask(str(tmp_path), "status", timeout_s=0.05)
    assert reported.value.remedy == "tickscope status --wait 30"


@pytest.mark.parametrize("argv", [["tables"], ["--help"], ["findings", "--help"], ["--version"], ["completion", "zsh"]])
def test_an_output_that_cannot_be_written_is_reported(argv: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "agent", *argv], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminal_without_unicode_shows_what_it_can() -> None:
    done = tickscope("tables", "tcp_rtt", PYTHONIOENCODING="ascii")
    assert done.returncode == 0


def test_durations_take_units_everywhere() -> None:
    for verb in ("run", "demo"):
        done = tickscope(verb, "--duration", "5 years")
        assert done.returncode == 2
        assert "--duration" in done.stderr
        assert "90s" in done.stderr
    assert ALL["record"].params[1].type.convert("2m", None, None) == 120
    assert ALL["status"].params[0].type.convert("20s", None, None) == 20


def test_bash_completes_verbs_options_and_tables() -> None:
    def complete(*words: str) -> list[str]:
        env = {
            "_TICKSCOPE_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["tickscope", *words]),
            "COMP_CWORD": str(len(words)),
        }
        return [line.split(",", 1)[1] for line in tickscope(**env).stdout.splitlines() if "," in line]

    assert sorted(complete("que")) == ["query", "queues"]
    assert "tcp_rtt" in complete("query", "tcp")
    assert "--group-by" in complete("query", "tcp_rtt", "--g")
    assert complete("query", "tcp_rtt", "--group-by", "pe") == ["peer"]
    assert complete("query", "tcp_rtt", "--columns", "peer,srt") == ["peer,srtt_us"]
    assert "peer,peer" not in complete("query", "tcp_rtt", "--columns", "peer,pe")
    assert complete("query", "--columns", "pe") == []
    assert complete("replay", "x", "--without", "tcp_re") == ["tcp_retransmit", "tcp_reset"]
    assert complete("config", "s") == ["schema", "show"]
    assert complete("config", "show", "ntp.c") == ["ntp.chrony"]
    assert complete("config", "example", "otlp_") == ["otlp_receiver", "otlp_receiver.http"]
    env = {"_TICKSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": "tickscope explain ", "COMP_CWORD": "2"}
    assert tickscope(TICKSCOPE_STORE="/nonexistent", **env).stdout == "plain,last\n"


def test_no_such_verb_is_reported_with_one_word() -> None:
    for argv in (["zzz"], ["clock", "zzz"]):
        done = tickscope(*argv)
        assert done.returncode == 2
        assert "No such verb 'zzz'" in done.stderr and "No such command" not in done.stderr
    shown = tickscope("clock", "--help").stdout
    assert "Verbs:" in shown and "Commands:" not in shown
    assert "Did you mean history?" in tickscope("clock", "histroy").stderr


def test_the_script_itself_can_be_interrupted_before_it_imports_anything_of_weight() -> None:
    script = (Path(__file__).parents[2] / "agent" / "cli" / "tickscope").read_text()
    code = (
        script.partition("from agent")[0]
        + "import os, signal, sys; print(sorted(sys.modules), flush=True); os.kill(os.getpid(), signal.SIGINT); import"
        " zipfile"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    plain = subprocess.run(
        [sys.executable, "-I", "-c", "import _signal, os, signal, sys; print(sorted(sys.modules))"],
        capture_output=True,
        text=True,
    )
    assert done.stdout == plain.stdout


@pytest.mark.parametrize("ignored", [False, True])
def test_an_interrupted_verb_reports_nothing_however_early(tmp_path: Path, ignored: bool) -> None:
    """ignored: as a shell starts what it puts into the background. From the first import of ours on."""
    began = tmp_path / "began"
    (tmp_path / "click.py").write_text(
        f"import time; open({str(began)!r}, 'w').close()\nwhile True: time.sleep(0.05)\n"
    )
    verb = subprocess.Popen(
        [sys.executable, "-m", "agent", "findings"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL),
    )
    while not began.exists():
        assert verb.poll() is None
    verb.send_signal(signal.SIGINT)
    assert verb.communicate(timeout=30) == (None, "")
    assert verb.returncode == 130
    assert subprocess.run(["bash", "-n"], input=tickscope("completion", "bash").stdout, text=True).returncode == 0
