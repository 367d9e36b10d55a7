"""For every test: which run (``chosen.py``); Ctrl-C works in the programs that tests start, and no property test fails
since the machine is slow.

A shell that runs the tests in the background has SIGINT ignored, which programs inherit, Python's among them. Where
readline was imported (pytest does for its debugger), the C library's environment holds a width of the screen that
nobody asked for, and programs inherit that, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - before the names are removed

from tests import chosen
from tests.lab.hostclock import clock_to_ourselves

settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("sample", settings.get_profile("all"), max_examples=40)
signal.signal(signal.SIGINT, signal.default_int_handler)
#: A receiver's gRPC in this process would stop its threads at each fork, and has waited for ever for one (the
#: laboratory forks without exec).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also the tests that CI leaves out (tests/chosen.py)")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("all" if config.getoption("--all") else "sample")


def name_and_seed(item: pytest.Item) -> tuple[str, Any]:
    """Its id without parameters, and its parameter ``seed`` (0 where it has none)."""
    return item.nodeid.partition("[")[0], item.callspec.params.get("seed", 0) if hasattr(item, "callspec") else 0


@pytest.hookimpl(tryfirst=True)  # before -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (config.getoption("--all") or any("::" in argument for argument in config.args)):
        lowest = dict[str, Any]()
        for item in items:
            name, seed = name_and_seed(item)
            lowest[name] = min(lowest.get(name, seed), seed)
        left_out = set[pytest.Item]()
        for item in items:
            name, seed = name_and_seed(item)
            if seed > lowest[name] or chosen.only_all(item.nodeid):
                left_out.add(item)
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if chosen.alone(item.nodeid):
            item.add_marker("alone")
    size = Counter(chosen.worker(item.nodeid) for item in items)
    items.sort(key=lambda item: (chosen.rank(item.nodeid), -size[chosen.worker(item.nodeid)]))


class Scheduling(LoadScopeScheduling):
    """Sends the tests of one group to one worker. xdist's own ``loadgroup`` does not with pytest 9.2: it ignores the
    groups silently (pytest-xdist issue 1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        return chosen.worker(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    config.option.loadscopereorder = False  # in the order of the items
    return Scheduling(config, log)


@pytest.fixture
def own_clock() -> Iterator[None]:
    """No other run of the tests on this machine steps its clock meanwhile."""
    with clock_to_ourselves():
        yield
