"""The tokenizer of Moshi's inner monologue, as Kyutai publishes it or as transformers saves it.

Kyutai's is a SentencePiece model, a protocol buffer, of which only pieces, scores and the normaliser's rules
are read. The library SentencePiece is not needed.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers

from inference_service.models.errors import CheckpointError

_SPACE: Final = "\u2581"
_UNIGRAM: Final = 1
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Types of pieces."""


class MoshiTokenizer:
    """Converts text to ids and back; a word's first token includes the space before it."""

    def __init__(self, fast: FastTokenizer, silent: frozenset[int]) -> None:
        """Wrap the tokenizer; ids in `silent` have no text."""
        self._fast = fast
        self.size = int(fast.get_vocab_size())
        self._spelled = [
            b"" if token in silent else _spelling(fast.id_to_token(token) or "") for token in range(self.size)
        ]

    def encode(self, text: str) -> list[int]:
        """Return ids of `text`, without special tokens."""
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids; invalid bytes become U+FFFD."""
        return b"".join(map(self.spelling, ids)).decode(errors="replace")

    def spelling(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text, possibly partial characters; empty for a silent
        one.
        """
        return self._spelled[token] if token < self.size else b""


def _spelling(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(_SPACE, " ").encode()


def read_json_tokenizer(path: Path, silent: frozenset[int]) -> MoshiTokenizer:
    """Return the tokenizer in a `tokenizer.json`. Raises `CheckpointError`."""
    try:
        fast = FastTokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        raise CheckpointError(f"{path} is not a readable tokenizer: {error}") from None
    return MoshiTokenizer(
        fast, silent | {id for id, it in fast.get_added_tokens_decoder().items() if it.special}
    )


def read_sentencepiece(path: Path, silent: frozenset[int]) -> MoshiTokenizer:
    """Return the tokenizer in a SentencePiece unigram model. Raises `CheckpointError`."""
    try:
        return _sentencepiece(path.read_bytes(), silent)
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}, the tokenizer of its text.") from None
    except (ValueError, IndexError, struct.error, OSError) as error:
        raise CheckpointError(f"{path} is not a readable SentencePiece model: {error}") from None


def _sentencepiece(data: bytes, silent: frozenset[int]) -> MoshiTokenizer:
    pieces: list[tuple[str, float]] = []
    unknown, unspoken, falls_back = None, set(silent), False
    rules, kind, prefixes = b"", _UNIGRAM, True
    for field, value in _fields(data):
        match field, value:
            case 1, bytes():
                piece = dict(_fields(value))
                spelled, what = piece.get(1, b""), piece.get(3, _NORMAL)
                score = piece.get(2, b"\0\0\0\0")
                if not isinstance(spelled, bytes) or not isinstance(score, bytes):
                    raise ValueError("a piece is not of the known shape")
                unknown = len(pieces) if what == _UNKNOWN and unknown is None else unknown
                if what in (_UNKNOWN, _CONTROL):
                    unspoken.add(len(pieces))
                falls_back = falls_back or what == _BYTE
                pieces.append((spelled.decode(), *struct.unpack("<f", score)))
            case 2, bytes():
                trainer = dict(_fields(value))
                kind = int(trainer.get(3, _UNIGRAM))
            case 3, bytes():
                normaliser = dict(_fields(value))
                rules = bytes(normaliser.get(2, b""))
                prefixes = bool(normaliser.get(3, True))
    if not pieces or kind != _UNIGRAM:
        raise ValueError("it holds no model of unigrams")
    fast = FastTokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=falls_back))
    steps = [normalizers.Precompiled(rules)] if rules else []
    fast.normalizer = normalizers.Sequence(steps)
    scheme = "always" if prefixes else "never"
    fast.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    fast.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    return MoshiTokenizer(fast, frozenset(unspoken))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protocol buffer message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(data, at)
            case 5:
                size = 4
            case wire:
                raise ValueError(f"unknown wire type {wire}")
        if at + size > len(data):
            raise ValueError("it is cut off")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number is too long")
