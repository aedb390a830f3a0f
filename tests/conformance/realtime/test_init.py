"""Openers of `/v1/realtime`, their `config` and voices, as the model tells what of them reached it."""

import base64
from typing import Any

import pytest

from tests.conformance.support.client import Event
from tests.conformance.support.match import EARLIER_ID, error, prompt_usage
from tests.conformance.support.recordings import RECORDINGS
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import G2, G3, TELLS, Words, both, f32, plays, told
from tests.support.scripted_engine import PROMPT_TOKENS

WAV = base64.b64encode((RECORDINGS / "greeting.wav").read_bytes()).decode()
DATA = "data:audio/wav;base64,"


async def test_session_created_earlier(stack: Stack) -> None:
    """Its id is made of Unix milliseconds, and raised by 1 if it is already used; its prompt may be empty."""
    async with stack.client() as one, stack.client() as two, stack.client() as three:
        for client in (one, two, three):
            await client.expect("session.queue_done")
        for client in (one, two, three):
            await client.send(G2.init(instructions=""))
        created = [await client.expect("session.created") for client in (one, two, three)]
    assert (
        created
        == [
            {
                "type": "session.created",
                "session_id": EARLIER_ID,
                "prompt_length": PROMPT_TOKENS,
                "usage": prompt_usage(PROMPT_TOKENS),
            }
        ]
        * 3
    )
    assert len({event["session_id"] for event in created}) == 3


@both
async def test_required_fields_of_the_initialising_event(stack: Stack, words: Words) -> None:
    opener = {"type": words.opener}
    field = words.opener_field
    longest = "é" * 32_768
    async with stack.client() as client:
        await client.expect("session.queue_done")
        for event in (opener, {**opener, field: None}):
            assert await client.ask(event) == error("missing_field", field)
        for value in ([], "text", 5):
            assert await client.ask({**opener, field: value}) == error("invalid_payload", field)
        if words is G2:
            for session in ({}, {"instructions": None}):
                refused = await client.ask({**opener, field: session})
                assert refused == error("missing_field", "session.instructions")
        refused = await client.ask(words.init(**{words.prompt: longest + "é"}))
        assert refused == error("invalid_payload", words.path(words.prompt))
        await client.send(words.init(**{words.prompt: longest}))
        await client.expect("session.created")


@pytest.mark.parametrize(
    ("words", "field"), [(G3, "config"), (G3, "duplex"), (G2, "voice_config"), (G2, "config")]
)
async def test_config_alias(stack: Stack, words: Words, field: str) -> None:
    """Errors name the field that was given."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        refused = await client.ask(words.init(**{field: {"top_k": 0}}))
        assert refused == error("invalid_payload", words.path(f"{field}.top_k"))
        await client.send(words.init(plays(TELLS), **{field: {"top_k": 7}}))
        await client.expect("session.created")
        assert (await told(client, words))["setup"]["duplex"]["top_k"] == 7


@both
async def test_null_for_an_optional_field_equals_absence(stack: Stack, words: Words) -> None:
    names = ["max_slice_nums", words.config, "ref_audio", "tts_ref_audio"]
    if words is G3:
        names += ["use_tts", "seed", "model", "tools", "voice", "mode"]
    async with stack.client() as client:
        created = await words.begin(client, **dict.fromkeys(names))
        assert "unsupported_fields" not in created


@both
async def test_slices_of_the_session(stack: Stack, words: Words) -> None:
    """Inside `config` they are the session's too."""
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


CONFIG: dict[str, tuple[Any, Any]] = {
    "generate_audio": (False, True),
    "ls_mode": ("explicit", "explicit"),
    "force_listen_count": (0, 60),
    "max_new_speak_tokens_per_chunk": (1, 100),
    "decode_mode": ("sampling", "greedy"),
    "temperature": (0, 2),
    "top_k": (1, 1000),
    "top_p": (0.01, 1),
    "text_repetition_penalty": (0.5, 2),
    "text_repetition_window_size": (0, 8192),
    "length_penalty": (0.1, 5),
    "listen_prob_scale": (0, 10),
    "listen_top_k": (None, 1),
    "tts_temperature": (0, 2),
    "chunk_ms": (1000, 1000),
    "sample_rate": (16000, 16000),
}


@both
@pytest.mark.parametrize("end", [0, 1], ids=["lowest", "highest"])
async def test_config_at_the_ends_of_its_ranges_reaches_the_model(
    stack: Stack, words: Words, end: int
) -> None:
    given = {key: ends[end] for key, ends in CONFIG.items()}
    async with stack.client() as client:
        created = await words.begin(client, TELLS, **{words.config: given})
        assert "unsupported_fields" not in created
        effective = (await told(client, words))["setup"]["duplex"]
    assert effective.pop("greedy") is (given["decode_mode"] == "greedy")
    assert effective == {key: pytest.approx(given[key]) for key in effective}


@both
async def test_config_unknown_keys_are_listed(stack: Stack, words: Words) -> None:
    async with stack.client() as client:
        given = {words.config: {"speed": 2, "top_k": 5}, "ref_audio": f32(16_000)}
        created = await words.begin(client, **given)
        reference = "voice.ref_audio_base64" if words is G3 else "ref_audio"
        assert created["unsupported_fields"] == [f"{words.config}.speed", reference]


@both
async def test_config_does_not_survive_into_another_session(narrow: Stack, words: Words) -> None:
    """The sessions use the same slot, one after the other."""
    for given, top_k in (({"top_k": 5}, 5), ({}, 20)):
        async with narrow.client() as client:
            client.ignored = {"session.queued", "session.queue_update"}
            await words.begin(client, TELLS, **{words.config: given})
            assert (await told(client, words))["setup"]["duplex"]["top_k"] == top_k


@both
@pytest.mark.parametrize("field", ["ref_audio", "tts_ref_audio"])
async def test_reference_audio(stack: Stack, words: Words, field: str) -> None:
    """A model with one voice hears no reference, and says so."""
    listed = f"voice.{field}_base64" if words is G3 else field
    for good, bad in ((f32(8_000), f32(7_999)), (f32(480_000), f32(480_001)), (DATA + WAV, WAV[:1000])):
        async with stack.client() as client:
            await client.expect("session.queue_done")
            refused = await client.ask(words.init(**{field: bad}))
            assert refused == error("invalid_payload", words.path(field))
            await client.send(words.init(**{field: good}))
            assert (await client.expect("session.created"))["unsupported_fields"] == [listed]


@pytest.mark.parametrize(
    ("words", "fields", "param"),
    [
        (G3, {"voice": {"ref_audio_base64": "?"}, "ref_audio": f32(8000)}, "voice.ref_audio_base64"),
        (G3, {"voice": {"tts_ref_audio": "?"}}, "voice.tts_ref_audio"),
        (G3, {"defaults": {"ref_audio": "?"}}, "defaults.ref_audio"),
        (G3, {"tts_ref_audio_base64": "?"}, "tts_ref_audio_base64"),
        (G3, {"ref_audio_path": "/etc/passwd"}, "ref_audio_path"),
        *(
            (G2, {field: "?"}, field)
            for field in ("ref_audio_base64", "tts_ref_audio_base64", "ref_audio_path")
        ),
    ],
)
async def test_places_of_the_voice(stack: Stack, words: Words, fields: Event, param: str) -> None:
    """A path is an id in the registry, and is never opened; whatever is refused may be corrected."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        refused = await client.ask(words.init(**fields))
        assert refused == error("invalid_payload", words.path(param))
        assert "/etc" not in refused["error"]["message"]
        await client.send(words.init())
        await client.expect("session.created")
