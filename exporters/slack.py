"""Findings as messages of Slack, by an incoming webhook:
https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks

Slack reads ``&``, ``<`` and ``>`` as control characters (``<!channel>`` mentions everybody), so they are escaped in all
texts. ``verbatim`` keeps it from making links and mentions of plain words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agent.common.finding import CLOSED, REOPENED, FindingEvent, FindingEvents
from agent.common.places import culprit_place, place_text
from exporters.lane import Lane
from exporters.notifier import Notifier
from exporters.notify_settings import SlackSettings
from exporters.webhook import Webhook, remedy

if TYPE_CHECKING:
    from exporters.transport import Answer

#: Characters of one text before they are escaped, which makes them up to five times as many: Slack takes 3,000.
_MOST_CHARACTERS = 590
_WORDS = {CLOSED: "Closed", REOPENED: "Opened again"}


def escaped(text: str) -> str:
    """A text without control characters of Slack. A backtick would end the code that it stands in."""
    cut = text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
    return cut.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")


def _words(text: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "verbatim": True, "text": text}


class SlackNotifier(Notifier):
    """read_url: of the webhook. link: makes the link of a finding; empty for none."""

    at_once = 10  # of at most 50 blocks

    def __init__(
        self,
        settings: SlackSettings,
        events: FindingEvents,
        *,
        read_url: Callable[[], str],
        link: Callable[[FindingEvent], str],
    ) -> None:
        self._webhook = Webhook(read_url, _wrong, settings.ca_file)
        super().__init__("slack", events, Lane("slack", self._webhook, _message))
        self._link = link

    @property
    def endpoint(self) -> str:
        return self._webhook.shown

    def encoded(self, one: FindingEvent) -> bytes:
        title = f"{_WORDS.get(one.event, 'Opened')} on {escaped(one.text('host'))}"
        sentence = escaped(one.text("sentence"))
        named = {name: one.text(name) for name in ("cause", "symptom")}  # the sentence names the others
        named |= {"where": place_text(one.fields), "culprit in": culprit_place(one.fields)}
        known = [f"{name}: {escaped(text)}" for name, text in named.items() if text]
        known.append(f"`tickscope explain {escaped(one.text('finding_id'))}`")
        if link := self._link(one):
            known.append(f"<{escaped(link)}|more>")
        blocks = [
            {"type": "section", "text": _words(f"*{title}* ({one.text('severity')})\n{sentence}")},
            {"type": "context", "elements": [_words(text) for text in known]},
        ]
        return json.dumps({"text": f"{title}: {sentence}", "blocks": blocks}).encode()

    def remedy(self, error: str) -> str:
        return remedy(error, "Slack", "notify.slack")


def _message(parts: Sequence[bytes]) -> bytes:
    """One message of several findings. text: what a notification on a phone shows."""
    each = [json.loads(part) for part in parts]
    whole = {
        "text": "\n".join(one["text"] for one in each),
        "blocks": [block for one in each for block in one["blocks"]],
    }
    return json.dumps({**whole, "unfurl_links": False, "unfurl_media": False}).encode()


def _wrong(answer: Answer) -> str:
    return "" if answer.body.strip() == b"ok" else "the answer is not Slack's `ok`: is this the URL of a webhook?"
