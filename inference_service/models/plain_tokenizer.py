"""Plain tokenization, in which text never becomes special tokens."""

from tokenizers import Tokenizer as FastTokenizer


class PlainTokenizer:
    """A checkpoint's tokenizer for token streams. Any thread may use it."""

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = FastTokenizer.from_str(fast.to_str())
        self._fast.encode_special_tokens = True
        self._fast.no_padding()
        self._fast.no_truncation()
        self._longest = max(map(len, self._fast.get_vocab()))

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without special tokens."""
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids without special tokens."""
        return str(self._fast.decode(ids, skip_special_tokens=True))

    def least_tokens(self, text: str) -> int:
        """Return the least number of ids of `text`, without encoding it."""
        return -(-len(text) // self._longest)
