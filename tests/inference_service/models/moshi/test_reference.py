"""Codec and depth transformer of Moshi compute what transformers' own do, frame by frame."""

import pytest
import torch
from torch import Tensor

from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.models.moshi.depth import DepthTransformer, Past
from inference_service.models.moshi.mimi import ConvState, Mimi
from tests.inference_service.engine.support import tiny_moshi
from tests.inference_service.engine.support.tiny_moshi import CODES, SIZE, TEXTS

FRAMES = 30
CLOSE = 1e-4


@pytest.fixture(scope="module")
def codec() -> Mimi:
    return Mimi(tiny_moshi.network().audio_encoder, CODES)


def sound(streams: int, codec: Mimi) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return 0.3 * torch.randn(streams, FRAMES * codec.samples, generator=generator)


class Stream:
    """One of several streams through a codec; it joins those that came before it."""

    def __init__(self, slot: int, state: ConvState) -> None:
        self.slot, self.state, self.rows = slot, state, 0
        self.made: list[Tensor] = []


def attended(stack: PackedDecoder, streams: list[Stream], rows: Tensor) -> Tensor:
    segments = [
        Segment(stream.slot, stream.rows, stream.rows, Rows.of(own))
        for stream, own in zip(streams, rows, strict=True)
    ]
    made = stack.forward(segments)
    for stream in streams:
        stream.rows += rows.shape[1]
    return torch.stack(made)


def test_codec_streams_in_a_batch_write_the_codes_of_the_reference(codec: Mimi) -> None:
    pcm = sound(3, codec)
    stack = PackedDecoder(codec.encoder, 3, 128)
    streams = [Stream(slot, codec.ear_state) for slot in range(3)]
    for tick in range(FRAMES + 2):
        here = [it for it in streams if 0 <= tick - it.slot < FRAMES]  # each begins a frame later
        at = [(tick - it.slot) * codec.samples for it in here]
        frames = torch.stack([pcm[it.slot, a : a + codec.samples] for it, a in zip(here, at, strict=True)])
        rows, ears = codec.hear(frames, [it.state[: codec.ear_split] for it in here])
        rows = attended(stack, here, rows)
        codes, ends = codec.write(rows, [it.state[codec.ear_split :] for it in here])
        for stream, own, ear, end in zip(here, codes, ears, ends, strict=True):
            stream.state = (*ear, *end)
            stream.made.append(own)

    reference = tiny_moshi.network().audio_encoder
    for stream in streams:
        alone = reference.encode(pcm[stream.slot][None, None], num_quantizers=CODES).audio_codes
        assert torch.equal(torch.stack(stream.made, dim=1), alone[0])


def test_codec_streams_in_a_batch_say_the_sound_of_the_reference(codec: Mimi) -> None:
    codes = torch.randint(0, SIZE, (3, CODES, FRAMES), generator=torch.Generator().manual_seed(6))
    stack = PackedDecoder(codec.decoder, 3, 128)
    streams = [Stream(slot, codec.mouth_state) for slot in range(3)]
    for tick in range(FRAMES + 2):
        here = [it for it in streams if 0 <= tick - it.slot < FRAMES]
        frame = torch.stack([codes[it.slot, :, tick - it.slot] for it in here])
        rows, begins = codec.read(frame, [it.state[: codec.mouth_split] for it in here])
        rows = attended(stack, here, rows)
        said, mouths = codec.say(rows, [it.state[codec.mouth_split :] for it in here])
        for stream, own, begin, mouth in zip(here, said, begins, mouths, strict=True):
            stream.state = (*begin, *mouth)
            stream.made.append(own)

    reference = tiny_moshi.network().audio_encoder
    for stream in streams:
        alone = reference.decode(codes[stream.slot][None]).audio_values[0, 0]
        assert torch.allclose(torch.cat(stream.made), alone, atol=CLOSE)


def test_depth_transformer_gives_the_scores_and_codes_of_the_reference() -> None:
    network = tiny_moshi.network()
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn(5, network.config.hidden_size, generator=generator)
    texts = torch.randint(0, TEXTS, (5,), generator=generator)
    depth = DepthTransformer(network.depth_decoder, CODES)

    before, past, scores, codes = texts, Past(), list[Tensor](), list[Tensor]()
    for step in depth.steps:
        made, past = step(hidden, before, past)
        before = made.argmax(1)
        scores.append(made)
        codes.append(before)

    tokens = torch.stack([texts, *codes[:-1]], dim=1)
    for row in range(5):  # one frame at a time, all of its codes at once
        want = network.depth_decoder(
            input_ids=tokens[row : row + 1],
            last_hidden_state=hidden[row][None, None],
            attention_mask=torch.ones(1, CODES, dtype=torch.bool),
        ).logits[0]
        assert torch.allclose(torch.stack([it[row] for it in scores]), want, atol=CLOSE)
        assert torch.equal(torch.stack(codes, dim=1)[row], want.argmax(1))
