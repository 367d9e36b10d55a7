"""Shares of descriptors: whatever one process or user takes, others and root have room."""

from __future__ import annotations

import pytest

from agent.targets.shares import OverShareError, Owner, Shares

COST = 4


def filled(shares: Shares, owner: Owner, most: int = 400) -> int:
    """How many files of this owner are allowed."""
    for n in range(most):
        try:
            shares.take(owner, COST)
        except OverShareError:
            return n
    return most


def test_four_hundred_libraries_of_one_user_leave_room_for_the_others() -> None:
    shares = Shares(1024)
    assert filled(shares, Owner(100, 65534)) == 8
    assert sum(filled(shares, Owner(pid, 65534)) for pid in range(101, 150)) == 24
    assert "user 65534's share" in shares.refusal(Owner(200, 65534), COST)
    assert shares.refusal(Owner(201, 1000), COST) == ""
    for uid in range(1000, 1100):
        for pid in range(uid * 10, uid * 10 + 5):
            filled(shares, Owner(pid, uid))
    assert "all users but root" in shares.refusal(Owner(9, 5000), COST)
    assert filled(shares, Owner(0, 0)) >= 32
    assert shares.used <= 512
    assert "all 512" in shares.refusal(Owner(0, 0), COST) or "root's share" in shares.refusal(Owner(0, 0), COST)


def test_what_is_given_back_may_be_taken_again() -> None:
    shares, owner = Shares(1024), Owner(7, 1000)
    taken = filled(shares, owner)
    for _ in range(taken):
        shares.give_back(owner, COST)
    assert shares.used == 0
    assert filled(shares, owner) == taken
    with pytest.raises(OverShareError, match="this process's share"):
        shares.take(owner, COST)
