"""Work that arrives at once after a time with little work is a backlog, not load. Pure."""

from __future__ import annotations

from agent.correlate.episode import Episode

#: Rates among an episode's facts: with ``_base`` the usual rate, with ``_owed`` what was missing just before, and with
#: ``_more`` what exceeds the usual rate.
RATES = ("n", "cost", "in")
_PILED = 1.2  # times what was missing


def made_up(episode: Episode, metric: str) -> bool:
    """Whether the excess over the usual rate is no more than what was missing."""
    deficit, more, usual = (episode.facts.get(f"{metric}_{name}", 0.0) for name in ("owed", "more", "base"))
    return 0 < usual <= deficit and 0 < more <= _PILED * deficit + usual
