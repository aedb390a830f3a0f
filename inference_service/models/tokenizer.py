"""Text to token ids and back, with the special tokens of the duplex architecture by name."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from inference_service.models.chat_template import ChatTemplate
from inference_service.models.errors import CheckpointError
from inference_service.models.plain_tokenizer import PlainTokenizer


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the tokens that control a duplex conversation."""

    im_start: int
    im_end: int
    image: int
    image_end: int
    unit: int
    unit_end: int
    tts_bos: int
    tts_pad: int
    listen: int
    speak: int
    turn_eos: int
    chunk_eos: int
    chunk_tts_eos: int

    @cached_property
    def terminators(self) -> frozenset[int]:
        """Tokens that end a unit without being fed."""
        return frozenset((self.listen, self.chunk_eos, self.chunk_tts_eos))

    @cached_property
    def decisions(self) -> frozenset[int]:
        """Tokens that the model may choose besides text; `chunk_eos` has its own rule."""
        return frozenset((self.listen, self.speak, self.tts_bos, self.turn_eos, self.chunk_tts_eos))


SPECIAL_NAMES = {
    "im_start": "<|im_start|>",
    "im_end": "<|im_end|>",
    "image": "<image>",
    "image_end": "</image>",
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
    """A checkpoint's `tokenizer.json` and chat template; without a template, `chat_template` is None."""

    def __init__(self, fast: FastTokenizer, chat_template: ChatTemplate | None = None) -> None:
        self._fast = fast
        self.chat_template = chat_template
        found = {name: fast.token_to_id(text) for name, text in SPECIAL_NAMES.items()}
        ids = {name: token for name, token in found.items() if token is not None}
        missing = [SPECIAL_NAMES[name] for name in found.keys() - ids.keys()]
        if missing:
            raise CheckpointError(f"tokenizer.json lacks the duplex tokens {', '.join(sorted(missing))}.")
        self.special = SpecialTokens(**ids)
        self.size = max(fast.get_vocab().values()) + 1
        self._special_ids = frozenset(fast.get_added_tokens_decoder())
        self._most_characters: dict[int, int] = {}
        # Text given by people may spell a special token; it is then plain text, never the token.
        fast.encode_special_tokens = True

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read `folder/tokenizer.json`, and the chat template beside it if there is one."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{folder} has no tokenizer.json. Is this an Antiphon checkpoint?")
        try:
            fast = FastTokenizer.from_file(str(path))
        except Exception:  # the library raises no narrower type
            raise CheckpointError(f"{path} is not a readable tokenizer.") from None
        return cls(fast, ChatTemplate.load(folder))

    @property
    def calls_tools(self) -> bool:
        """Whether the chat template writes tool calls in a known syntax."""
        return self.chat_template is not None and self.chat_template.calls is not None

    @property
    def plain(self) -> PlainTokenizer:
        """The same tokenizer for text only."""
        return PlainTokenizer(self._fast)

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text; nothing in it becomes a special token."""
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def encode_template(self, template: str) -> list[int]:
        """Return ids of trusted text of the checkpoint, in which special tokens keep their meaning."""
        self._fast.encode_special_tokens = False
        try:
            return list(self._fast.encode(template, add_special_tokens=False).ids)
        finally:
            self._fast.encode_special_tokens = True

    def is_text(self, token: int) -> bool:
        """Return whether a token is text, not a special token."""
        return token < self.size and token not in self._special_ids

    def most_characters(self, token: int) -> int:
        """Return the most characters of a token in any text."""
        most = self._most_characters.get(token)
        if most is None:  # decoding a sequence may add one character to a token
            most = self._most_characters[token] = len(self.decode([token])) + 1
        return most

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids without special tokens."""
        return str(self._fast.decode(ids, skip_special_tokens=True))
