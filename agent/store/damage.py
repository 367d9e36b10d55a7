"""Finds sealed files that cannot be read, so that queries use the others. CLI process only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.batch import Loss, losses
from agent.store.arrow import to_arrow
from agent.store.reader import Sealed

if TYPE_CHECKING:
    import pyarrow as pa


def unreadable(files: Iterable[str]) -> dict[str, str]:
    """Reads these Parquet files completely. Returns those that fail, with the reason. Files that vanished with their
    segment are left out.
    """
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
    """The note for the user."""
    rows = one.tables[table]["rows"]
    return f"{one.name}/{table}.parquet is damaged, its {rows if rows >= 0 else ''} rows are not shown: {why}".replace(
        "  ", " "
    )


def loss(one: Sealed, table: str) -> pa.Table:
    """The rows of a damaged file as a row of ``loss``."""
    span = one.tables[table]
    known = span["rows"] >= 0
    source = f"{table} of {one.name}"
    lost = Loss(source, span["rows"], span["min_t_ns"], span["max_t_ns"]) if known else Loss(source)
    return to_arrow("loss", losses("store", lost).rows, one.head.boot_id, one.head.host)
