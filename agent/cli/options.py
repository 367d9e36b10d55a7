"""Options that every verb shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_STORE = "/var/lib/tickscope"


def output(function: F) -> F:
    """``-o FORMAT``, passed as ``fmt``."""
    return click.option("-o", "--output", "fmt", type=click.Choice(["table", "json", "ndjson", "csv"]), default="table",
                        show_default=True, help="Output format.")(function)


def store(function: F) -> F:
    """``--store DIR``, passed as ``store``."""
    return click.option("--store", type=click.Path(file_okay=False), envvar="TICKSCOPE_STORE", default=DEFAULT_STORE,
                        show_default=True, show_envvar=True, help="The store's directory.")(function)


def common(function: F) -> F:
    """Both."""
    return output(store(function))
