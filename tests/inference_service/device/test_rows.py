"""Rows that wait to be fed, cut and joined in any way, are what they were."""

import random

import numpy as np
import torch
from torch import nn

from inference_service.device import transfer
from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.media.memo import digest
from tests.inference_service.engine.batch.test_packed import HIDDEN, llama


def decoder() -> PackedDecoder:
    torch.manual_seed(0)
    return PackedDecoder(llama(), 1, 32, embeddings=nn.Embedding(50, HIDDEN))


def mixed(rng: random.Random) -> Rows:
    """Ids, media with a name, and media with ids added, in any order."""
    parts = []
    for _ in range(rng.randint(1, 5)):
        count = rng.randint(1, 6)
        media = Rows.of(torch.randn(count, HIDDEN), digest(str(rng.random())))
        ids = [rng.randrange(50) for _ in range(count)]
        parts.append(rng.choice([Rows.of_ids(ids), media, media.plus(ids)]))
    return Rows.join(parts)


def test_rows_cut_anywhere_and_joined_again_are_embedded_as_before() -> None:
    where = decoder()
    for seed in range(50):
        rng = random.Random(seed)
        whole = mixed(rng)
        at = sorted(rng.choices(range(len(whole) + 1), k=3))
        pieces = [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]
        again = Rows.join(pieces)
        assert again.content == whole.content
        assert torch.equal(where.embed(again), where.embed(whole))
        parts = [where.embed(piece) for piece in pieces if len(piece)]
        torch.testing.assert_close(torch.cat(parts), where.embed(whole))


def test_row_of_media_with_an_id_is_their_sum() -> None:
    where, media = decoder(), torch.randn(3, HIDDEN)
    ids = where.embed(Rows.of_ids([4, 5, 6]))
    torch.testing.assert_close(where.embed(Rows.of(media).plus([4, 5, 6])), ids + media)


def test_content_of_media_is_their_name_and_that_of_ids() -> None:
    nameless, named = Rows.of(torch.zeros(2, HIDDEN)), Rows.of(torch.zeros(2, HIDDEN), digest("it"))
    assert not nameless.has_content
    assert not Rows.join([named, nameless]).has_content
    assert Rows.join([Rows.of_ids([1]), named]).has_content
    one, other = (Rows.of(torch.zeros(1, HIDDEN), digest(name)) for name in ("one", "other"))
    contents = [it.content for it in (one, other, one.plus([3]), Rows.of_ids([3]), Rows.of_ids([-1]))]
    assert len(set(contents)) == len(contents)


def test_arrays_of_any_kind_go_up_in_one_copy() -> None:
    """As they would to a device: side by side in bytes."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 9, 5), rng.random((3, 2), np.float32), np.zeros((0, 4), np.int32),
        rng.integers(0, 9, (2, 3)).astype(np.int32),
    ]  # fmt: skip
    places, size = transfer._places(arrays)
    host = torch.zeros(size, dtype=torch.uint8)
    transfer._write(host.numpy(), arrays, places)
    for array, tensor in zip(arrays, transfer._views(host, arrays, places), strict=True):
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.dtype == torch.from_numpy(array).dtype


def test_tensors_come_down_in_one_copy_with_their_shapes() -> None:
    given = [torch.randn(2, 3), torch.arange(4, dtype=torch.int32), torch.randn(0, 5)]
    for array, tensor in zip(transfer.unpacked(transfer.packed(given), given), given, strict=True):
        assert np.array_equal(array, tensor.numpy())
