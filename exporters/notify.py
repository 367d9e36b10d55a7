"""Starts what sends findings to people, as configured. Parts that are off are not imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from agent.common.finding import FindingEvent, FindingEvents
from agent.common.sentence import ToWall
from agent.common.version import VERSION
from exporters.notify_settings import LINK_FIELDS, NotifySettings, ReceiverSection, at_least, http_url

if TYPE_CHECKING:
    from exporters.notifier import Notifier


def start(
    settings: NotifySettings,
    resource: Mapping[str, str],
    boot: str,
    to_wall: ToWall,
) -> list[Notifier]:
    """One sink for the journal, each Alertmanager, and Slack. resource: the settings' attributes, of which alerts have
    ``service.instance.id`` and ``host.name``. to_wall: Unix ns of CLOCK_BOOTTIME ns, called on any thread.
    """
    link, found = partial(_link, settings.link), list["Notifier"]()

    def events(severity: str) -> FindingEvents:
        return FindingEvents(to_wall, at_least(severity))

    if settings.journal != "off":
        from exporters.journal import JournalNotifier

        found.append(JournalNotifier(events(settings.journal)))
    if settings.alertmanager.enabled:
        from exporters.alertmanager import AlertmanagerNotifier
        from exporters.resource import describe

        to, of = settings.alertmanager, describe(boot, os.environ, VERSION, resource)
        node = {"instance": of.get("service.instance.id", ""), "host_name": of.get("host.name", "")}
        for number, url in enumerate(to.url or ("",), 1):
            name = f"alertmanager_{number}" if len(to.url) > 1 else "alertmanager"
            read = partial(_url, to, url)
            found.append(
                AlertmanagerNotifier(name, to, events(to.severity), to_wall, read_url=read, node=node, link=link)
            )
    if settings.slack.enabled:
        from exporters.slack import SlackNotifier

        of_slack = settings.slack
        found.append(
            SlackNotifier(
                of_slack, events(of_slack.severity), read_url=partial(_url, of_slack, of_slack.url), link=link
            )
        )
    return [one.start() for one in found]


def _url(target: ReceiverSection, url: str) -> str:
    """Raises ValueError, without the URL."""
    if url:
        return url
    read = target.secret.read()
    try:
        return http_url(read)
    except ValueError as error:
        raise ValueError(f"url_file, url_variable or url_credential of {target.NAME}: {error}") from None


def _link(template: str, one: FindingEvent) -> str:
    for name in LINK_FIELDS:
        template = template.replace(f"{{{name}}}", quote(one.text(name), safe=""))
    return template
