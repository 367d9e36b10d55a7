"""``tickscope completion``: click's own completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a completion script. Use it as: source <(tickscope completion bash)."""
    from agent.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "tickscope", "_TICKSCOPE_COMPLETE").source())
