"""The config of sessions whose tokens are simply sampled: chat, token streams and transcription."""

from dataclasses import replace
from typing import cast

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.api.engine import ModelInfo
from inference_service.api.setups import ChatSetup, Mode, Sampling, SessionSetup, TokensSetup, TranscribeSetup
from inference_service.config.reader import ConfigReader
from inference_service.config.sampling import read_sampling, sampling_params

STREAM_IDLE_TIMEOUT_S = 60.0
"""How long a stream may be idle where its config does not say: it holds its context all the while."""

SampledSetup = ChatSetup | TokensSetup | TranscribeSetup


def sampling_defaults(info: ModelInfo, mode: Mode) -> Sampling:
    """What an unset field means: the model's value, but speech is written down without chance."""
    sampling = info.sampling_defaults
    sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, info.context_limit))
    return replace(sampling, temperature=0.0) if mode is Mode.TRANSCRIBE else sampling


class SampledReader(ConfigReader):
    """CHAT, TOKENS and TRANSCRIBE."""

    def __init__(self, config: pb.SessionConfig, info: ModelInfo, mode: Mode) -> None:
        super().__init__(config, info)
        self._mode = mode
        if mode is not Mode.CHAT:
            self.default_idle_timeout_s = STREAM_IDLE_TIMEOUT_S

    def _setup(self, seed: int) -> SampledSetup:
        sampling = self._read_sampling()
        self._ignore("duplex", self._config.duplex)
        self._ignore("window", self._config.window)
        self._ignore_if_given("language")  # no model here can be told which it is
        match self._mode:
            case Mode.TRANSCRIBE:
                self._ignore_if_given("system_prompt")
                self._ignore("voice", self._config.voice)
                return TranscribeSetup(sampling, seed)
            case Mode.CHAT:
                return ChatSetup(sampling, seed, self._read_prompt(), self._read_voice(speaks=True))
            case _:
                self._ignore("voice", self._config.voice)
                return TokensSetup(sampling, seed, self._read_prompt())

    @property
    def _speaks(self) -> bool:
        return self._mode is Mode.CHAT and self._info.speaks

    def _read_sampling(self) -> Sampling:
        chats = self._mode is Mode.CHAT
        given, bad = read_sampling(self._config.sampling, "sampling", self._info, chats=chats)
        self._bad += bad
        return given.sampling(sampling_defaults(self._info, self._mode))

    def _state(self, setup: SessionSetup, effective: pb.SessionConfig) -> None:
        sampled = cast(SampledSetup, setup)
        effective.sampling.CopyFrom(sampling_params(sampled.sampling))
        if not isinstance(sampled, TranscribeSetup):
            effective.system_prompt = sampled.system_prompt
        if isinstance(sampled, ChatSetup) and sampled.voice.voice_id:
            effective.voice.voice_id = sampled.voice.voice_id
