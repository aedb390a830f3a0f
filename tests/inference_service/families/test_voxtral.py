"""Voxtral Realtime: in pieces, in a crowd and without end, equal to transformers over the whole sound."""

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import VoxtralRealtimeForConditionalGeneration as Network

from inference_service.checkpoints import voxtral
from inference_service.device.paged import AttentionBackend, gathered
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.draw import Draw
from inference_service.engine.batch.pages import PAGE
from inference_service.engine.batch.rolling import SLACK
from inference_service.errors import ConfigurationError
from inference_service.families import table, voxtral_runtime
from inference_service.families.voxtral_runtime import VoxtralRuntime
from inference_service.families.voxtral_session import VoxtralPreprocessor, VoxtralTranscription
from inference_service.interface.engine import Done, End, Finish, Ready, UnitUsage
from inference_service.interface.setups import UnitOverrides
from inference_service.models.errors import CheckpointError
from tests.inference_service.engine.support import tiny_voxtral
from tests.inference_service.engine.support.dictation import Sound, Writer, noise, run
from tests.inference_service.engine.support.tiny_voxtral import DELAY, EAR_REACH, LEFT_PAD, PROMPT, REACH

FRAME = 1280
"""Samples of one token."""
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_voxtral.save(tmp_path_factory.mktemp("voxtral"))


@pytest.fixture(scope="module")
def runtime(folder: Path) -> VoxtralRuntime:
    return VoxtralRuntime(voxtral.load(folder, CPU), 2)


@pytest.fixture(scope="module")
def network(folder: Path) -> Network:
    """transformers' model with its own attention, for what is right."""
    loaded: Network = Network.from_pretrained(folder, attn_implementation="eager").eval()
    return loaded


class Scribbler(Writer):
    """A writer whose every decision is known, also those that are no text, with scores and hidden states."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.decisions: list[int] = []
        self.logits: list[Tensor] = []
        self.rows = 0
        self.hidden: dict[int, Tensor] = {}
        """By row, of those that ended a forward."""
        session = self.session
        assert isinstance(session, VoxtralTranscription)
        decided, draw, take = session.decided, session.draw, session.take

        def noting_token(token: int) -> int | None:
            self.decisions.append(token)
            return decided(token)

        def noting_scores() -> Draw | None:
            assert session.last_hidden is not None
            asked = draw()
            if asked is not None:
                self.logits.append(self.runtime.scores(session.last_hidden[None])[0])
            return asked

        def noting_hidden(count: int, hidden: Tensor | None) -> None:
            if hidden is not None:
                self.rows += count
                self.hidden[self.rows - 1] = hidden
            take(count, hidden)

        session.decided, session.draw, session.take = noting_token, noting_scores, noting_hidden  # type: ignore[method-assign]


def padded(sound: Sound) -> Sound:
    """The whole utterance as transformers' processor pads it for one pass."""
    return np.pad(sound, (LEFT_PAD * FRAME, -len(sound) % FRAME + (DELAY + 11) * FRAME))


def mel_of(sound: Sound) -> Tensor:
    """[1, bands, frames]."""
    features: Tensor = tiny_voxtral.features()(
        padded(sound), sampling_rate=16_000, return_tensors="pt"
    ).input_features
    return features


def prompt() -> Tensor:
    return torch.tensor([[tiny_voxtral.BEGIN, *[tiny_voxtral.PAD] * (PROMPT - 1)]])


def generated(network: Network, sound: Sound) -> list[int]:
    """Return the greedy output of transformers' own `generate`, to the end of the sound."""
    ids = network.generate(
        input_ids=prompt(),
        input_features=mel_of(sound),
        num_delay_tokens=DELAY,
        do_sample=False,
        max_new_tokens=10_000,  # more than there is sound for
        eos_token_id=tiny_voxtral.VOCABULARY + 1,
        pad_token_id=0,
    )
    return [int(token) for token in ids[0, PROMPT:]]


def text_ids(tokens: list[int]) -> list[int]:
    return [token for token in tokens if token >= tiny_voxtral.CONTROLS]


@pytest.mark.parametrize(("longest", "seconds"), [(700, 2.0), (5000, 4.3), (500_000, 30.0)])
@pytest.mark.sample("700-2.0", "5000-4.3")
def test_chunks_of_any_length_say_what_generate_says(
    runtime: VoxtralRuntime, network: Network, longest: int, seconds: float
) -> None:
    sound = noise(longest, seconds)
    expected = generated(network, sound)
    wrote = Scribbler(runtime)
    wrote.write(sound, longest, longest)
    assert wrote.decisions == expected
    assert wrote.token_ids == text_ids(expected)
    assert len({*expected}) > 20


def test_scores_and_hidden_states_are_those_of_one_forward(runtime: VoxtralRuntime, network: Network) -> None:
    sound = noise(11, 6.0)
    wrote = Scribbler(runtime)
    wrote.write(sound, 11, 9000)
    fed = [*prompt()[0].tolist(), *wrote.decisions[:-1]]
    features = mel_of(sound)[:, :, : len(fed) * 8]

    with torch.no_grad():
        whole = network.model(
            input_ids=torch.tensor([fed]), input_features=features, num_delay_tokens=DELAY, use_cache=False
        ).last_hidden_state
        logits = network.lm_head(whole)[0, PROMPT - 1 :]

    torch.testing.assert_close(
        torch.stack([*wrote.hidden.values()]), whole[0, [*wrote.hidden]], atol=5e-5, rtol=1e-5
    )
    torch.testing.assert_close(torch.stack(wrote.logits), logits, atol=1e-4, rtol=1e-5)


def test_text_is_that_of_its_bytes(runtime: VoxtralRuntime) -> None:
    wrote = Writer(runtime).write(noise(5, 6.0), 5, 3000)
    spelled = b"".join(tiny_voxtral.WORDS[token - tiny_voxtral.CONTROLS] for token in wrote.token_ids)
    assert [*filter(str.isascii, wrote.text)] == [*filter(str.isascii, spelled.decode(errors="replace"))]
    assert any(map(str.isalpha, wrote.text))


def test_first_token_waits_for_the_delay_and_half_a_window_and_then_80_ms_make_one(
    runtime: VoxtralRuntime,
) -> None:
    enough = (DELAY + 1) * FRAME + 40
    one = Writer(runtime)
    short = one.send(noise(1, 1.0)[: enough - 1], begins=True)
    rest = one.send(noise(1, 1.0)[enough - 1 : enough])
    unit = one.send(noise(2, 4.0))
    one.run()
    assert [ready.prompt_tokens for ready in one.of(Ready)] == [PROMPT]
    assert (one.done(short).usage, one.done(short).end) == (UnitUsage(), End.CHUNK)
    used = [one.done(it).usage for it in (rest, unit)]
    assert [(it.input_audio_tokens, it.output_text_tokens) for it in used] == [(PROMPT, 1), (50, 50)]


def test_silence_before_an_utterance_is_computed_once(runtime: VoxtralRuntime) -> None:
    cache = runtime.language.cache
    Scribbler(runtime).write(noise(3, 2.0), 5000, 5000)
    before = cache.adopted_rows
    Scribbler(runtime).write(noise(4, 2.0), 5000, 5000)
    assert cache.adopted_rows - before == (PROMPT - DELAY) // PAGE * PAGE


def test_overrides_of_a_unit_do_not_stick(runtime: VoxtralRuntime) -> None:
    one = Writer(runtime)
    one.send(
        noise(2, 4.0), begins=True, overrides=UnitOverrides(temperature=1.5, top_p=1.0, max_new_tokens=5)
    )
    unit = one.send(noise(3, 1.6))
    one.run()

    assert one.done(1).finish is Finish.LENGTH
    assert one.done(1).usage.output_text_tokens == 5
    assert one.done(1).usage.input_audio_tokens > 40
    assert one.done(unit).usage.output_text_tokens == 20


def test_bad_numbers_fail_one_unit_and_the_next_begins_anew(
    runtime: VoxtralRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = noise(6, 3.0)
    alone = Writer(runtime).write(sound).token_ids
    one, other = Writer(runtime), Writer(runtime, slot=1)
    one.send(noise(1, 2.0), begins=True)
    one.run()
    think = runtime.think

    def spoil_first_slot(segments: list[Segment]) -> list[Tensor | None]:
        return [None if s.slot == 0 else h for s, h in zip(segments, think(segments), strict=True)]

    monkeypatch.setattr(runtime, "think", spoil_first_slot)
    bad = one.send(noise(2, 1.0))
    other.send(sound, begins=True)
    other.send(ends=True)
    run(runtime, [one, other])
    monkeypatch.undo()
    after = one.send(noise(3, 2.0))
    one.run()

    assert other.token_ids == alone
    assert (one.done(bad).end, one.done(bad).usage.output_text_tokens) == (End.FAILED, 0)
    assert "INFERENCE_FAILED" in str(one.done(bad).failure)
    assert one.done(after).end is End.CHUNK
    assert one.done(after).usage.input_audio_tokens == LEFT_PAD + 25


@pytest.mark.long
def test_an_hour_takes_no_more_memory_and_looks_back_no_further_than_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token stands for 3.2 s, so that the decoder sees 56 of its windows go by in an hour."""
    folder = tiny_voxtral.save(tmp_path, 40 * tiny_voxtral.HOP)
    runtime = VoxtralRuntime(voxtral.load(folder, CPU), 1)
    one = Writer(runtime)
    session = one.session
    assert isinstance(session, VoxtralTranscription)
    starts: dict[str, list[int]] = {"language": [], "ear": []}
    for name, stack, method in (("language", runtime.language, "last"), ("ear", runtime.ear, "forward")):
        run = getattr(stack, method)

        def watched(segments: list[Segment], *others: Any, name: str = name, run: Any = run) -> Any:
            starts[name] += [segment.start + len(segment.rows) for segment in segments]
            return run(segments, *others)

        monkeypatch.setattr(stack, method, watched)

    def sizes() -> list[tuple[int, int]]:
        caches = (runtime.language.cache, runtime.ear.cache)
        slabs = [slab for cache in caches for slab in (cache.keys, cache.values)]
        return [(slab.data_ptr(), slab.numel()) for slab in slabs]

    def held() -> list[int]:
        return [len(session.audio), *(past.numel() for past in session.past), len(session.events)]

    one.send(begins=True)
    minute = noise(0, 32.0)
    before, after_a_unit, decided = sizes(), [], 0
    for _ in range(3600 // 32):
        one.send(minute)
        one.run()
        after_a_unit.append(held())
        decided += one.of(Done)[-1].usage.output_text_tokens
        one.events.clear()

    assert sizes() == before
    assert max(starts["language"]) <= REACH + SLACK
    assert max(starts["ear"]) <= EAR_REACH + SLACK
    assert after_a_unit[-1] == after_a_unit[0]
    assert session.context.dropped > 3600 / 3.2 - REACH - SLACK
    assert session.context.tokens == REACH
    assert decided > 3600 / 3.2 - 2 * PROMPT


def test_preprocessor_pending_samples_are_bounded(runtime: VoxtralRuntime) -> None:
    one = Writer(runtime)
    preprocessor = one.session.preprocessor
    assert isinstance(preprocessor, VoxtralPreprocessor)
    one.send(begins=True)
    for index in range(200):
        one.send(noise(index, random.Random(index).uniform(0, 0.5)))
        assert len(preprocessor._sound.rest) < FRAME + 400


def spoil(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    raw = json.loads((folder / name).read_text())
    change(raw)
    (folder / name).write_text(json.dumps(raw))


def test_folder_makes_a_runtime_that_only_writes_down_in_a_context_of_its_own(folder: Path) -> None:
    info = table.load(folder, CPU, None)(1).info
    assert [mode.name for mode in info.modes] == ["TRANSCRIBE"]
    assert (info.name, info.context_limit, info.input_sample_rate_hz) == (folder.name, REACH, 16_000)
    assert info.unit_seconds == 0.08
    with pytest.raises(ConfigurationError, match="sliding window"):
        table.load(folder, CPU, 100)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tekken.json", lambda raw: raw.pop("vocab"), "tekken.json has an unknown structure"),
        ("tekken.json", lambda raw: raw.pop("audio"), "not of a streaming model"),
        ("tekken.json", lambda raw: raw["vocab"].pop(), "holds 275 words"),
        ("tekken.json", lambda raw: raw["special_tokens"].pop(32), r"no control token \[STREAMING_PAD\]"),
        ("tekken.json", lambda raw: raw["audio"].update(transcription_delay_ms=100), "multiple of 80"),
        ("tekken.json", lambda raw: raw["audio"].update(frame_rate=25), "4 mel frames in tekken.json and 8"),
        ("config.json", lambda raw: raw["text_config"].update(vocab_size=100), "cannot be loaded|vocab_size"),
        ("config.json", lambda raw: raw["text_config"].update(sliding_window=None), "no sliding_window"),
        ("config.json", lambda raw: raw["text_config"].update(num_hidden_layers=3), "lacks tensors"),
        ("config.json", lambda raw: raw["text_config"].update(num_hidden_layers=1), "no place for"),
        ("preprocessor_config.json", lambda raw: raw.update(feature_size=80), "80 bands"),
    ],
)
def test_folder_that_does_not_fit_together_is_refused(
    tmp_path: Path, name: str, change: Callable[[Any], None], message: str
) -> None:
    folder = tiny_voxtral.save(tmp_path)
    spoil(folder, name, change)
    with pytest.raises(CheckpointError, match=message):
        table.load(folder, CPU, None)(1)


@pytest.mark.parametrize("name", ["tekken.json", "preprocessor_config.json", "model.safetensors"])
def test_missing_file_is_named_and_pickled_weights_are_not_read(tmp_path: Path, name: str) -> None:
    folder = tiny_voxtral.save(tmp_path)
    torch.save(tiny_voxtral.network().state_dict(), folder / "pytorch_model.bin")
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name.replace("preprocessor", "processor")):
        table.load(folder, CPU, None)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"model_type": "whisper", "is_encoder_decoder": True}, "both directions over a window of 30 s"),
        ({"model_type": "voxtral"}, "Voxtral Realtime"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "reads the whole input before the first word"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "encoder, which attends in both"),
        ({"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]}, "not a causal language model"),
        ({"model_type": "nobody-knows"}, "not a causal language model"),
    ],
)
def test_model_that_looks_ahead_is_refused_with_the_reason(
    tmp_path: Path, raw: dict[str, Any], reason: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=reason):
        table.load(tmp_path, CPU, None)


def test_steps_of_both_stacks_are_captured_at_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where a session would wait for each that is not."""
    on_gpu = partial(PackedDecoder, in_steps=True, backend=AttentionBackend("gathered", "", gathered))
    monkeypatch.setattr(voxtral_runtime, "PackedDecoder", on_gpu)
    runtime = VoxtralRuntime(voxtral.load(folder, CPU), 2)
    runtime.capture()
    assert all(decoder._steps for decoder in (runtime.language, runtime.ear))
