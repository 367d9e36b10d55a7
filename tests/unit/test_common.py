"""Values as text and back, and clocks read against each other: one of each, for all rooms."""

from __future__ import annotations

import time

import pytest

from agent.batch import Loss, losses
from agent.columns import NULL_I64
from agent.common.address import addr_bytes, addr_text, peer_bytes, peer_text
from agent.common.clocks import apart
from agent.common.duration import number, parse_ns, span
from agent.common.recent import Recent
from agent.tables import TABLES


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (950, "950 ns"),
        (999.7, "1 us"),
        (12_345, "12.3 us"),
        (4_560_000, "4.56 ms"),
        (999_960, "1 ms"),
        (-1_420_000_000, "-1.42 s"),
        (123_000_000_000, "123 s"),
        (1_234_500_000_000, "1234 s"),
        (float("nan"), "-"),
    ],
)
def test_a_duration_has_three_figures_and_a_unit(ns: float, text: str) -> None:
    assert span(ns) == text
    assert span(ns, gap="") == text.replace(" ", "")


def test_numbers_are_whole_from_100_on() -> None:
    assert [number(value) for value in (0.00123, 9.999, 99.94, 99.95, 1234.5)] == [
        "0.00123",
        "10",
        "99.9",
        "100",
        "1234",
    ]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("128ms", 128_000_000),
        ("1.5 h", 5_400_000_000_000),
        (".5s", 500_000_000),
        ("2d", 172_800_000_000_000),
        ("7ns", 7),
        ("5m", 300_000_000_000),
        ("90", None),
        ("-5s", None),
        ("1e3s", None),
        ("٣s", None),
        ("5 weeks", None),
        ("s", None),
        ("", None),
        ("5s ", None),
        ("9" * 400 + "s", None),
    ],
)
def test_durations_are_read_in_one_way(text: str, ns: int | None) -> None:
    if ns is not None:
        assert parse_ns(text) == ns
        return
    with pytest.raises(ValueError, match="is not a duration"):
        parse_ns(text)


def test_a_bare_number_counts_where_its_unit_is_reported() -> None:
    assert parse_ns("90", bare="s") == parse_ns("90s")


@pytest.mark.parametrize("address", ["192.0.2.1", "::1", "2001:db8::5", "2001:db8:0:1:1:1:1:1"])
def test_addresses_come_back_as_they_were(address: str) -> None:
    assert addr_text(addr_bytes(address)) == address
    assert peer_text(peer_bytes(address, 6379)) == (f"[{address}]:6379" if ":" in address else f"{address}:6379")


def test_an_address_of_zeros_is_unknown_whatever_the_port() -> None:
    assert (addr_text(bytes(16)), peer_text(bytes(16) + b"\x50\0")) == ("", "")


def test_the_closest_reading_of_two_clocks_counts() -> None:
    """The second round's reading of the other clock was quick, its first was not."""
    ticks = iter([0, 1_000_000_500, 1000, 2000, 1_000_002_010, 2020, *([9000, 0, 99_000] * 3)])
    (found,) = apart(1, (2,), read=lambda _: next(ticks))
    assert (found.before_ns, found.after_ns, found.offset_ns, found.err_ns) == (2000, 2020, 1_000_000_000, 11)


def test_a_round_that_is_close_is_the_last() -> None:
    asked: list[int] = []

    def read(clock: int) -> int:
        asked.append(clock)
        return len(asked)

    assert [one.offset_ns for one in apart(1, (2, 3), close_ns=10, read=read)] == [0, 0]
    assert asked == [1, 2, 1, 3, 1]


def test_real_clocks_lie_as_far_apart_as_they_report() -> None:
    raw, real = apart(time.CLOCK_MONOTONIC, (time.CLOCK_MONOTONIC_RAW, time.CLOCK_REALTIME))
    assert abs(real.offset_ns - (time.time_ns() - time.monotonic_ns())) < 50_000_000
    assert 0 < raw.err_ns < 10_000_000


def test_a_loss_is_dated_by_its_end_unless_it_was_noticed_later() -> None:
    known = Loss("tcp_rtt", 7, 100, 200)
    rows = losses(
        "store", known, Loss("agent", from_ns=100), Loss("segment", None, 100, 200, t_ns=300), Loss("damaged")
    ).rows
    assert rows["t_ns"].tolist() == [200, 100, 300, 0]
    assert rows["count"].tolist() == [7, NULL_I64, NULL_I64, NULL_I64]
    assert (rows["from_ns"].tolist(), rows["to_ns"].tolist()) == (
        [100, 100, 100, NULL_I64],
        [200, NULL_I64, 200, NULL_I64],
    )
    assert set(rows["stage"].tolist()) == {TABLES["loss"].code("stage", "store")}
    assert rows["source"].tolist() == [b"tcp_rtt", b"agent", b"segment", b"damaged"]


def test_a_bounded_dictionary_drops_the_key_that_was_not_set_for_longest() -> None:
    kept = Recent[str, int](2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    kept.update({"c": 4})
    assert list(kept.items()) == [("a", 3), ("c", 4)]
