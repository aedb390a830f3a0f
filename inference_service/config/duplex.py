"""The config of full-duplex sessions."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from antiphon.v1 import common_pb2
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.config.reader import ConfigReader
from inference_service.config.sampling import (
    DUPLEX_RANGES,
    DUPLEX_SAMPLING_RANGES,
    SAMPLING_TO_DUPLEX,
    Number,
    decimal,
    sampling_values,
    without_meaning_in_duplex,
)
from inference_service.interface.setups import (
    DuplexSettings,
    DuplexSetup,
    SessionSetup,
    UnitFormat,
    Window,
    WindowMode,
)

_WINDOW_MODES = {
    WindowMode.OFF: common_pb2.WINDOW_MODE_OFF,
    WindowMode.BASIC: common_pb2.WINDOW_MODE_BASIC,
    WindowMode.CONTEXT: common_pb2.WINDOW_MODE_CONTEXT,
}


class DuplexReader(ConfigReader):
    """Reader of AUDIO and VIDEO configs."""

    def _setup(self, seed: int) -> DuplexSetup:
        prompt, (duplex, units) = self._read_prompt(), self._read_duplex()
        if prompt and not self._info.reads_prompts:
            self.ignored.append("system_prompt")
        setup = DuplexSetup(
            system_prompt=prompt,
            duplex=duplex,
            window=self._read_window(),
            seed=seed,
            sees=self._config.mode == pb.SESSION_MODE_VIDEO,
            voice=self._read_voice(speaks=duplex.generate_audio),
            records=self._config.records and self._info.replays_units,
            format=units,
        )
        self._ignore_if_given("language", "background")
        return setup

    @property
    def _speaks(self) -> bool:
        return True

    def _read_duplex(self) -> tuple[DuplexSettings, UnitFormat | None]:
        duplex, given = self._config.duplex, {}
        for name, allowed in DUPLEX_RANGES.items():
            if duplex.HasField(name):
                value = decimal(getattr(duplex, name))
                self._refuse(f"duplex.{name}", allowed.problem(value))
                given[name] = value
                if name in self._info.without_effect:
                    self.ignored.append(f"duplex.{name}")
        units = self._read_format()
        self._add_sampling(given)
        settings = replace(self._info.duplex_defaults, **given)  # type: ignore[arg-type]
        if duplex.HasField("generate_audio"):
            if duplex.generate_audio and not self._info.speaks:
                self.ignored.append("duplex.generate_audio")
            else:
                settings = replace(settings, generate_audio=duplex.generate_audio)
        if duplex.HasField("tts_temperature") and not self._info.speaks:
            self.ignored.append("duplex.tts_temperature")
        match duplex.decode_mode:
            case common_pb2.DECODE_MODE_GREEDY:
                settings = replace(settings, greedy=True)
            case common_pb2.DECODE_MODE_SAMPLING:
                settings = replace(settings, greedy=False)
        return settings, units

    def _read_format(self) -> UnitFormat | None:
        """Return the unit format that `chunk_ms` and `sample_rate` name; None if it is the usual one."""
        known = [self._info.unit_format, *self._info.other_formats]
        left = self._narrowed(known, "chunk_ms", lambda it: round(it.seconds * 1000))
        left = self._narrowed(left, "sample_rate", lambda it: it.sample_rate_hz)
        return left[0] if left and left[0] != self._info.unit_format else None

    def _narrowed(
        self, formats: list[UnitFormat], name: str, value: Callable[[UnitFormat], int]
    ) -> list[UnitFormat]:
        """Return the formats that match a field of `duplex`; refuse the field if none matches."""
        duplex = self._config.duplex
        if not duplex.HasField(name):
            return formats
        given = getattr(duplex, name)
        found = [it for it in formats if value(it) == given]
        if formats and not found:
            offered = " or ".join(str(it) for it in dict.fromkeys(map(value, formats)))
            self._refuse(f"duplex.{name}", f"must be {offered}, not {given}")
        return found

    def _add_sampling(self, given: dict[str, Number]) -> None:
        """Apply fields of `sampling` where `duplex` leaves them unset."""
        sampling = self._config.sampling
        for name, value, bad in sampling_values(sampling, "sampling", DUPLEX_SAMPLING_RANGES):
            if bad:
                self._bad.append(bad)
            if SAMPLING_TO_DUPLEX[name] in {*given, *self._info.without_effect}:
                self.ignored.append(f"sampling.{name}")
            given.setdefault(SAMPLING_TO_DUPLEX[name], value)
        for name in without_meaning_in_duplex(sampling):
            if name == "stop":
                self._refuse("sampling.stop", "is for CHAT sessions only")
            else:
                self.ignored.append(f"sampling.{name}")

    def _read_window(self) -> Window:
        window, default = self._config.window, self._info.window
        high, low = window.high_tokens, window.low_tokens
        if self._info.windows == {WindowMode.OFF}:  # the model has a rolling context of its own
            wanted = common_pb2.WINDOW_MODE_UNSPECIFIED, common_pb2.WINDOW_MODE_OFF
            self.ignored += ["window.mode"] if window.mode not in wanted else []
            self.ignored += [f"window.{name}_tokens" for name, n in (("high", high), ("low", low)) if n]
            return default
        match window.mode:
            case common_pb2.WINDOW_MODE_OFF:
                mode = WindowMode.OFF
            case common_pb2.WINDOW_MODE_BASIC:
                mode = WindowMode.BASIC
            case common_pb2.WINDOW_MODE_CONTEXT if WindowMode.CONTEXT not in self._info.windows:
                self._refuse("window.mode", "must be OFF or BASIC: this model has no CONTEXT window")
                return default
            case common_pb2.WINDOW_MODE_CONTEXT:
                mode = WindowMode.CONTEXT
            case _:
                mode = default.mode
        if mode is WindowMode.OFF:
            self.ignored += [f"window.{name}_tokens" for name, n in (("high", high), ("low", low)) if n]
            return Window()
        limit = self._info.context_limit
        high = high or default.high_tokens or limit
        low = low or min(default.low_tokens or limit, high * 3 // 4)
        if high > limit:
            self._refuse("window.high_tokens", f"must be at most the context's {limit}, not {high}")
        if low >= high:
            self._refuse("window.low_tokens", f"must be less than high_tokens ({high}), not {low}")
        return Window(mode, high, low)

    def _add_effective(self, setup: SessionSetup, effective: pb.SessionConfig) -> None:
        duplex = cast(DuplexSetup, setup)
        effective.system_prompt = duplex.system_prompt
        if duplex.voice.voice_id:
            effective.voice.voice_id = duplex.voice.voice_id
        effective.duplex.CopyFrom(duplex_config(duplex.duplex, self._info.format_of(duplex)))
        effective.window.mode = _WINDOW_MODES[duplex.window.mode]
        effective.window.high_tokens = duplex.window.high_tokens
        effective.window.low_tokens = duplex.window.low_tokens
        effective.records = duplex.records


def duplex_config(settings: DuplexSettings, units: UnitFormat) -> common_pb2.DuplexConfig:
    """Return `settings` with every field stated, as GetInfo and SessionReady show them."""
    numbers = {name: getattr(settings, name) for name in DUPLEX_RANGES}
    return common_pb2.DuplexConfig(
        generate_audio=settings.generate_audio,
        ls_mode=common_pb2.LISTEN_SPEAK_MODE_EXPLICIT,
        decode_mode=common_pb2.DECODE_MODE_GREEDY if settings.greedy else common_pb2.DECODE_MODE_SAMPLING,
        chunk_ms=round(units.seconds * 1000),
        sample_rate=units.sample_rate_hz,
        **numbers,
    )
