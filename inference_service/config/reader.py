"""The common part of the configs of all modes, read field by field."""

import re
from abc import ABC, abstractmethod

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from numpy.typing import NDArray

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.errors import BadField, ConfigInvalid, UnitRefused, VoiceNotFound
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import SessionSetup, VoiceReference
from inference_service.media.pcm import decode_pcm

MAX_PROMPT_CHARACTERS = 32_768
LONGEST_REFERENCE_S = 30.0
MINICPMO_EXTRA = "pip install 'antiphon[minicpmo]'"
_VOICE_ID = re.compile(r"[a-z0-9_-]{1,64}")


class ConfigReader(ABC):
    """Reader of the config of one mode; it collects invalid fields and fields without effect."""

    default_idle_timeout_s: float | None = None

    def __init__(self, config: pb.SessionConfig, info: ModelInfo) -> None:
        self._config = config
        self._info = info
        self._bad: list[BadField] = []
        self.ignored: list[str] = []
        """Paths of fields that are given and have no effect."""
        self.max_duration_s: float | None = None
        self.idle_timeout_s: float | None = None

    def read(self) -> SessionSetup:
        """Return the setup of the session.

        Raises `VoiceNotFound`, or `ConfigInvalid` listing every bad field.
        """
        setup = self._setup(self._read_seed())
        self.max_duration_s = self._read_duration("max_duration")
        idle_timeout_s = self._read_duration("idle_timeout")
        self.idle_timeout_s = self.default_idle_timeout_s if idle_timeout_s is None else idle_timeout_s
        self._check_voice_id()
        if self._bad:
            raise ConfigInvalid(*self._bad)
        voice_id = self._config.voice.voice_id
        if voice_id and self._speaks and voice_id not in self._info.voice_ids:
            raise VoiceNotFound(f"No voice {voice_id!r} is registered here.", voice_id=voice_id)
        return setup

    @property
    def has_seed(self) -> bool:
        """Whether the config has a seed."""
        return self._config.HasField("seed") or self._config.sampling.HasField("seed")

    def effective(self, setup: SessionSetup) -> pb.SessionConfig:
        """Return the effective config, every value stated."""
        result = pb.SessionConfig(mode=self._config.mode, model=self._info.name, seed=setup.seed)
        for name, seconds in (("max_duration", self.max_duration_s), ("idle_timeout", self.idle_timeout_s)):
            if seconds is not None:
                getattr(result, name).FromNanoseconds(round(seconds * 1e9))
        self._add_effective(setup, result)
        return result

    @abstractmethod
    def _setup(self, seed: int) -> SessionSetup:
        """Return the mode's setup from the config."""

    @abstractmethod
    def _add_effective(self, setup: SessionSetup, effective: pb.SessionConfig) -> None:
        """Add the mode's own values to the effective config."""

    @property
    @abstractmethod
    def _speaks(self) -> bool:
        """Whether sessions of the mode have a voice."""

    # ------------------------------------------------------------------- fields

    def _read_prompt(self) -> str:
        length = len(self._config.system_prompt)
        if length > MAX_PROMPT_CHARACTERS:
            self._refuse(
                "system_prompt", f"must have at most {MAX_PROMPT_CHARACTERS} characters, not {length}"
            )
        return self._config.system_prompt

    def _read_seed(self) -> int:
        config = self._config
        if not config.HasField("seed"):
            return config.sampling.seed
        if config.sampling.HasField("seed"):
            self.ignored.append("sampling.seed")
        return config.seed

    def _read_duration(self, name: str) -> float | None:
        if not self._config.HasField(name):
            return None
        duration: Duration = getattr(self._config, name)
        seconds = duration.seconds + duration.nanos * 1e-9
        if seconds <= 0:
            self._refuse(name, f"must be more than 0 s, not {seconds:g} s")
        return seconds

    def _check_voice_id(self) -> None:
        voice = self._config.voice
        if self._speaks and voice.voice_id and not _VOICE_ID.fullmatch(voice.voice_id):
            self._refuse("voice.voice_id", "must match [a-z0-9_-]{1,64}")

    def _read_voice(self, *, speaks: bool) -> VoiceReference:
        """Return the voice of a session that `speaks`, or that only has reference audio in its prompt."""
        voice, info = self._config.voice, self._info
        speaks = speaks and self._speaks
        if speaks and info.hears_voices and not info.clones_voices:
            for name in self._references:
                self._refuse(f"voice.{name}", f"needs a worker with onnxruntime, {MINICPMO_EXTRA}")
            return VoiceReference(voice_id=voice.voice_id)
        heard = self._reference("llm_reference") if info.hears_voices else None
        spoken = self._reference("speech_reference") if info.clones_voices and speaks else None
        unused = {"llm_reference": heard is None, "speech_reference": spoken is None}
        self.ignored += [f"voice.{name}" for name in self._references if unused[name] and not self._bad]
        voice_id = voice.voice_id if speaks else ""
        if voice.voice_id and (not speaks or heard is not None or spoken is not None):
            self.ignored.append("voice.voice_id")
            voice_id = ""
        return VoiceReference(heard, spoken, voice_id)

    @property
    def _references(self) -> list[str]:
        """The names of the given references."""
        names = ("llm_reference", "speech_reference")
        return [name for name in names if self._config.voice.HasField(name)]

    def _reference(self, name: str) -> NDArray[np.float32] | None:
        """Return reference audio; None if there is none or it cannot be used."""
        if not self._config.voice.HasField(name):
            return None
        rate = self._info.input_sample_rate_hz
        try:
            return decode_pcm(
                getattr(self._config.voice, name),
                field=f"voice.{name}",
                sample_rate_hz=rate,
                max_samples=round(LONGEST_REFERENCE_S * rate),
            )
        except UnitRefused as refused:
            failure = refused.failure
            self._refuse(failure.field, failure.message.removeprefix(failure.field).strip(" .:"))
            return None

    def _refuse(self, path: str, problem: str | None) -> None:
        if problem:
            self._bad.append(BadField(path, problem))

    def _ignore(self, path: str, message: Message) -> None:
        """Note every field that is set in `message` as without effect."""
        self.ignored += [f"{path}.{field.name}" for field, _ in message.ListFields()]

    def _ignore_if_given(self, *names: str) -> None:
        """Note the set fields of the config itself that have no effect."""
        self.ignored += [name for name in names if getattr(self._config, name)]
