"""Consumer groups that fall behind, or stand still."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.queues import READS, QueueWatch
from agent.correlate.watch import Rise, Second
from agent.correlate.words import capital, measured, when

_LATE = {"age_s": "its oldest undelivered message was", "pending_s": "its oldest unacknowledged message was", "lag": "its lag was"}


def judge(watch: QueueWatch, second: Second) -> list[Episode]:
    """Lasting rises of the ages of its oldest messages, of the lag where no age is known, and no progress at all."""
    config = watch.config
    ages = watch.series.recent("age_s", second.slots, second.at, config.persist_s)
    aged = ~np.all(np.isnan(ages), axis=1)
    every = np.ones(len(second.slots), np.bool_)
    opened: list[Episode] = []
    for metric, unit, least, ratio, allowed in (("age_s", "s", config.age_rise_s, 2.0, every), ("pending_s", "s", config.pending_rise_s, 2.0, every),
                                                ("lag", "messages", config.lag_rise, 3.0, ~aged), ("stuck", "", 0.5, 1.0, every)):
        opened += watch.rises(Rise(SYMPTOM.name, metric, unit, least, ratio), second, allowed)
    return opened


def clause(e: Episode) -> str:
    if e.metric == "stuck":
        return f"{capital(e.subject)} stood still while messages arrived {when(e)}"
    unit = " messages" if e.unit == "messages" else " old"
    return f"{capital(e.subject)} fell behind: {_LATE[e.metric]} {measured(e.value, e.unit)}{unit} instead of {measured(e.base, e.unit)} {when(e)}"


SYMPTOM = Symptom(
    "queue_lag", 40, "a consumer group falls behind its queue, or stands still", "a consumer group of a queue", "s", "queue_lag",
    READS, clause, "see whether consumers are there and acknowledge: tickscope queues", QueueWatch, judge,
    measured={"age_s": "oldest_undelivered_s", "pending_s": "oldest_pending_s", "lag": "lag_messages", "stuck": "status"})
