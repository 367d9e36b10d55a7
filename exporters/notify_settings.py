"""Settings of what sends findings to people: the journal, Alertmanager, Slack. Each is off by default."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from agent.common.alert_labels import RUNBOOK_URL
from agent.common.credentials import SecretUrl
from agent.common.masked import MASK
from agent.common.settings import (
    ValueType,
    beside,
    one_of,
    one_or_list,
    parse_texts,
    part,
    private,
    private_text,
    seconds,
    setting,
    text,
    value,
)
from agent.errors import USAGE, AgentError
from exporters.otlp_settings import scalars

#: Severities of findings, the least first.
SEVERITIES = ("notice", "alarm")
#: States of a receiver, in ``status`` and metrics.
RECEIVER_STATES = OK, RETRYING, DOWN = ("ok", "retrying", "down")
#: What ``link`` may have in braces.
LINK_FIELDS = ("finding_id", "host", "symptom", "cause")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_MOST_SERVERS = 8


def http_url(given: str) -> str:
    """Raises ValueError, without the URL."""
    try:
        url = urlsplit(given)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable or not given.isprintable() or " " in given:
        raise ValueError("must be a URL that begins with https:// or http://")
    return given


def _template(given: str, fields: tuple[str, ...]) -> None:
    """Raises ValueError for what stands in braces and is none of the fields."""
    if unknown := set(re.findall(r"\{(.*?)\}", given)) - set(fields):
        raise ValueError(f"has {{{min(unknown)}}}: known are {', '.join(f'{{{name}}}' for name in fields)}")


def _one_url(given: str) -> str:
    return http_url(given) if given else ""


def _urls(given: object) -> tuple[str, ...]:
    what = f"a URL, or a list of up to {_MOST_SERVERS}"
    listed = [one for one in given.replace(",", " ").split() if one] if isinstance(given, str) else given
    return tuple(http_url(one) for one in parse_texts(listed, what, _MOST_SERVERS))


def _hidden(kind: ValueType) -> ValueType:
    """The same type; of a URL only scheme and host are shown, since its path may be a secret."""

    def masked(given: str) -> str:
        try:
            url = urlsplit(given)
            return f"{url.scheme}://{url.hostname or ''}/{MASK}" if given else ""
        except ValueError:
            return MASK

    return replace(kind, masked=masked)


def _labels(given: object) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(one, (str, int)) for one in given.values()):
        raise ValueError("must be a mapping of names to texts, such as {cluster: eu-1}")
    if wrong := [name for name in given if not _LABEL.fullmatch(str(name))]:
        raise ValueError(f"{wrong[0]!r} is no name of a label: letters, digits and _ only")
    return {str(name): str(one) for name, one in given.items()}


def _link(given: str) -> str:
    _template(given, LINK_FIELDS)
    return _one_url(given)


def _runbook(given: str) -> str:
    _template(given, ("alert",))
    return given if given.startswith("file:///") else _one_url(given)


def at_least(severity: str) -> tuple[str, ...]:
    return SEVERITIES[SEVERITIES.index(severity) :]


def _least(what: str) -> Any:
    return setting("alarm", one_of(*SEVERITIES), f"least severity of the findings that {what}")


@dataclass(frozen=True)
class ReceiverSection:
    """A receiver with a URL."""

    NAME: ClassVar[str]

    url: Any = ""
    secret: SecretUrl = setting(SecretUrl(), beside(SecretUrl))
    ca_file: str = setting(
        "", text("the path of a file"), "certificates of the authorities to trust; '' for the system's"
    )

    @property
    def enabled(self) -> bool:
        return bool(self.url) or self.secret.is_set

    def check(self) -> None:
        """Raises AgentError, without the values."""
        if self.url and self.secret.is_set:
            why = "it has url and one of url_file, url_variable, url_credential"
            what = f"the URL of {self.NAME} is in several places"
            raise AgentError(what, why=why, remedy="keep one of them", exit_code=USAGE)
        self.secret.check()


@dataclass(frozen=True)
class AlertmanagerSettings(ReceiverSection):
    NAME = "alertmanager"

    url: tuple[str, ...] = setting(
        (),
        private("a URL, or a list of URLs", _urls, lambda: one_or_list({"type": "string"}, _MOST_SERVERS)),
        "URL of Alertmanager, such as http://alertmanager:9093; of a cluster, the list of all its members",
        variable="TICKSCOPE_ALERTMANAGER_URL",
    )
    severity: str = _least("become alerts")
    labels: dict[str, str] = setting(
        {},
        value(_labels, "names and texts", schema=scalars),
        "labels that every alert gets, such as {cluster: eu-1}",
    )
    runbook_url: str = setting(
        RUNBOOK_URL,
        text("a URL", _runbook),
        "runbook of an alert, if you publish docs/runbooks/; {alert} is replaced by the name of the alert; '' for none",
    )
    hold_s: float = setting(
        360.0,
        seconds(0, 86_400),
        "an alert is firing for at least this long, also if its finding ends sooner: longer than group_wait and"
        " group_interval, or Alertmanager notifies nobody",
        key="hold",
    )


@dataclass(frozen=True)
class SlackSettings(ReceiverSection):
    NAME = "slack"

    url: str = setting(
        "", _hidden(private_text("a URL", _one_url)), "URL of an incoming webhook", variable="TICKSCOPE_SLACK_URL"
    )
    severity: str = _least("become messages")


@dataclass(frozen=True)
class NotifySettings:
    journal: str = setting(
        "off",
        one_of("off", *SEVERITIES),
        "least severity of the findings that go to the systemd journal with fields such as TICKSCOPE_CAUSE",
    )
    alertmanager: AlertmanagerSettings = setting(
        AlertmanagerSettings(), part(AlertmanagerSettings), "findings as alerts, by Alertmanager's API v2"
    )
    slack: SlackSettings = setting(
        SlackSettings(), part(SlackSettings), "findings as messages of Slack, or of what takes its incoming webhooks"
    )
    link: str = setting(
        "",
        text("a URL", _link),
        "link in alerts and messages; {finding_id}, {host}, {symptom} and {cause} are replaced",
    )

    @property
    def in_journal(self) -> tuple[str, ...]:
        """Severities that go to the journal."""
        return at_least(self.journal) if self.journal != "off" else ()
