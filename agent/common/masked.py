"""Hides secrets in values that are shown to people: passwords in URLs, and options of URLs that look like secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
#: Up to the last @ before a path: a password may have another @ in it.
_PASSWORD = re.compile(r"(//[^/?#:@]*:)[^/?#]+(?=@)")
_OPTION = re.compile(
    r"([?&;][^=&#]*(?:password|passwd|secret|token|api_?key|signature|credential)[^=&#]*=)[^&#\s]+", re.IGNORECASE
)


def masked(value: Any) -> Any:
    """A value, or a structure of them, without the secrets in its texts."""
    if isinstance(value, str):
        return _OPTION.sub(rf"\g<1>{MASK}", _PASSWORD.sub(rf"\g<1>{MASK}", value))
    if isinstance(value, Mapping):
        return {name: masked(one) for name, one in value.items()}
    return [masked(one) for one in value] if isinstance(value, (list, tuple)) else value
