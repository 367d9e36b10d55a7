"""The agent's configuration: one frozen record, checked where it enters, with the line of each mistake.

Order of precedence: flag, environment, file, default. Only the CLI reads files; the agent process gets the finished
record.
"""

from __future__ import annotations

import dataclasses
import json
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.clock.daemons.ntp_settings import NtpConfig
from agent.common.duration import parse_ns
from agent.common.settings import Section
from agent.common.settings_file import Lines, parse, read_text
from agent.errors import USAGE, AgentError
from agent.limiters import script_settings
from agent.limiters.settings import check as check_limiters
from agent.log import FORMATS
from agent.queues.catalogue import broker, brokers, names

if TYPE_CHECKING:
    from agent.clock.hook_settings import HookConfig
    from agent.receiver.settings import ReceiverConfig

DEFAULT_FILE = Path("/etc/tickscope/tickscope.yaml")
INVESTIGATE = ("auto", "off")
SYSCALL_MODES = ("blocked", "sampled", "full", "off")
_TOP = Section()
#: Settings that earlier versions had: why each was removed, and what replaces it.
_REMOVED = {
    "redis_tls": (
        "reading what Redis is asked by TLS cost both ends 2.3 times the CPU",
        "delete the line; have the program report its decisions by an adapter (docs/adapters.md)",
    ),
}
_NOT_IN_FILES = ("brokers", "duration_s", "live", "source")
#: What sun_path holds (unix(7)), less the longest name that is put below run_dir.
_MAX_RUN_DIR_BYTES = 107 - len("/notices.sock")


@dataclass(frozen=True)
class Config:
    """Everything that may be configured. Names are the file's keys.

    notices: a command that gets clock jumps, see agent/clock/hook_settings.py. jump_threshold: smaller steps are
    findings only where a limiter is affected, larger ones alarms; ``all``: every step is a finding, and an alarm from
    128 ms on.
    store: directory; run_dir: of the sockets. syscalls: how much of system call time is measured; syscalls_window_ms:
    of each second, with ``sampled``. investigate: whether what is wrong is looked at closer, ``auto`` or ``off``.
    slow_syscall_ms: from when a blocked call is an event. brokers: servers whose queues are watched, by kind; each kind
    is a key of the file (agent/queues/catalogue.py). poll_s: between two looks at queues. intake_keys: ``hashed`` or
    ``clear``.
    otlp: see exporters/otlp_settings.py. otlp_receiver: see agent/receiver/settings.py. metrics: see
    exporters/page_settings.py. ntp: see agent/clock/daemons/ntp_settings.py.
    redis_limiters: whether limiters in Redis are read from the wire, see agent/limiters/script_settings.py;
    redis_ports: beside those that are found;
    redis_decisions_per_s: of them, how many are told one by one.
    limiter_models: how limiters decide of which no library says it, see agent/limiters/model_settings.py;
    limiter_names, key_salt: agent/limiters/settings.py. limiter_functions: functions of the user's own, as
    agent/limiters/functions/settings.py keeps them. prometheus: listen address of the metrics page, empty for none.
    max_bytes, max_age_days: of the store. without: probe families to leave out. unix_sockets: whether requests on Unix
    stream sockets are timed. log_format: of the lines on stderr. duration_s: stop by itself (``run --duration``).
    live: show the summary. source: the file and the flags that all this comes from, by which SIGHUP reads it again.
    """

    store: str = "/var/lib/tickscope"
    run_dir: str = "/run/tickscope"
    syscalls: str = "sampled"
    syscalls_window_ms: float = 20.0
    slow_syscall_ms: float = 10.0
    investigate: str = "auto"
    brokers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    poll_s: float = 1.0
    intake_keys: str = "hashed"
    otlp: Mapping[str, object] = field(default_factory=dict)
    otlp_receiver: Mapping[str, object] = field(default_factory=dict)
    metrics: Mapping[str, object] = field(default_factory=dict)
    ntp: Mapping[str, object] = field(default_factory=dict)
    notices: Mapping[str, object] = field(default_factory=dict)
    jump_threshold: str = "all"
    limiter_models: Mapping[str, object] = field(default_factory=dict)
    limiter_functions: tuple[Mapping[str, object], ...] = ()
    redis_limiters: str = "auto"
    redis_ports: tuple[str, ...] = ()
    redis_decisions_per_s: float = 1000.0
    redis_limiter_scripts: Mapping[str, object] = field(default_factory=dict)
    limiter_names: Mapping[str, object] = field(default_factory=dict)
    key_salt: str = ""
    prometheus: str = "127.0.0.1:9469"
    max_bytes: int = 1 << 30
    max_age_days: float = 7.0
    without: tuple[str, ...] = ()
    unix_sockets: bool = False
    log_format: str = "text"
    duration_s: float = 0.0
    live: bool = False
    source: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, words in (
            ("syscalls", SYSCALL_MODES),
            ("investigate", INVESTIGATE),
            ("intake_keys", ("hashed", "clear")),
            ("log_format", FORMATS),
        ):
            _TOP.one_of(name, getattr(self, name), words)
        _TOP.number("syscalls_window_ms", self.syscalls_window_ms, 1, 500)
        _TOP.number("slow_syscall_ms", self.slow_syscall_ms, 0.1, 60_000)
        jump_threshold_ns(self.jump_threshold)
        self.hook()
        _TOP.number("poll_s", self.poll_s, 0.1, 3600)
        _TOP.number("max_bytes", self.max_bytes, 1 << 20, 1 << 50)
        _TOP.number("max_age_days", self.max_age_days, 0.01, 36500)
        _path("store", self.store, 4095)
        _path("run_dir", self.run_dir, _MAX_RUN_DIR_BYTES)
        if self.prometheus:
            from exporters.page_settings import listen_address

            listen_address(self.prometheus)
        _TOP.number("duration_s", self.duration_s, 0, 1e9)
        NtpConfig.parse(self.ntp)
        script_settings.check(self)
        if self.otlp_receiver:
            self.receiver()
        check_limiters(self.limiter_models, self.limiter_names, self.key_salt)

    def hook(self) -> HookConfig:
        """The ``notices`` setting, checked. Raises AgentError."""
        from agent.clock.hook_settings import HookConfig, parse

        return parse(self.notices) if self.notices else HookConfig()

    def receiver(self) -> ReceiverConfig:
        """The ``otlp_receiver`` setting, checked. Raises AgentError."""
        from agent.receiver.settings import ReceiverConfig

        return ReceiverConfig.parse(self.otlp_receiver)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Config:
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        values["brokers"] = {name: tuple(servers) for name, servers in data.get("brokers", {}).items()}
        return cls(**values)


def jump_threshold_ns(text: str) -> int | None:
    """``128ms`` in ns, None for ``all``. Raises AgentError (exit code 2)."""
    if text == "all":
        return None
    try:
        return parse_ns(text)
    except ValueError:
        raise _TOP.wrong("jump_threshold", text, "it is all, or a time as in 500us, 128ms, 1s") from None


def _path(name: str, value: str, most: int) -> None:
    try:
        size = len(os.fsencode(value))
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= most or "\0" in value:
        raise _TOP.wrong(name, value, f"it is the path of a directory, at most {most} bytes long")


def _check_parts(config: Config, env: Mapping[str, str]) -> None:
    """What other rooms will read of the configuration. Raises AgentError (exit code 2)."""
    from exporters.otlp_settings import resolve as resolve_otlp
    from exporters.page_settings import PageConfig

    resolve_otlp(config.otlp, env, {})
    PageConfig.parse(config.metrics)
    families = sorted(p.stem for p in Path(__file__).with_name("probes").glob("[a-z]*.py"))
    for name in config.without:
        if name not in families:
            raise AgentError(
                f"without: there is no probe family {reprlib.repr(name)}",
                why=f"known: {', '.join(families)}",
                exit_code=USAGE,
            )
    for name, servers in config.brokers.items():
        for server in servers:
            broker(name).parse(server)


def _coerce(key: str, value: Any) -> Any:
    """A YAML value as the type of the field's default. Raises AgentError."""
    default = next(f for f in dataclasses.fields(Config) if f.name == key)
    wanted = default.default if default.default is not dataclasses.MISSING else {}
    if key == "redis_ports" and isinstance(value, list):
        value = [str(port) if type(port) is int else port for port in value]
    if isinstance(wanted, tuple):
        return _texts(key, value)
    if isinstance(wanted, bool) or isinstance(value, bool):
        if isinstance(wanted, bool) and isinstance(value, bool):
            return value
        if key in ("syscalls", "investigate") and value is False:  # YAML reads a bare off as false
            return "off"
        if key == "redis_limiters":
            return "on" if value else "off"
        if key == "prometheus" and value is False:
            return ""
        raise _TOP.wrong(
            key, value, "it is true or false" if isinstance(wanted, bool) else "it is neither true nor false"
        )
    if key == "notices" and isinstance(value, dict):
        from agent.clock.hook_settings import parse

        parse(value)
    try:
        if isinstance(wanted, (int, float)) and isinstance(value, (int, float)):
            return type(wanted)(value)
        if isinstance(wanted, dict) and isinstance(value, dict):
            return json.loads(json.dumps(value, default=str))
    except (OverflowError, ValueError, TypeError) as error:
        raise _TOP.wrong(key, value, str(error)) from error
    if isinstance(value, type(wanted)):
        return value
    kind = "a section of `key: value` lines" if isinstance(wanted, dict) else "a number"
    kind = "a text" if isinstance(wanted, str) else kind
    raise _TOP.wrong(key, value, f"it is {kind}")


def _texts(key: str, value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if isinstance(items, list) and all(isinstance(i, str) for i in items):
        return tuple(items)
    raise AgentError(f"{key} must be a list of texts", exit_code=USAGE)  # a URL in it may hold a password


def _own(path: Path, value: object, lines: Lines) -> tuple[dict[str, object], ...]:
    from agent.limiters.functions.settings import entries

    return tuple(
        entries(
            [] if value is None else value,
            str(path),
            {at[1:]: line for at, line in lines.items() if at[0] == "limiter_functions"},
        )
    )


def read_file(path: Path, required: bool) -> dict[str, Any]:
    """The settings of a YAML file; none where it is missing and not required. Raises AgentError (exit code 2) with the
    line.
    """
    values, lines = parse(path, read_text(path, required))
    if values is not None and not isinstance(values, dict):
        raise AgentError(f"{path} must hold `key: value` lines", exit_code=USAGE)
    kinds = names()
    known = [*(f.name for f in dataclasses.fields(Config) if f.name not in _NOT_IN_FILES), *kinds]
    out: dict[str, Any] = {}
    for key, value in (values or {}).items():
        where = f"{path}:{lines.get((str(key),), 1)}"
        try:
            if key in _REMOVED:
                why, remedy = _REMOVED[key]
                raise AgentError(f"the setting {key} was removed", why=why, remedy=remedy)
            _TOP.known([key], known)
            one: dict[str, Any] = (
                {"brokers": {key: _texts(key, value)}}
                if key in kinds
                else {key: _own(path, value, lines) if key == "limiter_functions" else _coerce(key, value)}
            )
            _check_parts(Config(**one), {})
        except AgentError as error:
            raise AgentError(f"{where}: {error.what}", why=error.why, remedy=error.remedy, exit_code=USAGE) from error
        if key not in kinds:
            out.update(one)
        elif one["brokers"][key]:
            out.setdefault("brokers", {}).update(one["brokers"])
    return out


def resolve(flags: Mapping[str, Any], env: Mapping[str, str], path: str | None = None) -> Config:
    """The configuration in force. flags: values that were given on the command line, None where not."""
    chosen = path or env.get("TICKSCOPE_CONFIG")
    file = Path(chosen).absolute() if chosen else DEFAULT_FILE
    values = read_file(Path(chosen) if chosen else DEFAULT_FILE, required=bool(chosen))
    given = {k: v for k, v in flags.items() if v is not None}
    for variable, key in (
        ("TICKSCOPE_STORE", "store"),
        ("TICKSCOPE_RUN_DIR", "run_dir"),
        ("TICKSCOPE_JUMP_THRESHOLD", "jump_threshold"),
    ):
        if env.get(variable):
            values[key] = env[variable]
    values["brokers"] = {**values.get("brokers", {}), **_servers(given, env)}
    values.update((key, value) for key, value in given.items() if key not in values["brokers"])
    config = Config(**values, source={"file": str(file), "chosen": bool(chosen), "flags": given})
    _check_parts(config, env)
    return config


def _servers(given: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Servers by kind of broker that a flag or the environment names."""
    named = {name: env.get(one.variable, "").split() for name, one in brokers().items()}
    return {name: tuple(given.get(name, servers)) for name, servers in named.items() if servers or name in given}
