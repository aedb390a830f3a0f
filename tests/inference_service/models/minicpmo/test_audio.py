"""The ear hears what the recorded one heard: alone, and with others who come and go."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inference_service.checkpoints.minicpmo import MiniCPMOCheckpoint
from inference_service.models.minicpmo.audio import CAPACITY, Ear
from inference_service.models.minicpmo.mel import StreamingMel, clip_mels
from tests.inference_service.device.meter import Meter
from tests.inference_service.engine.support import golden
from tests.inference_service.models.minicpmo.test_mel import UNITS, random_loudness, second, wave
from tests.support.long import seeds

LIMIT = 5e-5
HIDDEN = 256


@pytest.fixture
def ear(loaded: MiniCPMOCheckpoint) -> Ear:
    return loaded.model.ear


def recorded(name: str) -> Tensor:
    return golden.tensors("audio")[name]


def clip(pcm: np.ndarray[Any, np.dtype[np.float32]]) -> list[Tensor]:
    return [torch.from_numpy(mel) for mel in clip_mels(pcm)]


class Listener:
    """One stream: the mel of its units, and its state in the ear."""

    def __init__(self, ear: Ear, pcm: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        self._mel = StreamingMel()
        self._seconds = iter(pcm.reshape(-1, 16_000))
        self.state = ear.initial_state()
        self.heard: list[Tensor] = []

    def next_mel(self) -> Tensor | None:
        pcm = next(self._seconds, None)
        return None if pcm is None else torch.from_numpy(self._mel.feed(pcm))


def listen(ear: Ear, listeners: list[Listener]) -> list[Listener]:
    """One unit of each, in one batch; returns those who had one."""
    units = [(listener, mel) for listener in listeners if (mel := listener.next_mel()) is not None]
    if units:
        embeds, states = ear.encode([mel for _, mel in units], [listener.state for listener, _ in units])
        for (listener, _), heard, state in zip(units, embeds, states, strict=True):
            listener.heard.append(heard)
            listener.state = state
    return [listener for listener, _ in units]


def alone(ear: Ear, pcm: np.ndarray[Any, np.dtype[np.float32]]) -> list[Tensor]:
    listener = Listener(ear, pcm)
    while listen(ear, [listener]):
        pass
    return listener.heard


def recorded_stream() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.concatenate([second(unit["chunk"]) for unit in UNITS])


def require_recorded(stream: list[Tensor]) -> None:
    assert len(stream) == len(UNITS) == 34
    for unit, heard in enumerate(stream):
        assert golden.close_to(heard, recorded(f"stream.embeds.{unit:02}"), LIMIT), unit


def test_recorded_stream_is_heard_alike_and_its_cache_is_dropped_where_it_was(ear: Ear) -> None:
    listener = Listener(ear, recorded_stream())
    for unit in UNITS:
        before = listener.state.length
        listen(ear, [listener])
        assert (before, listener.state.length) == (unit["encoder_cache_before"], unit["encoder_cache_after"])
        assert unit["encoder_cache_reset"] == (listener.state.length <= before), unit["chunk"]
        assert len(listener.heard[-1]) == unit["embeds"]
    assert [unit["chunk"] for unit in UNITS if unit["encoder_cache_reset"]] == [29]
    require_recorded(listener.heard)


def test_recorded_reference_and_clips_are_heard_alike_in_one_padded_batch(ear: Ear) -> None:
    ref = wave("ref_wave_i16")
    heard = ear.encode_clips([clip(ref), clip(ref[:32_000]), clip(wave()[:48_000])])
    for embeds, name in zip(heard, ("ref.embeds", "batch2.embeds_0", "batch2.embeds_1"), strict=True):
        assert golden.close_to(embeds, recorded(name), LIMIT), name


def test_without_blocks_a_clip_hears_all_of_itself(ear: Ear) -> None:
    open_ear = Ear(replace(ear.config, block=1500), ear.encoder, ear.projection)
    (heard,) = open_ear.encode_clips([clip(wave("ref_wave_i16"))])
    assert golden.close_to(heard, recorded("ref.embeds_full_attention"), LIMIT)
    assert not golden.close_to(heard, recorded("ref.embeds"), 1e-2)


@pytest.mark.parametrize("seed", seeds(0, 1, 2))
def test_streams_that_come_and_go_are_heard_as_alone(ear: Ear, seed: int) -> None:
    """Ragged caches, first units beside late ones, pauses, and caches dropped at units 29 and 58."""
    rng = random.Random(seed)
    sounds = [random_loudness(100 * seed + i, rng.choice([1, 3, 32, 60])) for i in range(7)]
    sounds.append(random_loudness(100 * seed + 7, 60))
    waiting = [Listener(ear, sound) for sound in sounds]
    expected = [alone(ear, sound) for sound in sounds]
    everyone, present, dropped = list(waiting), [], 0

    while waiting or present:
        if waiting and (not present or rng.random() < 0.3):
            present.append(waiting.pop())
        chosen = rng.sample(present, rng.randint(1, len(present)))
        before = [listener.state.length for listener in chosen]
        heard = listen(ear, chosen)
        dropped += sum(b > listener.state.length for b, listener in zip(before, chosen, strict=True))
        present = [listener for listener in present if listener not in chosen or listener in heard]

    assert dropped >= 2, "a long stream drops its cache twice"
    for listener, own in zip(everyone, expected, strict=True):
        assert len(listener.heard) == len(own)
        for one, other in zip(listener.heard, own, strict=True):
            assert golden.close_to(one, other, LIMIT)


def test_a_clip_in_a_padded_batch_is_heard_as_alone(ear: Ear) -> None:
    """Odd lengths too, where the reference's padding reaches into the end of a shorter clip."""
    lengths = [1, 1_999, 16_001, 37_999, 48_000, 100_159, 480_000, 480_001, 700_000, 25_120]
    clips = [clip(random_loudness(i, 44)[:length]) for i, length in enumerate(lengths)]
    assert ear.encode_clips([]) == []
    together = ear.encode_clips(clips)
    for own, embeds in zip(clips, together, strict=True):
        assert embeds.shape == (sum(ear.clip_tokens(mel.shape[1]) for mel in own), HIDDEN)
        assert golden.close_to(embeds, ear.encode_clips([own])[0], LIMIT)


def test_a_state_takes_the_same_memory_from_begin_to_end(ear: Ear) -> None:
    listener = Listener(ear, random_loudness(0, 65))
    size = listener.state.nbytes
    lengths = []
    while listen(ear, [listener]):
        lengths.append(listener.state.length)
        assert listener.state.nbytes == size
    assert max(lengths) == CAPACITY
    assert lengths == [50 * (unit % 29 + 1) for unit in range(65)]
    config = ear.config
    assert size == 2 * config.layers * config.width * CAPACITY * torch.float32.itemsize


def test_initial_state_with_dirty_cache_encodes_as_clean(ear: Ear) -> None:
    """A state's memory is not cleared, and need not be."""
    mel = torch.from_numpy(StreamingMel().feed(second(0)))
    clean, dirty = ear.initial_state(), ear.initial_state()
    dirty.cache.fill_(torch.nan)
    clean.cache.zero_()
    assert torch.equal(ear.encode([mel], [clean])[0][0], ear.encode([mel], [dirty])[0][0])


def test_encode_leaves_given_state_unchanged(ear: Ear) -> None:
    mel = StreamingMel()
    _, (first,) = ear.encode([torch.from_numpy(mel.feed(second(0)))], [ear.initial_state()])
    kept = first.cache[..., : first.length, :].clone()
    ear.encode([torch.from_numpy(mel.feed(second(1)))], [first])
    assert first.length == 50
    assert torch.equal(first.cache[..., : first.length, :], kept)


def test_clip_goes_up_without_the_host_waiting_for_it(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    mels = [torch.zeros(80, 300), torch.zeros(80, 170)]
    with Meter(monkeypatch) as meter:
        ear.encode_clips([mels])
    assert meter.others == {}
    assert (meter.uploads, meter.downloads) == (2, 0)


def test_bfloat16_is_near_float32(ear: Ear, small: MiniCPMOCheckpoint) -> None:
    """The recorded runs differ by one percent of their size."""
    listener, exact = Listener(small.model.ear, recorded_stream()), alone(ear, recorded_stream())
    assert listener.state.nbytes == ear.initial_state().nbytes // 2
    while listen(small.model.ear, [listener]):
        pass
    for heard, wanted in zip(listener.heard, exact, strict=True):
        assert heard.dtype == torch.bfloat16
        assert (heard.float() - wanted).norm() < 0.03 * wanted.norm()


@pytest.fixture
def captured(ear: Ear) -> Ear:
    """As on a GPU: caches of five streams side by side."""
    made = Ear(ear.config, ear.encoder, ear.projection)
    made.capture(5)
    return made


@pytest.mark.parametrize("seed", seeds(0, 1, 2))
def test_captured_encoder_batch_matches_uncaptured_encoder(ear: Ear, captured: Ear, seed: int) -> None:
    """Streams come, go, and take places that others had, in which nothing is left of these."""
    rng = random.Random(seed)
    present: list[tuple[Listener, Listener]] = []
    for _ in range(24):
        if len(present) < 5 and rng.random() < 0.5:
            pcm = random_loudness(rng.randrange(99), 8)
            present.append((Listener(ear, pcm), Listener(captured, pcm)))
        if len(present) > 1 and rng.random() < 0.2:
            _, gone = present.pop(rng.randrange(len(present)))
            gone.state.cache.fill_(torch.nan)
        chosen = rng.sample(present, rng.randint(0, len(present)))
        listen(ear, [one for one, _ in chosen])
        heard = listen(captured, [other for _, other in chosen])
        for one, other in chosen:
            if other in heard:
                assert golden.close_to(other.heard[-1], one.heard[-1], LIMIT)
        present = [both for both in present if len(both[0].heard) < 8]


def test_streams_beyond_the_captured_places_are_heard_by_themselves(ear: Ear, captured: Ear) -> None:
    pcm = recorded_stream()[: 2 * 16_000]
    listeners = [Listener(captured, pcm) for _ in range(6)]
    assert [it.state.place is None for it in listeners] == [False] * 5 + [True]
    for _ in range(2):
        listen(captured, listeners)
    for listener in listeners:
        for heard, wanted in zip(listener.heard, alone(ear, pcm), strict=True):
            assert golden.close_to(heard, wanted, LIMIT)
