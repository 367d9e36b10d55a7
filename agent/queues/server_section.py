"""A server as a section of the settings: its URL, its login, its certificates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from agent.common.credentials import Password
from agent.common.settings import beside, private_text, setting, text
from agent.errors import USAGE, AgentError


class BadUrl(ValueError):
    """An error with our own text; Python's could contain parts of a password."""


@dataclass(frozen=True)
class ServerSection:
    """A kind declares ``TITLE``, and its own ``url`` and ``password`` (``password_keys``)."""

    TITLE: ClassVar[str]

    url: Any = setting("", private_text("a URL"), "its address")
    user: str = setting("", text("a user"), "user of the server")
    password: Password = setting(Password(), beside(Password))
    ca_file: str = setting("", text("the path of a file"), "certificates of the authorities to trust (TLS)")
    certificate_file: str = setting("", text("the path of a file"), "certificate of tickscope (TLS)")
    key_file: str = setting("", text("the path of a file"), "key of that certificate")
    cluster: str = setting(
        "", text("a name"), "name of the cluster, which stays the same at another address; none: its own, or host:port"
    )

    @property
    def address(self) -> Any:
        """What has the user and password of the URL."""
        return self.url

    def check(self) -> None:
        """Raises AgentError, without the values: there may be a password among them."""
        if why := next((why for is_wrong, why in self.mistakes() if is_wrong), ""):
            raise AgentError(f"a server of {self.TITLE} in the settings cannot be used", why=why, exit_code=USAGE)

    def mistakes(self) -> tuple[tuple[object, str], ...]:
        """(whether it is made, its name) of each mistake that several keys can make together."""
        beside = self.user or self.password.is_set
        return (
            (not self.url, "it has no url"),
            (self.url and self.address.password and beside, "it has a password in its url and a login in the section"),
            (self.key_file and not self.certificate_file, "it has a key_file but no certificate_file"),
        )
