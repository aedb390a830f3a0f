"""Resolution of a session's config: checked as a whole, and completed with the model's defaults."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.config.duplex import DuplexReader
from inference_service.config.reader import ConfigReader
from inference_service.config.sampled import ChatReader, TokensReader, TranscribeReader
from inference_service.errors import BadField, ConfigInvalid, ModelNotFound, ModeUnsupported
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import Mode, SessionSetup, Tenant

MODES = {
    pb.SESSION_MODE_CHAT: Mode.CHAT,
    pb.SESSION_MODE_AUDIO: Mode.AUDIO,
    pb.SESSION_MODE_VIDEO: Mode.VIDEO,
    pb.SESSION_MODE_TRANSCRIBE: Mode.TRANSCRIBE,
    pb.SESSION_MODE_TOKENS: Mode.TOKENS,
}
"""The mode of each value on the wire."""

READERS: dict[Mode, type[ConfigReader]] = {
    Mode.AUDIO: DuplexReader,
    Mode.VIDEO: DuplexReader,
    Mode.CHAT: ChatReader,
    Mode.TOKENS: TokensReader,
    Mode.TRANSCRIBE: TranscribeReader,
}
"""The config reader of each kind of session."""


@dataclass(frozen=True)
class SessionPlan:
    """The resolved config: the session's setup, and the effective values for the caller."""

    setup: SessionSetup
    effective: pb.SessionConfig
    ignored_fields: tuple[str, ...]
    max_duration_s: float | None
    idle_timeout_s: float | None
    automatic: bool = False
    """Whether units are generated and finalised without requests."""

    def within(
        self, tenant: Tenant, max_duration_s: float | None, idle_timeout_s: float | None
    ) -> "SessionPlan":
        """Return the plan for a tenant, with limits of at most these values; None is no limit."""
        longest = _shorter(self.max_duration_s, max_duration_s)
        idle = _shorter(self.idle_timeout_s, idle_timeout_s)
        effective = pb.SessionConfig()
        effective.CopyFrom(self.effective)
        for name, seconds in (("max_duration", longest), ("idle_timeout", idle)):
            if seconds is not None:
                getattr(effective, name).FromNanoseconds(round(seconds * 1e9))
        setup = replace(self.setup, tenant=tenant)
        return replace(self, setup=setup, effective=effective, max_duration_s=longest, idle_timeout_s=idle)


def _shorter(one: float | None, other: float | None) -> float | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def resolve(config: pb.SessionConfig, info: ModelInfo, draw_seed: Callable[[], int]) -> SessionPlan:
    """Complete `config` for the model that `info` describes; an unset seed comes from `draw_seed`.

    Raises `ModeUnsupported`, `ModelNotFound`, `VoiceNotFound`, or `ConfigInvalid` listing every bad field.
    """
    mode = _mode(config.mode, info)
    if config.model not in ("", info.name):
        wanted = config.model[:64]
        raise ModelNotFound(f"This worker serves {info.name}, not {wanted!r}.", model=wanted)
    reader = READERS[mode](config, info)
    setup = reader.read()
    if not reader.has_seed:
        setup = replace(setup, seed=draw_seed())
    effective = reader.effective(setup)
    effective.automatic_units = config.automatic_units
    return SessionPlan(
        setup=setup,
        effective=effective,
        ignored_fields=tuple(reader.ignored),
        max_duration_s=reader.max_duration_s,
        idle_timeout_s=reader.idle_timeout_s,
        automatic=config.automatic_units,
    )


def modes(info: ModelInfo) -> list[pb.SessionMode]:
    """Return the kinds of session that the model supports, in the wire's values."""
    return [number for number, mode in MODES.items() if mode in info.modes]


def _mode(number: int, info: ModelInfo) -> Mode:
    known, served = pb.SessionMode, modes(info)
    names = " and ".join(known.Name(it).removeprefix("SESSION_MODE_") for it in served)
    mode = next((mode for it, mode in MODES.items() if it == number), None)
    if mode is None:
        raise ConfigInvalid(BadField("mode", f"must be given; this worker serves {names}"))
    if mode not in info.modes:
        raise ModeUnsupported(
            f"This model cannot do {mode.name} sessions; it can do {names}.", mode=mode.name
        )
    return mode
