"""Waits for the sealer of a store."""

from __future__ import annotations

import time

from agent.store.hot import HotStore
from tests.patience import PATIENCE


def seal_all(store: HotStore) -> None:
    """Returns once the sealer has nothing left to do, or has failed."""
    sealer, end_s = store._sealer, time.monotonic() + 60 * PATIENCE
    assert sealer is not None
    sealer.poll()
    while sealer._child.process is not None:
        assert time.monotonic() < end_s
        time.sleep(0.01)
        sealer.poll()  # notes its end
        sealer.poll()  # starts the next
