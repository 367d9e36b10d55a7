"""Hostile inputs of each parser: taken, or refused with a reason, and nothing else. A million of each:
parser_pieces.py.
"""

from __future__ import annotations

import pytest

from tests.unit.parser_pieces import PARSERS, attack


@pytest.mark.parametrize("name", PARSERS)
def test_hostile_inputs_are_taken_or_refused(name: str) -> None:
    reported = attack(name, 13_501 if name == "go" else 2_003)  # one was refused by nobody
    assert reported["taken"] > 10, reported
    assert not PARSERS[name][1] or reported["refused"] > 10, reported
