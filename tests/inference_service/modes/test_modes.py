"""Configure CHAT, TOKENS and TRANSCRIBE sessions, and send them units."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

from antiphon.contract import Reason
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.config.resolve import SessionPlan, resolve
from inference_service.config.sampling import MAX_STOP_TOKENS, MAX_STOPS, unit_overrides
from inference_service.errors import ConfigInvalid, ModeUnsupported, UnitRefused, VoiceNotFound
from inference_service.interface.setups import (
    KEEP_ALL,
    ChatSetup,
    Mode,
    Sampling,
    StreamInput,
    TokensSetup,
    TranscribeSetup,
    UnitOverrides,
)
from inference_service.rpc.messages import replies
from tests.inference_service.conftest import Served, SessionOf
from tests.inference_service.support.caller import duplex
from tests.support.scripted_engine import EVERYTHING, INFO, ScriptedEngine, write

CHAT, TOKENS, TRANSCRIBE = pb.SESSION_MODE_CHAT, pb.SESSION_MODE_TOKENS, pb.SESSION_MODE_TRANSCRIBE
SAMPLED = (CHAT, TOKENS, TRANSCRIBE)


def plan(mode: pb.SessionMode, **fields: Any) -> SessionPlan:
    return resolve(pb.SessionConfig(mode=mode, **fields), EVERYTHING, draw_seed=lambda: 4711)


def bad_fields(mode: pb.SessionMode, **sampling: Any) -> list[str]:
    with pytest.raises(ConfigInvalid) as refused:
        plan(mode, sampling=common.SamplingParams(**sampling))
    return [bad.path for bad in refused.value.fields]


def ids(*tokens: int, **flags: bool) -> pb.StreamInput:
    return pb.StreamInput(token_ids=pb.TokenIds(ids=tokens), **flags)  # type: ignore[arg-type]


def sound(samples: int, rate: int = 16_000) -> common.AudioChunk:
    return duplex(np.zeros(samples, "<f4"), rate).audio


def test_each_mode_has_a_setup_of_its_own() -> None:
    sampling = EVERYTHING.sampling_defaults
    assert plan(CHAT, system_prompt="Be brief.").setup == ChatSetup(sampling, 4711, "Be brief.")
    assert plan(TOKENS, system_prompt="Once").setup == TokensSetup(sampling, 4711, "Once")
    greedy = replace(sampling, temperature=0.0)
    assert plan(TRANSCRIBE).setup == TranscribeSetup(greedy, 4711)


def test_a_mode_that_the_model_has_not_is_unsupported() -> None:
    with pytest.raises(ModeUnsupported) as refused:
        resolve(pb.SessionConfig(mode=TOKENS), replace(INFO, modes=frozenset({Mode.CHAT})), lambda: 1)
    assert "it can do CHAT" in refused.value.message


@pytest.mark.parametrize("mode", SAMPLED)
def test_sampling_replaces_the_defaults(mode: pb.SessionMode) -> None:
    given = common.SamplingParams(
        max_new_tokens=9,
        temperature=0.1,
        top_p=0.3,
        top_k=0,
        repetition_penalty=1.3,
        length_penalty=0.7,
        stop_token_ids=[4, 5],
        ignore_eos=True,
        seed=8,
    )
    setup = plan(mode, sampling=given).setup
    assert isinstance(setup, ChatSetup | TokensSetup | TranscribeSetup)
    assert setup.sampling == Sampling(9, 0.1, 0.3, KEEP_ALL, 1.3, 0.7, (4, 5), (), True)
    assert setup.seed == 8


@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_new_tokens", [0, 4097]),
        ("temperature", [-0.1, 2.1, float("nan")]),
        ("top_p", [0.0, 1.1]),
        ("top_k", [1001]),
        ("repetition_penalty", [0.4, 2.1]),
        ("length_penalty", [0.05, 5.1]),
        ("stop_token_ids", [[1000], [5, 2**32 - 1], [1] * (MAX_STOP_TOKENS + 1)]),
    ],
)
def test_values_out_of_range_are_refused(mode: pb.SessionMode, name: str, values: list[Any]) -> None:
    for value in values:
        assert bad_fields(mode, **{name: value}) == [f"sampling.{name}"]


@pytest.mark.parametrize("mode", [TOKENS, TRANSCRIBE])
def test_stop_strings_are_for_chats(mode: pb.SessionMode) -> None:
    assert bad_fields(mode, stop=["."], top_p=7) == ["sampling.top_p", "sampling.stop"]


@pytest.mark.parametrize("stop", [[""], ["x" * 257], ["x"] * (MAX_STOPS + 1)])
def test_stop_strings_have_bounds(stop: list[str]) -> None:
    assert bad_fields(CHAT, stop=stop) == ["sampling.stop"]


@pytest.mark.parametrize(
    ("mode", "ignored"),
    [
        (CHAT, ["language", "voice.speech_reference"]),
        (TOKENS, ["language", "voice.speech_reference"]),
        (TRANSCRIBE, ["language", "system_prompt", "voice.speech_reference"]),
    ],
)
def test_fields_of_other_modes_are_named(mode: pb.SessionMode, ignored: list[str]) -> None:
    resolved = plan(
        mode,
        language="en",
        system_prompt="Hi.",
        duplex=common.DuplexConfig(temperature=9, tts_temperature=0.1),
        window=common.WindowConfig(mode=common.WINDOW_MODE_BASIC, high_tokens=7),
        voice=common.Voice(speech_reference=common.AudioChunk(data=b"1234")),
    )
    other = ["duplex.temperature", "duplex.tts_temperature", "window.high_tokens", "window.mode"]
    assert sorted(resolved.ignored_fields) == sorted([*ignored, *other])


def test_a_voice_is_looked_for_where_there_is_one() -> None:
    voice = common.Voice(voice_id="nobody")
    with pytest.raises(VoiceNotFound):
        plan(CHAT, voice=voice)
    assert plan(TOKENS, voice=voice).ignored_fields == ("voice.voice_id",)


@pytest.mark.parametrize("mode", SAMPLED)
def test_the_effective_config_states_every_value_and_gives_the_same_session(mode: pb.SessionMode) -> None:
    first = plan(mode, system_prompt="Hi." if mode != TRANSCRIBE else "")
    stated = {field.name for field, _ in first.effective.sampling.ListFields()}
    unset = [f.name for f in first.effective.sampling.DESCRIPTOR.fields if f.name not in stated]
    assert unset == ["stop_token_ids", "stop", "seed"]
    second = resolve(first.effective, EVERYTHING, draw_seed=lambda: 0)
    assert (second.setup, second.effective, second.ignored_fields) == (first.setup, first.effective, ())


@pytest.mark.parametrize(("mode", "idle_s"), [(CHAT, None), (TOKENS, 60), (TRANSCRIBE, 60)])
def test_only_streams_have_an_idle_timeout_unasked(mode: pb.SessionMode, idle_s: float | None) -> None:
    resolved = plan(mode)
    assert resolved.idle_timeout_s == idle_s
    assert resolved.effective.idle_timeout.seconds == (idle_s or 0)
    assert plan(mode, idle_timeout=Duration(seconds=5)).idle_timeout_s == 5


def test_model_info_lists_modes_and_defaults() -> None:
    info = replies.model_info(EVERYTHING)
    assert set(info.modes) == set(pb.SessionMode.values()) - {pb.SESSION_MODE_UNSPECIFIED}
    assert info.sampling_defaults.max_new_tokens == EVERYTHING.sampling_defaults.max_new_tokens
    assert info.sampling_defaults.top_k == 0, "all are kept"
    text_only = replace(EVERYTHING, modes=frozenset({Mode.TOKENS}))
    assert not replies.model_info(text_only).HasField("duplex_defaults")


@pytest.mark.parametrize("mode", SAMPLED)
def test_overrides_of_one_unit_are_checked_alike(mode: pb.SessionMode) -> None:
    setup = plan(mode).setup
    good = common.SamplingParams(stop_token_ids=[7], ignore_eos=False, seed=1)
    assert unit_overrides(good, "run.sampling", setup, EVERYTHING) == UnitOverrides(
        stop_token_ids=(7,), ignore_eos=False, seed=1
    )
    with pytest.raises(UnitRefused) as refused:
        unit_overrides(common.SamplingParams(stop_token_ids=[1000]), "run.sampling", setup, EVERYTHING)
    assert refused.value.failure.field == "run.sampling.stop_token_ids"


@pytest.mark.parametrize(
    ("mode", "content", "expected"),
    [
        (TOKENS, ids(1, 2, begin_utterance=True), StreamInput((1, 2), begins=True)),
        (TOKENS, pb.StreamInput(text="Once"), StreamInput("Once")),
        (TOKENS, pb.StreamInput(end_utterance=True), StreamInput(None, ends=True)),
        (TOKENS, ids(end_utterance=True), StreamInput(None, ends=True)),
        (TRANSCRIBE, pb.StreamInput(end_utterance=True), StreamInput(None, ends=True)),
    ],
)
async def test_a_chunk_reaches_the_engine(
    session_of: SessionOf, mode: pb.SessionMode, content: pb.StreamInput, expected: StreamInput
) -> None:
    engine = ScriptedEngine(write("a"), info=EVERYTHING)
    async with session_of(engine, mode=mode) as caller:
        answers = await caller.unit(1, content)
    assert engine.session.given[1] == expected
    assert answers.text == "a"


async def test_audio_of_any_length_reaches_the_engine(session_of: SessionOf) -> None:
    engine = ScriptedEngine(info=EVERYTHING)
    async with session_of(engine, mode=TRANSCRIBE) as caller:
        ends = [(await caller.unit(n, pb.StreamInput(audio=sound(n * 31_000)))).done.end for n in (1, 2)]
    chunks = [given.chunk for given in engine.session.given.values() if isinstance(given, StreamInput)]
    assert [len(chunk) for chunk in chunks if isinstance(chunk, np.ndarray)] == [31_000, 62_000]
    assert ends == [pb.UNIT_END_CHUNK] * 2


@pytest.mark.parametrize(
    ("mode", "content", "reason", "field"),
    [
        (TOKENS, ids(5, 1000), Reason.PARAMS_INVALID, "stream.token_ids.ids"),
        (TOKENS, ids(*[1] * 4097), Reason.INPUT_TOO_LONG, "stream.token_ids.ids"),
        (TOKENS, ids(), Reason.PARAMS_INVALID, "stream.chunk"),
        (TOKENS, pb.StreamInput(), Reason.PARAMS_INVALID, "stream.chunk"),
        (TOKENS, pb.StreamInput(text=""), Reason.PARAMS_INVALID, "stream.chunk"),
        (TOKENS, pb.StreamInput(audio=sound(5)), Reason.CONTENT_UNSUPPORTED, "stream.audio"),
        (TRANSCRIBE, ids(5), Reason.CONTENT_UNSUPPORTED, "stream.token_ids"),
        (TRANSCRIBE, pb.StreamInput(text="x"), Reason.CONTENT_UNSUPPORTED, "stream.text"),
        (TRANSCRIBE, pb.StreamInput(begin_utterance=True), Reason.PARAMS_INVALID, "stream.chunk"),
        (
            TRANSCRIBE,
            pb.StreamInput(audio=sound(5, 8000)),
            Reason.AUDIO_INVALID,
            "stream.audio.sample_rate_hz",
        ),
        (TRANSCRIBE, pb.StreamInput(audio=sound(0)), Reason.AUDIO_INVALID, "stream.audio.data"),
    ],
)
async def test_a_chunk_that_cannot_be_used_fails_its_unit_alone(
    session_of: SessionOf, mode: pb.SessionMode, content: pb.StreamInput, reason: Reason, field: str
) -> None:
    engine = ScriptedEngine(info=EVERYTHING)
    async with session_of(engine, mode=mode) as caller:
        failed = await caller.unit(1, content)
        after = await caller.unit(2, pb.StreamInput(end_utterance=True))
    assert (failed.prefill.error.reason, failed.prefill.error.field) == (reason, field)
    assert (failed.done.end, failed.done.error.reason) == (pb.UNIT_END_FAILED, reason)
    assert after.done.end == pb.UNIT_END_TURN
    assert list(engine.session.given) == [2], "the chunk is not appended"


@pytest.mark.parametrize(
    ("run", "field"),
    [
        ({"sampling": common.SamplingParams(stop=["x"])}, "run.sampling.stop"),
        ({"sampling": common.SamplingParams(top_p=7)}, "run.sampling.top_p"),
        ({"force_listen": True}, "run.force_listen"),
    ],
)
async def test_bad_settings_are_a_rejection(session_of: SessionOf, run: dict[str, Any], field: str) -> None:
    engine = ScriptedEngine(write("a"), info=EVERYTHING)
    async with session_of(engine, mode=TOKENS) as caller:
        failed = await caller.unit(1, ids(1), **run)
    assert (failed.done.end, failed.done.error.field, failed.text) == (pb.UNIT_END_FAILED, field, "")
    assert engine.session.rejected[1].field == field


async def test_settings_and_the_wish_to_keep_a_token_reach_the_engine_once(session_of: SessionOf) -> None:
    engine = ScriptedEngine(write("a"), write("b"), info=EVERYTHING)
    async with session_of(engine, mode=TOKENS) as caller:
        sampling = common.SamplingParams(max_new_tokens=3)
        first = await caller.unit(1, ids(1), sampling=sampling, keep_last_token=True)
        second = await caller.unit(2, ids(2))
    assert engine.session.overrides == {1: UnitOverrides(max_new_tokens=3), 2: UnitOverrides()}
    assert engine.session.kept == {1}
    assert [a.finalize.discarded_tokens for a in (first, second)] == [0, 1]


async def test_asking_ahead_of_the_config_is_bound_by_the_mode_s_window(served: Served) -> None:
    async with served(ScriptedEngine(info=EVERYTHING)) as new_caller:
        caller = await new_caller().open()
        for unit in range(1, 4):
            await caller.finalize(unit)
        await caller.send_config()
        assert (await caller.end()).reason == Reason.UNIT_WINDOW
