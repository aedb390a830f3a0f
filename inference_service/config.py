"""A session's config: checked as a whole, completed with the model's defaults, and stated back."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from google.protobuf.duration_pb2 import Duration

from antiphon.v1 import common_pb2, inference_service_pb2
from inference_service.engine.api import DuplexSettings, DuplexSetup, ModelInfo, Window, WindowMode
from inference_service.errors import BadField, ConfigInvalid, ModelNotFound, ModeUnsupported, VoiceNotFound
from inference_service.sampling import (
    DUPLEX_RANGES,
    SAMPLING_TO_DUPLEX,
    Number,
    decimal,
    sampling_values,
    unsupported_sampling,
)

MAX_PROMPT_CHARACTERS = 32_768
_VOICE_ID = re.compile(r"[a-z0-9_-]{1,64}")


@dataclass(frozen=True)
class SessionPlan:
    """What a config comes to: how the session runs, and what its caller is told about that."""

    setup: DuplexSetup
    effective: inference_service_pb2.SessionConfig
    ignored_fields: tuple[str, ...]
    max_duration_s: float | None
    idle_timeout_s: float | None


def resolve(
    config: inference_service_pb2.SessionConfig, info: ModelInfo, draw_seed: Callable[[], int]
) -> SessionPlan:
    """Completes `config` for the model that `info` describes; an unset seed comes from `draw_seed`.

    Raises `ModeUnsupported`, `ModelNotFound`, `VoiceNotFound`, or `ConfigInvalid` listing every bad field.
    """
    _check_mode(config.mode, info)
    if config.model not in ("", info.name):
        wanted = config.model[:64]
        raise ModelNotFound(f"This worker serves {info.name}, not {wanted!r}.", model=wanted)
    return _Resolver(config, info).plan(draw_seed)


def modes(info: ModelInfo) -> list[inference_service_pb2.SessionMode]:
    """What kinds of session the model can hold."""
    audio, video = inference_service_pb2.SESSION_MODE_AUDIO, inference_service_pb2.SESSION_MODE_VIDEO
    return [audio, video] if info.sees else [audio]


def _check_mode(mode: int, info: ModelInfo) -> None:
    known, served = inference_service_pb2.SessionMode, modes(info)
    names = " and ".join(known.Name(it).removeprefix("SESSION_MODE_") for it in served)
    if mode == known.SESSION_MODE_UNSPECIFIED or mode not in known.values():
        raise ConfigInvalid(BadField("mode", f"must be given; this worker serves {names}"))
    if mode not in served:
        name = known.Name(mode).removeprefix("SESSION_MODE_")
        raise ModeUnsupported(f"This model cannot do {name} sessions; it can do {names}.", mode=name)


class _Resolver:
    """Collects what is wrong and what is without effect while it reads a config."""

    def __init__(self, config: inference_service_pb2.SessionConfig, info: ModelInfo) -> None:
        self._config = config
        self._info = info
        self._bad: list[BadField] = []
        self._ignored: list[str] = []

    def plan(self, draw_seed: Callable[[], int]) -> SessionPlan:
        self._read_prompt()
        duplex = self._read_duplex()
        window = self._read_window()
        seed = self._read_seed()
        max_duration_s = self._read_duration("max_duration")
        idle_timeout_s = self._read_duration("idle_timeout")
        if self._config.language:
            self._ignored.append("language")
        self._read_voice()
        if self._bad:
            raise ConfigInvalid(*self._bad)
        self._find_voice()
        setup = DuplexSetup(
            system_prompt=self._config.system_prompt,
            duplex=duplex,
            window=window,
            seed=draw_seed() if seed is None else seed,
            sees=self._config.mode == inference_service_pb2.SESSION_MODE_VIDEO,
        )
        return SessionPlan(
            setup=setup,
            effective=self._effective(setup),
            ignored_fields=tuple(self._ignored),
            max_duration_s=max_duration_s,
            idle_timeout_s=idle_timeout_s,
        )

    def _read_prompt(self) -> None:
        length = len(self._config.system_prompt)
        if length > MAX_PROMPT_CHARACTERS:
            self._refuse(
                "system_prompt", f"must have at most {MAX_PROMPT_CHARACTERS} characters, not {length}"
            )

    def _read_duplex(self) -> DuplexSettings:
        duplex, given = self._config.duplex, {}
        for name, allowed in DUPLEX_RANGES.items():
            if duplex.HasField(name):
                value = decimal(getattr(duplex, name))
                self._refuse(f"duplex.{name}", allowed.problem(value))
                given[name] = value
        self._check_only("chunk_ms", round(self._info.unit_seconds * 1000))
        self._check_only("sample_rate", self._info.input_sample_rate_hz)
        self._add_sampling(given)
        settings = replace(self._info.duplex_defaults, **given)  # type: ignore[arg-type]
        if duplex.HasField("generate_audio"):
            settings = replace(settings, generate_audio=duplex.generate_audio)
        match duplex.decode_mode:
            case common_pb2.DECODE_MODE_GREEDY:
                settings = replace(settings, greedy=True)
            case common_pb2.DECODE_MODE_SAMPLING:
                settings = replace(settings, greedy=False)
        return settings

    def _check_only(self, name: str, only: int) -> None:
        duplex = self._config.duplex
        if duplex.HasField(name) and getattr(duplex, name) != only:
            self._refuse(f"duplex.{name}", f"must be {only}, not {getattr(duplex, name)}")

    def _add_sampling(self, given: dict[str, Number]) -> None:
        """Takes from `sampling` what `duplex` leaves open."""
        sampling = self._config.sampling
        for name, value, bad in sampling_values(sampling, "sampling"):
            if bad:
                self._bad.append(bad)
            if SAMPLING_TO_DUPLEX[name] in given:
                self._ignored.append(f"sampling.{name}")
            given.setdefault(SAMPLING_TO_DUPLEX[name], value)
        for name in unsupported_sampling(sampling):
            if name == "stop":
                self._refuse("sampling.stop", "is for CHAT sessions only")
            else:
                self._ignored.append(f"sampling.{name}")

    def _read_window(self) -> Window:
        window, default = self._config.window, self._info.window
        high, low = window.high_tokens, window.low_tokens
        match window.mode:
            case common_pb2.WINDOW_MODE_OFF:
                mode = WindowMode.OFF
            case common_pb2.WINDOW_MODE_BASIC:
                mode = WindowMode.BASIC
            case common_pb2.WINDOW_MODE_CONTEXT:
                self._refuse("window.mode", "must be OFF or BASIC: this model has no CONTEXT window")
                return default
            case _:
                mode = default.mode
        if mode is WindowMode.OFF:
            self._ignored += [f"window.{name}_tokens" for name, n in (("high", high), ("low", low)) if n]
            return Window()
        limit = self._info.context_limit
        high = high or default.high_tokens or limit
        low = low or min(default.low_tokens or limit, high * 3 // 4)
        if high > limit:
            self._refuse("window.high_tokens", f"must be at most the context's {limit}, not {high}")
        if low >= high:
            self._refuse("window.low_tokens", f"must be less than high_tokens ({high}), not {low}")
        return Window(mode, high, low)

    def _read_seed(self) -> int | None:
        config = self._config
        if not config.HasField("seed"):
            return config.sampling.seed if config.sampling.HasField("seed") else None
        if config.sampling.HasField("seed"):
            self._ignored.append("sampling.seed")
        return config.seed

    def _read_duration(self, name: str) -> float | None:
        if not self._config.HasField(name):
            return None
        duration: Duration = getattr(self._config, name)
        seconds = duration.seconds + duration.nanos * 1e-9
        if seconds <= 0:
            self._refuse(name, f"must be more than 0 s, not {seconds:g} s")
        return seconds

    def _read_voice(self) -> None:
        voice = self._config.voice
        if voice.voice_id and not _VOICE_ID.fullmatch(voice.voice_id):
            self._refuse("voice.voice_id", "must match [a-z0-9_-]{1,64}")
        for name in ("llm_reference", "speech_reference"):
            if voice.HasField(name):
                self._ignored.append(f"voice.{name}")  # the model has one voice and clones none

    def _find_voice(self) -> None:
        voice_id = self._config.voice.voice_id
        if voice_id:
            raise VoiceNotFound(f"No voice {voice_id!r} is registered here.", voice_id=voice_id)

    def _refuse(self, path: str, problem: str | None) -> None:
        if problem:
            self._bad.append(BadField(path, problem))

    def _effective(self, setup: DuplexSetup) -> inference_service_pb2.SessionConfig:
        config, window = self._config, setup.window
        modes = {WindowMode.OFF: common_pb2.WINDOW_MODE_OFF, WindowMode.BASIC: common_pb2.WINDOW_MODE_BASIC}
        return inference_service_pb2.SessionConfig(
            mode=config.mode,
            model=self._info.name,
            system_prompt=setup.system_prompt,
            duplex=duplex_config(setup.duplex, self._info),
            window=common_pb2.WindowConfig(
                mode=modes[window.mode], high_tokens=window.high_tokens, low_tokens=window.low_tokens
            ),
            seed=setup.seed,
            max_duration=config.max_duration if config.HasField("max_duration") else None,
            idle_timeout=config.idle_timeout if config.HasField("idle_timeout") else None,
        )


def duplex_config(settings: DuplexSettings, info: ModelInfo) -> common_pb2.DuplexConfig:
    """`settings` with every field stated, as GetInfo and SessionReady show them."""
    numbers = {name: getattr(settings, name) for name in DUPLEX_RANGES}
    return common_pb2.DuplexConfig(
        generate_audio=settings.generate_audio,
        ls_mode=common_pb2.LISTEN_SPEAK_MODE_EXPLICIT,
        decode_mode=common_pb2.DECODE_MODE_GREEDY if settings.greedy else common_pb2.DECODE_MODE_SAMPLING,
        chunk_ms=round(info.unit_seconds * 1000),
        sample_rate=info.input_sample_rate_hz,
        **numbers,
    )
