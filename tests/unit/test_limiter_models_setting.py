"""Which model belongs to a limiter: what libraries declare, and the setting ``limiter_models``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.batch import make
from agent.common.settings import read
from agent.errors import USAGE, AgentError
from agent.limiters.catalogue import CATALOGUE
from agent.limiters.model_settings import Declared
from agent.limiters.models.catalogue import MODELS
from agent.limiters.replay.ruled import BY_ALGORITHM, ruled
from agent.limiters.settings import LimiterSettings

S = 10**9


def parse(given: object) -> list[Declared]:
    found = read(LimiterSettings, {"limiter_models": given}).limiter_models
    return [replace(one, pattern=pattern) for pattern, one in found.items()]


def row(**columns: object) -> np.void:
    found = make("limiter_decision", 1, limiter_id=b"checkout:eu", **columns).rows[0]
    assert isinstance(found, np.void)
    return found


def test_what_libraries_declare_is_there() -> None:
    named = {step.model or one.model for one in CATALOGUE for step in one.steps} - {""}
    assert named <= set(MODELS)
    assert set(BY_ALGORITHM.values()) <= set(MODELS)


@pytest.mark.parametrize(
    ("version", "model"),
    [
        (b"v0.1.0", "token bucket, first generation"),
        (b"v0.2.0", "token bucket, first generation"),
        (b"v0.3.0", "token bucket"),
        (b"", "token bucket"),
    ],
)
def test_a_library_decides_by_its_version(version: bytes, model: str) -> None:
    rule = ruled(row(library=b"golang.org/x/time/rate", library_version=version, limit_per_s=5.0, burst=9.0))
    assert (rule.model and rule.model.name, rule.limit.per_s, rule.limit.burst, rule.lacking, rule.doubts) == (
        model,
        5.0,
        9.0,
        "",
        (),
    )


def test_the_setting_reports_what_nobody_else_does() -> None:
    declarations = parse(
        {
            "check*:e?": {
                "model": "sliding window of slots",
                "clock": "wall",
                "window": "1s",
                "slots": 5,
                "limit": 100,
            },
            "*": {"limit": 7},
        }
    )
    rule = ruled(row(), declarations)
    assert rule.model is MODELS["sliding window of slots"]
    assert (rule.limit.window_ns, rule.limit.slots, rule.limit.count, rule.clock, rule.doubts) == (
        S,
        5,
        100,
        "wall",
        (),
    )
    assert ruled(row(), parse({"other": {"model": "GCRA"}})).model is None
    assert ruled(row(), parse({"*": {"model": "GCRA"}})).lacking == "its rate, burst is not known"
    assert ruled(row(limit_per_s=40.0, window_ns=S // 2), parse({"*": {"model": "fixed window"}})).limit.count == 20


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"a": {"model": "sundial"}}, "limiter_models.a.model cannot be 'sundial'"),
        ({"a": {"clock": "moon"}}, "limiter_models.a.clock"),
        ({"a": {"modle": "GCRA"}}, "there is no setting limiter_models.a.modle"),
        ({"a": {"window": "soon"}}, "limiter_models.a.window"),
        ({"a": {"slots": 0}}, "limiter_models.a.slots"),
        ({"a": {"shared": "yes"}}, "limiter_models.a.shared"),
        ({"a": 5}, "limiter_models.a cannot be 5"),
        ({f"l{i}": {} for i in range(257)}, "257 entries"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, object], words: str) -> None:
    with pytest.raises(AgentError) as error:
        parse(given)
    assert error.value.exit_code == USAGE
    assert words in str(error.value)
