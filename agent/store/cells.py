"""Cells: the distribution of a sealed table's measure, counted at sealing, so that a query over millions of rows reads
thousands.

``TABLE.cells`` (Parquet) is stored beside ``TABLE.parquet``. For each combination of values of some columns, and each
bucket of the measure, it has the number of rows and the largest value. Each segment chooses these columns, those with
few values first, while there are few cells per row; ``head.json`` lists them. Buckets are log-linear, 32 per power of
two, symmetric around 0, exact below 64.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.ask.names import quote
from agent.columns import NULL_I64, Column
from agent.tables import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

#: Largest relative distance between a value and the middle of its bucket.
ERROR = 1 / 64
#: Cells are used from this number of rows on. Fewer rows are read quickly, and exactly.
MANY = 1_000_000
_LEAST_ROWS = 10_000
_ROWS_A_CELL = 8
_BITS = 5
_OWN = ("_bucket", "_rows", "_most")


def name(table: str) -> str:
    """The file name of a table's cells in its segment."""
    return f"{table}.cells"


def checksum(path: str) -> int:
    """CRC-32 of a cells file. Parquet pages have none, and a wrong count would not be noticed. Raises OSError."""
    with open(path, "rb") as file:
        return zlib.crc32(file.read())


def write(folder: str, table: str) -> list[str]:
    """Writes the cells of a sealed table. Returns the columns that distinguish them; none if cells would not pay."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    measure = TABLES[table].by_name.get(TABLES[table].measure)
    if measure is None or measure.kind != "i64" or "hist" in TABLES[table].by_name:
        return []
    columns = [c.name for c in TABLES[table].columns if _distinguishes(c) and c is not measure] + ["boot_id", "host"]
    path = f"{folder}/{table}.parquet"
    if pq.read_metadata(path).num_rows < _LEAST_ROWS:
        return []
    with pq.ParquetFile(path, read_dictionary=[c for c in columns if _is_text(table, c)]) as file:
        values = file.read([measure.name]).column(0).fill_null(NULL_I64).to_numpy()
        coded = {c: _coded(file.read([c]).column(0)) for c in columns}
    cells, count = _numbered(np.where(values == NULL_I64, np.iinfo(np.int16).min, buckets(values)).astype(np.int64))
    chosen: list[str] = []
    for column in sorted(columns, key=lambda c: len(coded[c].dictionary)):
        distinct = len(coded[column].dictionary) + 1
        if distinct * _ROWS_A_CELL > len(values):
            break
        codes = coded[column].indices.fill_null(distinct - 1).to_numpy()
        finer, finer_count = _numbered(cells * distinct + codes)
        if finer_count * _ROWS_A_CELL <= len(values):
            cells, count = finer, finer_count
            chosen.append(column)
    first = np.zeros(count, np.int64)
    first[cells[::-1]] = np.arange(len(cells))[::-1]  # the last assignment wins, so the first row
    most = np.full(count, NULL_I64)
    np.maximum.at(most, cells, values)
    places = buckets(values[first])
    keys = [coded[c].indices.fill_null(-1).to_numpy()[first] for c in reversed(chosen)]
    order = np.lexsort((places, *keys))  # a third smaller on disk, and faster to sum
    first, most, count_of = first[order], most[order], np.bincount(cells, minlength=count)[order]
    unknown = most == NULL_I64
    own = (pa.array(places[order], mask=unknown), pa.array(count_of), pa.array(most, mask=unknown))
    made = [*(coded[c].take(pa.array(first)) for c in chosen), *own]
    pq.write_table(pa.table(made, names=[*chosen, *_OWN]), f"{folder}/{name(table)}", compression="zstd")
    return chosen


def buckets(values: np.ndarray) -> np.ndarray:
    """The bucket of each value, int16, shape (n,)."""
    size = np.abs(values.astype(np.float64))
    finer = np.maximum(np.frexp(size)[1].astype(np.int64) - 1 - _BITS, 0)
    index = (finer << _BITS) + (np.abs(values) >> finer)
    signed: np.ndarray = np.where(values < 0, -index, index).astype(np.int16)
    return signed


def middle(bucket: int) -> int:
    """The middle of a bucket."""
    size = abs(bucket)
    finer = max((size >> _BITS) - 1, 0)
    value = ((size - (finer << _BITS)) << finer) + ((1 << finer) >> 1)
    return -value if bucket < 0 else value


def bucket_sql(column: str) -> str:
    """``buckets`` of a column, as SQL."""
    size = f"abs({quote(column)})"
    finer = f"greatest(floor(log2(greatest({size}, 1)))::BIGINT - {_BITS}, 0)"
    return f"(sign({quote(column)}) * (({finer} << {_BITS}) + ({size} >> {finer})))::SMALLINT"


def spread_sql(by: Sequence[str], sealed: Sequence[str], rest: str, quantiles: Sequence[float]) -> str:
    """A query for columns ``by``, count, a list of the quantiles' buckets, and max. sealed: SQL names of the cells
    files. rest: a query for other cells, if any.
    """
    keys = ", ".join(map(quote, by))
    own = f"{keys}, {', '.join(_OWN)}"
    points = ", ".join(f"min(_bucket) FILTER (upto >= {q} * known AND known > 0)" for q in quantiles)
    return f"""
        WITH cells AS (SELECT {keys}, _bucket, sum(_rows) AS _rows, max(_most) AS _most
                       FROM (SELECT {own} FROM read_parquet([{", ".join(sealed)}])
                             {f"UNION ALL {rest}" if rest else ""})
                       GROUP BY {keys}, _bucket),
             counted AS (SELECT *, if(_bucket IS NULL, 0, _rows) AS valid FROM cells),
             ranked AS (SELECT *, sum(valid) OVER (PARTITION BY {keys} ORDER BY _bucket NULLS FIRST) AS upto,
                               sum(valid) OVER (PARTITION BY {keys}) AS known FROM counted)
        SELECT {keys}, sum(_rows)::BIGINT, [{points}], max(_most) FROM ranked GROUP BY {keys}"""


def rest_sql(by: Sequence[str], measure: str, view: str, where: str) -> str:
    """A query that computes the cells of a view's rows."""
    keys = ", ".join(map(quote, by))
    return (
        f"SELECT {keys}, {bucket_sql(measure)} AS _bucket, count(*) AS _rows, max({quote(measure)}) AS _most "
        f"FROM {view} WHERE {where} GROUP BY {keys}, _bucket"
    )


def _distinguishes(column: Column) -> bool:
    """Whether the column identifies or classifies (names, states, ids), rather than counts."""
    return column.kind in {"str", "enum", "bool", "addr", "peer"} or (column.kind == "i64" and not column.unit)


def _is_text(table: str, column: str) -> bool:
    found = TABLES[table].by_name.get(column)
    return found is None or found.kind in {"str", "enum", "addr", "peer"}


def _coded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Each value as the number of its distinct value: four bytes per row."""
    import pyarrow as pa

    array: Any = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    return array if pa.types.is_dictionary(array.type) else array.dictionary_encode()


def _numbered(codes: np.ndarray) -> tuple[np.ndarray, int]:
    """The same codes renumbered from 0 without gaps, in order of first occurrence."""
    import pyarrow as pa

    found = pa.array(codes).dictionary_encode()
    return found.indices.to_numpy().astype(np.int64), len(found.dictionary)
