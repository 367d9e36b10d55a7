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
    TOP,
    Examination,
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


@dataclass(frozen=True)
class Given:
    """What is given for the settings, not checked. values: of the file, whose place is ``place``; env: the environment;
    options: values of flags, by setting.
    """

    values: Mapping[str, Any]
    place: Place
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(
        cls, path: Path, required: bool, examination: Examination | None = None, opened: int | None = None
    ) -> Given:
        """Of a YAML file alone; nothing if it is missing and not required. opened: its descriptor, where the caller
        cannot open it. Raises AgentError (exit code 2).
        """
        repeated = {} if examination is None else {"repeated": examination.errors.append}
        given, lines = parse(path, read_text(path, required, opened), **repeated)
        place = Place(file=str(path), lines=lines, examination=examination)
        if given is not None and not isinstance(given, dict):
            raise place.error(f"{path} must hold `key: value` lines")
        return cls(given or {}, place)

    def beside(self, env: Mapping[str, str], options: Mapping[str, Any]) -> Given:
        """With an environment and flags."""
        return dataclasses.replace(self, env=env, options=options)

    @property
    def merged(self) -> dict[str, Any]:
        """The values of all sources."""
        return {**with_environment(Config, self.values, self.env), **self.options}

    def config(self) -> Config:
        """Raises AgentError (exit code 2), unless the place has an examination."""
        config = read(Config, self.values, self.place)
        merged = self.merged
        if merged == self.values:
            return config
        kept = {key for key, value in merged.items() if self.values.get(key) == value}
        lines = {at: line for at, line in self.place.lines.items() if at[0] in kept}
        try:
            return read(Config, merged, dataclasses.replace(self.place, lines=lines))
        except SettingError as error:
            where = self._override(error.keys) or error.where
            raise SettingError(error.keys, error.problem, error.why, error.remedy, where=where) from error

    def shown(self, keys: tuple[str, ...], one: Setting) -> Any:
        """The value of a setting as the file has it, without secrets. The values must be right (``config``)."""
        given = value_at(keys, self.merged)
        if given is None:
            return one.shown
        if not isinstance(given, (Mapping, list, tuple)):
            made = one.kind.read(given, TOP.below(*keys))
            given = "off" if made is None and given in (False, "off") else one.kind.shown(made)
        return one.kind.masked(given)

    def source(self, keys: tuple[object, ...]) -> str:
        """What sets a value: a flag, a variable of the environment, or ``FILE:LINE``; empty for the default."""
        in_file = value_at(keys, self.values) is not None
        return self._override(keys) or (self.place.below(*keys).where if in_file else "")

    def _override(self, keys: tuple[object, ...]) -> str:
        """The flag or variable that sets a value, or removes it; empty if none does."""
        if not keys:
            return ""
        if keys[0] in self.options:
            return f"--{str(keys[0]).replace('_', '-')}"
        own = {name: it for name, it in self.env.items() if name.startswith(("TICKSCOPE_", "OTEL_"))}
        for values in ({}, self.values):  # without the file: a variable may set what the file has, too
            found = value_at(keys, with_environment(Config, values, own))
            if found == value_at(keys, values):
                continue
            for name in own:
                others = {key: it for key, it in own.items() if key != name}
                if value_at(keys, with_environment(Config, values, others)) != found:
                    return name
        return ""


def value_at(keys: tuple[object, ...], values: Any) -> Any:
    """The value that these keys lead to; None if there is none. Keys below what is not a mapping are ignored."""
    for key in keys:
        if not isinstance(values, Mapping):
            return values
        values = values.get(key)
    return values


def read_file(path: Path, required: bool) -> Config:
    """The settings of a YAML file; the defaults where it is missing and not required. Raises AgentError (exit code 2)
    with the line.
    """
    return Given.read(path, required).config()


def chosen_file(env: Mapping[str, str], path: str | None = None) -> tuple[Path, bool]:
    """The file of settings, and whether it must exist: a flag or variable names it."""
    chosen = path or env.get("TICKSCOPE_CONFIG")
    return (Path(chosen), True) if chosen else (DEFAULT_FILE, False)


def resolve(
    given: Mapping[str, Any], env: Mapping[str, str], path: str | None = None, opened: int | None = None
) -> Config:
    """The configuration in force. given: values of flags, None where not given. opened: as for ``Given.read``. Raises
    AgentError (exit code 2).
    """
    file, chosen = chosen_file(env, path)
    options = {key: value for key, value in given.items() if value is not None}
    own: dict[str, Any] = {key: options.pop(key) for key in ("duration_s", "live") if key in options}
    config = Given.read(file, chosen, opened=opened).beside(env, options).config()
    source = {"file": str(file.absolute()), "chosen": chosen, "flags": {**own, **options}}
    return dataclasses.replace(config, source=source, **own)


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
