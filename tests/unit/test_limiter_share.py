"""How much of a thread's time a binary's probes take, of programs that are simulated: an open loop at a rate, a closed
loop.
"""

from __future__ import annotations

import numpy as np

from agent.probes.beside.share import EXACT, WINDOWS, Share

MS = 1_000_000
BOTH, ALONE = 20_000.0, 10_000.0


def watched_all_the_time(share: Share, per_s: float, seconds: float) -> str:
    """The mode that it comes to at that many decisions a second."""
    now, hits = 0, 2 if share.mode == "both" else 1
    share.begin(share.mode, now)
    while now < seconds * 1e9:
        now += 20 * MS
        mode = share.look(now, round(per_s * 0.02 * hits))
        if mode != share.mode:
            return mode
    return share.mode


def test_all_of_the_time_while_a_tenth_of_a_thread_is_enough() -> None:
    assert watched_all_the_time(Share(BOTH, ALONE), 0.98 * EXACT * 1e9 / BOTH, 60) == "both"
    assert watched_all_the_time(Share(BOTH, ALONE), 1.2 * EXACT * 1e9 / BOTH, 60) == "alone"
    assert watched_all_the_time(Share(BOTH, 0.0), 1.2 * EXACT * 1e9 / BOTH, 60) == "windows"
    assert watched_all_the_time(Share(BOTH, ALONE, mode="alone"), 1.2 * EXACT * 1e9 / ALONE, 60) == "windows"


def test_a_flood_is_seen_in_a_tenth_of_a_second() -> None:
    assert watched_all_the_time(Share(BOTH, ALONE), 1e9 / BOTH, 0.1) == "windows"


def test_windows_of_a_closed_loop_lose_no_more_than_their_share() -> None:
    """Its thread does nothing else while one is open; each takes 15 ms longer to come and 15 ms to go."""
    share, now, lost, windows = Share(BOTH, ALONE), 0, 0, 0
    share.begin("windows", now)
    while now < 60e9:
        asked = now = share.next_ns(now)
        until = asked + 15 * MS + share.window_ns
        hits, late = round((until - asked) / ALONE), round(15 * MS / ALONE)
        lost, windows = lost + (hits + late) * ALONE, windows + 1
        now = until + 60 * MS
        assert share.closed(asked, share.window_ns, until, hits, late, round(share.window_ns / ALONE)) == "windows"
    assert lost / now <= WINDOWS * 1.05
    assert windows > 30


def test_calm_ends_windows_and_each_relapse_makes_it_wait_longer() -> None:
    share, now, needed = Share(BOTH, ALONE), 0, list[int]()
    for _ in range(3):
        share.begin("windows", now)
        count, mode = 0, "windows"
        while mode == "windows":
            asked = share.next_ns(now)
            until = asked + share.window_ns
            decisions = round(1000 * share.window_ns / 1e9)
            mode = share.closed(asked, share.window_ns, until, decisions, 0, decisions)
            now, count = until, count + 1
        needed.append(count)
        share.begin(mode, now)
    assert mode == "both"
    assert needed == [3, 6, 12]


def burst(tid: int, at_ns: int, count: int, apart_ns: int = 20_000) -> np.ndarray:
    """Decisions of one thread, which only runs meanwhile."""
    records = np.zeros(count, [("proc", [("tid", "<u4")]), ("t_ns", "<u8"), ("ran_ns", "<u8"), ("held_ns", "<u8")])
    records["proc"]["tid"], records["t_ns"] = tid, at_ns + apart_ns * np.arange(count)
    records["ran_ns"] = apart_ns * np.arange(count)
    return records


def test_a_burst_of_a_thread_that_was_not_known_is_no_flood() -> None:
    """A copier's first requests come at once, on threads that are new; a second later nothing comes any more."""
    share, now = Share(BOTH, ALONE), 0
    share.begin("both", now)
    for tid in range(20):
        share.busy.feed(burst(tid, now + 10 * MS, 55))
        now += 1000 * MS
        assert share.look(now, 2 * 55) == "both"


def test_two_decisions_that_follow_on_each_other_do_not_keep_it_in_windows() -> None:
    share, now = Share(BOTH, ALONE), 0
    share.begin("windows", now)
    modes = []
    for tid in range(3):
        asked = share.next_ns(now)
        share.busy.feed(burst(tid, asked + MS, 2))
        now = asked + share.window_ns
        modes.append(share.closed(asked, share.window_ns, now, 2, 0, 2))
    assert modes == ["windows", "windows", "both"]


def test_a_loop_without_rest_is_a_flood_on_a_new_thread_too() -> None:
    share = Share(BOTH, ALONE)
    share.begin("both", 0)
    now = 0
    while share.mode == "both" and now < 300 * MS:
        share.busy.feed(burst(7, now, 1000))
        now += 20 * MS
        share.mode = share.look(now, 0)
    assert share.mode in ("alone", "windows") and now <= 200 * MS
