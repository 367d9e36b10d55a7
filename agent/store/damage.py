"""Which sealed files cannot be read, so that the others still answer. CLI process only."""

from __future__ import annotations

import os
from collections.abc import Iterable

from agent.batch import make
from agent.columns import NULL_I64
from agent.store.reader import HotRows, Sealed
from agent.tables import TABLES


def unreadable(files: Iterable[str]) -> dict[str, str]:
    """Reads these Parquet files whole: those that fail, and why. A file that vanished with its segment is none of them."""
    import duckdb

    found = {}
    for file in files:
        with duckdb.connect() as db:
            try:
                db.execute("SELECT bit_xor(hash(t)) FROM read_parquet(?) t", [file])
            except duckdb.Error as error:
                if os.path.isdir(os.path.dirname(file)):
                    found[file] = str(error).partition("\n")[0][:160] if os.path.exists(file) else "it is missing"
    return found


def note(one: Sealed, table: str, why: str) -> str:
    """What to tell the reader of an answer."""
    rows = one.tables[table]["rows"]
    return f"{one.name}/{table}.parquet is damaged, its {rows if rows >= 0 else ''} rows are not shown: {why}".replace("  ", " ")


def loss(one: Sealed, table: str) -> HotRows:
    """The rows that a damaged file held, as a row of ``loss``."""
    span = one.tables[table]
    known = span["rows"] >= 0
    start, end = (span["min_t_ns"], span["max_t_ns"]) if known else (NULL_I64, NULL_I64)
    batch = make("loss", 1, t_ns=end if known else 0, stage=TABLES["loss"].code("stage", "store"), source=f"{table} of {one.name}".encode(),
                 count=span["rows"] if known else NULL_I64, from_ns=start, to_ns=end)  # fmt: skip
    return HotRows(one.head.boot_id, one.head.host, batch.rows)
