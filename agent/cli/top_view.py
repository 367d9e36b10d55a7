"""The screen of ``tickscope top``: which entries are shown, in which order, and where. Pure: entries and keys in, lines
out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.cli.terminal import Cell, columns
from agent.cli.top_panes import ORDER, Entry, Pane, PaneColumn

#: From this width on two panes stand beside each other.
_WIDE = 160
_GAP = 2
#: Lines for the whole text of the selected entry.
_BELOW, _BELOW_ZOOMED = 4, 8
#: How a pane's share of the free lines grows: the focus is worth two panes more.
_WEIGHTS = {"findings": 2, "limiters": 2, "queues": 2, "clocks": 1, "processes": 1}
_ROWS_AT_FIRST = 2
#: For the last line, as many as there is room for.
_HINTS = ("? help", "q quit", "Tab pane", "Enter explain", "/ filter", "1-5 zoom", "s sort", "r reverse", "0 all panes")
Line = list[Cell]

HELP = (
    ("1 to 5", "show one pane on the whole screen; 0 or Esc: all of them"),
    ("Tab, Shift-Tab", "go to the next pane, to the one before"),
    ("up, down, j, k", "select an entry; PgUp, PgDn, Home, End (g, G): go farther"),
    ("Enter", "explain the selected finding, or show all that is known about the entry"),
    ("/", "show only entries that contain a text, in all panes; Esc: all of them again"),
    ("< >, s", "sort the pane by another column; r: in the other direction"),
    ("q", "leave a page; quit"),
    ("Ctrl-L", "draw the screen again"),
)


@dataclass
class PaneState:
    """How one pane is shown. by: the column that it is sorted by; None: its own order."""

    selected: str = ""
    top: int = 0
    by: str | None = None
    reverse: bool = False


@dataclass
class Page:
    """Text on the whole screen. lines: for the terminal's present width."""

    title: str
    lines: Callable[[int], Sequence[str]]
    top: int = 0


@dataclass
class TopContent:
    """What there is to show. entries: None for a pane that was not read yet. notes: what may be missing, the most
    important first.
    """

    title: str = ""
    entries: dict[str, list[Entry] | None] = field(default_factory=lambda: dict.fromkeys(ORDER))
    notes: list[tuple[str, str]] = field(default_factory=list)


class TopView:
    """What the user chose. panes: by name. clean: makes text safe for the terminal. now: the time of the day."""

    def __init__(self, panes: Mapping[str, Pane], clean: Callable[[str], str] = str) -> None:
        self.panes, self._clean = panes, clean
        self.content, self.now = TopContent(), ""
        self.focus, self.zoomed = ORDER[0], False
        self.filter, self.typing = "", False
        self.page: Page | None = None
        self._shown = {name: PaneState() for name in ORDER}
        self._rows = 10  # of the focus, when it was drawn last

    # ---- keys

    def press(self, key: str) -> Entry | str | None:
        """Takes a key. Returns the entry to explain, ``quit``, ``redraw`` or None."""
        if key == "redraw":
            return key
        if self.typing:
            self._type(key)
        elif self.page is not None:
            self._turn(self.page, key)
        elif key == "q":
            return "quit"
        elif key == "enter":
            return self.selected()
        else:
            self._go(key)
        return None

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.typing = False
            self.filter = self.filter if key == "enter" else ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif key == "erase":
            self.filter = ""
        elif len(key) == 1:
            self.filter += key

    def _turn(self, page: Page, key: str) -> None:
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "enter": 1, "page up": -10, "page down": 10, " ": 10}
        steps |= {"home": -(1 << 30), "g": -(1 << 30), "end": 1 << 30, "G": 1 << 30}
        if key in ("q", "escape", "?", "left"):
            self.page = None
        else:
            page.top = max(0, page.top + steps.get(key, 0))  # ``_paged`` has the other end

    def _go(self, key: str) -> None:
        shown = self._shown[self.focus]
        at = ORDER.index(self.focus)
        page = max(self._rows - 1, 1)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page}
        steps |= {"home": -(1 << 30), "g": -(1 << 30), "end": 1 << 30, "G": 1 << 30}
        if key in steps:
            entries = self.visible(self.focus)
            now = self._index(entries, shown)
            if entries:
                shown.selected = entries[min(max(now + steps[key], 0), len(entries) - 1)].key
        elif key in ("tab", "back tab", "right", "left"):
            self.focus = ORDER[(at + (1 if key in ("tab", "right") else -1)) % len(ORDER)]
        elif key in "12345":
            self.focus, self.zoomed = ORDER[int(key) - 1], True
        elif key == "0":
            self.zoomed = False
        elif key == "escape":
            self.zoomed, self.filter = self.zoomed and bool(self.filter), ""
        elif key == "/":
            self.typing = True
        elif key in ("<", ">", "s"):
            names = [None, *(column.name for column in self.panes[self.focus].columns)]
            shown.by = names[(names.index(shown.by) + (-1 if key == "<" else 1)) % len(names)]
            shown.reverse = False
        elif key in ("r", "R"):
            shown.reverse = not shown.reverse
        elif key in ("?", "h"):
            self.page = Page("keys", _help)

    # ---- entries

    def visible(self, name: str) -> list[Entry]:
        """The entries of a pane that the filter lets through, in the chosen order."""
        entries, shown = self.content.entries[name] or [], self._shown[name]
        if self.filter:
            wanted = self.filter.casefold()
            entries = [one for one in entries if wanted in " ".join([*one.cells.values(), one.below]).casefold()]
        by = shown.by
        if by is not None:
            ordered = all(by in one.order for one in entries)
            entries = sorted(entries, key=lambda one: one.order[by] if ordered else one.cells.get(by, ""))
        return entries[::-1] if shown.reverse else entries

    def selected(self) -> Entry | None:
        """The selected entry of the focus, by default the first one."""
        entries = self.visible(self.focus)
        return entries[self._index(entries, self._shown[self.focus])] if entries else None

    @staticmethod
    def _index(entries: Sequence[Entry], shown: PaneState) -> int:
        return next((i for i, one in enumerate(entries) if one.key == shown.selected), 0)

    # ---- lines

    def lines(self, width: int, height: int) -> list[Line]:
        """The whole screen: exactly ``height`` lines of at most ``width`` columns."""
        notes = [note for note in self.content.notes[: 1 if height < 30 else 3] if height >= 10]
        out = [self._title(width), self._tabs(width)]
        out += [[Cell(self._clean(text), width, style)] for text, style in notes]
        room = max(height - len(out) - 1, 0)
        if self.page is not None:
            out += self._paged(self.page, width, room)
        elif self.zoomed or room < 4 * len(ORDER) // 2:
            out += self._pane(self.focus, width, room, focus=True)
        elif width >= _WIDE:
            out += self._beside(width, room)
        else:
            out += self._stacked(ORDER, width, room)
        out = out[: max(height - 1, 0)]
        out += [[] for _ in range(height - 1 - len(out))]
        return [*out, self._footer(width)]

    def wanted(self) -> set[str]:
        """The panes that are on the screen. The first one, since its source says what may be missing."""
        return {self.focus, ORDER[0]} if self.zoomed else set(ORDER)

    def everything(self) -> list[Line]:
        """All panes with all entries, as wide as they need."""
        out = [[Cell(f"tickscope top  {self._clean(self.content.title)}", 1 << 16)]]
        out += [[Cell(self._clean(text), 1 << 16)] for text, _ in self.content.notes]
        for name in ORDER:
            entries = self.visible(name)
            width = max(
                (sum(columns(self._clean(text)) + 12 for text in one.cells.values()) for one in entries), default=80
            )
            out += [[], *self._pane(name, width, 1 + max(len(entries), 1), focus=False, whole=True)]
        return out

    def _title(self, width: int) -> Line:
        name = f"tickscope top  {self.now}".rstrip()
        rest = self._clean(self.content.title)
        return [Cell(name, min(len(name), width), "bold"), Cell(f"  {rest}", max(width - len(name), 0))]

    def _tabs(self, width: int) -> Line:
        out: Line = []
        for i, name in enumerate(ORDER, 1):
            entries = self.content.entries[name]
            bad = sum(one.style == "alarm" for one in entries or ())
            count = "" if entries is None else f" {len(entries)}" if name != "clocks" else ""
            text = f"{i} {name}{count}" + (f" ({bad}!)" if bad else "")
            style = ("line bold" if name == self.focus else "") + (" alarm" if bad else "")
            if sum(cell.width for cell in out) + len(text) > width:
                break
            out += [Cell(text, len(text), style.strip()), Cell("", _GAP)]
        return out[:-1] if out else out

    def _footer(self, width: int) -> Line:
        if self.typing or self.filter:
            prompt = f"/{self._clean(self.filter)}"
            hint = "  Enter keep  Esc drop" if self.typing else "  Esc: show all again"
            shown = min(columns(prompt) + 1, max(width - len(hint), 1))
            return [
                Cell(prompt + ("_" if self.typing else ""), shown, "bold"),
                Cell(hint, max(width - shown, 0), "faint"),
            ]
        hints: tuple[str, ...] = ("q back", "up down scroll") if self.page is not None else _HINTS
        while len(text := "  ".join(hints)) > width and len(hints) > 1:
            hints = hints[:-1]
        return [Cell(text, width, "faint")]

    def _paged(self, page: Page, width: int, room: int) -> list[Line]:
        lines = [self._clean(line) for line in page.lines(width)]
        page.top = max(0, min(page.top, len(lines) - room + 1))
        shown = lines[page.top : page.top + room - 1]
        where = f"{page.top + 1}-{page.top + len(shown)} of {len(lines)} lines"
        heading = self._clean(page.title)
        left = max(width - len(where) - _GAP, 0)
        return [
            [Cell(heading, left, "focus"), Cell(where, width - left, "focus", right=True)],
            *([Cell(line, width)] for line in shown),
        ]

    def _stacked(self, names: Sequence[str], width: int, room: int) -> list[Line]:
        out = []
        for name, rows in self._shares(names, width, room).items():
            out += self._pane(name, width, rows, focus=name == self.focus)
        return out

    def _beside(self, width: int, room: int) -> list[Line]:
        """The findings above, the other panes in two columns below."""
        pairs = (("limiters", "queues"), ("clocks", "processes"))
        half = (width - 3) // 2
        below = max(sum(self._wants(name, half) for name in names) for names in pairs)
        top = self._pane(
            "findings",
            width,
            min(self._wants("findings", width), max(room - below, room // 2)),
            focus=self.focus == "findings",
        )
        left, right = (self._stacked(names, half, room - len(top)) for names in pairs)
        for side in (left, right):
            side += [[] for _ in range(room - len(top) - len(side))]
        return [
            *top,
            *(
                [*one, Cell("", half + 3 - sum(cell.width for cell in one)), *other]
                for one, other in zip(left, right, strict=True)
            ),
        ]

    def _shares(self, names: Sequence[str], width: int, room: int) -> dict[str, int]:
        """How many lines each pane gets, with its heading: a few each, then more for those that have more to show."""
        wants = {name: self._wants(name, width) for name in names}
        shares = {name: min(wants[name], 1 + _ROWS_AT_FIRST) for name in names}
        free = room - sum(shares.values())
        while free > 0 and any(shares[name] < wants[name] for name in names):
            for name in names:
                for _ in range(_WEIGHTS[name] + 2 * (name == self.focus)):
                    if free > 0 and shares[name] < wants[name]:
                        shares[name] += 1
                        free -= 1
        return shares

    def _wants(self, name: str, width: int) -> int:
        """Lines that a pane needs to show all that it has."""
        entries = self.visible(name)
        return 1 + max(len(entries), 1) + (self._below(entries, width, _BELOW) if name == "findings" else 0)

    @staticmethod
    def _below(entries: Sequence[Entry], width: int, most: int) -> int:
        longest = max((len(one.below) for one in entries), default=0)
        return min(most, -(-longest // max(width - 8, 1)))

    def _pane(self, name: str, width: int, room: int, *, focus: bool, whole: bool = False) -> list[Line]:
        """A heading, entries, and the whole text of the selected one, or of all, where there is room for it. whole: the
        entries have the whole text.
        """
        entries, shown, pane = self.visible(name), self._shown[name], self.panes[name]
        if room <= 0:
            return []
        at = self._index(entries, shown)
        below: dict[int, list[str]] = {}
        if entries and (name == "findings" or self.zoomed) and room > 4 and not whole:
            most = min(_BELOW_ZOOMED if self.zoomed else _BELOW, room - 4)
            every = range(len(entries)) if name == "findings" and len(entries) < room else (at,)
            below = {i: _wrapped(self._clean(entries[i].below), width - 4, most) for i in every}
            if len(entries) + sum(map(len, below.values())) > room - 1:
                below = {at: below[at]}
        rows = max(room - 1 - sum(map(len, below.values())), 1)
        if focus:
            self._rows = rows
        shown.top = max(0, min(shown.top, at, len(entries) - rows), at - rows + 1)
        part = entries[shown.top : shown.top + rows]
        texts = {column.name: [self._clean(one.cells.get(column.name, "-")) for one in part] for column in pane.columns}
        sizes = fitted(pane.columns, texts, width)
        out = [self._heading(name, sizes, width, len(part), len(entries), focus=focus)]
        if not entries:
            out.append([Cell(f"  {self._nothing(name)}", width, "faint")])
        for i, one in enumerate(part):
            chosen = focus and shown.top + i == at
            out.append(_row([texts[column.name][i] for column in sizes], sizes, width, one.style, chosen=chosen))
            out += [[Cell(f"    {line}", width)] for line in below.get(shown.top + i, ())]
        return out[:room]

    def _nothing(self, name: str) -> str:
        if self.content.entries[name] is None:
            return "reading the store ..."
        if self.content.entries[name]:
            return f"nothing contains {self._clean(self.filter)}"
        return self.panes[name].none

    def _heading(
        self, name: str, sizes: dict[PaneColumn, int], width: int, part: int, whole: int, *, focus: bool
    ) -> Line:
        shown, style = self._shown[name], "focus" if focus else "heading"
        titles = [column.name.upper() if i == 0 else column.name for i, column in enumerate(sizes)]
        mark = "^" if shown.reverse else "v"
        titles = [f"{t}{mark}" if c.name == shown.by else t for t, c in zip(titles, sizes, strict=True)]
        count = f" {part} of {whole}" if part < whole else ""
        count += " (reversed)" if shown.by is None and shown.reverse else ""
        *line, rest = _row(titles, sizes, width, style)
        return [*line, Cell(count if len(count) <= rest.width else "", rest.width, style, right=True)]


def fitted(of: Sequence[PaneColumn], texts: Mapping[str, Sequence[str]], width: int) -> dict[PaneColumn, int]:
    """The columns that fit, with their widths. Columns without any value are left out."""
    full = {c: max(len(c.name) + (c.rank > 0), *map(columns, texts[c.name]), 1) for c in of}
    kept = [c for c in of if c.rank == 0 or any(text not in ("-", "") for text in texts[c.name])]
    least = {c: min(c.least, full[c]) or full[c] for c in kept}
    while len(kept) > 1 and sum(least[c] + _GAP for c in kept) - _GAP > width:
        kept.remove(max(kept, key=lambda c: c.rank))
    sizes = {c: least[c] for c in kept}
    free = width - sum(size + _GAP for size in sizes.values()) + _GAP
    for c in sorted(kept, key=lambda c: c.rank):
        more = max(min(full[c] - sizes[c], free), 0)
        sizes[c] += more
        free -= more
    if free < 0:  # one column, on a very narrow screen
        sizes = {c: max(size + free, 1) for c, size in sizes.items()}
    return sizes


def _row(texts: Sequence[str], sizes: dict[PaneColumn, int], width: int, style: str, *, chosen: bool = False) -> Line:
    cell_style = f"chosen {style}".strip() if chosen else style
    out: Line = []
    for text, (column, size) in zip(texts, sizes.items(), strict=True):
        if out:
            out.append(Cell("", _GAP, cell_style))
        out.append(Cell(text, size, cell_style, column.right))
    used = sum(cell.width for cell in out)
    return [*out, Cell("", max(width - used, 0), cell_style)]


def _help(width: int) -> list[str]:
    return [
        f"{name if i == 0 else '':16}{line}"
        for name, text in HELP
        for i, line in enumerate(_wrapped(text, width - 16, 9))
    ]


def _wrapped(text: str, width: int, most: int) -> list[str]:
    """The text in at most so many lines, broken between words; an ellipsis where it goes on."""
    lines, line = [], ""
    for word in text.split():
        while columns(word) > width > 0:  # a name without a space
            head = word[: max(width // 2, 1)]
            lines += [line, head] if line else [head]
            line, word = "", word[len(head) :]
        if line and columns(line) + 1 + columns(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines += [line] if line else []
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1]} …"]
