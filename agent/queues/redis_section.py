"""A server as a section of the settings, of all kinds of brokers on Redis."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.common.resp import RedisUrl
from agent.common.tls import IN_SECTION
from agent.queues.server_section import ServerSection


@dataclass(frozen=True)
class RedisServerSection(ServerSection):
    """``address`` is a RedisUrl."""

    def mistakes(self) -> tuple[tuple[object, str], ...]:
        files = self.ca_file or self.certificate_file
        return (
            *super().mistakes(),
            (
                self.url and files and not self.address.tls,
                "it has certificates, but its url does not begin with rediss://",
            ),
            (
                self.url and self.user and not self.password.is_set,
                "it has a user but no password_file, password_variable or password_credential",
            ),
        )

    @property
    def redis(self) -> RedisUrl:
        """The server, with the login and the certificates of the section."""
        url: RedisUrl = self.address
        authorities, certificate, key = url.tls_files
        return replace(
            url,
            user=self.user or url.user,
            tls_files=(self.ca_file or authorities, self.certificate_file or certificate, self.key_file or key),
            tls_keys=IN_SECTION,
            read_password=self.password.read if self.password.is_set else None,
        )
