"""Roots that are new: the first program in each, what is kept of it, and which libraries are asked for."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from agent.kernel.limits import FILES_A_PROCESS, ROOTS
from agent.kernel.steps import at_once, run
from agent.probes.exec import STARTED
from agent.targets.asked import FileId, ProbeRequest
from agent.targets.roots import FOLDERS, Roots, libraries


def started(*programs: tuple[int, int]) -> np.ndarray:
    """Of (pid, root's inode)."""
    records = np.zeros(len(programs), STARTED)
    records["pid"], records["root_inode"] = [pid for pid, _ in programs], [root for _, root in programs]
    return records


def test_the_first_program_of_a_root_is_reported_once() -> None:
    roots = Roots()
    roots.on_exec(started((10, 1), (11, 1), (12, 2)))
    assert [roots.take(pid) is not None for pid in (10, 11, 12, 10)] == [True, False, True, False]
    roots.on_exec(started((13, 1)))
    assert roots.take(13) is None


def test_the_own_root_is_none() -> None:
    root, records = os.stat("/"), started((10, 0))
    records["root_inode"], records["mount_namespace"] = root.st_ino, os.stat("/proc/self/ns/mnt").st_ino
    records["root_device"] = os.major(root.st_dev) << 20 | os.minor(root.st_dev)
    roots = Roots()
    roots.on_exec(records)
    assert roots.take(10) is None


def test_files_are_kept_and_roots_are_bounded() -> None:
    roots = Roots()
    roots.on_exec(started((10, 1)))
    root = roots.take(10)
    assert root is not None
    roots.keep(root, FileId(1, 2))
    assert roots.used() == {FileId(1, 2)}
    roots.on_exec(started(*((pid, pid) for pid in range(100, 100 + ROOTS))))
    assert roots.used() == set()
    roots.on_exec(started((11, 1)))
    assert roots.take(11) == root


def test_what_could_not_be_checked_is_new_again() -> None:
    roots = Roots()
    roots.on_exec(started((10, 1)))
    root = roots.take(10)
    assert root is not None
    roots.forget(root)
    roots.on_exec(started((11, 1)))
    assert roots.take(11) == root


def listed(cache: bytes | None, tmp_path: Path) -> list[bytes]:
    def opening() -> int:
        if cache is None:
            raise FileNotFoundError
        (tmp_path / "cache").write_bytes(cache)
        return os.open(tmp_path / "cache", os.O_RDONLY)

    found: list[list[bytes]] = []
    ask = ProbeRequest("openssl", lambda *_: iter(()), "tls")  # type: ignore[arg-type,return-value]
    steps = libraries(lambda _: at_once(opening), lambda path: [ask] if b"libssl" in path else [], (b"libssl.so.3",))
    run(steps, lambda value, error: found.append(value))
    return found[0]


def test_libraries_by_the_linkers_cache_or_by_where_they_usually_lie(tmp_path: Path) -> None:
    assert listed(
        b"glibc-ld.so.cache1.1\0libc.so.6\0/lib/libc.so.6\0libssl.so.3\0/opt/libssl.so.3\0/opt/libssl.so.3\0", tmp_path
    ) == [b"/opt/libssl.so.3"]
    assert listed(None, tmp_path) == [folder + b"/libssl.so.3" for folder in FOLDERS]
    assert len(listed(b"\0".join(b"/%d/libssl.so" % i for i in range(999)), tmp_path)) == FILES_A_PROCESS


def test_what_a_short_lived_program_does_once_goes_first(tmp_path: Path) -> None:
    cache, names = tmp_path / "cache", (b"libc.so.6", b"libssl.so.3")
    cache.write_bytes(b"\0/lib/libc.so.6\0/lib/libssl.so.3\0/lib/libm.so.6\0")
    asks = [ProbeRequest("any", lambda *_: iter(()), "tls", first=name == names[1]) for name in names]  # type: ignore[arg-type,return-value]

    def matching(path: bytes) -> list[ProbeRequest]:
        return [ask for name, ask in zip(names, asks, strict=True) if path.endswith(name)]

    for place, times in ((cache, 1), (tmp_path / "none", len(FOLDERS))):
        found: list[list[bytes]] = []
        steps = libraries(lambda _, at=place: at_once(lambda: os.open(at, os.O_RDONLY)), matching, names)  # type: ignore[misc]
        run(steps, lambda value, error, into=found: into.append(value))  # type: ignore[misc]
        assert [path.rsplit(b"/", 1)[1] for path in found[0]] == [names[1]] * times + [names[0]] * times
