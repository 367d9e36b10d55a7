"""A recording as small as it can be: only the columns that the correlator reads, the rows of each second and table at
once, like beside like, and packed as well as the standard library can. What is found in it is what is found in the
whole one.
"""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from agent.batch import Batch
from agent.correlate.catalogue import kept
from agent.correlate.inbox import compact
from agent.lab.truth import FILE, RECORDING
from agent.store.frames import Encoder, Head
from agent.tables import TABLES

NAME = f"{RECORDING}.xz"
SECOND = 1_000_000_000
SMALL = {
    name: replace(TABLES[name], columns=tuple(TABLES[name].by_name[c] for c in columns))
    for name, columns in kept().items()
}


def write(path: Path, head: Head, events: Iterable[Batch | int]) -> None:
    """events: as ``Recording.events`` gives them."""
    encoder = Encoder(SMALL)
    with lzma.open(path, "wb", preset=9) as out:
        out.write(encoder.head(head))
        for event in by_second(events):
            if isinstance(event, Batch):
                pieces, schemas = encoder.batches([event])
                encoder.keep(schemas)
                out.writelines(pieces)
            else:
                out.write(encoder.tick(event))
        out.write(encoder.end())


def unpacked(kept: Path, room: Path) -> list[Path]:
    """Sessions in ``room``, as ``agent.lab.replay`` reads them, of those that are kept."""
    places = []
    for packed in sorted(kept.glob(f"*/{NAME}")):
        place = room / packed.parent.name
        place.mkdir()
        shutil.copy(packed.with_name(FILE), place)
        unpack(packed, place / RECORDING)
        places.append(place)
    return places


def unpack(path: Path, place: Path) -> None:
    """Into a recording that ``tickscope replay`` reads."""
    with lzma.open(path) as packed, place.open("wb") as out:
        shutil.copyfileobj(packed, out)


def by_second(events: Iterable[Batch | int]) -> Iterator[Batch | int]:
    """The rows until each watermark that ends a second, in one batch a table; the watermarks between say nothing that
    the next does not.
    """
    waiting: dict[str, list[np.ndarray]] = {}
    last = 0
    for event in events:
        if isinstance(event, Batch):
            if event.table in kept():
                waiting.setdefault(event.table, []).append(compact(event.table, event.rows))
        elif event // SECOND > last // SECOND:
            for table, rows in sorted(waiting.items()):
                yield Batch(table, ordered(np.concatenate(rows)))
            waiting.clear()
            yield event
            last = event


def ordered(rows: np.ndarray) -> np.ndarray:
    """By all columns but the time: the correlator sorts them anyway, and likes pack well."""
    names = [name for name in rows.dtype.names or () if name != "t_ns"]
    return rows[np.argsort(rows[names], kind="stable")] if len(rows) > 1 else rows
