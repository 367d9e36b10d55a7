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
from agent.errors import USAGE, AgentError

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource
    from agent.cli.top_panes import Entry, PaneGroup
    from agent.cli.top_view import Page, TopContent

#: The share of a core that reading may take, beside the start and what the user asks for.
_SHARE = 0.015
_EACH_S = 1.0
#: A pane is read again after this time, even if its tables have no new rows: what it shows gets older.
_STALE_S = 10.0


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
    screen already works. changed: is called after each change of ``content``. failure: why the thread ended.
    """

    def __init__(self, store: str, since: str) -> None:
        from agent.cli.top_panes import groups
        from agent.cli.top_view import TopContent

        self.content: TopContent = TopContent(store)
        self.changed: Callable[[], None] = lambda: None
        self._store, self._since = store, since
        self._groups = groups()
        self.panes = {pane.name: pane for group in self._groups for pane in group.panes}
        self.failure: BaseException | None = None
        self._sources: dict[PaneGroup, RowSource] = {}
        self._begun: set[PaneGroup] = set()
        self._read_s: dict[str, float] = {}
        self._credit_s = 0.0
        self._lost: list[str] | None = None
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
        """Reads until ``end`` is called. What goes wrong otherwise is in ``failure``."""
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.failure = error
            self.changed()

    def _run(self) -> None:
        with contextlib.closing(self):
            while not self._ended:
                begun = time.monotonic()
                for group in self._groups:
                    if any(pane.name in self._wanted for pane in group.panes) and not self._questions:
                        self._credit_s -= self._read(group)
                while self._questions:
                    entry, answer = self._questions.pop(0)
                    answer(explained(self._store, entry))
                    self.changed()
                with self._condition:
                    if not self._questions and not self._ended:
                        self._condition.wait(max(_EACH_S, -self._credit_s / _SHARE) - (time.monotonic() - begun))
                self._credit_s = min(self._credit_s + _SHARE * (time.monotonic() - begun), 0.0)

    def _read(self, group: PaneGroup) -> float:
        """Reads one group. Returns the processor time that it took, s: 0 for the first time, which loads libraries."""
        computed, first = time.thread_time(), group not in self._begun
        self._begun.add(group)
        try:
            if group not in self._sources:
                source = self._sources[group] = self._open(group)
                new = set(group.tables)
            else:
                source = self._sources[group]
                new = source.refresh()
            self._take(group, source, new)
        except AgentError as error:
            if error.exit_code == USAGE:
                raise
            if (gone := self._sources.pop(group, None)) is not None:
                gone.__exit__()
            self.content.notes = [(str(error).replace("\n", " "), "alarm")]
        self.changed()
        return 0.0 if first else time.thread_time() - computed

    def _open(self, group: PaneGroup) -> RowSource:
        from agent.store.sources import opened

        return opened(self._store, group.tables, group.since or self._since)

    def _take(self, group: PaneGroup, source: RowSource, new: set[str]) -> None:
        """new: the tables with new rows."""
        now_s = time.monotonic()
        for pane in group.panes:
            stale = now_s - self._read_s.get(pane.name, -_STALE_S) >= _STALE_S
            if pane.name not in self._wanted:
                self._read_s.pop(pane.name, None)  # it is stale when it is wanted again
            elif stale or not new.isdisjoint(pane.tables):
                self.content.entries[pane.name] = pane.read(source)
                self._read_s[pane.name] = now_s
                self.changed()
        if group is self._groups[0]:
            if not new.isdisjoint(("loss", "probe_status")) or self._lost is None:
                self._lost = _lost(source)
            self.content.notes = [
                *((text, "alarm") for text in source.notes),
                *((text, "warning") for text in self._lost),
            ]
            self.content.title = self._title(source)

    def _title(self, source: RowSource) -> str:
        """The host whose agent writes, the window of the findings, the store, and the pause if it is a long one."""
        host = f"{os.uname().nodename}  " if source.written_since_ns is not None else ""
        pause_s = -self._credit_s / _SHARE
        slow = f"  read every {pause_s:.0f} s" if pause_s >= 2 * _EACH_S else ""
        return f"{host}since {self._since}  {self._store}{slow}"

    def _all(self) -> None:
        """Reads everything once."""
        for group in self._groups:
            source = self._sources[group] = self._open(group)
            self._take(group, source, set(group.tables))

    def document(self) -> dict[str, Any]:
        self._all()
        panes = {name: [_row(one) for one in self.content.entries[name] or []] for name in self.panes}
        return {**panes, "notes": [text for text, _ in self.content.notes]}

    def page(self) -> list[str]:
        """All panes as text."""
        from agent.cli.terminal import clean, plain
        from agent.cli.top_view import TopView

        self._all()
        encoding = sys.stdout.encoding
        view = TopView(self.panes, lambda text: clean(text, encoding))
        view.content = self.content
        return [plain(line) for line in view.everything()]


def _row(entry: Entry) -> dict[str, Any]:
    return {**entry.cells, "command": entry.command}


def _lost(source: RowSource) -> list[str]:
    """What was lost or not evaluated, in words."""
    from agent.cli.gaps import texts, unevaluated

    return [*unevaluated(source), *texts(source.gaps())]


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
    from agent.cli.top_view import TopView

    encoding, colour = sys.stdout.encoding, coloured(sys.stdout)
    view = TopView(reader.panes, lambda text: clean(text, encoding))
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
                for key in terminal.read(_EACH_S):
                    chosen = view.press(key)
                    if chosen == "quit":
                        return
                    if chosen == "redraw":
                        terminal.redraw()
                    elif chosen is not None and not isinstance(chosen, str):
                        reader.ask(chosen, answer)
                if reader.failure is not None:
                    raise reader.failure
        except EOFError:
            return
        finally:
            reader.end()
            thread.join(2.0)
