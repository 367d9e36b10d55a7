"""What comes at once after a time in which little came is no load: it had piled up. Pure."""

from __future__ import annotations

from agent.correlate.episode import Episode

#: Rates that episodes have as facts: with ``_base``, what is usual, ``_owed``, what was missing just before, and
#: ``_more``, what came beyond what is usual.
RATES = ("n", "cost", "in")
_PILED = 1.2  # times what was missing


def made_up(episode: Episode, metric: str) -> bool:
    """Whether what is more than usual is no more than what was missing."""
    deficit, more, usual = (episode.facts.get(f"{metric}_{name}", 0.0) for name in ("owed", "more", "base"))
    return 0 < usual <= deficit and 0 < more <= _PILED * deficit + usual
