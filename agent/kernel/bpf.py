"""The few bpf() commands of the agent itself, all on descriptors that it received.

Since kernel 5.19 the holder of a map descriptor needs no capability (c8644cd0efe7; before, hash and array look-ups need
CAP_BPF).
"""

from __future__ import annotations

import ctypes as ct
import os
import struct
from functools import cache
from typing import Any

import numpy as np

from agent.kernel.syscall import attributes, bpf

MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, MAP_NEXT_KEY = 1, 2, 3, 4
OBJ_GET_INFO, MAP_LOOKUP_BATCH, MAP_DELETE_BATCH = 15, 24, 27

PROG_TEST_RUN = 10


def _address(a: np.ndarray) -> int:
    return int(a.ctypes.data)


def map_info(fd: int) -> tuple[int, int, int, int]:
    """(type, key size, value size, max entries) of a map. Raises OSError."""
    info = ct.create_string_buffer(88)
    attr = attributes(struct.pack("<IIQ", fd, len(info), ct.addressof(info)))
    if (err := bpf(OBJ_GET_INFO, attr)) < 0:
        raise OSError(-err, f"map information: {os.strerror(-err)}")
    kind, _, key, value, entries = struct.unpack_from("<5I", info.raw)
    return kind, key, value, entries


def program_stats(fd: int) -> tuple[int, int, int]:
    """(run_time_ns, run_cnt, recursion_misses) of a program; the first two are 0 unless kernel.bpf_stats_enabled.
    Raises OSError.

    A miss is a run that the kernel skipped because the program was already running on that CPU (kernel 6.2).
    """
    info, attr = _program_question(fd)
    ct.memset(info, 0, len(info))  # data of the last call would be taken for a request
    if (err := bpf(OBJ_GET_INFO, attr)) < 0:
        raise OSError(-err, f"program information: {os.strerror(-err)}")
    return struct.unpack_from("<QQQ", info, 192)


@cache
def _program_question(fd: int) -> tuple[ct.Array[ct.c_char], ct.Array[ct.c_char]]:
    info = ct.create_string_buffer(232)
    return info, attributes(struct.pack("<IIQ", fd, len(info), ct.addressof(info)))


class OwnRun:
    """Runs a raw tracepoint's program from user space (BPF_PROG_TEST_RUN, kernel 5.10). words: number of
    its arguments.
    """

    def __init__(self, fd: int, words: int) -> None:
        self.args = (ct.c_uint64 * words)()
        size = ct.sizeof(self.args)
        self._attr = attributes(
            struct.pack("<IIIIQQIIIIQQIII", fd, 0, 0, 0, 0, 0, 0, 0, size, 0, ct.addressof(self.args), 0, 0, 0, 0)
        )

    def __call__(self) -> int:
        """Runs the program; returns its result. Raises OSError."""
        if (err := bpf(PROG_TEST_RUN, self._attr)) < 0:
            raise OSError(-err, f"program run: {os.strerror(-err)}")
        return int(struct.unpack_from("<I", self._attr.raw, 4)[0])


def update(fd: int, key: bytes, value: bytes) -> None:
    """Sets one element. Raises OSError."""
    k, v = ct.create_string_buffer(key, len(key)), ct.create_string_buffer(value, len(value))
    err = bpf(MAP_UPDATE, attributes(struct.pack("<IxxxxQQQ", fd, ct.addressof(k), ct.addressof(v), 0)))
    if err < 0:
        raise OSError(-err, f"map update: {os.strerror(-err)}")


def lookup(fd: int, key: bytes, value_size: int) -> bytes | None:
    """One element's value, None if missing. Raises OSError for other errors."""
    k, v = ct.create_string_buffer(key, len(key)), ct.create_string_buffer(value_size)
    err = bpf(MAP_LOOKUP, attributes(struct.pack("<IxxxxQQQ", fd, ct.addressof(k), ct.addressof(v), 0)))
    if err == -2:
        return None
    if err < 0:
        raise OSError(-err, f"map look-up: {os.strerror(-err)}")
    return v.raw


def allowed(fd: int) -> bool:
    """Whether this process may use its maps: without CAP_BPF only since kernel 5.19 (c8644cd0efe7). fd: an array of
    u64.
    """
    try:
        lookup(fd, bytes(4), 8)
    except PermissionError:
        return False
    return True


def delete(fd: int, key: bytes) -> bool:
    """Removes one element; False if missing. Raises OSError for other errors."""
    k = ct.create_string_buffer(key, len(key))
    err = bpf(MAP_DELETE, attributes(struct.pack("<IxxxxQQQ", fd, ct.addressof(k), 0, 0)))
    if err < 0 and err != -2:
        raise OSError(-err, f"map delete: {os.strerror(-err)}")
    return err == 0


class HashMap:
    """A hash map read in batches as numpy arrays (BPF_MAP_LOOKUP_BATCH, kernel 5.6)."""

    def __init__(self, fd: int, key: np.dtype[Any], value: np.dtype[np.void]) -> None:
        _, key_size, value_size, self.entries = map_info(fd)
        if (key_size, value_size) != (key.itemsize, value.itemsize):
            raise ValueError(
                f"map has {key_size}+{value_size} bytes an element, dtypes have {key.itemsize}+{value.itemsize}"
            )
        self.fd, self.key, self.value = fd, key, value
        self._first = ct.create_string_buffer(key_size)
        self._ask_first = attributes(struct.pack("<IxxxxQQQ", fd, 0, ct.addressof(self._first), 0))

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """All (keys, values), shapes (n,). Elements may occur twice if a program writes meanwhile. Raises OSError."""
        if bpf(MAP_NEXT_KEY, self._ask_first) == -2:  # an empty map: skips the batch, which locks every bucket
            return np.empty(0, self.key), np.empty(0, self.value)
        keys, values = [], []
        cursor = np.zeros(max(self.key.itemsize, 8), np.uint8)
        first, step = True, 256
        while True:
            k, v = np.empty(step, self.key), np.empty(step, self.value)
            at = _address(cursor)
            attr = attributes(
                struct.pack("<QQQQIIQQ", 0 if first else at, at, _address(k), _address(v), step, self.fd, 0, 0)
            )
            err = bpf(MAP_LOOKUP_BATCH, attr)
            n = struct.unpack_from("<I", attr.raw, 32)[0]
            if err == -28:  # ENOSPC: one bucket has more than step elements
                step *= 4
                continue
            if err not in (0, -2):
                raise OSError(-err, f"map batch look-up: {os.strerror(-err)}")
            keys.append(k[:n])
            values.append(v[:n])
            first = False
            if err == -2:
                return np.concatenate(keys), np.concatenate(values)

    def drop(self, keys: np.ndarray) -> None:
        """Deletes these keys. Raises OSError."""
        keys = np.ascontiguousarray(keys)
        done = 0
        while done < len(keys):
            part = keys[done:]
            attr = attributes(struct.pack("<QQQQIIQQ", 0, 0, _address(part), 0, len(part), self.fd, 0, 0))
            err = bpf(MAP_DELETE_BATCH, attr)
            n = struct.unpack_from("<I", attr.raw, 32)[0]
            if err not in (0, -2):
                raise OSError(-err, f"map batch delete: {os.strerror(-err)}")
            done += n + (err == -2)  # a missing element stops the batch: skip it
