"""The config of chat, token stream and transcription sessions."""

from dataclasses import replace
from typing import ClassVar, cast

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.config.reader import ConfigReader
from inference_service.config.sampling import read_sampling, sampling_params
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import (
    ChatSetup,
    Mode,
    Sampling,
    SessionSetup,
    TokensSetup,
    TranscribeSetup,
)

STREAM_IDLE_TIMEOUT_S = 60.0
"""Default idle timeout of a stream in seconds: its context takes memory all the while."""

SampledSetup = ChatSetup | TokensSetup | TranscribeSetup


def sampling_defaults(info: ModelInfo, mode: Mode) -> Sampling:
    """Return the defaults of unset fields: the model's values, except that transcription is greedy."""
    sampling = info.sampling_defaults
    sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, info.context_limit))
    return replace(sampling, temperature=0.0) if mode is Mode.TRANSCRIBE else sampling


class SampledReader(ConfigReader):
    """The common part of sampled sessions: sampling, and neither duplex settings nor a window."""

    mode: ClassVar[Mode]
    default_idle_timeout_s: float | None = STREAM_IDLE_TIMEOUT_S

    def _read_sampling(self) -> Sampling:
        given, bad = read_sampling(
            self._config.sampling, "sampling", self._info, chats=self.mode is Mode.CHAT
        )
        self._bad += bad
        self._ignore("duplex", self._config.duplex)
        self._ignore("window", self._config.window)
        self._ignore_if_given("language")  # no model here takes the language as a setting
        if self.mode is not Mode.TRANSCRIBE:
            self._ignore_if_given("background")
        defaults = sampling_defaults(self._info, self.mode)
        sampling = given.sampling(defaults)
        for name in self._info.sampling_without_effect:
            if getattr(sampling, name) != getattr(defaults, name):
                self.ignored.append(f"sampling.{name}")
                sampling = replace(sampling, **{name: getattr(defaults, name)})
        return sampling

    @property
    def _speaks(self) -> bool:
        return False

    def _add_effective(self, setup: SessionSetup, effective: pb.SessionConfig) -> None:
        effective.sampling.CopyFrom(sampling_params(cast(SampledSetup, setup).sampling))


class ChatReader(SampledReader):
    """Reader of CHAT configs."""

    mode = Mode.CHAT
    default_idle_timeout_s = None

    def _setup(self, seed: int) -> ChatSetup:
        return ChatSetup(
            self._read_sampling(),
            seed,
            self._read_prompt(),
            self._read_voice(speaks=True),
            records=self._config.records and self._info.replays_turns,
        )

    @property
    def _speaks(self) -> bool:
        return self._info.speaks

    def _add_effective(self, setup: SessionSetup, effective: pb.SessionConfig) -> None:
        super()._add_effective(setup, effective)
        chat = cast(ChatSetup, setup)
        effective.system_prompt = chat.system_prompt
        effective.records = chat.records
        if chat.voice.voice_id:
            effective.voice.voice_id = chat.voice.voice_id


class TokensReader(SampledReader):
    """Reader of TOKENS configs."""

    mode = Mode.TOKENS

    def _setup(self, seed: int) -> TokensSetup:
        sampling = self._read_sampling()
        self._ignore("voice", self._config.voice)
        return TokensSetup(sampling, seed, self._read_prompt())

    def _add_effective(self, setup: SessionSetup, effective: pb.SessionConfig) -> None:
        super()._add_effective(setup, effective)
        effective.system_prompt = cast(TokensSetup, setup).system_prompt


class TranscribeReader(SampledReader):
    """Reader of TRANSCRIBE configs."""

    mode = Mode.TRANSCRIBE

    def _setup(self, seed: int) -> TranscribeSetup:
        sampling = self._read_sampling()
        self._ignore_if_given("system_prompt")
        self._ignore("voice", self._config.voice)
        is_background = self._config.background and self._info.supports_background
        if not is_background:
            self._ignore_if_given("background")
        return TranscribeSetup(sampling, seed, is_background=is_background)

    def _add_effective(self, setup: SessionSetup, effective: pb.SessionConfig) -> None:
        super()._add_effective(setup, effective)
        effective.background = cast(TranscribeSetup, setup).is_background
