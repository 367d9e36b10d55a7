"""What findings say: templates and facts in the correlator, pieces in the row, words where they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.common.sentence import Piece, Value, measured, pieces, plain, text_of
from agent.correlate.words import amid, fit, fit_pieces, listing, opening, peer, render, span, value, when
from agent.correlate.words import measured as of_an_episode
from agent.correlate.words import pieces as parts
from tests.unit.correlate_scenarios import ALL, Host, S, broker_slow, latest, run

SENTENCE = "from boot+12.345 to boot+13.000, not boot+1.2345 or boot+x"


@pytest.mark.parametrize(
    ("of", "want"),
    [
        (span(0), "0 ns"),
        (span(999), "999 ns"),
        (span(1_420_000_000), "1.42 s"),
        (span(800_000), "800 us"),
        (span(-400_000), "400 us"),
        (span(999_999_999), "1 s"),
        (span(119.9e9), "120 s"),
        (span(120e9), "2 min"),
        (span(-7766.4e9), "2 h 9 min 26 s"),
        (span(3600e9), "1 h"),
        (span(90_000e9), "1 d 1 h"),
        (value(0.5, "s"), "500 ms"),
        (value(600.0, "s"), "10 min"),
        (value(123.4), "123"),
        (value(-2), "-2"),
        (value(0.278, "ratio"), "27.8 %"),
        (value(54.5, "1/s"), "54.5 per second"),
        (value(1, "message/s"), "1 message per second"),
        (value(98.44, "message/s"), "98.4 messages per second"),
        (value(1, "TCP segment"), "1 TCP segment"),
        (value(0, "connection"), "0 connections"),
        (value(1234567.0, "message"), "1234567 messages"),
        (value(float("nan"), "ns"), "an unknown value"),
        (value(float("inf")), "an unknown value"),
        (value(None, "message"), "an unknown value"),
        (of_an_episode(2e6, "ns"), "2 ms"),
        (of_an_episode(9.0, "connections"), "9"),
    ],
)
def test_values_in_words(of: Value, want: str) -> None:
    assert measured(of) == want
    assert pieces(json.dumps([of]), "") == [of]  # as it is stored


@pytest.mark.parametrize(
    ("subject", "begins"),
    [
        ("redis-server pid 900", "redis-server pid 900"),
        ("redis queue jobs group workers", "redis queue jobs group workers"),
        ("limiter api (python3 pid 1)", "Limiter api (python3 pid 1)"),
        ("the redis server at 10.0.0.1:6379", "The redis server at 10.0.0.1:6379"),
    ],
)
def test_names_are_as_the_system_shows_them_at_the_beginning_of_a_sentence(subject: str, begins: str) -> None:
    assert opening(subject) == begins
    assert plain(parts(amid(f"{begins} was slow", subject))) == f"{subject} was slow"
    assert amid("Decisions of it", subject) == ("decisions of it",)


def test_a_template_with_its_facts() -> None:
    inner = render("{n} of {it}", n=value(3), it="{x}")
    output = render("{who} had {inner}{{}} at {at}.", who="a", inner=inner, at=5 * S)
    assert output == ("a had ", Value(3), " of {x}{} at ", 5 * S, ".")
    assert plain(parts(output)) == "a had 3 of {x}{} at boot+5.000."
    with pytest.raises(KeyError):
        render("{who} did {what}", who="a")


@pytest.mark.parametrize(
    ("items", "want"),
    [
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (list("abcde"), "a, b, c and 2 more"),
        ([render("{n}", n=value(1)), "b"], "1 and b"),
    ],
)
def test_lists_in_words(items: list[str], want: str) -> None:
    assert plain(parts(listing(items))) == want


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (fit_pieces(["abc", 10**9, "d"], 28), ["abc", 10**9, "d"]),
        (fit_pieces(["abcdef", 10**9, "d"], 27), ["abcdef", "..."]),
        (fit_pieces(["abcdef"], 5), ["ab..."]),
        (fit_pieces(["abc", Value(10**9, "ns"), "d"], 7), ["abc", Value(10**9, "ns"), "d"]),
        (fit_pieces(["abc", Value(10**9, "ns"), "d"], 6), ["abc", "..."]),
        (fit("é" * 5, 9), "éééé".encode()[:6] + b"..."),
        (fit("abc", 3), b"abc"),
        (peer(bytes(10) + b"\xff\xff\x7f\0\0\1\xff\x18"), "127.0.0.1:6399"),
        (peer(bytes(15) + b"\1\x50\0"), "[::1]:80"),
        (peer(bytes(18)), ""),
    ],
)
def test_what_fits(got: object, want: object) -> None:
    assert got == want


def test_instants_of_a_sentence_by_any_clock() -> None:
    known = np.array([10**9 * 1_700_000_000, NULL_I64])
    output: list[Piece] = ["from ", 12_345_000_000, " to ", 13 * S, ", not boot+1.234, for ", Value(2, "ns")]
    assert (
        text_of(output, lambda t_ns: known[: len(t_ns)], utc=True)
        == "from 2023-11-14T22:13:20.000Z to boot+13.000, not boot+1.234, for 2 ns"
    )
    assert text_of(["nothing"], lambda t_ns: known) == "nothing"


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        (b'["at ",5]', ["at ", 5]),
        (
            b'["took 1.4 s from ",5," on"]',
            ["took 1.4 s from ", 5, " on"],
        ),  # of the version before: values among the texts
        (None, [SENTENCE]),
        (b"", [SENTENCE]),
        (b"[]", [SENTENCE]),
        (b'["for ",[1.5,"ns"],[null,"s"]]', ["for ", Value(1.5, "ns"), Value(None, "s")]),
        *[
            (raw, [SENTENCE])
            for raw in (
                b"[null]",
                b"5",
                b"null",
                b"[1.5]",
                b"[true]",
                b"[9223372036854775808]",
                b"{",
                b"[" * 5000,
                b"[[1]]",
                b"[[1,2]]",
                b'[[true,"s"]]',
                b'[[NaN,"s"]]',
                b'[[1e999,"s"]]',
                b'[[1,"s",1]]',
                b'[["1","s"]]',
            )
        ],
    ],
)
def test_what_is_stored_is_read(raw: bytes | None, want: list[Piece]) -> None:
    """What are no pieces: the sentence."""
    assert pieces(raw, SENTENCE) == pieces(raw, SENTENCE.encode()) == want


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.__name__)
def test_a_findings_numbers_stay_numbers(scenario: Callable[[], Host]) -> None:
    for found in latest(run(scenario(), 60)):
        output = pieces(json.dumps(found["sentence_parts"]), None)
        texts = " ".join(part for part in output if isinstance(part, str))
        assert not re.search(r"\d (ns|us|ms|s|min|h|%|per second)\b|boot\+", texts), texts
        assert {found["start_ns"], found["end_ns"]} & {part for part in output if isinstance(part, int)}
        assert any(isinstance(part, Value) for part in output)
        assert plain(output) == found["sentence"]


def test_a_whole_sentence() -> None:
    (found,) = latest(run(broker_slow(), 60))
    class_ = type("Timed", (), {"start_ns": found["start_ns"], "end_ns": found["end_ns"]})
    assert (
        found["sentence"]
        == f"Decisions of limiter api (python3 pid 4242) took 1.4 s (usually 782 us) {plain(parts(when(class_)))}"
        " because redis-server pid 900 at 127.0.0.1:6399 did not answer for 1.4 s while the network RTT stayed at"
        " 55 us; the reason is not known."
    )
