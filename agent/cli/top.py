"""``tickscope top``: findings, limiters, queues, clocks and blocked processes on one screen, read from the store."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.errors import AgentError

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource
    from agent.cli.top_panes import Entry, Group
    from agent.cli.top_view import Content, Page

#: The share of a core that reading may take: it pauses so much longer than it computed.
_SHARE = 0.015
_LEAST_S, _RETRY_S = 1.0, 2.0


@click.command("top")
@options.since("Findings and changes of clocks since this time: 90s, 2h, 22:13, yesterday.", "1h")
@options.reading
def command(since: str, fmt: str, store: str) -> None:
    """Show findings, limiters, queues, clocks and the processes that are blocked in system calls, as they change.

    It is a program of its own and needs no privilege beyond reading the store. Findings and changes of clocks are those
    since --since, queues those polled in the last five minutes; limiters and processes are of the last minute. What is
    most urgent comes first: open findings, limiters that refuse, queues that stand still.

    Keys: ? lists them. Enter explains the selected finding, / filters, 1 to 5 show one pane, q quits. It reads about
    once a second, less often where the store has so many rows that this would take more than 2 % of a core.

    Where output is no terminal, or TERM is dumb, all panes are printed once. -o json has the rows of all panes.

    \b
    tickscope top
    tickscope top --since 1d
    tickscope top --from trouble.rec
    """
    from agent.cli.output import emit_doc, knows_escapes, quiet_pipe

    if fmt in ("ndjson", "csv"):
        raise click.UsageError(f"top has several tables: use -o json, or -o {fmt} of findings, limiters or queues")
    reader = _Reader(store, since)
    if fmt == "json":
        with contextlib.closing(reader):
            emit_doc(reader.document())
    elif sys.stdin.isatty() and sys.stdout.isatty() and knows_escapes():
        _check(store)
        _operate(reader)
    else:
        with contextlib.closing(reader), quiet_pipe():
            for line in reader.page():
                print(line)


def _check(store: str) -> None:
    """Raises AgentError (exit 4) where there is no store, before the screen is taken."""
    from agent.store import segments

    if os.path.isfile(store):
        return
    dir_fd = segments.open_dir(store)
    try:
        if segments.untouched(dir_fd):
            raise segments.no_store(store)
    finally:
        os.close(dir_fd)


class _Reader:
    """Reads the panes from a store or a recording, for a thread of its own: libraries load and queries run while the
    screen already works. changed: is called after each change of ``content``.
    """

    def __init__(self, store: str, since: str) -> None:
        from agent.cli.top_panes import groups
        from agent.cli.top_view import Content

        self.content: Content = Content(store)
        self.changed: Callable[[], None] = lambda: None
        self._store, self._since = store, since
        self._groups = groups()
        self.panes = {pane.name: pane for group in self._groups for pane in group.panes}
        self._sources: dict[Group, RowSource] = {}
        self._due_s = dict.fromkeys(self._groups, 0.0)
        self._wanted = set(self.panes)
        self._questions: list[tuple[Entry, Callable[[Page], None]]] = []
        self._condition = threading.Condition()
        self._ended = False

    def want(self, names: set[str]) -> None:
        """The panes that are on the screen: only these are read."""
        if names != self._wanted:
            with self._condition:
                self._wanted = names
                self._condition.notify()

    def ask(self, entry: Entry, answer: Callable[[Page], None]) -> None:
        """Asks for the explanation of a finding; ``answer`` gets it on this object's thread."""
        with self._condition:
            self._questions.append((entry, answer))
            self._condition.notify()

    def end(self) -> None:
        with self._condition:
            self._ended = True
            self._condition.notify()

    def close(self) -> None:
        for source in self._sources.values():
            source.__exit__()
        self._sources.clear()

    def run(self) -> None:
        """Reads until ``end`` is called."""
        with contextlib.closing(self):
            while not self._ended:
                due = [group for group in self._visible() if self._due_s[group] <= time.monotonic()]
                for group in due:
                    self._read(group)
                    if self._questions or self._ended:
                        break
                while self._questions and not self._ended:
                    entry, answer = self._questions.pop(0)
                    answer(explained(self._store, entry))
                    self.changed()
                next_s = min((self._due_s[group] for group in self._visible()), default=time.monotonic() + _LEAST_S)
                with self._condition:
                    if not self._questions and not self._ended:
                        self._condition.wait(max(next_s - time.monotonic(), 0.01))

    def _visible(self) -> list[Group]:
        return [group for group in self._groups if any(pane.name in self._wanted for pane in group.panes)]

    def _read(self, group: Group) -> None:
        """Reads one group, and says when it is due again."""
        begun, computed = time.monotonic(), time.thread_time()
        try:
            source = self._sources.get(group)
            if source is None:
                source = self._sources[group] = self._open(group)
            else:
                source.refresh()
            self._take(group, source)
            took = time.thread_time() - computed
            pause = max(_LEAST_S, took * len(self._visible()) / _SHARE)
        except AgentError as error:
            if (gone := self._sources.pop(group, None)) is not None:
                gone.__exit__()
            self.content.notes = [(str(error).replace("\n", " "), "alarm")]
            pause = _RETRY_S
        self._due_s[group] = begun + pause
        self.changed()

    def _open(self, group: Group) -> RowSource:
        from agent.store.sources import opened

        return opened(self._store, group.tables, group.since or self._since)

    def _take(self, group: Group, source: RowSource) -> None:
        for pane in group.panes:
            if pane.name in self._wanted:
                self.content.entries[pane.name] = pane.read(source)
        if group is self._groups[0]:
            self.content.notes = list(_notes(source))
            self.content.title = self._title(source)

    def _title(self, source: RowSource) -> str:
        """The host whose agent writes, the window of the findings, the store, and the pause if it is a long one."""
        host = f"{os.uname().nodename}  " if source.written_since_ns is not None else ""
        pause = max(self._due_s.values()) - time.monotonic()
        slow = f"  read every {pause:.0f} s" if pause >= 2 * _LEAST_S else ""
        return f"{host}since {self._since}  {self._store}{slow}"

    def _all(self) -> None:
        """Reads everything once."""
        for group in self._groups:
            source = self._sources[group] = self._open(group)
            self._take(group, source)

    def document(self) -> dict[str, Any]:
        self._all()
        panes = {name: [_row(one) for one in self.content.entries[name] or []] for name in self.panes}
        return {**panes, "notes": [text for text, _ in self.content.notes]}

    def page(self) -> list[str]:
        """All panes as text."""
        from agent.cli.terminal import clean, plain
        from agent.cli.top_view import View

        self._all()
        encoding = sys.stdout.encoding
        view = View(self.panes, lambda text: clean(text, encoding))
        view.content = self.content
        return [plain(line) for line in view.everything()]


def _row(entry: Entry) -> dict[str, Any]:
    return {**entry.cells, "command": entry.command}


def _notes(source: RowSource) -> list[tuple[str, str]]:
    """(text, style) of what may be missing."""
    from agent.cli.gaps import texts, unevaluated

    lost = [(f"lost: {text}", "warning") for text in texts(source.gaps())]
    return [*((text, "alarm") for text in source.notes), *((text, "warning") for text in unevaluated(source)), *lost]


def explained(store: str, entry: Entry) -> Page:
    """What ``explain`` says of a finding; of other entries, all that is known."""
    from agent.cli.explain import Explained, tables_of
    from agent.cli.layout import wrapped
    from agent.cli.top_view import Page
    from agent.store.sources import opened

    title = entry.command
    try:
        if entry.finding is not None:
            with opened(store, tables_of()) as source:
                found = Explained(source, entry.finding)
            return Page(title, lambda width: found.lines())
    except AgentError as error:
        text = str(error)
        return Page(title, lambda width: [part for line in text.splitlines() for part in wrapped(line, width)])
    lines = [f"{name:20} {text}" for name, text in entry.details]
    return Page(
        title, lambda width: [part for line in lines for part in wrapped(line, width, "", " " * 21)] or [entry.below]
    )


def _operate(reader: _Reader) -> None:
    """The screen, until q."""
    from agent.cli.output import coloured
    from agent.cli.terminal import Terminal, clean, drawn
    from agent.cli.top_view import View

    encoding, colour = sys.stdout.encoding, coloured(sys.stdout)
    view = View(reader.panes, lambda text: clean(text, encoding))
    view.content = reader.content
    ours, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def changed() -> None:
        with contextlib.suppress(OSError):
            os.write(wake, b".")

    def answer(page: Page) -> None:
        view.page = page

    reader.changed = changed
    thread = threading.Thread(target=reader.run, name="reader", daemon=True)
    with Terminal(ours) as terminal:
        thread.start()
        try:
            while True:
                width, height = terminal.size
                view.now = time.strftime("%H:%M:%S")
                terminal.draw([drawn(line, colour) for line in view.lines(width, height)])
                reader.want(view.wanted())
                for key in terminal.read(_LEAST_S):
                    chosen = view.press(key)
                    if chosen == "quit":
                        return
                    if chosen == "redraw":
                        terminal.redraw()
                    elif chosen is not None and not isinstance(chosen, str):
                        reader.ask(chosen, answer)
        except EOFError:
            return
        finally:
            reader.end()
            thread.join(2.0)
