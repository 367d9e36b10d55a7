"""Layers of images: looked at once, so many a second, again where the helper was held up, and forgotten when nothing of
them is mounted.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator

import pytest

from agent.kernel.limits import LAYERS_A_SECOND, TRIES
from agent.kernel.steps import Steps, Wait, at_once, run
from agent.targets.asked import FileId, ProbeRequest
from agent.targets.images import Images
from agent.targets.mounts import Layer

PAUSE: Wait = at_once(lambda: None)


class Watch:
    """Stands for a mount namespace. new: layers of what has been mounted since it was read."""

    pid = 1

    def __init__(self, *folders: str) -> None:
        self.new = [Layer(folder, True) for folder in folders]
        self.now: set[Layer] = set()
        self.close = lambda: None
        self.fds = list[int]
        self.overlaid = self.passing = lambda device: False

    def changed(self) -> bool:
        return bool(self.new)

    def read(self, pause: Wait) -> Steps[list[Layer]]:
        yield pause
        new, self.new = self.new, []
        self.now |= set(new)
        return new

    def mounted(self) -> set[Layer]:
        return self.now


class Offered:
    """Stands for ``Files``: every file is one, whatever is in it."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.libraries = [
            (
                b"libssl.*",
                ProbeRequest(
                    "openssl", lambda *_: iter(()), "tls", companion=(b"libssl", b"libcrypto"), names=(b"libssl.so.3",)
                ),
            )
        ]  # type: ignore[arg-type,return-value]
        self.overlaid: Callable[[int], bool] = lambda device: False

    def matching(self, path: bytes) -> list[ProbeRequest]:
        return [self.libraries[0][1]] if b"libssl" in path else []

    def offer(
        self, owner: object, path: str, fd: int, others: list[int], asks: list[ProbeRequest], layer: bool
    ) -> Steps[FileId]:
        yield PAUSE
        assert len(others) == 1 and layer
        self.paths.append(path)
        return FileId(0, len(self.paths))


class Opened:
    """Stands for the helper: what each layer has."""

    def __init__(self, **layers: tuple[str, ...]) -> None:
        self.layers, self.asked, self.silent = layers, list[str](), False

    def opening(self, pid: int, what: str) -> Wait:
        folder, _, path = what.removeprefix("below:/").partition("\0")
        self.asked.append(folder)

        def work() -> int:
            if self.silent:
                raise TimeoutError(errno.ETIMEDOUT, "late")
            if path.removeprefix("root:") not in self.layers.get(folder, ()):
                raise FileNotFoundError(errno.ENOENT, path)
            return os.open("/dev/null", os.O_RDONLY)

        assert pid == 1
        return at_once(work)


def turns(images: Images, n: int = 1) -> None:
    for _ in range(n):
        run(images.work(), lambda value, error: None)


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_layer_is_checked_once_while_it_is_mounted() -> None:
    watch, files = Watch("/a", "/b"), Offered()
    helper = Opened(a=("/usr/lib/libssl.so.3", "/usr/lib/libcrypto.so.3"))
    images = Images(watch, helper.opening, files, PAUSE)  # type: ignore[arg-type]
    assert images.due_s() <= time.monotonic()
    turns(images, 3)
    assert files.paths == ["/a/usr/lib/libssl.so.3"]
    assert images.used() == {FileId(0, 1)}
    assert images.due_s() == float("inf")
    watch.new = [Layer("/a", True)]
    assert images.due_s() > time.monotonic(), "mounts are read again without a rest"
    time.sleep(max(0.0, images.due_s() - time.monotonic()))
    turns(images, 2)
    assert len(files.paths) == 1
    watch.now = set()
    assert images.used() == set()
    watch.new = [Layer("/a", True)]
    time.sleep(max(0.0, images.due_s() - time.monotonic()))
    turns(images, 2)
    assert len(files.paths) == 2


def test_so_many_layers_a_second() -> None:
    helper = Opened()
    images = Images(Watch(*(f"/{i}" for i in range(2 * LAYERS_A_SECOND))), helper.opening, Offered(), PAUSE)  # type: ignore[arg-type]
    turns(images, 2 * LAYERS_A_SECOND)
    assert len(set(helper.asked)) == LAYERS_A_SECOND
    assert 0 < images.due_s() - time.monotonic() <= 1
    time.sleep(images.due_s() - time.monotonic())
    turns(images)
    assert len(set(helper.asked)) == LAYERS_A_SECOND + 1


def test_a_layer_that_held_the_helper_up_is_tried_again_some_times() -> None:
    helper, files = Opened(a=("/usr/lib/libssl.so.3", "/usr/lib/libcrypto.so.3")), Offered()
    images = Images(Watch("/a"), helper.opening, files, PAUSE)  # type: ignore[arg-type]
    helper.silent = True
    turns(images, 2)
    helper.silent = False
    turns(images)
    assert len(files.paths) == 1
    helper, files = Opened(), Offered()
    images = Images(Watch("/a"), helper.opening, files, PAUSE)  # type: ignore[arg-type]
    helper.silent = True
    turns(images, 10)
    assert len(helper.asked) == TRIES
