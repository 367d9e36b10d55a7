"""Imports that are left out."""

from __future__ import annotations

import subprocess
import sys

import pytest

_MASKED = """
import sys, numpy as np
from agent.common.lean import without_masked_arrays
without_masked_arrays()
assert np.unique(np.array([2, 1, 2])).tolist() == [1, 2] and np.isin([1, 2], [2]).tolist() == [False, True]
assert np.median([1, 2, 3]) == 2
assert "numpy.ma" not in sys.modules
assert np.ma.masked_all((2,)).mask.all()
import numpy.ma
without_masked_arrays()
masked = np.ma.masked_array([1, 2, 2], [True, False, False])
assert np.ma.is_masked(masked) and np.unique(masked).tolist() == [2, None]
"""


def test_distinct_values_are_found_without_masked_arrays_which_still_can_be_had() -> None:
    done = subprocess.run([sys.executable, "-c", _MASKED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


_HOLLOW = """
import sys
from agent.common.lean import hollow
with hollow("html", escape=str):
    from html import escape
    import html
    assert escape is str and not hasattr(html, "unescape")
import html
assert html.escape("<") == "&lt;"
"""

_UNPOLLED = """
import sys
from agent.queues import catalogue
from agent.queues.poller_process import BrokerPoller
pollers = [BrokerPoller(name, (), 1.0) for name in catalogue.names()]
loaded = [name for name in sys.modules if name.startswith("agent.queues.brokers.")]
assert len(pollers) > 5 and not loaded, loaded
"""


@pytest.mark.parametrize("code", [_HOLLOW, _UNPOLLED], ids=["hollow", "unpolled"])
def test_what_is_left_out_takes_no_memory_and_can_still_be_had(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
