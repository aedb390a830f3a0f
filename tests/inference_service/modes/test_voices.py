"""Voices in a session's config: heard, spoken with, refused, or without effect."""

from dataclasses import replace

import numpy as np
import pytest

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.config.resolve import SessionPlan, resolve
from inference_service.errors import ConfigInvalid, VoiceNotFound
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import (
    ChatSetup,
    DuplexSettings,
    DuplexSetup,
    Mode,
    VoiceReference,
    Window,
    WindowMode,
)
from inference_service.rpc.messages.replies import model_info
from tests.support.scripted_engine import INFO

AUDIO, CHAT = pb.SESSION_MODE_AUDIO, pb.SESSION_MODE_CHAT
CLONES = replace(
    INFO,
    context_limit=8192,
    window=Window(),
    duplex_defaults=DuplexSettings(),
    modes=frozenset({Mode.AUDIO, Mode.CHAT}),
    windows=frozenset(WindowMode),
    hears_voices=True,
    clones_voices=True,
    voice_ids=frozenset({"anna", "default"}),
)
REGISTERED_ONLY = replace(CLONES, clones_voices=False)
MUTE = replace(
    REGISTERED_ONLY, speaks=False, duplex_defaults=DuplexSettings(generate_audio=False), voice_ids=frozenset()
)


def plan(info: ModelInfo, mode: pb.SessionMode = AUDIO, **fields: object) -> SessionPlan:
    return resolve(pb.SessionConfig(mode=mode, **fields), info, lambda: 1)  # type: ignore[arg-type]


def recording(seconds: float = 1.0, value: float = 0.5, rate: int = 16_000) -> common.AudioChunk:
    data = np.full(round(seconds * 16_000), value, "<f4").tobytes()
    return common.AudioChunk(encoding=common.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=rate, data=data)


def voice_of(planned: SessionPlan) -> VoiceReference:
    assert isinstance(planned.setup, DuplexSetup | ChatSetup)
    return planned.setup.voice


@pytest.mark.parametrize("mode", [AUDIO, CHAT])
def test_references_reach_the_session(mode: pb.SessionMode) -> None:
    given = common.Voice(llm_reference=recording(1, 0.25), speech_reference=recording(2, 0.5))
    planned = plan(CLONES, mode, voice=given)
    voice = voice_of(planned)
    assert voice.heard is not None
    assert voice.spoken is not None
    assert (len(voice.heard), voice.heard[0]) == (16_000, 0.25)
    assert (len(voice.spoken), voice.spoken[0]) == (32_000, 0.5)
    assert planned.ignored_fields == ()
    assert not planned.effective.HasField("voice")


@pytest.mark.parametrize("mode", [AUDIO, CHAT])
def test_registered_voice_is_stated_back(mode: pb.SessionMode) -> None:
    planned = plan(REGISTERED_ONLY, mode, voice=common.Voice(voice_id="anna"))
    assert voice_of(planned) == VoiceReference(voice_id="anna")
    assert planned.effective.voice.voice_id == "anna"


def test_model_names_its_voices_and_others_are_not_found() -> None:
    assert list(model_info(CLONES).voice_ids) == ["anna", "default"]
    with pytest.raises(VoiceNotFound):
        plan(CLONES, voice=common.Voice(voice_id="bert"))


def test_recording_wins_over_an_id() -> None:
    planned = plan(CLONES, voice=common.Voice(voice_id="anna", speech_reference=recording()))
    assert voice_of(planned).voice_id == ""
    assert planned.ignored_fields == ("voice.voice_id",)


@pytest.mark.parametrize(
    ("chunk", "path"),
    [
        (recording(30.1), "voice.llm_reference.data"),
        (recording(rate=24_000), "voice.llm_reference.sample_rate_hz"),
        (recording(value=float("nan")), "voice.llm_reference.data"),
        (common.AudioChunk(), "voice.llm_reference.encoding"),
    ],
)
def test_recording_that_cannot_be_read_is_refused_by_its_path(chunk: common.AudioChunk, path: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        plan(CLONES, voice=common.Voice(llm_reference=chunk))
    assert [field.path for field in refused.value.fields] == [path]


@pytest.mark.parametrize("name", ["llm_reference", "speech_reference"])
def test_recording_without_onnxruntime_is_refused_with_missing_extra(name: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"antiphon\[minicpmo\]") as refused:
        plan(REGISTERED_ONLY, voice=common.Voice(**{name: recording()}))  # type: ignore[arg-type]
    assert [field.path for field in refused.value.fields] == [f"voice.{name}"]


def test_session_without_sound_needs_no_voice_to_speak_with() -> None:
    given = common.Voice(llm_reference=recording(), speech_reference=recording(), voice_id="anna")
    planned = plan(REGISTERED_ONLY, voice=given, duplex=common.DuplexConfig(generate_audio=False))
    assert voice_of(planned).heard is not None
    assert sorted(planned.ignored_fields) == ["voice.speech_reference", "voice.voice_id"]


def test_model_without_voice_ignores_generate_audio() -> None:
    planned = plan(MUTE, duplex=common.DuplexConfig(generate_audio=True))
    assert isinstance(planned.setup, DuplexSetup)
    assert not planned.setup.duplex.generate_audio
    assert planned.ignored_fields == ("duplex.generate_audio",)
    assert not planned.effective.duplex.generate_audio


def test_window_that_remembers_is_there_for_models_that_have_it() -> None:
    window = common.WindowConfig(mode=common.WINDOW_MODE_CONTEXT, high_tokens=4000)
    planned = plan(CLONES, window=window)
    assert isinstance(planned.setup, DuplexSetup)
    assert planned.setup.window == Window(WindowMode.CONTEXT, 4000, 3000)
    assert planned.effective.window.mode == common.WINDOW_MODE_CONTEXT
    with pytest.raises(ConfigInvalid, match="no CONTEXT window"):
        plan(replace(CLONES, windows=frozenset({WindowMode.OFF, WindowMode.BASIC})), window=window)
