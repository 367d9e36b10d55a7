"""Messages that came more than once."""

from __future__ import annotations

from agent.correlate.episode import Episode
from agent.correlate.message_order import symptom
from agent.correlate.words import Words, measured, render, value, when


def clause(episode: Episode) -> Words:
    facts = episode.facts
    return render(
        "{n} of {all} {queue} {came} {when} ({id} after {later})",
        n=value(facts.get("duplicates", episode.value)),
        all=value(facts.get("messages", episode.value), "message"),
        queue=render("of {queue}", queue=episode.subject),
        came="were produced again" if facts.get("produced") else "were consumed again",
        when=when(episode),
        id=episode.words,
        later=measured(facts.get("repeated_s", 0.0), "s"),
    )


SYMPTOM = symptom(
    name="duplicates",
    order=51,
    meaning="messages were produced or consumed more than once",
    clause=clause,
    todo="see which consumer received the message first, and whether it acknowledged it: tickscope query message_order",
)
