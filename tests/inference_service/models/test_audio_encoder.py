"""The ear: any chunking and any company gives a stream the same embeddings."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference_service.media.mel import BANDS
from inference_service.models.audio_encoder import AudioEncoder, CausalConv
from inference_service.models.config import AudioConfig

OUTPUT = 12
PER_EMBEDDING = 10
"""Mel frames."""


def encoder() -> AudioEncoder:
    torch.manual_seed(0)
    return AudioEncoder(AudioConfig(hidden=8, blocks=3, kernel=7, expansion=2, pool=5), OUTPUT).eval()


def mel(frames: int, seed: int = 0) -> Tensor:
    return torch.randn(frames, BANDS, generator=torch.Generator().manual_seed(seed))


def whole(ear: AudioEncoder, stream: Tensor) -> Tensor:
    ((heard,), _) = ear.encode([stream], [ear.initial_state()])
    return heard


@settings(deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_any_chunking_equals_the_whole(chunks: list[int]) -> None:
    ear = encoder()
    stream = mel(sum(chunks) * PER_EMBEDDING)
    state, heard = ear.initial_state(), []
    for part in stream.split([chunk * PER_EMBEDDING for chunk in chunks]):
        ((embeds,), (state,)) = ear.encode([part], [state])
        heard.append(embeds)
    torch.testing.assert_close(torch.cat(heard), whole(ear, stream), atol=1e-5, rtol=0)


def test_embeddings_are_those_of_the_definition() -> None:
    """Convolutions over the whole stream with silence before it, channels before time."""
    ear, stream = encoder(), mel(200)

    def over(conv: CausalConv, x: Tensor) -> Tensor:
        padded = F.pad(x, (conv.past, 0))
        return F.conv1d(padded, conv.weight, conv.bias, conv.stride, groups=conv.groups)

    x = F.gelu(over(ear.conv2, F.gelu(over(ear.conv1, stream.t()[None]))))
    for block in ear._stack:
        mixed = block.norm(over(block.mix, x).transpose(1, 2))
        x = x + block.down(F.gelu(block.up(mixed))).transpose(1, 2)
    expected = ear.embed(ear.norm(x.transpose(1, 2)))[0]

    torch.testing.assert_close(whole(ear, stream), expected, atol=1e-5, rtol=0)
    assert expected.shape == (20, OUTPUT), "ten a second"


def test_batched_streams_equal_each_alone() -> None:
    ear = encoder()
    streams = [mel(300, seed) for seed in range(12)]

    states = [ear.initial_state() for _ in streams]
    heard: list[list[Tensor]] = [[] for _ in streams]
    for second in range(3):
        # Every second in another order, as sessions come into a tick.
        order = torch.randperm(12, generator=torch.Generator().manual_seed(second)).tolist()
        parts = [streams[i][second * 100 : (second + 1) * 100] for i in order]
        embeds, new = ear.encode(parts, [states[i] for i in order])
        for i, one, state in zip(order, embeds, new, strict=True):
            heard[i].append(one)
            states[i] = state

    for stream, own in zip(streams, heard, strict=True):
        torch.testing.assert_close(torch.cat(own), whole(ear, stream), atol=1e-5, rtol=0)


def test_state_given_is_not_changed() -> None:
    ear = encoder()
    state = ear.initial_state()
    ear.encode([mel(100)], [state])
    assert not any(layer.any() for layer in state)


@pytest.mark.parametrize("batch", [1, 3])
def test_training_hears_as_serving_does(batch: int) -> None:
    ear = encoder()
    streams = torch.stack([mel(200, seed) for seed in range(batch)])
    embeds = ear.embed(ear.hear(streams))
    for stream, own in zip(streams, embeds, strict=True):
        torch.testing.assert_close(own, whole(ear, stream), atol=1e-5, rtol=0)
