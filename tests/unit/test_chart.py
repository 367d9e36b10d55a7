"""The Helm chart, as far as it can be read without Helm: it agrees with the code and with the systemd unit.

tests/package renders it.
"""

from __future__ import annotations

import re

import yaml

from agent.common.version import VERSION
from agent.config import ServiceSettings
from agent.kernel.compiler import CACHE
from agent.kernel.helper import NEEDED_BY_LINKS
from agent.posix import privilege
from agent.store.settings import StoreSettings
from tests.package.chart import CHART, capabilities
from tests.unit.test_unit_file import SETTINGS

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
DAEMON_SET = (CHART / "templates/daemonset.yaml").read_text()


def test_the_version_is_the_agent_s() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (VERSION, VERSION)


def test_the_memory_limit_is_that_of_the_unit() -> None:
    assert VALUES["resources"]["limits"]["memory"] == f"{SETTINGS['MemoryMax']}i"


def test_what_the_helper_needs_is_listed() -> None:
    names = {number: name.removeprefix("CAP_") for name, number in vars(privilege).items() if name[:4] == "CAP_"}
    assert {names[number] for number in NEEDED_BY_LINKS} <= set(capabilities())
    unit = {name.removeprefix("CAP_") for name in SETTINGS["CapabilityBoundingSet"].split()}
    assert set(capabilities()) - unit == {"SYS_NICE"}  # instead of LimitRTPRIO=
    assert unit - set(capabilities()) == {"BPF", "SYS_ADMIN"}  # by kernel


def test_the_agent_s_directories_are_the_node_s() -> None:
    writable = re.findall(r"mountPath: (\S+)\n            - ", DAEMON_SET)
    assert {ServiceSettings.run_dir, StoreSettings.store, str(CACHE)} == set(writable)
