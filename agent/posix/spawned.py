"""``spawn_with_settings`` by the name that agent/receiver uses, until it uses the supervisor's own."""

from agent.posix.supervisor import how, spawn_with_settings

spawned = spawn_with_settings
__all__ = ["how", "spawned"]
