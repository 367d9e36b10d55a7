"""Messages that came after later ones."""

from __future__ import annotations

from agent.correlate.message_order import symptom
from agent.correlate.words import render, value

SYMPTOM = symptom(
    name="out_of_order",
    order=53,
    meaning="messages were produced or consumed after later ones of their sequence",
    how="out of order",
    first=lambda episode: render("was {behind} behind", behind=value(episode.facts.get("behind", 0.0))),
    todo="see the message and its producer: tickscope query message_order; use one producer per sequence, and one"
    " consumer at a time",
)
