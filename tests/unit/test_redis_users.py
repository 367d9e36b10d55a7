"""Who may have a place among the processes whose OpenSSL is read: real processes, and shares."""

from __future__ import annotations

import os
import subprocess

from agent.config import Config
from agent.main import _families
from agent.probes.beside.redis_users import A_USER, MOST, OTHERS, SERVERS_A_USER, LeftOut, RedisUser, room, seen
from agent.targets.shares import Owner


def test_one_that_has_ended_has_no_place_though_nobody_has_waited_for_it() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        one = seen(child.pid, server=False)
        assert one is not None and one.owner == Owner(child.pid, os.getuid(), "sleep")
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert seen(child.pid, server=False) is None
    assert seen(child.pid, server=False) is None


def user(pid: int, uid: int, server: bool = False) -> RedisUser:
    return RedisUser(Owner(pid, uid), server, b"1", 0)


def test_no_user_and_not_all_of_them_can_take_roots_places() -> None:
    users: list[RedisUser] = []
    for uid in range(1000, 1010):
        for n in range(20):
            one = user(uid * 100 + n, uid, server=n % 2 == 0)
            users += [one] * room(users, one)
    assert len(users) == OTHERS < MOST
    first = [one for one in users if one.owner.uid == 1000]
    assert len(first) <= A_USER and sum(one.server for one in first) == SERVERS_A_USER
    for n in range(20):
        users += [user(n, 0)] * room(users, user(n, 0))
    assert len(users) == MOST


def test_one_for_which_there_is_no_place_is_left_out_once_however_often_it_is_seen() -> None:
    out = LeftOut()
    for _ in range(30):
        for pid in range(7):
            out.note(user(pid, 1000))
    assert out.n == 7
    out.note(RedisUser(Owner(3, 1000), False, b"2", 0))  # another one, that got its number
    assert out.n == 8
    for pid in range(10_000):
        out.note(user(pid, 1000))
    assert len(out._known) <= 4096


def test_without_limiters_in_redis_nothing_of_tls_is_loaded() -> None:
    assert "redis_tls" in {p.name for p in _families(Config(redis_tls=True))}
    for config in (Config(redis_tls=True, redis_limiters="off"), Config(redis_tls=True, without=("redis",)), Config()):
        assert "redis_tls" not in {p.name for p in _families(config)}
