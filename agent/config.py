"""The agent's configuration: one frozen record, checked where it enters, with the line of each mistake.

Order of precedence: flag, environment, file, default. Only the CLI reads files; the agent process gets the finished record.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.errors import USAGE, AgentError

DEFAULT_FILE = Path("/etc/tickscope/tickscope.yaml")
SYSCALL_MODES = ("blocked", "sampled", "full", "off")


@dataclass(frozen=True)
class Config:
    """Everything that may be configured. Names are the file's keys.

    store: directory; run_dir: of the sockets. syscalls: how much of system call time is measured; syscalls_window_ms: of each
    second, with ``sampled``. slow_syscall_ms: from when a blocked call is an event. redis: URLs of servers whose streams are
    watched, ``redis://host:port/db?streams=a,b``. poll_s: between two looks at queues. intake_keys: ``hashed`` or ``clear``.
    otlp: see exporters/config.py. prometheus: listen address of the metrics page, empty for none. max_bytes, max_age_days:
    of the store. without: probe families to leave out. duration_s: stop by itself (``run --duration``). live: show the summary.
    """

    store: str = "/var/lib/tickscope"
    run_dir: str = "/run/tickscope"
    syscalls: str = "sampled"
    syscalls_window_ms: float = 20.0
    slow_syscall_ms: float = 10.0
    redis: tuple[str, ...] = ()
    poll_s: float = 1.0
    intake_keys: str = "hashed"
    otlp: Mapping[str, object] = field(default_factory=dict)
    prometheus: str = "127.0.0.1:9469"
    max_bytes: int = 1 << 30
    max_age_days: float = 7.0
    without: tuple[str, ...] = ()
    duration_s: float = 0.0
    live: bool = False

    def __post_init__(self) -> None:
        _one_of("syscalls", self.syscalls, SYSCALL_MODES)
        _one_of("intake_keys", self.intake_keys, ("hashed", "clear"))
        _within("syscalls_window_ms", self.syscalls_window_ms, 1, 500)
        _within("slow_syscall_ms", self.slow_syscall_ms, 0.1, 60_000)
        _within("poll_s", self.poll_s, 0.1, 3600)
        _within("max_bytes", self.max_bytes, 1 << 20, 1 << 50)
        _within("max_age_days", self.max_age_days, 0.01, 36500)
        port = self.prometheus.rpartition(":")[2]
        if self.prometheus and not (port.isdigit() and int(port) < 65536):
            raise AgentError(f"prometheus cannot be {self.prometheus!r}", why="it is address:port, or empty", exit_code=USAGE)
        _within("duration_s", self.duration_s, 0, 1e9)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Config:
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**values)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise AgentError(f"{name} cannot be {value!r}", why=f"it is one of {', '.join(allowed)}", exit_code=USAGE)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise AgentError(f"{name} cannot be {value:g}", why=f"it lies between {low:g} and {high:g}", exit_code=USAGE)


def _coerce(key: str, value: Any, where: str) -> Any:
    """A YAML value as the type of the field's default. Raises AgentError naming the line."""
    default = next(f for f in dataclasses.fields(Config) if f.name == key)
    wanted = default.default if default.default is not dataclasses.MISSING else {}
    if isinstance(wanted, tuple):
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list) and all(isinstance(i, str) for i in items):
            return tuple(items)
        raise AgentError(f"{where}: {key} must be a list of texts", exit_code=USAGE)
    if isinstance(wanted, bool) or isinstance(value, bool):
        if isinstance(wanted, bool) and isinstance(value, bool):
            return value
        if key == "syscalls" and value is False:  # YAML reads a bare off as false
            return "off"
        if key == "prometheus" and value is False:
            return ""
        raise AgentError(f"{where}: {key} cannot be {value!r}", exit_code=USAGE)
    if isinstance(wanted, (int, float)) and isinstance(value, (int, float)):
        return type(wanted)(value)
    if isinstance(value, type(wanted)):
        return value
    raise AgentError(f"{where}: {key} must be a {type(wanted).__name__}, not {value!r}", exit_code=USAGE)


def read_file(path: Path, required: bool) -> dict[str, Any]:
    """The settings of a YAML file; none where it is missing and not required. Raises AgentError (exit code 2) with the line."""
    import yaml

    try:
        text = path.read_text()
    except FileNotFoundError as error:
        if required:
            raise AgentError(f"there is no configuration file {path}", exit_code=USAGE) from error
        return {}
    except OSError as error:
        raise AgentError(f"cannot read {path}", why=str(error.strerror), exit_code=USAGE) from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise AgentError(f"{path} is not YAML", why=str(error), exit_code=USAGE) from error
    if node is None:
        return {}
    if not isinstance(values, dict):
        raise AgentError(f"{path} must hold `key: value` lines", exit_code=USAGE)
    lines = {key.value: key.start_mark.line + 1 for key, _ in node.value}
    known = [f.name for f in dataclasses.fields(Config) if f.name not in ("duration_s", "live")]
    out = {}
    for key, value in values.items():
        where = f"{path}:{lines.get(str(key), 0)}"
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise AgentError(f"{where}: there is no setting {key}", why=hint, exit_code=USAGE)
        out[key] = _coerce(str(key), value, where)
    return out


def resolve(flags: Mapping[str, Any], env: Mapping[str, str], path: str | None = None) -> Config:
    """The configuration in force. flags: values that were given on the command line, None where not."""
    chosen = path or env.get("TICKSCOPE_CONFIG")
    values = read_file(Path(chosen) if chosen else DEFAULT_FILE, required=bool(chosen))
    for variable, key in (("TICKSCOPE_STORE", "store"), ("TICKSCOPE_RUN_DIR", "run_dir")):
        if env.get(variable):
            values[key] = env[variable]
    if env.get("TICKSCOPE_REDIS_URL"):
        values["redis"] = tuple(env["TICKSCOPE_REDIS_URL"].split())
    values.update({k: v for k, v in flags.items() if v is not None})
    return Config(**values)
