"""The systemd unit: its bounds leave room for what the agent itself allows."""

from __future__ import annotations

import re
from pathlib import Path

from agent.config import ServiceSettings
from agent.kernel.compiler import CACHE
from agent.kernel.helper import NEEDED_BY_PERF
from agent.kernel.limits import ANALYZER_EXTRA_BYTES, ANALYZERS
from agent.posix import privilege
from agent.store.settings import StoreSettings

_TEXT = (Path(__file__).parents[2] / "deploy/tickscope.service").read_text()
SETTINGS = dict[str, str]()
for _name, _value in re.findall(r"^(\w+)=(.*)$", _TEXT, re.MULTILINE):
    SETTINGS[_name] = f"{SETTINGS.get(_name, '')} {_value}".strip()  # systemd adds up lists
AGENT_BYTES = 256 << 20  # and its helpers, with some room


def test_a_file_that_is_hard_to_examine_does_not_end_the_service() -> None:
    assert int(SETTINGS["MemoryMax"].removesuffix("M")) << 20 >= AGENT_BYTES + ANALYZERS * ANALYZER_EXTRA_BYTES
    assert (
        SETTINGS["OOMPolicy"] == "continue"
    )  # systemd's default is to stop the unit when the kernel kills one process of it


def test_a_watch_that_is_started_again_may_go_first() -> None:
    assert int(SETTINGS["LimitRTPRIO"]) >= 1


def test_what_the_agent_needs_is_in_the_bounding_set() -> None:
    """tests/package tries it, on one kernel: older ones need more."""
    bounds = set(SETTINGS["CapabilityBoundingSet"].split())
    for needed in (*NEEDED_BY_PERF, privilege.CAP_BPF):
        assert (
            next(name for name, number in vars(privilege).items() if name[:4] == "CAP_" and number == needed) in bounds
        )
    assert SETTINGS["LimitMEMLOCK"] == "infinity"  # instead of CAP_SYS_RESOURCE, before kernel 5.11


def test_it_may_write_where_its_directories_are() -> None:
    writable = [Path(path) for path in SETTINGS["ReadWritePaths"].split()]
    for path in (ServiceSettings.run_dir, StoreSettings.store, CACHE):
        assert set(Path(path).parents) & set(writable), path


def test_only_the_agent_is_asked_to_end() -> None:
    assert SETTINGS["KillMode"] == "mixed"


def test_systemd_waits_for_what_the_agent_reports_it() -> None:
    assert SETTINGS["Type"] == "notify"
    assert int(SETTINGS["WatchdogSec"]) >= 30  # the loop tells it once a second


def test_its_documentation_is_installed() -> None:
    place = SETTINGS["Documentation"].removeprefix("file:///opt/tickscope/")
    assert (Path(__file__).parents[2] / place).is_file()
