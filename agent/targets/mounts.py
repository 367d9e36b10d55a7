"""The mounts of the host's first process, and the directories that hold the files of overlays and bind mounts.

A file is the same inode through every mount. An attached file keeps its mount busy for umount, so only lasting mounts
are used.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from agent.kernel.limits import MOUNTS
from agent.kernel.steps import Steps, Wait

#: A mount is lasting if it was there when the agent started, or has been there for this long.
LASTING_S = 600.0
_LINE = re.compile(r"\d+ \d+ (\d+:\d+) (\S+) (\S+) .* - (\S+) \S+ (\S*)")
#: File systems that programs are bind-mounted from. Users cannot mount these.
_BOUND = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs"}
#: In one round of the loop.
_TURN_S = 0.002


class Mount(NamedTuple):
    """device: of its file system; root: the directory in it that is visible at ``point``; options: escaped as in
    mountinfo.
    """

    device: str
    root: str
    point: str
    kind: str
    options: str


class Layer(NamedTuple):
    """A directory that programs see as their root or as a part of it; shared: by overlays."""

    folder: str
    shared: bool


def parse(line: bytes) -> Mount | None:
    """Parses a line of /proc/PID/mountinfo; None if it has another form."""
    found = _LINE.fullmatch(os.fsdecode(line))
    if not found:
        return None
    device, root, point, kind, options = found.groups()
    return Mount(device, _plain(root), _plain(point), kind, options)


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), word)


class Present:
    """All mounts, in order. ``lasts`` returns whether a mount is lasting."""

    def __init__(self, mounts: Iterable[Mount], lasts: Callable[[Mount], bool]) -> None:
        self._points: dict[str, Mount] = {}
        self._bases: defaultdict[str, list[Mount]] = defaultdict(list)
        self._lasts = lasts
        for mount in mounts:
            self._points[mount.point] = mount
            if lasts(mount):
                self._bases[mount.device].append(mount)

    def layers(self, mount: Mount) -> Iterator[Layer]:
        """The directories that hold the files of a mount, as far as a lasting mount reaches them."""
        if mount.kind == "overlay":
            yield from (
                Layer(folder, True)
                for folder in _stacked(mount)
                if (base := self._covering(folder)) and self._lasts(base)
            )
        elif mount.kind in _BOUND and mount.root != "/":
            base = next((one for one in self._bases[mount.device] if _inside(mount.root, one.root)), mount)
            folder = os.path.normpath(os.path.join(base.point, os.path.relpath(mount.root, base.root)))
            if folder != mount.point and self._covering(folder) is base:
                yield Layer(folder, False)

    def _covering(self, path: str) -> Mount | None:
        """The mount that holds a path."""
        folders = accumulate(path.split("/")[1:], "{}/{}".format, initial="")
        return next(
            (self._points[folder] for folder in reversed([*folders]) if folder in self._points), self._points.get("/")
        )


def _stacked(mount: Mount) -> Iterator[str]:
    """Upper and lower directories. Docker's relative paths start two levels above the mount point, containerd's two
    levels above the upper directory.
    """
    values = [option.partition("=")[::2] for option in mount.options.split(",")]
    lower = [
        one
        for name, value in values
        if name == "lowerdir"
        for one in re.split(r"(?<!\\):", _plain(value).partition("::")[0])
    ]
    lower += [_plain(value) for name, value in values if name == "lowerdir+"]
    upper = [_plain(value) for name, value in values if name == "upperdir"]
    above = os.path.dirname(os.path.dirname(upper[0] if upper and upper[0].startswith("/") else mount.point))
    yield from (
        os.path.normpath(os.path.join(above, re.sub(r"\\(.)", r"\1", folder))) for folder in [*upper, *lower] if folder
    )


def _inside(path: str, folder: str) -> bool:
    return folder in ("/", path) or path.startswith(f"{folder}/")


def _first() -> int:
    """The pid for mountinfo: 1 if this process is in another mount namespace (mount ids differ between namespaces),
    else its own.
    """
    with (
        contextlib.suppress(OSError),
        open("/proc/1/mountinfo", "rb") as first,
        open("/proc/self/mountinfo", "rb") as own,
    ):
        if first.readline() != own.readline():
            return 1
    return os.getpid()


def _head(line: bytes) -> bytes:
    """The part of a line that stays when a mount's options change: ids, device, root and point."""
    return b" ".join(line.split(b" ", 5)[:5])


def _named(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


class _Known(NamedTuple):
    mount: Mount
    since_s: float
    layers: tuple[Layer, ...]


class MountWatch:
    """Wakes the loop when mounts change (``fds``), and reads them in pieces. Raises OSError."""

    def __init__(self) -> None:
        #: The process that the paths belong to.
        self.pid = _first()
        self._fds = [
            os.open(f"/proc/{self.pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC) for _ in range(2)
        ]  # the kernel reports a change once per descriptor, to the first poll
        self._changes, self._wakes = select.poll(), select.epoll()
        self._changes.register(self._fds[0], select.POLLPRI)
        self._wakes.register(self._fds[1], select.EPOLLPRI)
        self._known: dict[bytes, _Known] = {}
        self._overlays: set[str] = set()
        self._unread = True

    def fds(self) -> list[int]:
        return [self._wakes.fileno()]

    def changed(self) -> bool:
        """Whether there is something to read."""
        self._unread = bool(self._changes.poll(0)) or self._unread
        return self._unread

    def read(self, pause: Wait) -> Steps[list[Layer]]:
        """The layers of the mounts that are new since the last call."""
        self._unread = False
        known, fresh, found = dict[bytes, _Known](), dict[bytes, _Known](), list[Layer]()
        now_s = time.monotonic()
        since_s, end_s = now_s if self._known else float("-inf"), now_s + _TURN_S
        for lines in self._pieces():
            known |= {line: self._known[line] for line in lines if line in self._known}
            fresh |= {
                line: _Known(mount, since_s, ()) for line in lines if line not in self._known and (mount := parse(line))
            }
            if time.monotonic() > end_s:
                yield pause
                end_s = time.monotonic() + _TURN_S
        if fresh:
            before = {_head(line): one.since_s for line, one in self._known.items()}
            fresh = {line: one._replace(since_s=before.get(_head(line), since_s)) for line, one in fresh.items()}
            begun = {one.mount: one.since_s for one in (*known.values(), *fresh.values())}
            present = Present(begun, lambda mount: now_s - begun[mount] > LASTING_S)
            for line, one in fresh.items():
                known[line] = one._replace(layers=tuple(present.layers(one.mount)))
                found += known[line].layers
                if time.monotonic() > end_s:
                    yield pause
                    end_s = time.monotonic() + _TURN_S
        self._known = known
        self._overlays = {one.mount.device for one in known.values() if one.mount.kind == "overlay"}
        return found

    def _pieces(self) -> Iterator[list[bytes]]:
        """Lines in groups of some hundred, without those of file systems that any user may mount."""
        os.lseek(self._fds[0], 0, os.SEEK_SET)
        rest, n = b"", 0
        while n < MOUNTS and (part := os.read(self._fds[0], 1 << 16)):
            *whole, rest = (rest + part).split(b"\n")
            lines = [line for line in whole if b" - fuse" not in line]
            n += len(lines)
            yield lines

    def mounted(self) -> set[Layer]:
        """Layers of all mounts, as of the last reading."""
        return {layer for one in self._known.values() for layer in one.layers}

    def overlaid(self, device: int) -> bool:
        """Whether this device, as stat reports it, is an overlay's."""
        return _named(device) in self._overlays

    def passing(self, device: int) -> bool:
        """Whether it was mounted lately and may be unmounted soon: the agent must not keep it busy."""
        since_s = [one.since_s for one in self._known.values() if one.mount.device == _named(device)]
        return bool(since_s) and time.monotonic() - min(since_s) <= LASTING_S

    def close(self) -> None:
        self._wakes.close()
        for fd in self._fds:
            os.close(fd)
