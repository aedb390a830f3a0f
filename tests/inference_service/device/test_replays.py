"""Captured regions hold no stale values: a replay reads what the buffers of its step hold at that time.

`Replays` traces each region, replays the trace with changed buffers, and compares it with a plain call.
"""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from inference_service.device import common_layers, compiling, flex
from inference_service.device.graph import Graph
from inference_service.device.paged import AttentionBackend, gathered, varlen
from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.speech import Speaker
from inference_service.families.moshi.codes import FrameCodes
from inference_service.models.minicpmo.audio import UNIT, Ear, Projection, WhisperEncoder
from inference_service.models.minicpmo.config import AudioConfig
from inference_service.models.moshi.depth import DepthTransformer
from inference_service.models.token2wav import model as token2wav
from inference_service.models.token2wav import seconds
from inference_service.models.token2wav.stream import StreamCodes
from tests.inference_service.device.replays import Replays, trace_attention
from tests.inference_service.engine.batch import test_speech as speech
from tests.inference_service.engine.batch.test_packed import HIDDEN, qwen3
from tests.inference_service.engine.support import tiny_moshi, tiny_voxtral
from tests.inference_service.models.token2wav import recorded
from tests.inference_service.models.token2wav.test_streams import VARIANTS, codes_of

CPU = torch.device("cpu")
SLOTS, CAPACITY, IDS = 4, 64, 50
GATHERED, VARLEN = AttentionBackend("gathered", "", gathered), AttentionBackend("varlen", "", varlen)
FLEX = AttentionBackend("flex", "", flex.over_contexts, all_rows=True)
Kind = Callable[[random.Random, int], Rows]
"""Makes so many rows of one kind."""


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    trace_attention(monkeypatch)
    return Replays(monkeypatch)


class Doubled:
    """A correct region: it doubles what it is given, and counts its runs, in memory of its own."""

    def __init__(self) -> None:
        self.given = torch.zeros(3)
        self.ran = torch.zeros(1)
        self.graph: Graph[Tensor] = Graph(CPU, self.compute)

    def __call__(self, given: Tensor) -> Tensor:
        self.given.copy_(given)
        return self.graph()

    def compute(self) -> Tensor:
        self.ran.add_(1)
        return self.given * 2


class CountsInPython(Doubled):
    """A region whose factor is a Python number that changes."""

    factor = 0

    def __call__(self, given: Tensor) -> Tensor:
        self.factor += 1
        return super().__call__(given)

    def compute(self) -> Tensor:
        return self.given * self.factor


class AsksTheHost(Doubled):
    """A region whose factor is read from memory during the capture."""

    def compute(self) -> Tensor:
        return self.given * float(self.given[0])


class TakesWhatItIsGiven(Doubled):
    """A region that computes on the caller's tensor instead of a copy."""

    def __call__(self, given: Tensor) -> Tensor:
        self.given = given
        return self.graph()


class WritesElsewhere(Doubled):
    """A region that counts its runs in new memory each time."""

    def compute(self) -> Tensor:
        self.ran = self.ran + 1
        return self.ran.clone()


NUMBERS = [torch.tensor(it) for it in ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0])]


def test_region_reading_its_own_buffers_passes(replays: Replays) -> None:
    region = Doubled()
    made = [region(it) for it in NUMBERS]
    assert [it.tolist() for it in made] == [(it * 2).tolist() for it in NUMBERS]
    replays.check()


@pytest.mark.parametrize("broken", [CountsInPython, AsksTheHost, TakesWhatItIsGiven, WritesElsewhere])
def test_region_with_a_value_of_its_capture_is_caught(broken: type[Doubled], replays: Replays) -> None:
    region = broken()
    with pytest.raises((AssertionError, RuntimeError)):
        _ = [region(it) for it in NUMBERS]


def test_region_reading_a_foreign_tensor_is_caught(replays: Replays) -> None:
    own, other = torch.ones(3), torch.ones(3)
    graph: Graph[Tensor] = Graph(CPU, lambda: own + other)
    for it in NUMBERS:
        own.copy_(it)
        graph()
    replays.check(own, other)
    with pytest.raises(AssertionError, match=r"foreign memory, tensors of shapes \[\(3,\)\]"):
        replays.check(own)


def test_region_that_ran_once_is_refused(replays: Replays) -> None:
    Doubled()(NUMBERS[0])
    with pytest.raises(AssertionError, match="returned the same in all calls"):
        replays.check()


def language(backend: AttentionBackend, *, has_embeddings: bool = True) -> PackedDecoder:
    torch.manual_seed(0)
    embeddings = nn.Embedding(IDS, HIDDEN) if has_embeddings else None
    return PackedDecoder(qwen3(), SLOTS, CAPACITY, embeddings=embeddings, in_steps=True, backend=backend)


def only_ids(rng: random.Random, count: int) -> Rows:
    return Rows.of_ids([rng.randrange(IDS) for _ in range(count)])


def only_media(rng: random.Random, count: int) -> Rows:
    return Rows.of(torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(rng.randrange(99))))


def media_with_ids(rng: random.Random, count: int) -> Rows:
    return only_media(rng, count).plus([rng.randrange(IDS) for _ in range(count)])


KINDS: dict[str, list[Kind]] = {
    "ids": [only_ids],
    "media": [only_media],
    "media, no embeddings": [only_media],
    "both": [only_ids, only_media, media_with_ids],
}


def feed(decoder: PackedDecoder, kinds: list[Kind], counts: list[int]) -> None:
    """Feed contexts of changing slots, lengths and pages, with the same shape for so many sessions."""
    rng, lengths = random.Random(0), [13 + slot for slot in range(SLOTS)]
    for slot, length in enumerate(lengths):
        decoder.cache.reserve(slot, 0, length)
    for slab in (decoder.cache.keys, decoder.cache.values):
        slab.normal_(generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        for sessions in (1, 2, SLOTS):
            segments = []
            for number, slot in enumerate(rng.sample(range(SLOTS), sessions)):
                rows = kinds[number % len(kinds)](rng, counts[number % len(counts)])
                segments.append(Segment(slot, lengths[slot], lengths[slot], rows))
                lengths[slot] += len(rows)
            decoder.last(segments)


def memory_of(decoder: PackedDecoder) -> list[object]:
    """Return what all forwards of a decoder share: its weights and its cache."""
    embeddings = decoder._embeddings
    return [decoder.backbone, decoder.cache.keys, decoder.cache.values, *([embeddings] if embeddings else [])]


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("backend", [GATHERED, VARLEN, FLEX], ids=lambda backend: backend.name)
@pytest.mark.sample("gathered-both", "varlen-ids", "flex-both", "gathered-media, *", "flex-media, *")
def test_forwards_read_rows_and_contexts_from_their_own_memory(
    backend: AttentionBackend, kinds: str, replays: Replays
) -> None:
    decoder = language(backend, has_embeddings="no embeddings" not in kinds)
    feed(decoder, KINDS[kinds], [1, 5] if backend.all_rows else [1])
    assert bool(decoder._forwards) == backend.all_rows
    replays.check(*memory_of(decoder))


def test_forwards_of_compiled_layers_read_rows_and_contexts_from_their_own_memory(
    replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the compiler: the functions that it is given."""
    monkeypatch.setattr(common_layers, "compiled", lambda function: function)
    monkeypatch.setattr(compiling, "_chosen", "on")
    monkeypatch.setattr(flex, "_compiled", lambda: flex._attend)
    decoder = language(FLEX)
    assert decoder._compiled is not None
    feed(decoder, KINDS["both"], [1, 5])
    replays.check(*memory_of(decoder))


def test_forwards_with_a_condition_read_it_from_memory_of_the_decoder(replays: Replays) -> None:
    """Voxtral's layers are given the delay that way."""
    backbone = tiny_voxtral.network().model.language_model
    condition = torch.randn(1, backbone.config.hidden_size)
    embeddings = backbone.embed_tokens
    decoder = PackedDecoder(
        backbone, SLOTS, CAPACITY, {"t_cond": condition}, embeddings, in_steps=True, backend=FLEX
    )
    feed(decoder, KINDS["ids"], [1, 5])
    replays.check(*memory_of(decoder), condition)


@pytest.mark.parametrize("backend", [GATHERED, FLEX], ids=lambda backend: backend.name)
@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.sample("1-flex")
def test_25_codes_are_drawn_from_memory_of_their_region(
    backend: AttentionBackend, jobs: int, replays: Replays
) -> None:
    head = speech.speaker(repetition_penalty=1.3, repetition_window=6, top_k=9).head
    speaker = Speaker(head, SLOTS, speech.CAPACITY, 25, in_steps=True, backend=backend)
    for unit in range(3):
        states = [speech.state(slot, seed=10 * unit + slot) for slot in range(unit % 2, unit % 2 + jobs)]
        made = [speech.job(it, 3, seed=unit + it.slot) for it in states]
        for job in made:
            job.temperature = 0.8 * (unit != 1)
        speaker.step(made)
        assert all(len(job.codes) == 25 for job in made)
    assert speaker._loops
    replays.check(*memory_of(speaker.decoder), head)


def test_ear_reads_frames_and_places_from_memory_of_its_region(replays: Replays) -> None:
    torch.manual_seed(0)
    config = AudioConfig(width=16, layers=2, heads=2, inner=32, bands=80, pool=5, block=50)
    ear = Ear(config, WhisperEncoder(config).eval(), Projection(config.width, 24).eval())
    ear.capture(3)
    states, rng = [ear.initial_state() for _ in range(3)], random.Random(0)

    for unit in range(9):
        chosen = rng.sample(range(3), unit % 3 + 1)
        mels = [torch.randn(80, 2 * UNIT + 4) for _ in chosen]
        _, after = ear.encode(mels, [states[it] for it in chosen])
        for place, state in zip(chosen, after, strict=True):
            states[place] = state

    assert ear._region is not None
    assert ear._caches is not None
    replays.check(ear.encoder, ear.projection, ear._caches, ear._region._room)


@VARIANTS
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.sample("1-hift")
def test_seconds_of_sound_read_streams_from_memory_of_their_regions(
    is_causal: bool, streams: int, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (seconds, token2wav):
        monkeypatch.setattr(module, "BATCHES", (streams,))
    replays.atol = 1e-3  # a phase is the sum of all pitches before it
    model, draw = recorded.model(is_causal=is_causal, steps=2), random.Random(0)
    voice = model.hear(recorded.prompt("b"))
    model.capture(voice)
    said = [model.initial_state(voice) for _ in range(streams)]
    for _ in range(4):
        model.step([StreamCodes(stream, codes_of(draw)) for stream in said])
    assert model._seconds is not None
    regions = model._seconds._flowing, model._seconds._vocoding
    replays.check(model, *(it._room for it in regions), getattr(model.vocoder, "_fades", None))


def test_codes_of_a_frame_are_drawn_from_memory_of_their_region(replays: Replays) -> None:
    network, rng = tiny_moshi.network(), np.random.default_rng(0)
    depth, hidden = DepthTransformer(network.depth_decoder, tiny_moshi.CODES), network.config.hidden_size
    codes = FrameCodes(depth, CPU)
    codes.capture(2, torch.zeros(1, hidden))

    for count in (1, 2, 1, 2):
        texts, numbers = codes.arrays(
            rng.integers(tiny_moshi.TEXTS, size=count).tolist(),
            rng.choice([0.0, 0.8], size=count).tolist(),
            rng.random((count, tiny_moshi.CODES)).tolist(),
        )
        made = torch.from_numpy(rng.standard_normal((count, hidden), np.float32))
        codes.draw(made, torch.from_numpy(texts), torch.from_numpy(numbers))

    replays.check(depth, codes._region._room)
