"""A section's declaration: what it reads, and that each mistake names the setting, what it was and what it can be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import pytest

from agent.common.settings import (
    Place,
    beside,
    by_name,
    directory,
    flag,
    number,
    one_of,
    part,
    read,
    restored,
    seconds,
    setting,
    text,
    texts,
    whole,
    with_environment,
)
from agent.config import Config
from agent.errors import USAGE, AgentError


@dataclass(frozen=True)
class Inner:
    url: str = setting("", text("a URL"))
    on: bool = setting(False, flag())
    least: float = setting(1.0, number(1))
    most: float = setting(9.0, number(0, 10))

    def check(self) -> None:
        if self.least > self.most:
            raise ValueError("least is at most most")


@dataclass(frozen=True)
class Near:
    home: str = setting("/a", directory(20), variable="HOME_OF_IT")


@dataclass(frozen=True)
class Section:
    near: Near = setting(Near(), beside(Near))
    mode: str = setting("slow", one_of("slow", "off"))
    share: float = setting(0.5, number(0, 1))
    size: int = setting(1, whole(1, 9))
    pace_s: float = setting(1.0, seconds(0.1, 60), key="pace")
    hosts: tuple[str, ...] = setting((), texts("a list of names", 2))
    inner: Inner = setting(Inner(), part(Inner))
    named: Mapping[str, Inner] = setting({}, by_name(part(Inner), 2, "sections"))
    unset: int = 7


@pytest.mark.parametrize(
    ("given", "what", "why"),
    [
        ({"mode": "fast"}, "mode cannot be 'fast'", "must be one of slow, off"),
        ({"share": 1.5}, "share cannot be 1.5", "must be between 0 and 1"),
        ({"share": True}, "share cannot be True", "must be"),
        ({"inner": {"least": "1e400"}}, "inner.least cannot be '1e400'", "must be a number of at least 1"),
        ({"inner": {"least": "nan"}}, "'nan'", "number"),
        ({"inner": {"least": [1]}}, "inner.least cannot be [1]", "number"),
        ({"inner": {"least": 10}}, "inner cannot be", "least is at most most"),
        ({"size": 1.5}, "size cannot be 1.5", "a whole number"),
        ({"pace": "5 weeks"}, "pace cannot be '5 weeks'", "such as 64s"),
        ({"pace": "2m"}, "'2m'", "must be a time from 100ms to 60s"),
        ({"inner": {"on": "yes"}}, "inner.on cannot be 'yes'", "must be true or false"),
        ({"inner": {"url": 5}}, "inner.url cannot be 5", "must be a URL"),
        ({"inner": {"url": "\ud800"}}, "inner.url cannot be", "must be a URL"),
        ({"inner": {"url": ["x" * 10_000]}}, "...", "a URL"),
        ({"inner": 5}, "inner cannot be 5", "a section"),
        ({"hosts": ["a", ""]}, "hosts cannot be ['a', '']", "a list of names"),
        ({"hosts": ["a", "b", "c"]}, "hosts cannot be", "a list of names"),
        ({"home": "/" + "x" * 20}, "home cannot be", "at most 20 bytes"),
        ({"home": "/a\0b"}, "home cannot be", "directory"),
        ({"mod": 1}, "there is no setting 'mod'", "did you mean mode?"),
        ({7: 1}, "there is no setting 7", "known: home, mode, share"),
        ({"unset": 1}, "there is no setting 'unset'", ""),
        ({"inner": {"ur": 1}}, "there is no setting inner.ur", "did you mean url?"),
        ({"named": {"a": {"ur": 1}}}, "there is no setting named.a.ur", "did you mean url?"),
        ({"named": {"a": {}, "b": {}, "c": {}}}, "named has 3 entries", "at most 2 are allowed"),
    ],
)
def test_a_mistake_names_the_setting_and_what_it_can_be(given: dict[object, object], what: str, why: str) -> None:
    with pytest.raises(AgentError) as raised:
        read(Section, given)
    assert what in raised.value.what and why in raised.value.why
    assert raised.value.exit_code == USAGE and len(raised.value.what) < 200


def test_values_come_as_what_they_are_and_survive_json() -> None:
    given = {
        "home": "/b",
        "mode": False,  # YAML reads a bare off so
        "share": "0.25",
        "size": 7.0,
        "pace": "1m",
        "hosts": "a",
        "inner": {"url": "x", "on": True},
        "named": {"n": {"least": 2}},
    }
    found = read(Section, given)
    assert found == Section(Near("/b"), "off", 0.25, 7, 60.0, ("a",), Inner("x", on=True), {"n": Inner(least=2.0)})
    assert restored(Section, json.loads(json.dumps(asdict(found)))) == found
    assert read(Section, {"mode": None, "inner": None}) == Section()


def test_the_environment_replaces_what_was_given() -> None:
    assert with_environment(Section, {"home": "/b", "size": 2}, {"HOME_OF_IT": "/c"}) == {"home": "/c", "size": 2}
    assert with_environment(Section, {"size": 2}, {"HOME_OF_IT": ""}) == {"size": 2}


def test_a_place_is_the_innermost_line_that_is_known() -> None:
    place = Place(("a",), "t.yaml", {("a",): 3, ("a", 0, "b"): 5})
    assert (place.below(0, "b").where, place.below(1).where, Place((), "t.yaml", place.lines).where) == (
        "t.yaml:5",
        "t.yaml:3",
        "",
    )


@pytest.mark.parametrize("section", ["otlp", "metrics", "ntp", "notices", "otlp_receiver"])
def test_every_part_of_the_configuration_is_such_a_section(section: str) -> None:
    with pytest.raises(AgentError, match=f"there is no setting {section}.sampel"):
        read(Config, {section: {"sampel": 1}})
