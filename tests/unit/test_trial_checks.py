"""What ``limiters try`` doubts of decisions as they come, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.trial import Declarations
from agent.cli.trial_checks import TrialChecks
from agent.limiters.catalogue import declare, seen
from agent.limiters.functions.seen import all_seen
from agent.limiters.reading import UNKNOWN
from tests.unit.limiter_records import records

TEXT = """- name: edge
  program: edge
  language: c
  symbol: offer
  arguments:
    key: si
    burst: u32 di+8
  results: {result: bool ax}
"""
UNREAD = int(UNKNOWN)


@pytest.fixture
def checks(tmp_path: Path) -> Iterator[TrialChecks]:
    (tmp_path / "t.yaml").write_text(TEXT)
    declarations = Declarations(tmp_path / "t.yaml")
    declare(all_seen(declarations.functions))
    yield TrialChecks(declarations, declarations.functions)
    declare({})


def reported(checks: TrialChecks, sizes: list[int], bursts: list[int]) -> list[str]:
    """After decisions with these sizes of the key, and these bursts."""
    for size, burst in zip(sizes, bursts, strict=True):
        one = records(granted=[1], burst=[burst])
        one["library"], one["key_size"], one["key_text"] = len(seen()) - 1, size, b"a"
        checks.of(one)
    checks.rest()
    return [text.partition(": ")[2] for text in checks.reported]


def test_a_key_that_is_missing_now_and_then_is_no_wrong_line(checks: TrialChecks) -> None:
    assert reported(checks, [UNREAD, UNREAD, 1, UNREAD], [7, 7, UNREAD, 7]) == []


@pytest.mark.parametrize("count", [1, 5, 100])
def test_what_is_never_there_is(checks: TrialChecks, count: int) -> None:
    assert reported(checks, [UNREAD] * count, [UNREAD] * count) == [
        "arguments.burst: nothing can be read at di+8: is di a pointer there?",
        "arguments.key: nothing can be read at si: is it a pointer to the key's bytes?",
    ]
