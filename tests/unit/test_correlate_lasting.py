"""What is wrong for minutes is one finding, open all the time: it is no new normal until ``adopt_s``, and failures
never are.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit import test_correlate_answered as answered
from tests.unit import test_correlate_connects as connecting
from tests.unit.correlate_scenarios import T0, Host, S, code, latest, run
from tests.unit.test_correlate_handshakes import handshakes
from tests.unit.test_correlate_lookups import lookups

BEGINS, UNTIL, LONGER = 30, 330, 700


def answers(host: Host) -> None:
    """A bad deployment: each answer is an error from then on."""
    to = answered.APP, answered.DATABASE_AT, b"redis"
    answered.talks(host, answered.APP, b"gunicorn", answered.DATABASE_AT, answered.DATABASE, b"redis-server", 5432)
    answered.answers(host, 0, BEGINS, *to, n=39)
    answered.answers(host, 0, UNTIL, *to, b"ERR", n=1)
    answered.answers(host, BEGINS, UNTIL, *to, b"OOM", n=39)


def hours(host: Host) -> None:
    """As ``answers``, for longer than ``adopt_s``."""
    to = answered.APP, answered.DATABASE_AT, b"redis"
    answered.answers(host, 0, BEGINS, *to, n=39)
    answered.answers(host, BEGINS, LONGER, *to, b"OOM", n=39)


def decisions(host: Host) -> None:
    host.decisions(0, BEGINS)
    host.decisions(BEGINS, UNTIL, result=code("limiter_decision", "result", "error"))


def latency(host: Host) -> None:
    """Some decisions hang; the others are as fast as ever."""
    host.decisions(0, UNTIL, rate=20)
    host.decisions(BEGINS, UNTIL, rate=1, ms=700)


def certificate(host: Host) -> None:
    handshakes(host, np.arange(0, BEGINS, 0.25))
    handshakes(host, np.arange(BEGINS, UNTIL, 0.25), b"certificate: expired")


def names(host: Host) -> None:
    lookups(host, np.arange(0, BEGINS, 0.5))
    lookups(host, np.arange(BEGINS, UNTIL, 0.5), "servfail", ms=0.4)


def connects(host: Host) -> None:
    connecting.connects(host, np.arange(0, BEGINS, 0.25))
    connecting.connects(host, np.arange(BEGINS, UNTIL, 0.25), errno.ETIMEDOUT)


@pytest.mark.parametrize(
    ("happens", "symptom"),
    [
        (answers, "service_errors"),
        (hours, "service_errors"),
        (decisions, "service_errors"),
        (latency, "decision_latency"),
        (certificate, "handshake_failures"),
        (names, "lookup_failures"),
        (connects, "connect_failures"),
    ],
)
def test_what_lasts_stays_open(happens: Callable[[Host], None], symptom: str) -> None:
    host = Host()
    happens(host)
    until = LONGER if happens is hours else UNTIL
    (finding,) = latest(run(host, until))
    assert (finding["symptom"], finding["state"]) == (symptom, "open")
    assert finding["start_ns"] < T0 + (BEGINS + 2) * S
    assert finding["end_ns"] > T0 + (until - 30) * S
