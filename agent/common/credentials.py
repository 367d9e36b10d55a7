"""Passwords and other secrets: from a file, a variable of the agent's environment, or a credential of systemd.

A file is read as user tickscope at each use, so that a changed file is used at the next login. The directory of
systemd's credentials is open to root only: the agent reads them at its start, before it gives up root, and hands each
broker process those that its servers name.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agent.common.settings import Place, ValueType, beside, private_text, setting, text
from agent.errors import USAGE, AgentError

#: Of systemd (systemd.exec(5), LoadCredential=).
DIRECTORY = "CREDENTIALS_DIRECTORY"
_MOST_BYTES = 4096
_PASSWORD = re.compile(r"//[^/?#@]*:[^/?#@]+@|[?&]sentinel_password=.")
_credentials: dict[str, str] = {}  #: by name


def load_credentials() -> None:
    """Reads systemd's credentials. Those that are no text, or cannot be read, are left out."""
    directory = os.environ.get(DIRECTORY)
    try:
        files = list(Path(directory).iterdir()) if directory else []
    except OSError:
        return
    for file in files:
        try:
            _credentials[file.name] = _text(file)
        except (OSError, ValueError):
            continue


def keep_credentials(given: Mapping[str, str]) -> None:
    """Takes over what ``credentials_of`` returned in the agent."""
    _credentials.update(given)


def credentials_of(servers: Iterable[Any]) -> dict[str, str]:
    """The credentials that these servers of the settings name, as far as they are known."""
    named = (server.get("password_credential") for server in servers if isinstance(server, Mapping))
    return {name: _credentials[name] for name in named if name in _credentials}


def has_password(server: str) -> bool:
    """Whether there is a password in the URL of a server."""
    return _PASSWORD.search(server) is not None


def _text(file: Path) -> str:
    """Raises OSError, and ValueError for what is no text."""
    with open(file, encoding="utf-8") as opened:
        return opened.read(_MOST_BYTES).rstrip("\r\n")


def _name(given: str) -> str:
    if "/" in given or given in (".", ".."):
        raise ValueError("must be the name of a credential, without its directory")
    return given


def _path(given: str) -> str:
    if given and not given.startswith("/"):
        raise ValueError("must be an absolute path")
    return given


def path_setting(what: str) -> Any:
    """A setting that is the absolute path of a file."""
    return setting("", text("an absolute path", _path), what)


def _file(word: str, when: str) -> Any:
    what = f"file with the {word}, readable by user tickscope; read {when}"
    return setting("", private_text("an absolute path", _path), what, key=f"{word}_file")


def _variable(word: str) -> Any:
    what = f"environment variable of the agent with the {word}"
    return setting("", private_text("the name of a variable"), what, key=f"{word}_variable")


def _credential(word: str) -> Any:
    what = f"systemd credential with the {word} (LoadCredential= in the unit)"
    return setting("", private_text("the name of a credential", _name), what, key=f"{word}_credential")


@dataclass(frozen=True)
class Secret:
    """Where a secret is; at most one of these. word: its name, with which the keys begin. owner: whose it is."""

    word: ClassVar[str]
    owner: ClassVar[str]

    file: str = ""
    variable: str = ""
    credential: str = ""

    @property
    def is_set(self) -> bool:
        return bool(self.file or self.variable or self.credential)

    def check(self) -> None:
        """Raises AgentError, without the values."""
        given = {"file": self.file, "variable": self.variable, "credential": self.credential}
        several = [f"{self.word}_{key}" for key, value in given.items() if value]
        if len(several) > 1:
            raise AgentError(
                f"the {self.word} of {self.owner} is in several places",
                why=f"it has {' and '.join(several)}",
                remedy="keep one of them",
                exit_code=USAGE,
            )

    def read(self) -> str:
        """The secret now; empty if none is set. Raises ValueError, which says what to do."""
        if self.variable:
            if not (found := os.environ.get(self.variable)):
                raise ValueError(f"{self.word}_variable: {self.variable} is not set in the agent's environment")
            return found
        if self.credential:
            return self._credential()
        if not self.file:
            return ""
        key = f"{self.word}_file"
        try:
            found = _text(Path(self.file))
        except PermissionError:
            raise ValueError(f"{key}: Permission denied: chgrp tickscope, chmod 640 {self.file}") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "no text"
            raise ValueError(f"{key}: {why}: {self.file}") from None
        if not found:
            raise ValueError(f"{key}: it is empty: {self.file}")
        return found

    def _credential(self) -> str:
        if found := _credentials.get(self.credential):
            return found
        if not (directory := os.environ.get(DIRECTORY)):
            what = f"{self.word}_credential {self.credential}"
            raise ValueError(f"{what}: ${DIRECTORY} is not set: start by systemd with LoadCredential=")
        where = f"{directory}/{self.credential}"
        raise ValueError(f"{self.word}_credential: no {where}: add LoadCredential=, restart")


@dataclass(frozen=True)
class Password(Secret):
    """Where the password of a server is."""

    word = "password"
    owner = "a server"

    file: str = _file("password", "at each login")
    variable: str = _variable("password")
    credential: str = _credential("password")


@dataclass(frozen=True)
class SecretUrl(Secret):
    """Where the URL of a receiver of findings is: whoever knows it can write there."""

    word = "url"
    owner = "a receiver"

    file: str = _file("url", "at each request")
    variable: str = _variable("url")
    credential: str = _credential("url")


def password_keys(variables: str) -> ValueType:
    """A ``Password`` whose keys stand among those of the server. variables: how the names of its variables begin; the
    broker process gets no others.
    """
    kind = beside(Password)

    def read(given: Any, place: Place) -> Password:
        found: Password = kind.read(given, place)
        if found.variable and not found.variable.startswith(variables):
            here = place.below("password_variable")
            raise here.error(f"{here.name} cannot be used", f"the variable's name must begin with {variables}")
        return found

    return dataclasses.replace(kind, read=read)
