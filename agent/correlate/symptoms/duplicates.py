"""Messages that came more than once."""

from __future__ import annotations

from agent.correlate.message_order import symptom
from agent.correlate.words import measured, render

SYMPTOM = symptom(
    name="duplicates",
    order=51,
    meaning="messages were produced or consumed more than once",
    how="again",
    first=lambda episode: render("after {later}", later=measured(episode.facts.get("repeated_s", 0.0), "s")),
    todo="see which consumer received the message first, and whether it acknowledged it: tickscope query message_order",
)
