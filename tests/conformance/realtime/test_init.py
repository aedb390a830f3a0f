"""Sections 3.1 `session.init`, 4.1 `session.update`, 3.6 `config` and 6.6 reference audio.

What of it reaches the model is told by the model itself.
"""

import base64
import io
import wave
from typing import Any

import numpy as np
import pytest

from tests.conformance.support.client import Event, kinds
from tests.conformance.support.match import EARLIER_ID, SESSION_ID, UNIX_S, Number, Text, error, prompt_usage
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import G2, G3, TELLS, Words, both, f32, plays, told
from tests.support.scripted_engine import PROMPT_TOKENS, speak, turn_end

# ------------------------------------------------------------------------------------- session.created


async def test_session_created(stack: Stack) -> None:
    """3.2 `session.created`: `session_id`, `mode`, `metrics`, the prompt's `usage`, `server_send_ts`."""
    async with stack.client() as client:
        assert await G3.begin(client) == {
            "type": "session.created",
            "session_id": SESSION_ID,
            "mode": "full_duplex",
            "metrics": {"prompt_length": PROMPT_TOKENS, "n_past_max": Number()},
            "usage": prompt_usage(PROMPT_TOKENS),
            "server_send_ts": UNIX_S,
        }


async def test_session_created_earlier(stack: Stack) -> None:
    """4.1 `session.created`: `session_id` is `rt_` and Unix milliseconds; `prompt_length`; nothing empty."""
    async with stack.client() as client:
        assert await G2.begin(client) == {
            "type": "session.created",
            "session_id": EARLIER_ID,
            "prompt_length": PROMPT_TOKENS,
            "usage": prompt_usage(PROMPT_TOKENS),
        }


async def test_earlier_session_ids_are_unique(stack: Stack) -> None:
    """4.1: the id is raised by 1 if it is already used."""
    async with stack.client() as one, stack.client() as two, stack.client() as three:
        for client in (one, two, three):
            await client.expect("session.queue_done")
        for client in (one, two, three):
            await client.send(G2.init())
        ids = [(await client.expect("session.created"))["session_id"] for client in (one, two, three)]
        assert len(set(ids)) == 3


# ------------------------------------------------------------------------------------- required fields


@both
@pytest.mark.parametrize("is_null", [False, True], ids=["absent", "null"])
async def test_object_of_the_initialising_event_is_required(
    stack: Stack, words: Words, is_null: bool
) -> None:
    """3.1 `payload` obj R, 4.1 `session` obj R; 7.2: missing or `null` is `missing_field` with `param`."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        event = {"type": words.opener, **({words.opener_field: None} if is_null else {})}
        assert await client.ask(event) == error("missing_field", words.opener_field)


@both
@pytest.mark.parametrize("value", [[], "text", 5])
async def test_object_of_the_initialising_event_is_an_object(
    stack: Stack, words: Words, value: object
) -> None:
    """7.2: wrong JSON type is `invalid_payload` with `param`."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        event = {"type": words.opener, words.opener_field: value}
        assert await client.ask(event) == error("invalid_payload", words.opener_field)


async def test_payload_may_be_empty(stack: Stack) -> None:
    """3.1: `payload` may be `{}`."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        await client.send({"type": "session.init", "payload": {}})
        await client.expect("session.created")


@pytest.mark.parametrize("session", [{}, {"instructions": None}])
async def test_instructions_are_required_in_the_earlier_dialect(stack: Stack, session: Event) -> None:
    """4.1: `instructions` str R (missing: `missing_field`); 7.2: missing or `null`."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        refused = await client.ask({"type": "session.update", "session": session})
        assert refused == error("missing_field", "session.instructions")


@both
async def test_prompt_may_be_empty(stack: Stack, words: Words) -> None:
    """4.1: `instructions` `""` is accepted and means no prompt; 3.1 `system_prompt` likewise."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        await client.send({"type": words.opener, words.opener_field: {words.prompt: ""}})
        await client.expect("session.created")
        await client.send(words.append())
        await client.expect(words.listen)


# -------------------------------------------------------------------------------------- fields of 3.1


@pytest.mark.parametrize(
    "payload",
    [
        {"instructions": plays(TELLS).as_prompt()},
        {"system_prompt": plays(TELLS).as_prompt(), "instructions": plays(speak("wrong")).as_prompt()},
    ],
    ids=["alias", "system_prompt wins"],
)
async def test_prompt(stack: Stack, payload: Event) -> None:
    """3.1 `system_prompt`: alias `instructions`; `system_prompt` wins."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        await client.send({"type": "session.init", "payload": payload})
        await client.expect("session.created")
        assert "setup" in await told(client, G3)


@both
async def test_prompt_has_a_bound(stack: Stack, words: Words) -> None:
    """3.1 `system_prompt`: at most 32,768 characters."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        longest = "é" * 32_768
        refused = await client.ask(words.init(**{words.prompt: longest + "é"}))
        assert refused == error("invalid_payload", words.path(words.prompt))
        await client.send(words.init(**{words.prompt: longest}))
        await client.expect("session.created")


@pytest.mark.parametrize("field", ["config", "duplex"])
async def test_config_alias(stack: Stack, field: str) -> None:
    """3.1 `config`: alias `duplex`; errors name the field that was given."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        refused = await client.ask(G3.init(**{field: {"top_k": 0}}))
        assert refused == error("invalid_payload", f"payload.{field}.top_k")
        await client.send(G3.init(plays(TELLS), **{field: {"top_k": 7}}))
        await client.expect("session.created")
        assert (await told(client, G3))["setup"]["duplex"]["top_k"] == 7


@pytest.mark.parametrize("field", ["voice_config", "config"])
async def test_config_alias_earlier(stack: Stack, field: str) -> None:
    """4.1 `voice_config`: alias `config`."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        refused = await client.ask(G2.init(**{field: {"top_k": 0}}))
        assert refused == error("invalid_payload", f"session.{field}.top_k")
        await client.send(G2.init(plays(TELLS), **{field: {"top_k": 7}}))
        await client.expect("session.created")
        assert (await told(client, G2))["setup"]["duplex"]["top_k"] == 7


@pytest.mark.parametrize("fields", [{"use_tts": False}, {"config": {"generate_audio": False}}])
async def test_no_audio_output(stack: Stack, fields: Event) -> None:
    """3.1 `use_tts` false equals `config.generate_audio:false`; 3.3.3: then one `text`, possibly `""`."""
    async with stack.client() as client:
        await G3.begin(client, speak("Hi", seconds=0.0), turn_end(seconds=0.0), **fields)
        await client.send(G3.append(), G3.append())
        events = await client.take(3)
        assert kinds(events) == ["text", "text", "listen"]
        assert [event.get("text") for event in events] == ["Hi", "", None]


async def test_seed(stack: Stack) -> None:
    """3.1 `seed`: 0..2^63-1, random if absent."""
    drawn = set()
    async with stack.client() as client:
        await client.expect("session.queue_done")
        for bad in (-1, 2**63, 1.5, "1", True):
            assert await client.ask(G3.init(seed=bad)) == error("invalid_payload", "payload.seed")
    for seed in (0, 2**63 - 1, None, None):
        async with stack.client() as client:
            await G3.begin(client, TELLS, **({} if seed is None else {"seed": seed}))
            got = (await told(client, G3))["setup"]["seed"]
            drawn.add(got)
            assert seed in (None, got)
    assert len(drawn) == 4


async def test_model(stack: Stack) -> None:
    """3.1 `model`: the served one; unknown: `invalid_payload`; 7.1 MODEL_NOT_FOUND: no close."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        assert await client.ask(G3.init(model="other")) == error("invalid_payload", "payload.model")
        await client.send(G3.init(model="scripted"))
        await client.expect("session.created")


async def test_mode_has_no_effect_and_unknown_fields_are_ignored(stack: Stack) -> None:
    """3.1 `mode`: any, listed. Section 1: unknown fields in events are ignored without comment."""
    async with stack.client() as client:
        created = await G3.begin(client, mode={"x": 1}, nonsense=[1], deferred_finalize=True)
        assert created["unsupported_fields"] == ["mode"]


async def test_tools_are_not_honoured(stack: Stack) -> None:
    """3.1 `tools`: later; listed in `unsupported_fields`."""
    async with stack.client() as client:
        created = await G3.begin(client, tools=[{"name": "x"}])
        assert created["unsupported_fields"] == ["tools"]


@both
async def test_null_for_an_optional_field_equals_absence(stack: Stack, words: Words) -> None:
    """7.2: `null` for an optional field equals absence."""
    names = ["max_slice_nums", words.config, "ref_audio", "tts_ref_audio"]
    if words is G3:
        names += ["use_tts", "seed", "model", "tools", "voice", "mode"]
    async with stack.client() as client:
        created = await words.begin(client, **dict.fromkeys(names))
        assert "unsupported_fields" not in created


@both
async def test_slices_of_the_session(stack: Stack, words: Words) -> None:
    """3.1, 4.1 `max_slice_nums`: int 1..9; 3.6: inside `config` it is accepted as the session value."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        for bad in (0, 10, "1", 1.5):
            refused = await client.ask(words.init(max_slice_nums=bad))
            assert refused == error("invalid_payload", words.path("max_slice_nums"))
        refused = await client.ask(words.init(**{words.config: {"max_slice_nums": 10}}))
        assert refused == error("invalid_payload", words.path(f"{words.config}.max_slice_nums"))
        await client.send(words.init(max_slice_nums=9, **{words.config: {"max_slice_nums": 1}}))
        created = await client.expect("session.created")
        assert created["unsupported_fields"] == ["max_slice_nums"], "the model sees nothing"


# -------------------------------------------------------------------------------------------- 3.6 config

CONFIG: list[tuple[str, list[Any], list[Any]]] = [
    ("generate_audio", [True, False], [1, "true"]),
    ("ls_mode", ["explicit"], ["implicit", 1]),
    ("force_listen_count", [0, 60], [-1, 61, 1.5, "3", True]),
    ("max_new_speak_tokens_per_chunk", [1, 100], [0, 101, "20"]),
    ("decode_mode", ["sampling", "greedy"], ["beam", 1]),
    ("temperature", [0, 2], [-0.1, 2.1, "hot"]),
    ("top_k", [1, 1000], [0, 1001, 1.5]),
    ("top_p", [0.01, 1], [0, 1.1, "0.8"]),
    ("text_repetition_penalty", [0.5, 2], [0.4, 2.1, "1"]),
    ("text_repetition_window_size", [0, 8192], [-1, 8193, 1.5]),
    ("length_penalty", [0.1, 5], [0.09, 5.1, True]),
    ("listen_prob_scale", [0, 10], [-0.1, 10.1, "1"]),
    ("listen_top_k", [None, 1], [0, "1"]),
    ("tts_temperature", [0, 2], [-0.1, 2.1, "1"]),
    ("chunk_ms", [1000], [999, "1000"]),
    ("sample_rate", [16000], [8000, "16000"]),
]


@both
@pytest.mark.parametrize(("key", "legal", "_illegal"), CONFIG, ids=[row[0] for row in CONFIG])
async def test_config_key_within_its_bounds(
    stack: Stack, words: Words, key: str, legal: list[Any], _illegal: list[Any]
) -> None:
    """3.6, one row of the table: both ends of the range are accepted, and reach the model."""
    for value in legal:
        async with stack.client() as client:
            created = await words.begin(client, TELLS, **{words.config: {key: value}})
            assert "unsupported_fields" not in created
            effective = (await told(client, words))["setup"]["duplex"]
        if key == "decode_mode":
            assert effective["greedy"] is (value == "greedy")
        elif key in effective:
            assert effective[key] == (pytest.approx(value) if isinstance(value, float) else value)


@both
@pytest.mark.parametrize(("key", "_legal", "illegal"), CONFIG, ids=[row[0] for row in CONFIG])
async def test_config_key_out_of_bounds_or_of_wrong_type(
    stack: Stack, words: Words, key: str, _legal: list[Any], illegal: list[Any]
) -> None:
    """3.6: wrong type or out of range: `invalid_payload`; 7.2: the message names field and expectation."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        path = words.path(f"{words.config}.{key}")
        for value in illegal:
            refused = await client.ask(words.init(**{words.config: {key: value}}))
            assert refused == error("invalid_payload", path)
            assert refused["error"]["message"] == Text(f"{path}: expected .+, got .+")
        await client.send(words.init())
        await client.expect("session.created")


@both
async def test_config_defaults_are_the_models(stack: Stack, words: Words) -> None:
    """3.6: unset means the model's own default; `null` equals absence."""
    async with stack.client() as client:
        await words.begin(client, TELLS, **{words.config: dict.fromkeys(row[0] for row in CONFIG)})
        assert (await told(client, words))["setup"]["duplex"] == {
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


@both
async def test_config_unknown_keys_are_listed(stack: Stack, words: Words) -> None:
    """3.6: unknown key, or one the model cannot honour: accepted and listed in `unsupported_fields`."""
    async with stack.client() as client:
        given = {words.config: {"speed": 2, "top_k": 5}, "ref_audio": f32(16_000)}
        created = await words.begin(client, **given)
        reference = "voice.ref_audio_base64" if words is G3 else "ref_audio"
        assert created["unsupported_fields"] == [f"{words.config}.speed", reference]


@both
async def test_config_does_not_survive_into_another_session(narrow: Stack, words: Words) -> None:
    """3.6: nothing survives into another session: the same slot, one after the other."""
    for given, top_k in (({"top_k": 5}, 5), ({}, 20)):
        async with narrow.client() as client:
            client.ignored = {"session.queued", "session.queue_update"}
            await words.begin(client, TELLS, **{words.config: given})
            assert (await told(client, words))["setup"]["duplex"]["top_k"] == top_k


# --------------------------------------------------------------------------------- 6.6 reference audio


def wav(seconds: float, rate: int = 16_000, channels: int = 1, width: int = 2) -> str:
    """Base64 of a WAV file of silence."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(bytes(round(seconds * rate) * channels * width))
    return base64.b64encode(file.getvalue()).decode()


GOOD_REFERENCES = {
    "raw float32 of 0.5 s": f32(8000),
    "raw float32 of 30 s": f32(480_000),
    "WAV of 16 bits": wav(1.0),
    "WAV of 24 bits": wav(1.0, width=3),
    "WAV of 32 bits, 2 channels": wav(1.0, channels=2, width=4),
    "WAV of 8 kHz": wav(1.0, 8_000),
    "WAV of 48 kHz": wav(1.0, 48_000),
    "data prefix": "data:audio/wav;base64," + wav(1.0),
}
BAD_REFERENCES = {
    "too short": f32(7999),
    "too long": f32(480_001),
    "WAV too long": wav(30.1),
    "WAV of 8 bits": wav(1.0, width=1),
    "WAV of 3 channels": wav(1.0, channels=3),
    "WAV below 8 kHz": wav(1.0, 7_999),
    "WAV above 48 kHz": wav(1.0, 48_001),
    "broken WAV": base64.b64encode(b"RIFF" + bytes(40_000)).decode(),
    "not base64": "?" * 44_000,
    "no whole samples": base64.b64encode(bytes(40_001)).decode(),
    "NaN": base64.b64encode(np.full(16_000, np.nan, "<f4").tobytes()).decode(),
    "not audio": base64.b64encode(np.full(16_000, 99.0, "<f4").tobytes()).decode(),
}


@both
@pytest.mark.parametrize("field", ["ref_audio", "tts_ref_audio"])
async def test_reference_audio(stack: Stack, words: Words, field: str) -> None:
    """6.6: `RIFF` is WAV, else raw f32; 0.5 s to 30 s; a `data:` prefix is removed."""
    for name, reference in GOOD_REFERENCES.items():
        async with stack.client() as client:
            created = await words.begin(client, **{field: reference})
            # A model with one voice hears no reference, and says so.
            told = f"voice.{field}_base64" if words is G3 else field
            assert created["unsupported_fields"] == [told], name


@both
@pytest.mark.parametrize("field", ["ref_audio", "tts_ref_audio"])
async def test_bad_reference_audio(stack: Stack, words: Words, field: str) -> None:
    """6.6: bad: `invalid_payload`, state unchanged."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        for name, reference in BAD_REFERENCES.items():
            refused = await client.ask(words.init(**{field: reference}))
            assert refused == error("invalid_payload", words.path(field)), name
        await client.send(words.init())
        await client.expect("session.created")


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        ({"voice": {"ref_audio_base64": "?"}, "ref_audio": f32(8000)}, "payload.voice.ref_audio_base64"),
        ({"voice": {"tts_ref_audio": "?"}}, "payload.voice.tts_ref_audio"),
        ({"defaults": {"ref_audio": "?"}}, "payload.defaults.ref_audio"),
        ({"tts_ref_audio_base64": "?"}, "payload.tts_ref_audio_base64"),
        ({"voice": {"ref_audio_path": "nobody"}}, "payload.voice.ref_audio_path"),
        ({"ref_audio_path": "/etc/passwd"}, "payload.ref_audio_path"),
    ],
)
async def test_places_of_the_voice(stack: Stack, payload: Event, param: str) -> None:
    """3.1 `voice`: alias `defaults`; keys with their aliases, also at payload top level; `voice` wins.

    6.6: `ref_audio_path` is an id in the registry, never opened; unknown: `invalid_payload`, 7.1: no close.
    """
    async with stack.client() as client:
        await client.expect("session.queue_done")
        refused = await client.ask(G3.init(**payload))
        assert refused == error("invalid_payload", param)
        assert "/etc" not in refused["error"]["message"]
        await client.send(G3.init())
        await client.expect("session.created")


@pytest.mark.parametrize("field", ["ref_audio_base64", "tts_ref_audio_base64", "ref_audio_path"])
async def test_voice_aliases_of_the_earlier_dialect(stack: Stack, field: str) -> None:
    """4.1: `ref_audio`, `tts_ref_audio`: aliases as G3."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        assert await client.ask(G2.init(**{field: "?"})) == error("invalid_payload", f"session.{field}")
