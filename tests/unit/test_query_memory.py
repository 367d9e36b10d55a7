"""Commands need little memory, however large the store is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.query import fill_wide, peak

#: Peak of resident memory, without pages of files: 35 to 62 were measured.
MOST_MB = 72


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600,000 rows with a histogram each: 14 MB, sealed."""
    path = tmp_path_factory.mktemp("wide")
    fill_wide(path, 600_000)
    assert sum(file.stat().st_size for file in path.glob("*/*")) > 13e6
    return path


@pytest.mark.parametrize(
    "argv",
    [
        ("query", "syscall_latency", "-o", "ndjson"),
        ("query", "syscall_latency", "--limit", "1000"),
        ("query", "syscall_latency", "--top", "10"),
        ("query", "syscall_latency", "--group-by", "comm"),
        ("sql", "SELECT * FROM syscall_latency ORDER BY max_ns DESC LIMIT 20"),
        ("sql", "SELECT comm, count(*) FROM syscall_latency GROUP BY comm"),
        ("findings",),
        ("explain", "last"),
        ("record", "--since", "2d", "-o", "/dev/null"),
    ],
    ids=lambda argv: " ".join(argv[:1] + argv[2:])[:40],
)
def test_a_command_needs_little_memory(store: Path, argv: tuple[str, ...]) -> None:
    _, _, mb = peak(*argv, "--store", str(store))
    assert mb < MOST_MB
