"""How a consumer group took what its queue holds, as far as several causes go by it."""

from __future__ import annotations

from dataclasses import dataclass

from agent.correlate.episode import Episode, item
from agent.correlate.words import number

FACTS = ("consumers", "in", "out")


@dataclass(frozen=True)
class Consumption:
    """Rates in messages a second, before and while it lasted; None where not known."""

    count: float | None
    before: float | None
    out: float | None
    out_was: float | None
    arriving: float | None
    arriving_was: float | None
    pending: bool  #: whether it is about messages that were delivered

    @property
    def gone(self) -> bool:
        return self.count == 0

    @property
    def held(self) -> bool:
        """One message stays, others go on."""
        return self.pending and self.out is not None and self.out > 0 and self.out >= 0.7 * (self.out_was or 0)

    @property
    def idle(self) -> bool:
        return self.out == 0 and ((self.out_was or 0) > 0 or (self.arriving or 0) > 0)

    @property
    def usual(self) -> str:
        return "" if self.out_was is None else f", usually {number(self.out_was)}"

    @property
    def members(self) -> dict[str, object]:
        return item("queue_lag", "consumers", self.count, "", column="consumers", baseline=self.before)

    @property
    def rates(self) -> tuple[dict[str, object], dict[str, object]]:
        return (item("queue_lag", "acknowledged", self.out, "1/s", column="out_per_s", baseline=self.out_was),
                item("queue_lag", "arriving", self.arriving, "1/s", column="in_per_s", baseline=self.arriving_was))


def consumption(episode: Episode) -> Consumption:
    known = episode.facts.get
    return Consumption(known("consumers"), known("consumers_base"), known("out"), known("out_base"), known("in"), known("in_base"),
                       episode.metric == "pending_s")  # fmt: skip
