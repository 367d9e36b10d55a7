"""Rows by second: their order, their groups, and rings of the last ones."""

from __future__ import annotations

import numpy as np
import pytest

from agent.correlate.rows import LastRows, OfSecond, columns_of, groups, in_order, of_codes, shared, start_ticks, union

DTYPE = np.dtype([("t_ns", np.int64), ("pid", np.int64), ("proc_start_ns", np.int64), ("comm", "S16"), ("peer", "V18")])
BY_USER = np.dtype([("t_ns", np.int64), ("uid", np.int64)])


def some(n: int, times: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = np.zeros(n, DTYPE)
    rows["t_ns"], rows["pid"] = rng.integers(0, times, n), rng.integers(-300, 300, n)
    rows["proc_start_ns"], rows["comm"] = rng.integers(0, 3, n) * 10_000_000, rng.choice([b"a", b"b"], n)
    rows["peer"] = rng.integers(0, 256, (n, 18), np.uint8).view("V18").reshape(-1)
    return rows


@pytest.mark.parametrize("times", [1, 2, 50, 10**9])
@pytest.mark.parametrize("n", [0, 1, 2, 300, 3000])
def test_rows_of_one_time_are_in_order_of_their_bytes(n: int, times: int) -> None:
    rows = some(n, times)
    ordered = in_order(rows)
    assert [row.tobytes() for row in ordered] == [
        row.tobytes() for row in sorted(rows, key=lambda row: (int(row["t_ns"]), row.tobytes()))
    ]
    ordered["pid"] = 1  # they may be changed


def test_groups_are_found_once_a_second_whoever_asks() -> None:
    rows = some(500, 5)
    second = OfSecond({"table": rows})
    first, group = shared(second, "table", "comm", "proc_start_ns")
    for found, expected in zip((first, group), groups([rows["comm"], start_ticks(rows)]), strict=True):
        assert (found == expected).all()
    assert shared(second, "table", "comm", "proc_start_ns")[1] is group
    assert (shared(OfSecond({"table": rows}), "table", "comm", "proc_start_ns")[1] == group).all()


def test_columns_of_some_rows() -> None:
    rows = some(10, 5)
    which = np.array([3, 1])
    assert list(columns_of(rows, which, "pid", "comm")) == [
        (int(rows["pid"][i]), bytes(rows["comm"][i])) for i in (3, 1)
    ]
    assert list(columns_of(rows, which[:0], "pid")) == []


def test_codes_that_are_unknown_are_not_among_some() -> None:
    assert of_codes([0, 3])[np.array([0, 1, 3, -1, -128], np.int8)].tolist() == [True, False, True, False, False]
    assert union(np.array([3, 1]), np.array([], np.int64), np.array([1, 2])).tolist() == [1, 2, 3]


def test_what_was_checked_is_noted_and_found_again_until_somebody_looks_anew() -> None:
    ring = LastRows(DTYPE, 100, 1000)
    pieces = [np.sort(some(10, 50, seed), order="t_ns") for seed in range(3)]  # which overlap
    for piece in pieces:
        ring.add(piece)
    together = np.concatenate(pieces)
    inside = together[(together["t_ns"] >= 10) & (together["t_ns"] <= 40)]
    assert (ring.between(10, 40) == inside).all()
    tracked: set[tuple[int, int]] = set()
    ring.track(tracked)
    assert (ring.between(10, 40) == inside).all()
    assert ring.between(10, 40) is ring.between(10, 40)
    assert tracked == {(10, 40)}
    ring.track(None)
    late = some(1, 1)
    late["t_ns"] = 20
    ring.add(late)
    assert len(ring.between(10, 40)) == len(inside) + 1


@pytest.mark.parametrize("users", [1, 3])
def test_who_has_most_rows_makes_room(users: int) -> None:
    ring, added = LastRows(BY_USER, 50, 10**9), np.zeros(90, BY_USER)
    added["t_ns"], added["uid"] = np.arange(90), np.where(np.arange(90) % 10 == 0, np.arange(90) // 10 % users, 0)
    for at in range(0, 90, 9):
        ring.add(added[at : at + 9])
    left = ring.between(0, 1000)
    others = added[added["uid"] != 0]
    its = added[added["uid"] == 0]
    assert left["t_ns"].tolist() == np.sort(np.append(others["t_ns"], its["t_ns"][len(others) - 50 :])).tolist()
    assert ring.dropped == 40
