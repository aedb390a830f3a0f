"""Text to token ids and back, with the special tokens of the duplex architecture by name."""

from dataclasses import dataclass, fields
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from inference_service.models.errors import CheckpointError


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the tokens that steer a duplex conversation."""

    im_start: int
    im_end: int
    unit: int
    unit_end: int
    tts_bos: int
    tts_pad: int
    listen: int
    speak: int
    turn_eos: int
    chunk_eos: int
    chunk_tts_eos: int

    @property
    def terminators(self) -> frozenset[int]:
        """Tokens that end a unit without being fed."""
        return frozenset((self.listen, self.chunk_eos, self.chunk_tts_eos))


SPECIAL_NAMES = {
    "im_start": "<|im_start|>",
    "im_end": "<|im_end|>",
    "unit": "<unit>",
    "unit_end": "</unit>",
    "tts_bos": "<|tts_bos|>",
    "tts_pad": "<|tts_pad|>",
    "listen": "<|listen|>",
    "speak": "<|speak|>",
    "turn_eos": "<|turn_eos|>",
    "chunk_eos": "<|chunk_eos|>",
    "chunk_tts_eos": "<|chunk_tts_eos|>",
}


class Tokenizer:
    """A checkpoint's `tokenizer.json`."""

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        ids = {field.name: fast.token_to_id(SPECIAL_NAMES[field.name]) for field in fields(SpecialTokens)}
        missing = [SPECIAL_NAMES[name] for name, token in ids.items() if token is None]
        if missing:
            raise CheckpointError(f"tokenizer.json lacks the duplex tokens {', '.join(missing)}.")
        self.special = SpecialTokens(**ids)
        self._special_ids = frozenset(fast.get_added_tokens_decoder())
        # Text given by people may spell a special token; it is then plain text, never the token.
        fast.encode_special_tokens = True

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Reads `folder/tokenizer.json`."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{folder} has no tokenizer.json. Is this an Antiphon checkpoint?")
        return cls(FastTokenizer.from_file(str(path)))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; nothing in it becomes a special token."""
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def encode_template(self, template: str) -> list[int]:
        """Ids of trusted text of the checkpoint, in which special tokens mean themselves."""
        self._fast.encode_special_tokens = False
        try:
            return list(self._fast.encode(template, add_special_tokens=False).ids)
        finally:
            self._fast.encode_special_tokens = True

    def is_text(self, token: int) -> bool:
        """Whether a token is something to read aloud, not a special one."""
        return token not in self._special_ids

    def decode(self, ids: list[int]) -> str:
        """Text of ids; special tokens leave no trace."""
        return str(self._fast.decode(ids, skip_special_tokens=True))
