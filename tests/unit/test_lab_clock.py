"""The laboratory never moves a real host's clock by more than half a millisecond, whoever asks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli.lab import command
from agent.errors import USAGE, AgentError
from agent.lab.kind import kinds
from agent.lab.program import programs, reach
from agent.lab.stage import wallclock

FAR = sorted(name for name, kind in kinds().items() if "throwaway_vm" in kind.needs)


def test_there_are_steps_and_slews_both_ways() -> None:
    assert {"clock_slew_fast", "clock_slew_slow", "clock_step_back", "clock_step_forward"} <= set(FAR)


@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("verb", [["run"], ["bench", "--runs", "1", "--kind"]])
def test_kinds_of_virtual_machines_must_be_asked_for(tmp_path: Path, verb: list[str], name: str) -> None:
    with pytest.raises(AgentError, match=name) as error:
        command.main([*verb, name, "--step-clock", "--out", str(tmp_path / "out")], standalone_mode=False)
    assert error.value.exit_code == USAGE
    assert "--throwaway-vm" in error.value.remedy
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", [["run", "nothing"], ["bench", "--runs", "1"]])
def test_asking_is_not_enough_on_a_host(tmp_path: Path, verb: list[str]) -> None:
    assert not wallclock.is_throwaway(), "tests run on machines that are kept"
    with pytest.raises(AgentError, match="is not moved") as error:
        command.main([*verb, "--throwaway-vm", "--out", str(tmp_path / "out")], standalone_mode=False)
    assert error.value.exit_code == USAGE
    assert wallclock.WORD in error.value.why
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("move", ["step(3600)", "step(-3600)", "slew(100_000)", "slew(0)"])
def test_the_calls_themselves_refuse(move: str) -> None:
    """By a process that could not move the clock if they did not."""
    code = f"from agent.lab.stage import wallclock\nwallclock.{move}"
    powerless = ["setpriv", "--bounding-set=-sys_time", "--inh-caps=-sys_time"]
    done = subprocess.run([*powerless, sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "AgentError: the clock of this host is not moved" in done.stderr


@pytest.mark.parametrize(
    ("text", "is_"),
    [("quiet tickscope.throwaway_vm ro\n", True), ("tickscope.throwaway_vm=0\n", False), ("quiet\n", False)],
)
def test_the_word_must_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, is_: bool) -> None:
    monkeypatch.setattr(wallclock, "CMDLINE", tmp_path / "cmdline")
    wallclock.CMDLINE.write_text(text)
    assert wallclock.is_throwaway() is is_


def test_who_goes_by_the_wall_clock_can_feel_it() -> None:
    assert reach(programs(), ("clock",)) == {"api-redis", "api-redis-other", "api-redis-far", "leases"}


@pytest.mark.parametrize("name", kinds())
def test_every_fault_has_somebody_who_can_feel_it(name: str) -> None:
    kind = kinds()[name]
    assert all(reach(programs(), kind.touches.get(target, (target,))) for target in kind.targets)
