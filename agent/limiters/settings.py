"""The settings ``limiter_names`` and ``key_salt``: what limiters are called, and by what keys are hashed."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from agent.common.settings import Section
from agent.errors import USAGE, AgentError
from agent.limiters.model_settings import parse as parse_models

MOST, _MOST_NAME, _MOST_PATH = 256, 64, 4095
#: Bytes of a salt: fewer could be guessed.
LEAST_SALT, MOST_SALT = 16, 4096
_REMEDY = "make one: head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE; and copy it to every node"


def check(models: Mapping[str, object], names: Mapping[str, object], salt: str) -> None:
    """What the settings say of limiters. Raises AgentError (exit code 2) that names the setting."""
    if models:
        parse_models(models)
    section = Section("limiter_names")
    if len(names) > MOST:
        raise AgentError(f"limiter_names has {len(names)} entries", why=f"it may have {MOST}", exit_code=USAGE)
    for pattern, name in names.items():
        text = section.text(str(pattern), name, "what the limiter is to be called")
        if not 0 < len(text.encode("utf-8", "replace")) <= _MOST_NAME or not text.isprintable():
            raise section.wrong(
                str(pattern), name, f"a name has 1 to {_MOST_NAME} bytes, none of them a control character"
            )
    if salt and not (salt.startswith("/") and len(os.fsencode(salt)) <= _MOST_PATH and "\0" not in salt):
        raise Section().wrong(
            "key_salt", salt, "it is the whole path of a file that holds the salt, never the salt itself"
        )


def read_salt(path: str) -> bytes:
    """What the file holds, without white space around it; nothing where there is no path. Raises AgentError (exit code
    2) where others may read it, too.
    """
    if not path:
        return b""
    what = f"cannot take key_salt from {path}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            data = os.read(fd, MOST_SALT + 1) if stat.S_ISREG(found.st_mode) else b""
        finally:
            os.close(fd)
    except OSError as error:
        raise AgentError(what, why=str(error.strerror), remedy=_REMEDY, exit_code=USAGE) from error
    if found.st_mode & 0o077 or found.st_uid:
        who = (
            f"its owner is {found.st_uid} and its mode {stat.S_IMODE(found.st_mode):04o}, and with the salt hashed keys"
            " can be guessed"
        )
        raise AgentError(what, why=who, remedy=f"chown root {path}; chmod 600 {path}", exit_code=USAGE)
    salt = data.strip()
    if not LEAST_SALT <= len(salt) <= MOST_SALT:
        raise AgentError(what, why=f"a salt has {LEAST_SALT} to {MOST_SALT} bytes", remedy=_REMEDY, exit_code=USAGE)
    return salt
