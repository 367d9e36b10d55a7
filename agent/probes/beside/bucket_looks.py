"""The looks at one limiter's bucket, and what they say of an interval. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan

import numpy as np

from agent.limiters.catalogue import seen
from agent.limiters.reading import UNKNOWN
from agent.probes.beside import bucket
from agent.probes.beside.bucket import LOOK, ROUGH, Units

#: Looks that are kept until the end of a window; records among which those that agree are looked for.
MOST, _RECORDS = 8192, 32
#: A bucket that gives nothing for so long, in ns and in times of a unit's, is taken to be asked no more.
_STILL_NS, _STILL_UNITS = 50_000_000, 20
#: Words of a program's memory that say more than that are taken for no limiter's.
_TAME = 1e12
_WORDS = np.dtype([(name, "<u8") for name in ("limit", "burst", "tokens", "last_wall", "last_ext")])
_PLACES = {False: (1, 2, 3, 4, 5), True: (0, 1, 3, 4, 5)}  # 2019's


def of_records(records: np.ndarray) -> np.ndarray:
    """What each record says of its limiter's bucket, of one library's; limit is a NaN where it says nothing."""
    return _read(records, int(records["library"][0]) if len(records) else 0)


def of_words(looks: np.ndarray, library: int, old: bool) -> np.ndarray:
    """The same of records of ``struct limiter_look``. old: the layout of 2019."""
    words = np.zeros(len(looks), _WORDS)
    for name, at in zip(_WORDS.names or (), _PLACES[old], strict=True):
        words[name] = looks["words"][:, at]
    out = _read(words, library, looks["t_ns"])
    out["off_ns"] = looks["off_ns"]
    sound: np.ndarray = out[~np.isnan(out["limit"]) & np.isfinite(out["rest"]) & (out["rest"] <= out["burst"])]
    return sound


def _read(records: np.ndarray, library: int, t_ns: np.ndarray | None = None) -> np.ndarray:
    out = np.zeros(len(records), LOOK)
    read = list(seen().values())[library].bucket if len(records) else None
    out["limit"], out["rest"], out["last_ns"] = read(records) if read is not None else (nan, nan, 0)
    out["burst"] = records["burst"]
    out["t_ns"] = records["t_ns"] if t_ns is None else t_ns
    tame = (np.abs(out["rest"]) < _TAME) & (np.abs(out["limit"]) < _TAME) & (records["burst"] < _TAME)
    out["limit"][~tame] = nan
    return out


@dataclass
class BucketLooks:
    """last: the look up to which all is told, or none. cost: of what was let through, a NaN where it differs. moved_ns:
    since when it has been as it is; 0: not known.
    sees: there are looks beside those of records. told: decisions behind the first look that are told already. pressed:
    it was mostly near its end, so more is asked for than there is.
    """

    last: np.ndarray = field(default_factory=lambda: np.empty(0, LOOK))
    cost: float = 1.0
    moved_ns: int = 0
    sees: bool = False
    told: int = 0
    pressed: bool = True
    _new: list[np.ndarray] = field(default_factory=list)
    _held: int = 0

    def looked(self, looks: np.ndarray) -> None:
        """Takes looks, ``LOOK``, in the order in which they were taken."""
        self.sees |= len(looks) > 0
        self._new.append(looks)
        self._held += len(looks)
        if self._held > MOST:  # every second does as well
            self._new = [np.concatenate(self._new)[::2]]
            self._held = len(self._new[0])

    def asked(self, records: np.ndarray, through: np.ndarray) -> None:
        """Takes a window's records."""
        costs = np.unique(records["n"][through])
        if len(costs):
            self.cost = float(costs[0]) if len(costs) == 1 and 0 < costs[0] < UNKNOWN else nan

    def still_since(self, until_ns: int) -> int:
        """Since when it has given nothing any more, for long enough that nobody asks; else 0."""
        if not self.sees or not self.moved_ns or not len(self.last):
            return 0
        still = until_ns - self.moved_ns > _STILL_NS + _STILL_UNITS * 1e9 / float(self.last["limit"][0])
        return self.moved_ns if still else 0

    def let_through(
        self, until_ns: int, records: np.ndarray, callers: int, busy: bool, last: np.ndarray | None = None
    ) -> Units | None:
        """Decisions since the last time, up to the last look before until_ns; None where it cannot be said. See
        ``bucket.between``. last: up to until_ns itself, which of the records were let through.
        """
        looks = self._up_to(until_ns)
        if not self.sees:
            return self._by_records(records)
        if len(records) and (last is not None or not len(looks)):
            looks = np.concatenate((looks, own := self._last_of(records)))
            if last is not None and len(own):
                self.told -= int(np.count_nonzero(last & (records["t_ns"] > own["t_ns"][0])))
        chain = bucket.forwards(np.concatenate((self.last, looks)))
        known = len(self.last) > 0
        if len(chain):
            self._moved(chain)
            self.pressed = bool(np.median(chain["rest"] / np.maximum(chain["burst"], 1)) < 0.5)
            self.last = chain[-1:].copy()
        if not known or np.isnan(self.cost):
            return None
        if len(chain) < 2:
            return Units()
        units = bucket.between(chain, callers, busy and self.pressed)
        told, self.told = self.told, 0
        return units.decisions(self.cost, told)

    def _up_to(self, until_ns: int) -> np.ndarray:
        looks = np.concatenate((np.empty(0, LOOK), *self._new))
        now = looks["t_ns"] <= until_ns
        self._new, self._held = [looks[~now]], int(np.count_nonzero(~now))
        chosen = looks[now]
        return chosen[chosen["t_ns"] > self.last["t_ns"][0]] if len(self.last) else chosen

    def _moved(self, chain: np.ndarray) -> None:
        units, exact, _ = bucket.figures(chain)
        gave = np.flatnonzero(~exact | (np.round(units) > 0))
        if len(gave) or not self.moved_ns:
            self.moved_ns = int(chain["t_ns"][gave[-1] + 1 if len(gave) else 0])

    @staticmethod
    def _last_of(records: np.ndarray) -> np.ndarray:
        """The look of the last records; none where they say nothing."""
        at = of_records(records)[-_RECORDS:]
        return at[:0] if np.isnan(at["limit"]).any() else at[[bucket.agreed(at)]]

    def _by_records(self, records: np.ndarray) -> Units | None:
        """By looks that were taken without the lock, at the ends of decisions."""
        if not len(records):
            return None
        before, self.last = self.last, self._last_of(records)
        if not len(self.last) or not len(before) or np.isnan(self.cost):
            return None
        units = float(bucket.taken(self.last, before)[0])
        if np.isnan(units) or abs(units - round(units)) > ROUGH or units < -ROUGH:
            return None
        told, self.told = self.told, 0
        return bucket.certain(float(round(units))).decisions(self.cost, told)
