"""How far a copy of a prefix in another etcd cluster is behind: the keys whose values differ.

The revisions of two clusters have nothing to do with each other, so keys are compared, by hashes of their values. Each
side is read once, page by page, and then only what has changed since (``min_mod_revision``). Deletions show as a count
of keys that is not ours; then the keys alone are listed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from agent.common.clocks import boot_ns
from agent.common.http_get import HttpDown, TooLarge
from agent.queues.age_bounds import AgeBounds
from agent.queues.etcd_gateway import EtcdMember, KeyPage, KeyState

MAX_KEYS = 10_000  # of a prefix
_PAGE_KEYS, _LIST_KEYS = 500, 5000


class TooManyKeys(Exception):
    """More than ``MAX_KEYS``."""


class Side:
    """A prefix in one cluster, as of ``revision``. keys: without the prefix. read: how many, while it is read for the
    first time; None once all are known.
    """

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._page_keys = _PAGE_KEYS
        self.forget()

    def forget(self) -> None:
        self.keys: dict[bytes, KeyState] = {}
        self.revision = 0
        self.read: int | None = 0
        self.count = 0
        self._cluster_id = 0
        self._at, self._next = 0, b""

    def update(self, member: EtcdMember, deadline_s: float) -> set[bytes]:
        """Reads on. Returns the keys that changed or were deleted, once all are known. What was read stays, also when
        it raises: HttpDown, NotEtcd, TooManyKeys.
        """
        try:
            if self.read is not None:
                return self._first(member, deadline_s)
            return self._changes(member, deadline_s)
        except HttpDown as error:
            if "compacted" in str(error) or "future revision" in str(error):  # or another cluster's data
                self.forget()
            raise

    def _first(self, member: EtcdMember, deadline_s: float) -> set[bytes]:
        page = self._page(member, deadline_s, at=self._at, start=self._next)
        if self._at and page.cluster_id != self._cluster_id:
            self.forget()
            return set()
        self._at, self._cluster_id = self._at or page.revision, page.cluster_id
        self.count = page.count if not self._next else self.count
        self._take(page)
        self.read = len(self.keys)
        if page.more and page.keys:
            self._next = max(page.keys) + b"\0"
            return set()
        self.revision, self.read, self._next = self._at, None, b""
        return set(self.keys)

    def _changes(self, member: EtcdMember, deadline_s: float) -> set[bytes]:
        page = self._page(member, deadline_s, since=self.revision + 1)
        # Restored from a backup, or another cluster answers.
        if page.revision < self.revision or page.cluster_id != self._cluster_id:
            self.forget()
            return set()
        at, changed = page.revision, self._take(page)
        count = page.count
        while page.more and page.keys:
            page = self._page(member, deadline_s, since=self.revision + 1, at=at, start=max(page.keys) + b"\0")
            changed |= self._take(page)
        if len(self.keys) != count:
            changed |= self._deletions(member, deadline_s, at)
        self.revision, self.count = at, count
        return changed

    def _deletions(self, member: EtcdMember, deadline_s: float, at: int) -> set[bytes]:
        there: set[bytes] = set()
        start, more = b"", True
        while more:
            page = member.page(self.prefix, deadline_s, start=start, limit=_LIST_KEYS, at=at, keys_only=True)
            there.update(page.keys)
            more = page.more and bool(page.keys)
            start = max(page.keys, default=b"") + b"\0"
        gone = self.keys.keys() - {key[len(self.prefix) :] for key in there}
        for key in gone:
            del self.keys[key]
        return gone

    def _take(self, page: KeyPage) -> set[bytes]:
        found = {key[len(self.prefix) :]: state for key, state in page.keys.items() if key.startswith(self.prefix)}
        self.keys.update(found)
        if page.count > MAX_KEYS or len(self.keys) > MAX_KEYS:
            self.forget()
            raise TooManyKeys
        return set(found)

    def _page(
        self, member: EtcdMember, deadline_s: float, *, since: int = 0, at: int = 0, start: bytes = b""
    ) -> KeyPage:
        """Fewer keys at a time if their values are large."""
        while True:
            try:
                return member.page(self.prefix, deadline_s, start=start, limit=self._page_keys, since=since, at=at)
            except TooLarge:
                if self._page_keys == 1:
                    raise
                self._page_keys = max(1, self._page_keys // 8)


@contextmanager
def _named(member: EtcdMember) -> Iterator[None]:
    """Says which cluster failed."""
    try:
        yield
    except HttpDown as error:
        raise HttpDown(f"{member.name}: {error}", error.failure, error.status) from None


class Behind(NamedTuple):
    """keys: that differed at most; least: at least. age: of the oldest difference; None without any. extra: keys that
    only the copy has, and the source did not have since the first poll.
    """

    keys: int
    least: int
    age: AgeBounds | None
    extra: int


@dataclass
class Comparison:
    """A prefix and its copy. ``changes``: of the copy, those between two polls once."""

    source: Side
    copy: Side
    changes: int = 0
    _clock: Callable[[], int] = boot_ns
    _since: dict[bytes, tuple[float, float]] = field(default_factory=dict)  # of a difference: seconds, not before, seen
    _had: set[bytes] = field(default_factory=set)  # keys of the source that were deleted
    _compared: bool = False
    _before_s: float = -inf

    @classmethod
    def of(cls, prefix: bytes, copied: bytes) -> Comparison:
        return cls(Side(prefix), Side(copied))

    def update(self, source: EtcdMember, copy: EtcdMember, deadline_s: float) -> Behind | None:
        """None while the first reading is not finished. Raises as ``Side.update``."""
        from_s = self._clock() / 1e9
        ready = self.source.read is None and self.copy.read is None
        # What changes in the source after this may be newer than what the copy is asked for.
        with _named(source):
            revision = source.page(self.source.prefix, deadline_s, limit=1, count_only=True).revision
        with _named(copy):
            copied = self.copy.update(copy, deadline_s)
        with _named(source):
            changed = self.source.update(source, deadline_s)
        if not ready or self.source.read is not None or self.copy.read is not None:
            self._since, self._had, self._before_s, self._compared = {}, set(), -inf, False
            return None
        keys, theirs = self.source.keys, self.copy.keys
        to_s = self._clock() / 1e9
        self._had = (self._had | (changed - keys.keys())) & theirs.keys()
        for key in changed | copied if self._compared else keys.keys() | theirs.keys():
            self._see(key, to_s)
        self.changes += len(copied)
        self._before_s, self._compared = from_s, True
        doubtful = set()
        if self.source.revision != revision:  # a deletion has no revision of its own
            doubtful = {key for key in changed if key not in keys or keys[key].mod > revision}
        oldest = None
        if self._since:
            not_before_s, seen_s = (min(times) for times in zip(*self._since.values(), strict=True))
            oldest = AgeBounds(max(0.0, from_s - seen_s), to_s - not_before_s, True)
        extra = len(theirs.keys() - keys.keys() - self._had)
        return Behind(len(self._since.keys() | doubtful), len(self._since.keys() - doubtful), oldest, extra)

    def _see(self, key: bytes, to_s: float) -> None:
        """Whether the copy of this key differs, and since when."""
        ours, theirs = self.source.keys.get(key), self.copy.keys.get(key)
        differs = theirs is None or theirs.value != ours.value if ours is not None else key in self._had
        if differs:
            self._since.setdefault(key, (self._before_s, to_s))
        else:
            self._since.pop(key, None)
