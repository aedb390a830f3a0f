"""Text to token ids and back, where text is never more than text."""

from tokenizers import Tokenizer as FastTokenizer


class PlainTokenizer:
    """A checkpoint's tokenizer as token streams use it; safe to use from several threads."""

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = FastTokenizer.from_str(fast.to_str())
        self._fast.encode_special_tokens = True
        self._fast.no_padding()
        self._fast.no_truncation()
        self._longest = max(map(len, self._fast.get_vocab()))

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`: nothing is put round it, and nothing in it becomes a special token."""
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Text of ids; special tokens leave no trace."""
        return str(self._fast.decode(ids, skip_special_tokens=True))

    def least_tokens(self, text: str) -> int:
        """Return how many ids `text` has at least: known without encoding it."""
        return -(-len(text) // self._longest)
