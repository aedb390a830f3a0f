"""Resolve configs of sessions: defaults, ranges, refusals, fields without effect."""

import contextlib
from dataclasses import asdict, replace
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.config.reader import MAX_PROMPT_CHARACTERS
from inference_service.config.resolve import SessionPlan, resolve
from inference_service.config.sampling import DUPLEX_RANGES, unit_overrides
from inference_service.errors import (
    ConfigInvalid,
    ModelNotFound,
    ModeUnsupported,
    SessionError,
    UnitRefused,
    VoiceNotFound,
)
from inference_service.interface.setups import KEEP_ALL, DuplexSettings, DuplexSetup, Window, WindowMode
from tests.support.scripted_engine import INFO


def plan(info: Any = INFO, **fields: Any) -> SessionPlan:
    config = pb.SessionConfig(**{"mode": pb.SESSION_MODE_AUDIO, **fields})
    return resolve(config, info, draw_seed=lambda: 4711)


def duplex_setup(**fields: Any) -> DuplexSetup:
    setup = plan(**fields).setup
    assert isinstance(setup, DuplexSetup)
    return setup


def test_defaults_are_those_of_the_published_model() -> None:
    assert asdict(duplex_setup().duplex) == {
        "generate_audio": True,
        "force_listen_count": 3,
        "max_new_speak_tokens_per_chunk": 20,
        "greedy": False,
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
        "text_repetition_penalty": 1.05,
        "text_repetition_window_size": 512,
        "length_penalty": 1.1,
        "listen_prob_scale": 1.0,
        "listen_top_k": None,
        "tts_temperature": 0.8,
    }


def bad_fields(**fields: Any) -> list[str]:
    with pytest.raises(ConfigInvalid) as refused:
        plan(**fields)
    return [bad.path for bad in refused.value.fields]


def test_an_empty_config_is_the_model_s_defaults() -> None:
    setup = duplex_setup()
    assert (setup.duplex, setup.window, setup.seed) == (INFO.duplex_defaults, INFO.window, 4711)


def test_given_settings_replace_defaults() -> None:
    setup = duplex_setup(
        system_prompt="Be brief.",
        seed=7,
        duplex=common.DuplexConfig(
            generate_audio=False,
            force_listen_count=0,
            temperature=0.9,
            decode_mode=common.DECODE_MODE_GREEDY,
            listen_top_k=4,
            ls_mode=common.LISTEN_SPEAK_MODE_EXPLICIT,
            chunk_ms=1000,
            sample_rate=16000,
        ),
    )
    assert (setup.system_prompt, setup.seed) == ("Be brief.", 7)
    changed = replace(
        DuplexSettings(),
        generate_audio=False,
        force_listen_count=0,
        temperature=0.9,
        greedy=True,
        listen_top_k=4,
    )
    assert setup.duplex == changed


def test_a_default_sent_explicitly_is_the_default_exactly() -> None:
    """0.7 has no 32-bit float; it must not come out as 0.699999988."""
    settings = INFO.duplex_defaults
    given: dict[str, Any] = {name: getattr(settings, name) for name in DUPLEX_RANGES}
    assert duplex_setup(duplex=common.DuplexConfig(**given)).duplex == settings


def test_every_bad_field_is_listed() -> None:
    assert bad_fields(
        system_prompt="x" * (MAX_PROMPT_CHARACTERS + 1),
        duplex=common.DuplexConfig(temperature=2.5, top_p=0.0, chunk_ms=500),
        sampling=common.SamplingParams(stop=["."], top_k=1001),
        window=common.WindowConfig(mode=common.WINDOW_MODE_CONTEXT),
        max_duration=Duration(seconds=-1),
        voice=common.Voice(voice_id="../etc"),
    ) == [
        "system_prompt",
        "duplex.temperature",
        "duplex.top_p",
        "duplex.chunk_ms",
        "sampling.top_k",
        "sampling.stop",
        "window.mode",
        "max_duration",
        "voice.voice_id",
    ]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("force_listen_count", [61]),
        ("max_new_speak_tokens_per_chunk", [0, 101]),
        ("temperature", [-0.1, 2.1, float("nan")]),
        ("top_k", [0, 1001]),
        ("top_p", [0.0, 1.1, float("inf")]),
        ("text_repetition_penalty", [0.4, 2.1]),
        ("text_repetition_window_size", [8193]),
        ("length_penalty", [0.05, 5.1]),
        ("listen_prob_scale", [-1.0, 10.1]),
        ("listen_top_k", [0]),
        ("tts_temperature", [-0.1, 2.1]),
        ("chunk_ms", [0, 999]),
        ("sample_rate", [8000]),
    ],
)
def test_values_out_of_range_are_refused(name: str, values: list[Any]) -> None:
    for value in values:
        assert bad_fields(duplex=common.DuplexConfig(**{name: value})) == [f"duplex.{name}"]


@pytest.mark.parametrize(("name", "allowed"), DUPLEX_RANGES.items())
def test_the_ends_of_a_range_are_allowed(name: str, allowed: Any) -> None:
    ends = [allowed.high] if allowed.high != float("inf") else [10**6]
    if not allowed.above_low:
        ends.append(allowed.low)
    whole = name not in ("temperature", "top_p", "tts_temperature") and "penalty" not in name
    for end in ends:
        value: Any = int(end) if whole and name != "listen_prob_scale" else end
        assert getattr(duplex_setup(duplex=common.DuplexConfig(**{name: value})).duplex, name) == value


def test_sampling_fills_what_duplex_leaves_open() -> None:
    resolved = plan(
        duplex=common.DuplexConfig(temperature=0.2),
        sampling=common.SamplingParams(temperature=1.5, max_new_tokens=9, top_k=0, seed=3),
    )
    assert isinstance(resolved.setup, DuplexSetup)
    duplex = resolved.setup.duplex
    assert (duplex.temperature, duplex.max_new_speak_tokens_per_chunk, duplex.top_k) == (0.2, 9, KEEP_ALL)
    assert resolved.setup.seed == 3
    assert resolved.ignored_fields == ("sampling.temperature",)


def test_fields_without_effect_are_named() -> None:
    reference = common.AudioChunk(data=b"\0\0\0\0")
    resolved = plan(
        language="en",
        background=True,
        seed=1,
        voice=common.Voice(llm_reference=reference, speech_reference=reference),
        window=common.WindowConfig(mode=common.WINDOW_MODE_OFF, high_tokens=5),
        sampling=common.SamplingParams(stop_token_ids=[3], ignore_eos=True, seed=2),
    )
    assert sorted(resolved.ignored_fields) == [
        "background",
        "language",
        "sampling.ignore_eos",
        "sampling.seed",
        "sampling.stop_token_ids",
        "voice.llm_reference",
        "voice.speech_reference",
        "window.high_tokens",
    ]


def test_the_effective_config_states_every_value() -> None:
    effective = plan(voice=common.Voice(llm_reference=common.AudioChunk(data=b"1234"))).effective
    assert (effective.model, effective.seed) == ("scripted", 4711)
    assert not effective.HasField("voice")
    unset = [f.name for f in effective.duplex.DESCRIPTOR.fields if not effective.duplex.HasField(f.name)]
    assert unset == ["listen_top_k"]  # None is its default
    window = effective.window
    assert (window.mode, window.high_tokens, window.low_tokens) == (common.WINDOW_MODE_BASIC, 3000, 2000)


def test_the_effective_config_given_again_is_the_same_session() -> None:
    first = plan(
        system_prompt="Hi.", duplex=common.DuplexConfig(top_p=0.3), seed=5, idle_timeout=Duration(seconds=3)
    )
    second = resolve(first.effective, INFO, draw_seed=lambda: 0)
    assert (second.setup, second.effective, second.ignored_fields) == (first.setup, first.effective, ())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (common.WindowConfig(), INFO.window),
        (common.WindowConfig(mode=common.WINDOW_MODE_OFF), Window()),
        (common.WindowConfig(mode=common.WINDOW_MODE_BASIC), INFO.window),
        (common.WindowConfig(high_tokens=1000), Window(WindowMode.BASIC, 1000, 750)),
        (common.WindowConfig(high_tokens=1000, low_tokens=900), Window(WindowMode.BASIC, 1000, 900)),
    ],
)
def test_windows(given: common.WindowConfig, expected: Window) -> None:
    assert duplex_setup(window=given).window == expected


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("mode", {"mode": common.WINDOW_MODE_CONTEXT}),
        ("high_tokens", {"high_tokens": INFO.context_limit + 1}),
        ("low_tokens", {"high_tokens": 1000, "low_tokens": 1000}),
    ],
)
def test_windows_that_cannot_be(field: str, given: dict[str, Any]) -> None:
    assert bad_fields(window=common.WindowConfig(**given)) == [f"window.{field}"]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"mode": pb.SESSION_MODE_UNSPECIFIED}, ConfigInvalid),
        ({"mode": 77}, ConfigInvalid),
        ({"mode": pb.SESSION_MODE_CHAT}, ModeUnsupported),
        ({"mode": pb.SESSION_MODE_VIDEO}, ModeUnsupported),
        ({"mode": pb.SESSION_MODE_TRANSCRIBE}, ModeUnsupported),
        ({"mode": pb.SESSION_MODE_TOKENS}, ModeUnsupported),
        ({"model": "another"}, ModelNotFound),
        ({"voice": common.Voice(voice_id="nobody")}, VoiceNotFound),
    ],
)
def test_unsupported_mode_model_or_voice_is_rejected(
    fields: dict[str, Any], error: type[SessionError]
) -> None:
    with pytest.raises(error):
        plan(**fields)


def test_durations_are_seconds() -> None:
    resolved = plan(max_duration=Duration(seconds=300), idle_timeout=Duration(nanos=500_000_000))
    assert (resolved.max_duration_s, resolved.idle_timeout_s) == (300, 0.5)


NUMBERS = st.one_of(st.floats(width=32), st.integers(0, 2**32 - 1))


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(DUPLEX_RANGES)), NUMBERS),
    st.integers(0, 9),
    st.integers(0, 2**32 - 1),
)
def test_any_config_is_a_plan_in_range_or_refused(values: dict[str, Any], mode: int, tokens: int) -> None:
    duplex = common.DuplexConfig()
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError):  # not a value of this field's type
            setattr(duplex, name, value)
    window = common.WindowConfig(mode=mode, high_tokens=tokens)  # type: ignore[arg-type]
    with contextlib.suppress(ConfigInvalid):
        setup = duplex_setup(duplex=duplex, window=window)
        for name, allowed in DUPLEX_RANGES.items():
            setting = getattr(setup.duplex, name)
            assert setting is None or allowed.problem(setting) is None
        assert setup.window.mode is WindowMode.OFF or setup.window.low_tokens < setup.window.high_tokens


def test_unit_overrides_contain_only_set_fields() -> None:
    params = common.SamplingParams(temperature=0.1, seed=9)
    overrides = unit_overrides(params, "run.sampling", plan().setup, INFO)
    assert (overrides.temperature, overrides.seed, overrides.top_k) == (0.1, 9, None)
    unseeded = unit_overrides(common.SamplingParams(top_k=4), "run.sampling", plan().setup, INFO)
    assert (unseeded.top_k, unseeded.seed, unseeded.temperature) == (4, None, None)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (common.SamplingParams(top_p=0.0), "run.sampling.top_p"),
        (common.SamplingParams(max_new_tokens=0), "run.sampling.max_new_tokens"),
        (common.SamplingParams(stop=["x"]), "run.sampling.stop"),
        (common.SamplingParams(stop_token_ids=[1]), "run.sampling.stop_token_ids"),
        (common.SamplingParams(ignore_eos=False), "run.sampling.ignore_eos"),
    ],
)
def test_bad_parameters_are_refused_by_field(params: common.SamplingParams, field: str) -> None:
    with pytest.raises(UnitRefused) as refused:
        unit_overrides(params, "run.sampling", plan().setup, INFO)
    assert refused.value.failure.field == field
