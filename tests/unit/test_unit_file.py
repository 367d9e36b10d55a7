"""The systemd unit: its bounds leave room for what the agent itself allows."""

from __future__ import annotations

import re
from pathlib import Path

from agent.config import ServiceSettings
from agent.kernel.limits import ANALYZER_EXTRA_BYTES, ANALYZERS

_TEXT = (Path(__file__).parents[2] / "deploy/tickscope.service").read_text()
SETTINGS = dict(re.findall(r"^(\w+)=(.*)$", _TEXT, re.MULTILINE))
AGENT_BYTES = 256 << 20  # and its helpers, with some room


def test_a_file_that_is_hard_to_examine_does_not_end_the_service() -> None:
    assert int(SETTINGS["MemoryMax"].removesuffix("M")) << 20 >= AGENT_BYTES + ANALYZERS * ANALYZER_EXTRA_BYTES
    assert (
        SETTINGS["OOMPolicy"] == "continue"
    )  # systemd's default is to stop the unit when the kernel kills one process of it


def test_a_watch_that_is_started_again_may_go_first() -> None:
    assert int(SETTINGS["LimitRTPRIO"]) >= 1
    assert not {"CapabilityBoundingSet", "NoNewPrivileges"} & set(SETTINGS)


def test_only_the_agent_is_asked_to_end() -> None:
    assert SETTINGS["KillMode"] == "mixed"


def test_systemd_waits_for_what_the_agent_reports_it() -> None:
    assert SETTINGS["Type"] == "notify"
    assert int(SETTINGS["WatchdogSec"]) >= 30  # the loop tells it once a second
    assert SETTINGS["RuntimeDirectory"] == Path(ServiceSettings.run_dir).name


def test_its_documentation_is_installed() -> None:
    place = SETTINGS["Documentation"].removeprefix("file:///opt/tickscope/")
    assert (Path(__file__).parents[2] / place).is_file()
