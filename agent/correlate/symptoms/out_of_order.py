"""Messages that came after later ones."""

from __future__ import annotations

from agent.correlate.episode import Episode
from agent.correlate.message_order import symptom
from agent.correlate.words import Words, render, value, when


def clause(episode: Episode) -> Words:
    facts = episode.facts
    return render(
        "{n} of {all} {queue} {came} out of order {when} ({id} was {behind} behind)",
        n=value(facts.get("out_of_order", episode.value)),
        all=value(facts.get("messages", episode.value), "message"),
        queue=render("of {queue}", queue=episode.subject),
        came="were produced" if facts.get("produced") else "were consumed",
        when=when(episode),
        id=episode.words,
        behind=value(facts.get("behind", 0.0)),
    )


SYMPTOM = symptom(
    name="out_of_order",
    order=53,
    meaning="messages were produced or consumed after later ones of their sequence",
    clause=clause,
    todo="see the message and its producer: tickscope query message_order; use one producer per sequence, and one"
    " consumer at a time",
)
