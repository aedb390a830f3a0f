"""The `tekken.json` of a Mistral checkpoint: the bytes of its tokens, and its audio settings.

Transcription writes text and reads none, so only detokenization is here.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from inference_service.models.errors import CheckpointError


class Tekken:
    """Tokens by id: control tokens first, then the byte strings of the vocabulary.

    Raises `CheckpointError` for a file of another shape.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        try:
            config = raw["config"]
            controls = int(config["default_num_special_tokens"])
            self.size = int(config["default_vocab_size"])
            words = [base64.b64decode(word["token_bytes"]) for word in raw["vocab"][: self.size - controls]]
            self._controls = {token["token_str"]: int(token["rank"]) for token in raw["special_tokens"]}
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise CheckpointError(f"tekken.json has an unknown structure: {error!r}.") from None
        if len(words) != self.size - controls:
            raise CheckpointError(
                f"tekken.json holds {len(words)} words; its config asks for {self.size - controls}."
            )
        self._bytes = [b""] * controls + words

    def control(self, name: str) -> int:
        """Return the id of a control token, such as `<s>`."""
        if name not in self._controls:
            raise CheckpointError(f"tekken.json has no control token {name}.")
        return self._controls[name]

    def spelling(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text, possibly partial characters; empty for a control
        token.
        """
        return self._bytes[token] if token < self.size else b""

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens; invalid bytes become U+FFFD."""
        return b"".join(map(self.spelling, tokens)).decode(errors="replace")
