"""How much of a thread's time a binary's probes take, of programs that are simulated: an open loop at a rate, a closed loop."""

from __future__ import annotations

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
