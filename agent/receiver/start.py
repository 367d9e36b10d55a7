"""The OTLP receiver as the settings want it, with what it asks of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.probes.beside import connections
from agent.receiver.people import People
from agent.receiver.process import OtlpReceiver, told

if TYPE_CHECKING:
    from agent.clock.history import History
    from agent.config import Config
    from agent.kernel.load import Loaded


def start(config: Config, loaded: Loaded, run_fd: int, boot_id: str, history: History) -> OtlpReceiver | None:
    """None where it is off. run_fd: the run directory."""
    if not (wanted := config.receiver()).enabled:
        return None
    maps = loaded.families["tcp"].maps if "tcp" in loaded.families else {}
    users = connections.Connections(loaded).name if connections.MAP in maps else None
    return OtlpReceiver(
        wanted,
        run_fd,
        People(users),
        lambda wall_ns: history.to_boot(wall_ns).ns,
        {"boot_id": boot_id, **told(config)},
    )
