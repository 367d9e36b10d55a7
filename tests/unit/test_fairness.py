"""What one user takes leaves the others, and root, what they need: agent/common/fairness.py."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.common.fairness import PART, REMEMBERED, Budget, NoPlaceError, Places, UpperBound, UserQueues, earlier

ROOT, ALICE, BOB = 0, 1000, 1001
SECOND = 1_000_000_000
USERS = st.sampled_from([ROOT, ALICE, BOB, *range(2000, 2008), "203.0.113.7"])


@given(st.integers(4, 64), st.lists(st.tuples(USERS, st.integers(1, 9), st.booleans())))
def test_places_stay_within_their_bounds(limit: int, steps: list) -> None:
    places = Places(limit)
    taken: Counter = Counter()
    for uid, n, gives in steps:
        if gives and taken[uid]:
            places.give_back(uid)
            taken[uid] -= 1
        elif not places.refusal(uid, n):
            places.take(uid, n)
            taken[uid] += n
        else:
            with pytest.raises(NoPlaceError, match="used"):
                places.take(uid, n)
        users = taken.total() - taken[ROOT]
        assert places.used == taken.total() <= limit
        assert users <= limit - limit // PART and max(taken[u] for u in taken.keys() | {ALICE} if u) <= limit // PART


def test_one_user_and_a_crowd_leave_room_for_others_and_for_root() -> None:
    places = Places(1024, what="probe descriptors")
    filled = dict.fromkeys((ALICE, BOB, *range(2000, 2050), ROOT), 0)
    for uid in filled:
        while not (why := places.refusal(uid, 4)):
            places.take(uid, 4)
            filled[uid] += 4
        assert "probe descriptors" in why
    assert filled[ALICE] == filled[BOB] == filled[ROOT] == 256
    assert places.used == 1024


@given(st.lists(st.tuples(st.sampled_from([ROOT, ALICE, BOB, *range(2000, 2008)]), st.floats(0, 3))), st.booleans())
def test_nobody_spends_more_than_the_rate_and_one_user_a_quarter(steps: list, root: bool) -> None:
    """Every step is 0.1 s later; a look that takes longer than what is left is paid back."""
    budget, spent, now, longest = Budget(10.0, 4.0, root=root), Counter[int](), 0, 3.0
    for uid, wanted in steps:
        now += SECOND // 10
        if budget.left(uid, now) > 0:
            budget.spend(uid, wanted, now)
            spent[uid] += wanted
        else:
            assert budget.ready_ns(uid, now) > now
            assert budget.left(uid, budget.ready_ns(uid, now)) >= 0
    most = 4.0 + 10.0 * now / SECOND + longest
    assert not root or spent.total() <= most + longest
    assert spent.total() - spent[ROOT] <= 0.75 * most + longest
    assert all(n <= 0.25 * most + longest for uid, n in spent.items() if uid)


def test_one_user_who_spends_all_leaves_others_theirs_and_what_is_remembered_is_bounded() -> None:
    budget = Budget(10.0, 4.0)
    budget.spend(ALICE, 2.5, 0)
    assert budget.left(ALICE, 0) == -1.5 and budget.left(BOB, 0) == 0.5 and budget.left(ROOT, 0) == 1.5
    assert budget.ready_ns(ALICE, 0) == pytest.approx(0.6 * SECOND, abs=2)
    budget.spend(BOB, 1.0, 0, of_all=False)
    assert (budget.left(BOB, 0), budget.left(ROOT, 0)) == (-0.5, 1.5)
    assert Budget(10.0, 4.0, root=False).left(ROOT, 0) == float("inf")
    for uid in range(1, 3 * REMEMBERED):
        budget.spend(uid, 0.001, uid * SECOND)
    assert len(budget._buckets) == REMEMBERED


@given(st.lists(st.tuples(st.sampled_from([ROOT, ALICE, BOB]), st.integers(0, 9), st.booleans())))
def test_what_waits_comes_in_order_and_once(steps: list) -> None:
    waiting: UserQueues[int] = UserQueues(16)
    model: dict[int, list[int]] = {ROOT: [], ALICE: [], BOB: []}
    for uid, one, takes in steps:
        if takes:
            assert set(waiting.users()) == {user for user, its in model.items() if its}
            if model[uid]:
                assert waiting.take(uid) == model[uid].pop(0)
        elif waiting.put(uid, one) and one not in model[uid]:
            model[uid].append(one)
        assert len(waiting) == sum(map(len, model.values())) <= 16
        assert all(len(model[uid]) <= 4 for uid in (ALICE, BOB))
    waiting.clear()
    assert not len(waiting) and not waiting.users()


@given(st.lists(st.integers(0, 5)))
def test_rows_in_turn(users: list[int]) -> None:
    found = earlier(np.array(users, np.int64)).tolist()
    assert found == [users[:at].count(uid) for at, uid in enumerate(users)]


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (UpperBound("x", "", 4096, "", "", "messages"), "4,096 messages"),
        (UpperBound("x", "", 256, "", "", "connections", shared=True), "256 connections, 64 per user"),
        (UpperBound("x", "", 0.1, "", "", "of the time"), "0.1 of the time"),
        (UpperBound("x", "", "the sender's socket buffer", "", ""), "the sender's socket buffer"),
    ],
)
def test_a_bound_for_people(bound: UpperBound, text: str) -> None:
    assert bound.text() == text
