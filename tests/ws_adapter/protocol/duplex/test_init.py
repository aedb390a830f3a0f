"""`session.init`: the `config` table, prompts, voices, and what is said about bad values."""

import base64
import struct

import numpy as np
import pytest

from tests.ws_adapter.support.conversation import CATALOGUE, Conversation, Event, codes
from tests.ws_adapter.support.sound import tone, wav
from ws_adapter.protocol.core.config import DEFAULT_PROMPT, DuplexConfig, SessionSetup

CONFIG = {
    "generate_audio": ([True, False], [1, "true", []]),
    "ls_mode": (["explicit"], ["implicit", "", 1]),
    "force_listen_count": ([0, 3, 60], [-1, 61, 1.5, "3", True]),
    "max_new_speak_tokens_per_chunk": ([1, 20, 100], [0, 101]),
    "decode_mode": (["sampling", "greedy"], ["beam", 0]),
    "temperature": ([0, 0.7, 2], [-0.1, 2.1, "0.7", False]),
    "top_k": ([1, 20, 1000], [0, 1001, 20.0]),
    "top_p": ([0.001, 0.8, 1], [0, 1.01]),
    "text_repetition_penalty": ([0.5, 1.05, 2], [0.49, 2.01]),
    "text_repetition_window_size": ([0, 512, 8192], [-1, 8193]),
    "length_penalty": ([0.1, 1.1, 5], [0.09, 5.01, {}]),
    "listen_prob_scale": ([0, 1.0, 10], [-1, 10.5]),
    "listen_top_k": ([None, 1, 5], [0, -3, "1"]),
    "tts_temperature": ([0, 0.8, 2], [-1, 3]),
    "chunk_ms": ([1000], [500, 999, "1000"]),
    "sample_rate": ([16000], [8000, 24000]),
}
"""Values in range and out of it."""


def init(payload: Event, catalogue: object = CATALOGUE) -> tuple[SessionSetup | None, list[Event]]:
    talk = Conversation(catalogue=catalogue)  # type: ignore[arg-type]
    talk.connect()
    events = talk.client({"type": "session.init", "payload": payload})
    return (talk.configured[0].setup if talk.configured else None), events


def accepted(payload: Event) -> SessionSetup:
    setup, events = init(payload)
    assert events == []
    assert setup is not None
    return setup


def refused(payload: Event) -> Event:
    setup, events = init(payload)
    assert setup is None
    assert len(events) == 1
    error: Event = events[0]["error"]
    return error


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, (good, _) in CONFIG.items() for value in good]
)
def test_config_in_range(key: str, value: object) -> None:
    setup = accepted({"config": {key: value}})
    assert getattr(setup.duplex, key) == value
    assert setup.unsupported == ()


def test_table_is_complete() -> None:
    assert CONFIG.keys() == set(DuplexConfig.__struct_fields__)


def test_unset_config_is_left_to_the_model() -> None:
    nulls = dict.fromkeys(DuplexConfig.__struct_fields__)
    assert accepted({}).duplex == accepted({"config": nulls}).duplex == DuplexConfig()


def test_config_wins_over_its_alias() -> None:
    assert accepted({"config": {"top_k": 5}, "duplex": {"top_k": 6}}).duplex.top_k == 5


def test_unknown_config_keys_are_listed() -> None:
    assert accepted({"duplex": {"top_k": 5, "magic": 1}}).unsupported == ("duplex.magic",)
    assert accepted({"config": {"max_slice_nums": 9}}).unsupported == ()


def test_list_of_unknown_keys_is_bounded() -> None:
    unsupported = accepted({"config": {f"{number}" * 200: 1 for number in range(500)}}).unsupported
    assert len(unsupported) == 64
    assert max(map(len, unsupported)) == 128


@pytest.mark.parametrize(
    ("use_tts", "generate_audio", "result"),
    [(False, None, False), (False, True, False), (True, False, False), (True, None, None)],
)
def test_use_tts_false_means_no_audio(
    use_tts: bool, generate_audio: bool | None, result: bool | None
) -> None:
    setup = accepted({"use_tts": use_tts, "config": {"generate_audio": generate_audio}})
    assert setup.duplex.generate_audio is result


def test_payload_is_required() -> None:
    talk = Conversation()
    talk.connect()
    for event in ({"type": "session.init"}, {"type": "session.init", "payload": None}):
        error = talk.client(event)[0]["error"]
        assert (error["code"], error["param"]) == ("missing_field", "payload")


@pytest.mark.parametrize(
    ("payload", "prompt"),
    [
        ({}, DEFAULT_PROMPT),
        ({"system_prompt": "A"}, "A"),
        ({"instructions": "B"}, "B"),
        ({"system_prompt": "A", "instructions": "B"}, "A"),
        ({"system_prompt": None, "instructions": "B"}, "B"),
        ({"system_prompt": "x" * 32_768}, "x" * 32_768),
    ],
)
def test_prompt(payload: Event, prompt: str) -> None:
    assert accepted(payload).system_prompt == prompt


BAD_CONFIG = [
    *((key, value) for key, (_, bad) in CONFIG.items() for value in bad),
    *(("max_slice_nums", value) for value in (0, 10)),
]


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        *(
            ({alias: {key: value}}, f"{alias}.{key}: expected ")
            for alias in ("config", "duplex")
            for key, value in BAD_CONFIG
        ),
        ({"config": {"top_k": 0}}, "config.top_k: expected an integer from 1 to 1000, got 0"),
        ({"config": {"top_p": 0}}, "config.top_p: expected a number above 0 up to 1, got 0"),
        ({"config": {"decode_mode": "x"}}, 'config.decode_mode: expected "greedy" or "sampling", got "x"'),
        ({"use_tts": "yes"}, 'use_tts: expected true or false, got "yes"'),
        ({"config": [1]}, "config: expected an object, got a list"),
        *(({"seed": value}, "seed: expected ") for value in (-1, 2**63, 10**400, 1.5)),
        *(({"system_prompt": value}, "system_prompt: expected ") for value in ("x" * 32_769, 5)),
        ({"max_slice_nums": 10}, "max_slice_nums: expected "),
        ({"tools": {}}, "tools: expected "),
        ({"model": "gpt-9"}, "model: "),
        ({"voice": "amber"}, "voice: expected "),
        ({"ref_audio": "%%%"}, "ref_audio: expected "),
        ({"config": "fast"}, "config: expected "),
    ],
)
def test_bad_payload_is_refused_with_field_expectation_and_what_came(payload: Event, told: str) -> None:
    error = refused(payload)
    assert (error["code"], error["param"]) == ("invalid_payload", "payload." + told.partition(":")[0])
    assert error["message"].startswith(f"payload.{told}")


def test_seed_and_model_are_taken_and_mode_is_ignored() -> None:
    setup = accepted({"seed": 2**63 - 1, "model": "antiphon-mini", "mode": ["anything"]})
    assert (setup.seed, setup.model) == (2**63 - 1, "antiphon-mini")


def test_models_and_voices_are_left_to_the_worker_while_none_is_known() -> None:
    setup, _ = init({"model": "gpt-9", "voice": {"ref_audio_path": "who"}}, catalogue=None)
    assert setup is not None
    assert setup.voice.voice_id == "who"


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def float_wav(samples: np.ndarray, rate: int = 16_000) -> bytes:
    data = samples.astype("<f4").tobytes()
    layout = struct.pack("<HHIIHH", 3, 1, rate, rate * 4, 4, 32)
    chunks = b"fmt " + struct.pack("<I", 16) + layout + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


def reference(data: bytes) -> np.ndarray:
    found = accepted({"voice": {"ref_audio_base64": base64_of(data)}}).voice.llm_reference
    assert found is not None
    return np.frombuffer(found, "<f4")


def test_float_reference_is_taken_as_it_is() -> None:
    np.testing.assert_array_equal(reference(tone(16_000, 0.5).tobytes()), tone(16_000, 0.5))
    np.testing.assert_array_equal(reference(float_wav(tone(16_000, 0.5))), tone(16_000, 0.5))


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_reference(width: int, channels: int) -> None:
    heard = reference(wav(tone(16_000, 0.5), width=width, channels=channels))
    np.testing.assert_allclose(heard, tone(16_000, 0.5), atol=1e-4)


@pytest.mark.parametrize("rate", [8_000, 24_000, 44_100, 48_000])
def test_reference_is_resampled(rate: int) -> None:
    heard = reference(wav(tone(rate, 1.0), rate=rate))
    assert heard.size == 16_000
    np.testing.assert_allclose(heard[2000:14_000], tone(16_000, 1.0)[2000:14_000], atol=0.02)


def test_data_prefix_is_removed() -> None:
    text = "data:audio/wav;base64," + base64_of(wav(tone(16_000, 0.5)))
    assert accepted({"voice": {"ref_audio": text}}).voice.llm_reference is not None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(tone(16_000, 0.49).tobytes(), id="too short"),
        pytest.param(tone(16_000, 30.1).tobytes(), id="too long"),
        pytest.param(wav(tone(8_000, 31.5), rate=8_000), id="too long in a file"),
        pytest.param(tone(16_000, 0.5).tobytes() + b"x", id="broken sample"),
        pytest.param(np.full(16_000, np.nan, "<f4").tobytes(), id="not a number"),
        pytest.param(float_wav(np.full(16_000, np.inf, "<f4")), id="infinite in a file"),
        pytest.param(np.full(16_000, 1e6, "<f4").tobytes(), id="not audio"),
        pytest.param(wav(tone(16_000, 1.0))[:34] + b"\x08\x00" + wav(tone(16_000, 1.0))[36:], id="8 bits"),
        pytest.param(wav(tone(16_000, 0.5), channels=3), id="3 channels"),
        pytest.param(wav(tone(7_999, 1.0), rate=7_999), id="rate too low"),
        pytest.param(wav(tone(16_000, 1.0), rate=96_000), id="rate too high"),
        pytest.param(b"RIFF\x24\x00\x00\x00WAVE", id="header only"),
        pytest.param(b"RIFF" + bytes(200), id="not a WAV file"),
        pytest.param(wav(tone(16_000, 1.0))[:20_000], id="truncated"),
        pytest.param(wav(tone(16_000, 0.0)), id="no samples"),
        pytest.param(b"RIFF\x24\x00\x00\x00WAVEfmt \xff\xff\x00\x00" + bytes(60), id="lying chunk"),
    ],
)
def test_bad_reference(data: bytes) -> None:
    error = refused({"voice": {"tts_ref_audio_base64": base64_of(data)}})
    assert error["code"] == "invalid_payload"
    assert error["param"] == "payload.voice.tts_ref_audio_base64"


def test_places_of_a_reference() -> None:
    low, middle, high = (base64_of((tone(16_000, 0.5) * gain).tobytes()) for gain in (0.1, 0.2, 0.3))
    places = {"ref_audio_base64": low, "defaults": {"ref_audio": middle}, "voice": {"ref_audio": high}}
    voice = accepted({**places, "tts_ref_audio": low}).voice
    assert voice.llm_reference == base64.b64decode(high)
    assert voice.speech_reference == base64.b64decode(low)


@pytest.mark.parametrize("path", ["amber", "Amber.wav", "/etc/voices/AMBER.WAV", "..\\amber.mp3"])
def test_registered_voice(path: str) -> None:
    assert accepted({"voice": {"ref_audio_path": path}}).voice.voice_id == "amber"


@pytest.mark.parametrize("path", ["beryl", "/etc/passwd", "am ber", "../", "x" * 65])
def test_unregistered_voice(path: str) -> None:
    assert refused({"ref_audio_path": path})["param"] == "payload.ref_audio_path"


def test_audio_wins_over_a_registered_voice() -> None:
    voice = {"ref_audio": base64_of(tone(16_000, 0.5).tobytes()), "ref_audio_path": "amber"}
    assert accepted({"voice": voice}).voice.voice_id is None


def test_bad_voice_leaves_no_trace() -> None:
    talk = Conversation()
    talk.connect()
    bad = {"type": "session.init", "payload": {"voice": {"ref_audio": "QUJD"}}}
    assert codes(talk.client(bad)) == ["invalid_payload"]
    assert talk.client({"type": "session.init", "payload": {}}) == []
    assert talk.configured[0].setup.voice.llm_reference is None
