"""Every section's mistakes read alike: which setting, what it was, what it can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.clock.daemons.ntp_settings import NtpConfig
from agent.clock.hook_settings import parse as parse_notices
from agent.common.settings import Section
from agent.config import Config
from agent.errors import USAGE, AgentError
from exporters.otlp_settings import resolve
from exporters.page_settings import PageConfig

TOP, PART = Section(), Section("part")


@pytest.mark.parametrize(
    ("check", "what", "why"),
    [
        (lambda: PART.one_of("mode", "fast", ("slow", "off")), "part.mode cannot be 'fast'", "it is one of slow, off"),
        (lambda: TOP.number("share", 1.5, 0, 1), "share cannot be 1.5", "it lies between 0 and 1"),
        (lambda: TOP.number("share", True, 0, 1), "share cannot be True", "it lies"),
        (lambda: PART.number("size", "1e400", 1), "part.size cannot be '1e400'", "it is a number of at least 1"),
        (lambda: PART.number("size", "nan", 1), "'nan'", "number"),
        (lambda: PART.number("size", [1], 1), "part.size cannot be [1]", "number"),
        (lambda: PART.whole("size", 1.5, 1, 9), "part.size cannot be 1.5", "a whole number"),
        (lambda: PART.seconds("pace", "5 weeks", 0.1, 60), "part.pace cannot be '5 weeks'", "a time such as"),
        (lambda: PART.seconds("pace", "2m", 0.1, 60), "'2m'", "a time"),
        (lambda: PART.flag("on", "yes"), "part.on cannot be 'yes'", "it is true or false"),
        (lambda: PART.text("url", 5, "a URL"), "part.url cannot be 5", "it is a URL"),
        (
            lambda: PART.texts("hosts", ["a", ""], "a list of names"),
            "part.hosts cannot be ['a', '']",
            "a list of names",
        ),
        (lambda: PART.texts("hosts", "abc", "few", 0), "'abc'", "few"),
        (lambda: PART.known(["mod"], ["mode", "size"]), "there is no setting part.mod", "did you mean mode?"),
        (lambda: TOP.known([7], ["mode"]), "there is no setting 7", "known: mode"),
        (lambda: PART.text("long", ["x" * 10_000], "a text"), "...", "a text"),
    ],
)
def test_a_mistake_names_the_setting_and_what_it_can_be(check: Callable[[], object], what: str, why: str) -> None:
    with pytest.raises(AgentError) as raised:
        check()
    assert what in raised.value.what and why in raised.value.why
    assert raised.value.exit_code == USAGE and len(raised.value.what) < 200


def test_values_come_as_what_they_are() -> None:
    assert (
        PART.number("size", "2.5", 1),
        PART.whole("size", 7, 1, 9),
        PART.flag("on", False),
        PART.text("url", "x", ""),
    ) == (2.5, 7, False, "x")
    assert (
        PART.texts("hosts", "a", ""),
        PART.texts("hosts", ["a", "b"], ""),
        PART.seconds("pace", 64, 0, 99),
        PART.seconds("pace", "1m", 0, 99),
    ) == (("a",), ("a", "b"), 64.0, 60.0)


@pytest.mark.parametrize(
    ("section", "read"),
    [
        ("otlp", lambda values: resolve(values, {}, {})),
        ("metrics", PageConfig.parse),
        ("ntp", NtpConfig.parse),
        ("notices", parse_notices),
    ],
)
def test_every_section_knows_its_settings(section: str, read: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(AgentError, match=f"there is no setting {section}.sampel"):
        read({"sampel": 1})


def test_the_top_has_the_same_words() -> None:
    with pytest.raises(AgentError, match="poll_s cannot be 0") as raised:
        Config(poll_s=0)
    assert raised.value.why == "it lies between 0.1 and 3600"
