"""Which executable files the processes of this host run and map: what uprobes are attached to.

A process is looked at when it starts, some times shortly after (the dynamic linker and dlopen come later), and every 10 s, but then only if its
size has changed. Its executable is opened at the first look, and again only by the scans, in case an exec went unseen. The privileged helper opens, this parses: one regular expression over the whole text of /proc/PID/maps.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import errno
import heapq
import os
import re
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from agent.batch import Batch
from agent.errors import printable, say

if TYPE_CHECKING:
    from agent.kernel.source import KernelSource

#: After the start of a program, ns.
LOOKS_NS = (0, 20_000_000, 200_000_000, 1_000_000_000, 5_000_000_000)
FULL_SCAN_NS = 10_000_000_000
_BUDGET_S = 0.010
#: After a look that took much longer (a file made to take long, or a cold disk), none for so many times as long.
_REST = 9
_MAX_WAITING = 4096
_MAX_MAPS = 8 << 20
_CLOCK_BOOTTIME, _TFD_FLAGS, _TFD_ABSTIME = 7, 0o2004000, 1


class Attacher(Protocol):
    """The privileged helper, or a test's stand-in within its own process. Methods raise OSError."""

    def open_proc(self, pid: int, what: str) -> int: ...

    def attach_uprobe(self, program_fd: int, file_fd: int, offsets: list[int], ret: bool = False) -> list[int]: ...


class FileKey(NamedTuple):
    """Identity of a file's content while it is in use."""

    device: int
    inode: int
    mtime_ns: int
    size: int


#: (pid or 0 for a file that no process maps yet, path as the process sees it, descriptor that is closed afterwards)
#: -> what to call when no process uses the file any more, or None.
Found = Callable[[int, str, int], Callable[[], None] | None]


class _Process(NamedTuple):
    size: bytes
    exe: list[FileKey]
    used: set[FileKey]


class _File:
    def __init__(self, keep: bool) -> None:
        self.keep, self.unused, self.releases = keep, 0, list[Callable[[], None]]()


class Targets:
    """Offers each file once to everybody who asked. Implements ``agent.batch.Source``; produces no rows.

    kernel: whose exec_events tell of new programs. Ask with ``library`` and ``exe``, then ``start``. ``failures`` counts what
    could not be opened, by errno name. Raises OSError where there is no timer to be had.
    """

    name = "targets"

    def __init__(self, helper: Attacher, kernel: KernelSource, linker_cache: str = "/etc/ld.so.cache") -> None:
        self.failures: Counter[str] = Counter()
        self._helper, self._linker_cache = helper, linker_cache
        self._libraries: list[tuple[re.Pattern[bytes], Found]] = []
        self._executables: list[Found] = []
        self._line = re.compile(rb"(?!)")
        self._files: dict[FileKey, _File] = {}
        self._mappings: dict[tuple[bytes, bytes, bytes], FileKey] = {}
        self._processes: dict[int, _Process] = {}
        self._looks: list[tuple[int, int]] = []
        self._rest: deque[int] = deque()
        self._full_ns = self._resting_ns = 0
        self._libc = ct.CDLL(None, use_errno=True)
        self._timer = self._libc.timerfd_create(_CLOCK_BOOTTIME, _TFD_FLAGS)
        if self._timer < 0:
            raise OSError(ct.get_errno(), "timerfd_create")
        kernel.listen("exec_events", self.on_exec)

    def library(self, pattern: bytes, found: Found) -> None:
        """Asks for shared libraries whose file name matches ``pattern`` as a whole."""
        self._libraries.append((re.compile(pattern), found))
        names = b"|".join(p.pattern for p, _ in self._libraries)
        self._line = re.compile(rb"^(\w+-\w+) r.x\S* \w+ (\S+) (\d+) +(/(?:[^\n]*/)?(?:" + names + rb")(?: \(deleted\))?)$", re.M)

    def exe(self, found: Found) -> None:
        """Asks for every executable file that runs."""
        self._executables.append(found)

    def start(self) -> None:
        """Offers the libraries that the dynamic linker would find, so that new processes are seen at once, then what runs now."""
        self._offer_known_libraries()
        self._rest.extend(self._pids())
        self._work(float("inf"))
        self._full_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + FULL_SCAN_NS
        self._arm()

    def fds(self) -> list[int]:
        return [self._timer]

    def on_exec(self, records: np.ndarray) -> None:
        """Takes records of ``struct exec_event``."""
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for pid in set(records["proc"]["pid"].tolist()):
            self._processes.pop(pid, None)
            if len(self._looks) < _MAX_WAITING:
                for delay in LOOKS_NS:
                    heapq.heappush(self._looks, (now + delay, pid))
        self._arm()

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Looks at what is due, for at most about 10 ms at a time, and a tenth of the time."""
        if not self._full_ns:
            self.start()
        elif now_ns < self._resting_ns:
            return ()
        elif self._full_ns <= now_ns:
            self._full_ns = now_ns + FULL_SCAN_NS
            self._release_unused()
            self._rest.extend(self._pids())
        elif not self._rest and (not self._looks or self._looks[0][0] > now_ns):
            return ()
        with contextlib.suppress(BlockingIOError):
            os.read(self._timer, 8)
        begun = time.monotonic()
        while self._looks and self._looks[0][0] <= now_ns and time.monotonic() < begun + _BUDGET_S:
            self._look(heapq.heappop(self._looks)[1])
        self._work(begun + _BUDGET_S)
        took = time.monotonic() - begun
        if took > 5 * _BUDGET_S:
            self._resting_ns = now_ns + int(took * _REST * 1e9)
        self._arm()
        return ()

    def close(self) -> None:
        os.close(self._timer)
        for file in self._files.values():
            for release in file.releases:
                release()
        self._files.clear()

    def open(self, pid: int, path: str) -> int:
        """A file for reading, as process ``pid`` sees it (0: as we do); the mapped one of a path seen in its maps. Raises OSError."""
        if not pid:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return self._helper.open_proc(pid, f"root:{path}")
        except FileNotFoundError:  # maps shows it as we would reach it, and the process lives in a chroot
            with open(self._helper.open_proc(pid, "maps"), "rb") as maps:
                found = re.search(rb"^(\w+-\w+) .* " + re.escape(os.fsencode(path)) + rb"$", maps.read(_MAX_MAPS), re.M)
            if found is None:
                raise
            return self._helper.open_proc(pid, f"map:{found[1].decode()}")

    def _arm(self) -> None:
        due = max(self._resting_ns, min([self._full_ns, *([self._looks[0][0]] if self._looks else []), *([1] if self._rest else [])]))
        spec = struct.pack("<qqqq", 0, 0, due // 1_000_000_000, due % 1_000_000_000)
        self._libc.timerfd_settime(self._timer, _TFD_ABSTIME, spec, None)

    def _pids(self) -> list[int]:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        for gone in self._processes.keys() - set(pids):
            del self._processes[gone]
        return pids

    def _work(self, end: float) -> None:
        while self._rest and time.monotonic() < end:
            self._look(self._rest.popleft(), scan=True)

    def _look(self, pid: int, scan: bool = False) -> None:
        """Looks at a process unless its size is as it was: kernel threads and zombies have none."""
        try:
            with open(f"/proc/{pid}/statm", "rb", buffering=0) as statm:
                size = statm.read(64).split()[0]
        except (OSError, IndexError):
            self._processes.pop(pid, None)
            return
        known = self._processes.get(pid, _Process(b"0", [], set()))
        if size == known.size:
            return
        exe = known.exe
        if self._executables and (scan or not exe):
            exe = self._open(pid, "exe", "exe", self._executables)
        used = set(exe)
        self._processes[pid] = _Process(size, exe, used)
        if self._libraries:
            self._maps(pid, used)

    def _maps(self, pid: int, used: set[FileKey]) -> None:
        with self._counted():
            fd = self._helper.open_proc(pid, "maps")
            with open(fd, "rb", buffering=1 << 16) as maps:
                text = maps.read(_MAX_MAPS)
            for match in self._line.finditer(text):
                span, device, inode, path = match.groups()
                mapping = (device, inode, path)
                if mapping not in self._mappings:
                    plain = path.removesuffix(b" (deleted)")
                    # By its mapping where the path is not the process's own: deleted, or it lives in a chroot.
                    ways = [f"root:{os.fsdecode(plain)}"] * (plain == path) + [f"map:{span.decode()}"]
                    opened = (self._open(pid, way, os.fsdecode(plain), self._matching(plain)) for way in ways)
                    for key in next(filter(None, opened), []):
                        self._mappings[mapping] = key
                if mapping in self._mappings:
                    used.add(self._mappings[mapping])

    def _matching(self, path: bytes) -> list[Found]:
        return [found for pattern, found in self._libraries if pattern.fullmatch(path.rsplit(b"/", 1)[-1])]

    def _open(self, pid: int, what: str, path: str, takers: list[Found]) -> list[FileKey]:
        """The opened file's key, in a list; empty where it could not be opened."""
        with self._counted():
            fd = self._helper.open_proc(pid, what)
            try:
                return [self._offer(pid, path, fd, takers)]
            finally:
                os.close(fd)
        return []

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Processes end, and containers hold what may not be opened: neither stops the scan."""
        try:
            yield
        except OSError as error:
            self.failures[errno.errorcode.get(error.errno or 0, "?")] += 1

    def _offer(self, pid: int, path: str, fd: int, takers: list[Found], keep: bool = False) -> FileKey:
        st = os.fstat(fd)
        key = FileKey(st.st_dev, st.st_ino, st.st_mtime_ns, st.st_size)
        if key not in self._files:
            file = self._files[key] = _File(keep)
            file.releases = [release for found in takers if (release := self._ask(found, pid, path, fd))]
        return key

    @staticmethod
    def _ask(found: Found, pid: int, path: str, fd: int) -> Callable[[], None] | None:
        """What somebody made of a file. Anybody can put files here, so no fault in reading one may stop the scan."""
        try:
            return found(pid, path, fd)
        except Exception as error:  # noqa: BLE001 - said, and the file is left alone
            say(f"tickscope: cannot examine {printable(path)}: {type(error).__name__}: {error}")
            return None

    def _offer_known_libraries(self) -> None:
        """Every path in the dynamic linker's cache that somebody asked for."""
        with self._counted():
            cache = Path(self._linker_cache).read_bytes()[: 4 << 20]
            for path in sorted(set(re.findall(rb"/[^\0\n]+", cache))):
                takers = self._matching(path)
                if takers:
                    with self._counted():
                        fd = self.open(0, os.fsdecode(path))
                        try:
                            self._offer(0, os.fsdecode(path), fd, takers, keep=True)
                        finally:
                            os.close(fd)

    def _release_unused(self) -> None:
        """Lets go of files that no process used in two full scans in a row."""
        used = set[FileKey]().union(*(process.used for process in self._processes.values()))
        for key, file in list(self._files.items()):
            file.unused = 0 if key in used or file.keep else file.unused + 1
            if file.unused > 1:
                for release in file.releases:
                    release()
                del self._files[key]
        self._mappings = {m: key for m, key in self._mappings.items() if key in self._files}
