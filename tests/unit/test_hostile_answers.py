"""The hook's command and time daemons that answer to do harm: bounded in memory and time, and reported in words."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from agent.clock.daemons import ntpd, sntp
from agent.clock.daemons.exchange import Exchange
from agent.clock.daemons.report import Failed, Talk
from agent.clock.hooks import HookFailed, execute
from tests.hostile import peak, reset_peak
from tests.patience import until

MOST_BYTES = 24 << 20


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no such host >&2; exit 3", "ended with 3: no such host"),
        ("printf 'a\\033[2Jb\\n\\n c' >&2; exit 1", "ended with 1: a\\x1b[2Jb c"),
        ("head -c 50000000 /dev/zero | tr '\\0' x >&2; exit 4", f"ended with 4: {'x' * 160}"),
        ("exec yes >&2", "did not end within 1 s"),
        ("exec 2>&-; sleep 60", "did not end within 1 s"),
        ("sleep 60 >&2 & exit 5", "ended with 5"),
        ("yes >&2 & exit 6", "ended with 6"),
    ],
)
def test_what_a_command_reports_is_reported_and_bounded(script: str, words: str) -> None:
    before = reset_peak()
    with pytest.raises(HookFailed) as failed:
        execute(("/bin/sh", "-c", script), 1.0 if "within" in words else 30.0)(b"{}")
    assert peak() - before < MOST_BYTES
    assert str(failed.value).startswith(f"/bin/sh {words}")
    assert len(str(failed.value)) <= 200


def test_a_command_that_does_not_read_and_reports_much_is_a_delivery() -> None:
    execute(("/bin/sh", "-c", "exec <&-; head -c 1000000 /dev/zero >&2"), 30.0)(b"{}")


def talking(answer: Callable[[bytes], list[bytes]], talk: Talk) -> Exchange:
    """A talk with somebody who answers each datagram with these."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    server.settimeout(20)

    def serve() -> None:
        try:
            while True:
                data, where = server.recvfrom(2048)
                for one in answer(data):
                    server.sendto(one, where)
        except OSError:
            return

    threading.Thread(target=serve, daemon=True).start()
    exchange = Exchange(talk, socket.AF_INET, server.getsockname(), 20_000_000_000)
    until(lambda: exchange.done is not None, 20, 0.001, turn=exchange.read)
    exchange.close()
    server.close()
    return exchange


def test_a_flood_that_is_no_answer_ends_the_talk() -> None:
    exchange = talking(lambda data: [b"x" * 48] * 300, sntp.talk("127.0.0.1"))
    assert isinstance(exchange.done, Failed)
    assert str(exchange.done) == "256 datagrams came that are not the answer"


@pytest.mark.parametrize("offset", [b"0x" + b"f" * 400, b"1e999", b"nan", b"-" + b"9" * 500, b"\xff", b"0x"])
def test_numbers_that_are_none_cost_this_daemon_only(offset: bytes) -> None:
    def answer(data: bytes) -> list[bytes]:
        text = b"leap=00,stratum=2,offset=" + offset + b",tc=" + offset
        return (
            [bytes((data[0], data[1] | 0x80)) + data[2:10] + len(text).to_bytes(2, "big") + text]
            if data[1] == 2
            else []
        )

    exchange = talking(answer, ntpd.talk())
    assert str(exchange.done) == "ntpd's answer holds neither leap nor offset"


def test_an_answer_at_which_our_own_code_fails_costs_this_daemon_only() -> None:
    def talk() -> Talk:
        yield b"?"
        raise KeyError("no such field")

    exchange = talking(lambda data: [b"!"], talk())
    assert isinstance(exchange.done, Failed)
    assert str(exchange.done) == "its answer cannot be read (KeyError)"
