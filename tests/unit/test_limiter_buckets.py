"""What looks at a token bucket say of what it let through: of buckets that are simulated here by x/time/rate's own
arithmetic, against what they decided.
"""

from __future__ import annotations

import numpy as np
import pytest

from agent.probes.beside import bucket
from agent.probes.beside.bucket import LOOK, between
from agent.probes.beside.bucket_looks import MOST, BucketLooks

SECOND = 1_000_000_000


class Simulated:
    """A bucket, and what it has let through so far."""

    def __init__(self, limit: float, burst: int) -> None:
        self.limit, self.burst, self.rest, self.last_ns, self.allowed = limit, burst, float(burst), 0, 0

    def _rest(self, t_ns: int) -> float:
        return min(float(self.burst), self.rest + max(0, t_ns - self.last_ns) / 1e9 * self.limit)

    def ask(self, t_ns: int) -> None:
        rest = self._rest(t_ns) - 1
        if rest >= 0:
            self.rest, self.last_ns, self.allowed = rest, t_ns, self.allowed + 1

    def turn(self, t_ns: int, limit: float) -> None:
        self.rest, self.last_ns, self.limit = self._rest(t_ns), t_ns, limit

    def look(self, t_ns: int, off_ns: int = 0) -> np.ndarray:
        return np.array([(self.limit, self.rest, self.last_ns, t_ns, self.burst, off_ns)], LOOK)


def asked(one: Simulated, times: np.ndarray, every: int) -> tuple[np.ndarray, int]:
    """Asks at these times, and looks after each so many; what was let through from the first look to the last."""
    looks, at_first, at_last = list[np.ndarray](), -1, 0
    for i, t_ns in enumerate(times.tolist()):
        one.ask(t_ns)
        if i % every == 0:
            looks.append(one.look(t_ns + 1))
            at_first = one.allowed if len(looks) == 1 else at_first
            at_last = one.allowed
    return np.concatenate(looks), at_last - at_first


@pytest.mark.parametrize(("limit", "burst"), [(100, 10), (1000, 100), (700, 2000), (30_000, 300)])
def test_a_bucket_that_never_fills_says_it_to_the_unit(limit: float, burst: int) -> None:
    rng = np.random.default_rng(burst)
    looks, truth = asked(Simulated(limit, burst), SECOND + np.cumsum(rng.integers(1_000, 20_000, 100_000)), 137)
    units = between(looks, 1, busy=True)
    assert units.exact
    assert units.n == units.least == units.most == truth


def test_what_a_full_bucket_does_not_take_in_is_between_bounds() -> None:
    """It asks for 20 ms, and not for 30, in which the bucket is full after 10."""
    one, rng, looks, off, at_first = Simulated(1000.0, 10), np.random.default_rng(1), list[np.ndarray](), 0, 0
    for start in range(SECOND, 3 * SECOND, 50_000_000):
        for t_ns in np.cumsum(rng.integers(1_000, 60_000, 600)).tolist():
            one.ask(start + t_ns)
        looks.append(one.look(start + 20_000_000, off))
        at_first = at_first or one.allowed
        off += 32_000_000
    truth = one.allowed - at_first
    units = between(np.concatenate(looks), 1, busy=True)
    assert not units.exact
    assert units.least <= truth <= units.most
    assert units.n == pytest.approx(truth, rel=0.1)  # for it is known for how long nobody ran
    idle = between(np.concatenate(looks), 1, busy=False)
    assert (idle.least, idle.most) == (units.least, units.most)


def test_a_caller_that_comes_with_an_old_time_has_the_bucket_give_twice() -> None:
    one, rng, looks = Simulated(1000.0, 100), np.random.default_rng(2), list[tuple[np.ndarray, int]]()
    for i, t_ns in enumerate((SECOND + np.cumsum(rng.integers(1_000, 20_000, 100_000))).tolist()):
        late = i % 20_000 == 0 and one._rest(t_ns) >= 1
        if late:
            one.rest, one.last_ns, one.allowed = one.rest - 1, t_ns - 20_000_000, one.allowed + 1
        one.ask(t_ns)
        if i % 100 == 0:
            looks.append((one.look(t_ns + 1), one.allowed))
    chain, truth = np.concatenate([look for look, _ in looks]), looks[-1][1] - looks[0][1]
    several = between(chain, 50, busy=True)
    assert several.least <= truth <= several.most
    assert several.exact == (truth == round(float(bucket.taken(chain[-1:], chain[:1])[0])))


def test_a_limit_that_is_set_moves_the_bucket_without_a_decision() -> None:
    one, rng, looks = Simulated(1000.0, 100), np.random.default_rng(3), list[tuple[np.ndarray, int]]()
    times = SECOND + np.cumsum(rng.integers(1_000, 40_000, 100_000))
    for i, t_ns in enumerate(times.tolist()):
        if i % 20_000 == 1:
            one.turn(t_ns, 1500.0 - one.limit)
        one.ask(t_ns)
        if i % 100 == 0:
            looks.append((one.look(t_ns + 1), one.allowed))
    units, truth = between(np.concatenate([look for look, _ in looks]), 1, busy=True), looks[-1][1] - looks[0][1]
    assert units.least <= truth <= units.most
    assert units.n == pytest.approx(truth, rel=0.01)
    still = [one.look(0)]
    for second in range(4, 9):
        one.turn(second * SECOND, 1500.0 - one.limit)
        still.append(one.look(second * SECOND + 1))
    idle = between(np.concatenate(still), 1, busy=True)
    assert idle.exact
    assert idle.n == 0


def test_looks_beyond_what_is_kept_are_thinned_and_say_the_same() -> None:
    one, rng = Simulated(5000.0, 500), np.random.default_rng(4)
    looks, truth = asked(one, SECOND + np.cumsum(rng.integers(1_000, 20_000, 3 * MOST)), 1)
    kept = BucketLooks(last=looks[:1])
    for at in range(1, len(looks), 100):
        kept.looked(looks[at : at + 100])
    kept.looked(looks[-1:])
    units = kept.let_through(int(looks["t_ns"][-1]), np.empty(0, LOOK), 1, busy=True)
    assert units is not None
    assert units.exact
    assert units.n == truth
    assert kept.let_through(int(looks["t_ns"][-1]) + 1, np.empty(0, LOOK), 1, busy=True) == bucket.certain(0.0)


def test_decisions_that_cost_more_and_those_that_are_told_already() -> None:
    assert bucket.certain(12.0).decisions(3.0, 1) == bucket.certain(3.0)
    assert bucket.certain(0.0).decisions(1.0, 2) == bucket.certain(0.0)
