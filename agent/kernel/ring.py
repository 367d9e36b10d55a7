"""A BPF ring buffer, mmapped and read as one numpy array: no Python code per record.

Layout (kernel/bpf/ringbuf.c, Documentation/bpf/ringbuf.rst): a page with the consumer's position, a page with the
producer's, then the data twice in a row, so that a record never wraps. A record is u32 length (bit 31 busy, bit 30
discarded), u32 page offset, payload, padded to 8 bytes. One record size a ring makes the whole of it a strided array.
"""

from __future__ import annotations

import errno
import mmap

import numpy as np

from agent.kernel import bpf

#: Errors that may be gone at the next drain: mmap duplicates the descriptor.
_FOR_NOW = (errno.EMFILE, errno.ENOMEM)
_BUSY, _DISCARDED, _HEADER = np.uint32(1 << 31), np.uint32(1 << 30), 8


def finished(length: np.ndarray) -> tuple[int, np.ndarray]:
    """(how many records from the first on are finished, which of these were discarded), of the records' length words;
    shape (n,), u32.

    The words must be a copy: a record that the kernel finishes between two reads of the ring would pass for a discarded
    one.
    """
    busy = np.flatnonzero(length & _BUSY)
    n = int(busy[0]) if len(busy) else len(length)
    return n, np.flatnonzero(length[:n] & _DISCARDED)


class RingReader:
    """Reads records of one dtype. Raises OSError where the map cannot be mapped, ValueError where it is no ring buffer.

    ``drain`` returns copies: the kernel may reuse the space at once. It maps only the pages with new records, for as
    long as it copies them: all pages of a mapping count as memory of this process, written or not. refusal: why the
    last drain could not map them; None if it could.
    """

    refusal: OSError | None = None

    def __init__(self, fd: int, record: np.dtype[np.void]) -> None:
        kind, _, _, self.size = bpf.map_info(fd)
        if kind != 27:  # BPF_MAP_TYPE_RINGBUF
            raise ValueError("not a ring buffer")
        self.fd = fd
        self.stride = -(-(_HEADER + record.itemsize) // 8) * 8
        padding = self.stride - _HEADER - record.itemsize
        self.record = record
        self._slot = np.dtype([("length", "<u4"), ("page", "<u4"), ("payload", record), ("pad", f"V{padding}")])
        page = mmap.PAGESIZE
        self._consumer_map = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer_map = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        # A third of what an array takes to read one number.
        self._consumer = memoryview(self._consumer_map)[:8].cast("Q")
        self._producer = memoryview(self._producer_map)[:8].cast("Q")
        self._none = np.empty(0, record)

    def pending(self) -> int:
        """Records that wait, an upper bound."""
        return (self._producer[0] - self._consumer[0]) // self.stride

    def producing(self) -> bool:
        """Whether anything came since the last drain."""
        return self._producer[0] != self._consumer[0]

    def drain(self) -> np.ndarray:
        """Takes every finished record; shape (n,), dtype of the record. Stops before one that is still being
        written. Without a descriptor or memory for the mapping it takes none: they stay in the ring (``refusal``).
        """
        self.refusal = None
        start, end = self._consumer[0], self._producer[0]
        n = (end - start) // self.stride
        if n == 0:
            return self._none
        page, size = mmap.PAGESIZE, n * self.stride
        before, at = divmod(start % self.size, page)
        try:
            new = mmap.mmap(self.fd, at + size, mmap.MAP_SHARED, mmap.PROT_READ, offset=(2 + before) * page)
        except OSError as error:
            if error.errno not in _FOR_NOW:
                raise
            self.refusal = error
            return self._none
        with new:
            n, dropped = finished(np.frombuffer(new, "<u4", size // 4, at)[:: self.stride // 4].copy())
            # Copied as bytes: numpy copies a structured array field by field, which takes ten times as long.
            raw = np.frombuffer(new, np.uint8, n * self.stride, at).copy()
        out: np.ndarray = raw.view(self._slot)["payload"]
        if len(dropped):
            out = np.delete(out, dropped)
        self._consumer[0] = start + n * self.stride
        return out

    def close(self) -> None:
        """Unmaps; the descriptor stays the caller's."""
        self._consumer.release()
        self._producer.release()
        self._consumer_map.close()
        self._producer_map.close()


class SharedArray:
    """An array map with BPF_F_MMAPABLE as a writable numpy view; shape (entries,)."""

    def __init__(self, fd: int, value: np.dtype[np.void] | str) -> None:
        dtype = np.dtype(value)
        _, _, size, entries = bpf.map_info(fd)
        if dtype.itemsize != size or size % 8:
            raise ValueError(f"map has {size} bytes a value, dtype has {dtype.itemsize}; both must be a multiple of 8")
        length = -(-size * entries // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.values = np.frombuffer(self._map, dtype, entries)


class Sums:
    """The array of an ``Aggregate.sums``; see there. Raises OSError where it cannot be mapped."""

    def __init__(self, fd: int, key: np.dtype[np.void], value: np.dtype[np.void], places: int) -> None:
        self._shared = SharedArray(
            fd, np.dtype({"names": ["key", "value"], "formats": [key, value], "itemsize": bpf.map_info(fd)[2]})
        )
        self._values = self._shared.values.reshape(-1, 2, places)

    def take(self, slot: int) -> tuple[np.ndarray, np.ndarray]:
        """(keys, values) of the used elements of a resting slot, shapes (n,), which are then free."""
        resting = self._values[:, slot]
        used = np.nonzero(resting["value"]["count"].copy())  # a program that began before the flip may still write
        found = resting[used]
        resting[used] = np.zeros((), resting.dtype)
        return found["key"], found["value"]
