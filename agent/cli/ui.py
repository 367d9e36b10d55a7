"""tickscope ui: the store as a web page on this host."""

from __future__ import annotations

import ipaddress
import os
import signal
import time

import click

from agent.cli import options
from agent.errors import USAGE, AgentError

_LISTEN = "127.0.0.1:9470"


@click.command("ui")
@click.option(
    "--listen", default=_LISTEN, show_default=True, metavar="ADDR:PORT", help="Loopback address; port 0: any."
)
@options.duration
@options.store
def command(listen: str, duration: float | None, store: str) -> None:
    """Show findings and curves as a web page on this host, until Ctrl-C.

    The page reads the store; it changes nothing. It is served on a loopback address only, and asks for the token in the
    printed URL. From another machine: `ssh -L 9470:127.0.0.1:9470 HOST`, then open the URL there.

    \b
    sudo tickscope ui
    """
    from agent.cli.ui_server import UiServer
    from agent.store import segments

    host, port = _loopback(listen)
    os.close(segments.open_dir(store))
    _drop_root(store)
    token = os.urandom(16).hex()
    server = UiServer((host, port), store, token)
    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda which, _: ended.append(which))
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"http://{shown}:{server.port}/?token={token}")
    until = time.monotonic() + duration if duration else float("inf")
    while not ended and time.monotonic() < until:
        time.sleep(0.1)
    server.close()


def _loopback(given: str) -> tuple[str, int]:
    from exporters.page_settings import listen_address

    try:
        host, port = listen_address(given)
        loopback = host == "localhost" or ipaddress.ip_address(host or "127.0.0.1").is_loopback
    except ValueError as error:
        raise AgentError(f"--listen {given}: {error}", exit_code=USAGE) from error
    if not loopback:
        raise AgentError(
            f"--listen {given}: the page is served on loopback addresses only",
            why="it shows what runs on this host, without encryption",
            remedy="ssh -L 9470:127.0.0.1:9470 HOST",
            exit_code=USAGE,
        )
    return host or "127.0.0.1", port


def _drop_root(store: str) -> None:
    """Root becomes the store's owner for good: the page needs no more than to read the store."""
    from agent.posix import privilege

    owner = os.stat(store)
    if os.geteuid() == 0 and owner.st_uid != 0:
        privilege.drop(owner.st_uid, owner.st_gid)
