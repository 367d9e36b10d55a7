"""The configuration: the sections of all parts of the agent, from the file, the environment and flags.

Order of precedence: flag, environment, file, default. Only the CLI reads files; the agent process gets the finished
record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agent.clock.daemons.settings import NtpSettings
from agent.clock.settings import ClockSettings
from agent.common.settings import (
    Place,
    Setting,
    SettingError,
    beside,
    declared,
    directory,
    every,
    one_of,
    part,
    read,
    restored,
    setting,
    with_environment,
)
from agent.common.settings_file import parse, read_text
from agent.kernel.settings import ProbeSettings
from agent.limiters.redis_settings import RedisLimiterSettings, broker_ports
from agent.limiters.settings import LimiterSettings
from agent.log import FORMATS
from agent.queues.settings import QueueSettings
from agent.receiver.settings import ReceiverSettings
from agent.store.settings import StoreSettings
from exporters.notify_settings import NotifySettings
from exporters.otlp_settings import OTLP, OtlpSettings
from exporters.page_settings import PageSettings

DEFAULT_FILE = Path("/etc/tickscope/tickscope.yaml")
#: What sun_path holds (unix(7)), less the longest name that is put below run_dir.
_MAX_RUN_DIR_BYTES = 107 - len("/notices.sock")


@dataclass(frozen=True)
class ServiceSettings:
    run_dir: str = setting(
        "/run/tickscope", directory(_MAX_RUN_DIR_BYTES), "directory of the sockets", variable="TICKSCOPE_RUN_DIR"
    )
    log_format: str = setting("text", one_of(*FORMATS), "lines on stderr (ready, findings, failures)", flag=True)


@dataclass(frozen=True)
class Config:
    """A section for each part of the agent. Not from a file: duration_s, after which the agent stops by itself (0:
    never); live, whether it shows the summary; source, the file and the flags that SIGHUP reads again.
    """

    store: StoreSettings = setting(StoreSettings(), beside(StoreSettings))
    service: ServiceSettings = setting(ServiceSettings(), beside(ServiceSettings))
    probes: ProbeSettings = setting(ProbeSettings(), beside(ProbeSettings))
    queues: QueueSettings = setting(QueueSettings(), beside(QueueSettings))
    clock: ClockSettings = setting(ClockSettings(), beside(ClockSettings))
    ntp: NtpSettings = setting(NtpSettings(), part(NtpSettings), "time daemons and servers that are queried")
    otlp_receiver: ReceiverSettings = setting(
        ReceiverSettings(), part(ReceiverSettings), "limiter decisions in spans and log records of programs"
    )
    limiters: LimiterSettings = setting(LimiterSettings(), beside(LimiterSettings))
    redis: RedisLimiterSettings = setting(RedisLimiterSettings(), beside(RedisLimiterSettings))
    page: PageSettings = setting(PageSettings(), beside(PageSettings))
    otlp: OtlpSettings = setting(
        OtlpSettings(),
        OTLP,
        "these variables override the section: OTEL_EXPORTER_OTLP_*, OTEL_{TRACES,METRICS,LOGS}_EXPORTER=none,"
        " OTEL_METRIC_EXPORT_INTERVAL (in ms)",
    )
    notify: NotifySettings = setting(
        NotifySettings(), part(NotifySettings), "where findings are sent; all are off by default"
    )
    duration_s: float = 0.0
    live: bool = False
    source: Mapping[str, Any] = field(default_factory=dict)

    def section(self, kind: type) -> Any:
        """The section of this type. Raises StopIteration if there is none."""
        return next(one for one in vars(self).values() if isinstance(one, kind))

    def values(self) -> dict[str, Any]:
        """All settings by their keys in the file; ``brokers`` for all kinds of broker."""
        return _values(self)

    def with_values(self, changed: Mapping[str, Any]) -> Config:
        """With other values of some settings, by key as in ``values``."""
        new: Config = _with_values(self, changed)
        return new

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Config:
        return restored(cls, data)


def _values(section: Any) -> dict[str, Any]:
    found = dict[str, Any]()
    for one in declared(section):
        value = getattr(section, one.name)
        found |= _values(value) if one.kind.keys and one.kind.section else {one.key or one.name: value}
    return found


def _with_values(section: Any, changed: Mapping[str, Any]) -> Any:
    new = {}
    for one in declared(section):
        if one.kind.keys is not None and one.kind.section is not None:
            new[one.name] = _with_values(getattr(section, one.name), changed)
        elif (one.key or one.name) in changed:
            new[one.name] = changed[one.key or one.name]
    return dataclasses.replace(section, **new)


def flags() -> dict[str, Setting]:
    """The settings that are options of ``run``, by key."""
    return {one.key: one for one in every(Config) if one.flag}


def _from_file(path: Path, required: bool) -> tuple[dict[str, Any], Place]:
    given, lines = parse(path, read_text(path, required))
    place = Place(file=str(path), lines=lines)
    if given is None:
        return {}, place
    if not isinstance(given, dict):
        raise place.error(f"{path} must hold `key: value` lines")
    return given, place


def read_file(path: Path, required: bool) -> Config:
    """The settings of a YAML file; the defaults where it is missing and not required. Raises AgentError (exit code 2)
    with the line.
    """
    return read(Config, *_from_file(path, required))


def resolve(given: Mapping[str, Any], env: Mapping[str, str], path: str | None = None) -> Config:
    """The configuration in force. given: values of flags, None where not given. Raises AgentError (exit code 2)."""
    chosen = path or env.get("TICKSCOPE_CONFIG")
    file = Path(chosen).absolute() if chosen else DEFAULT_FILE
    values, place = _from_file(Path(chosen) if chosen else DEFAULT_FILE, required=bool(chosen))
    config = read(Config, values, place)
    options = {key: value for key, value in given.items() if value is not None}
    own: dict[str, Any] = {key: options.pop(key) for key in ("duration_s", "live") if key in options}
    merged = {**with_environment(Config, values, env), **options}
    if merged != values:
        kept = {key for key, value in merged.items() if values.get(key) == value}
        lines = {at: line for at, line in place.lines.items() if at[0] in kept}
        try:
            config = read(Config, merged, dataclasses.replace(place, lines=lines))
        except SettingError as error:
            where = _origin(error.keys, values, env, options)
            raise SettingError(error.keys, f"{where}{error.what}", error.why, error.remedy) from error
    source = {"file": str(file), "chosen": bool(chosen), "flags": {**own, **options}}
    return dataclasses.replace(config, source=source, **own)


def _origin(keys: tuple[object, ...], given: dict[str, Any], env: Mapping[str, str], options: dict[str, Any]) -> str:
    """What set a value other than the file, as the beginning of a message; empty if the file did."""

    def in_force(variables: Mapping[str, str]) -> Any:
        found: Any = with_environment(Config, given, variables)
        for key in keys[:2]:
            found = found.get(key) if isinstance(found, Mapping) else found
        return found

    if not keys:
        return ""
    if keys[0] in options:
        return f"--{str(keys[0]).replace('_', '-')}: "
    own = {name: it for name, it in env.items() if name.startswith(("TICKSCOPE_", "OTEL_"))}
    now = in_force(own)
    found = [name for name in own if in_force({key: it for key, it in own.items() if key != name}) != now]
    return f"{found[0]}: " if found else ""


class Applier(NamedTuple):
    """Has the running agent use a setting that was changed: ``use`` is called with these sections of Config."""

    use: Callable[..., None]
    sections: tuple[str, ...]


class InForce:
    """The configuration in force. appliers: by setting; a setting without one needs a restart."""

    def __init__(self, config: Config, appliers: Mapping[str, Applier]) -> None:
        self._config, self._appliers = config, appliers

    @property
    def values(self) -> dict[str, Any]:
        """By setting, as ``Config.values``."""
        return self._config.values()

    def change(self, new: Config) -> tuple[list[str], list[str]]:
        """(settings that are in force now, settings that need a restart)."""
        before, after = self.values, new.values()
        differing = [name for name, value in after.items() if value != before[name]]
        changed = [name for name in differing if name in self._appliers]
        self._config = self._config.with_values({name: after[name] for name in changed})
        for name in changed:
            use, sections = self._appliers[name]
            use(*(getattr(self._config, section) for section in sections))
        return changed, [name for name in differing if name not in self._appliers]


def redis_limiters(redis: RedisLimiterSettings, queues: QueueSettings) -> RedisLimiterSettings:
    """The section of limiters in Redis, with the ports of brokers that are Redis among its ports."""
    ports = {*redis.ports, *broker_ports(queues.brokers)}
    return dataclasses.replace(redis, ports=tuple(sorted(ports)))
