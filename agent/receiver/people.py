"""Which process sends on a connection to the receiver, as the tcp probe's kernel programs know it: looked up when it
begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from agent.batch import make
from agent.columns import NULL_I64
from agent.log import say
from agent.receiver.received import ClientEnds
from agent.receiver.wire import CONNECTIONS

_MOST = 4 * CONNECTIONS


class Person(NamedTuple):
    pid: int
    proc_start_ns: int
    comm: bytes


class People:
    """look_up: fills pid, proc_start_ns and comm of rows of ``socket_queue``, by both ends; None where no kernel
    program knows connections. It may raise OSError.
    """

    def __init__(self, look_up: Callable[[np.ndarray], None] | None) -> None:
        self._look_up, self._said = look_up, False
        self._known: dict[int, Person] = {}
        self._netns = os.stat("/proc/self/ns/net").st_ino

    def meet(self, begun: Mapping[int, ClientEnds]) -> None:
        """Connections by number, all at once."""
        if self._look_up is None or not begun:
            return
        columns = zip(*begun.values(), strict=True)
        batch = make("socket_queue", len(begun), netns=self._netns)
        for name, values in zip(ClientEnds._fields, columns, strict=True):
            column = batch.rows[name]
            column[:] = np.array(values, column.dtype) if name.endswith("port") else [np.void(one) for one in values]
        try:
            self._look_up(batch.rows)
        except OSError as error:
            if not self._said:
                say(f"tickscope: otlp receiver: whose connections are is not known: {error.strerror}")
            self._said = True
            return
        for number, row in zip(begun, batch.rows, strict=True):
            if row["pid"] != NULL_I64:
                self._known[number] = Person(int(row["pid"]), int(row["proc_start_ns"]), bytes(row["comm"]))
        while len(self._known) > _MOST:
            self._known.pop(next(iter(self._known)))

    def name(self, number: int, rows: np.ndarray) -> None:
        """Fills pid, proc_start_ns and comm of decisions that came on a connection."""
        if (person := self._known.get(number)) is not None:
            rows["pid"], rows["proc_start_ns"], rows["comm"] = person

    def part(self, gone: Iterable[int]) -> None:
        for number in gone:
            self._known.pop(number, None)

    def forget(self) -> None:
        """All: another process counts from the beginning."""
        self._known.clear()
