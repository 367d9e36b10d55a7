"""Hostile inputs of each parser: taken, or refused with a reason, and nothing else. A million of each:
parser_pieces.py.
"""

from __future__ import annotations

import pytest

from tests.unit.parser_pieces import PARSERS, attack


@pytest.mark.parametrize(
    ("name", "inputs"),
    [*((name, 1_009) for name in PARSERS), ("go", 13_501)],  # one of those was refused by nobody
)
def test_hostile_inputs_are_taken_or_refused(name: str, inputs: int) -> None:
    reported = attack(name, inputs)
    assert reported["taken"] > 10, reported
    assert not PARSERS[name][1] or reported["refused"] > 10, reported
