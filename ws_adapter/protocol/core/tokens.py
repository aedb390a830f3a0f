"""Tokens, counted, and their public form."""

from typing import Final

from msgspec import Struct

from ws_adapter.protocol.wire.events import InputTokenDetails, OutputTokenDetails, TokenUsage


class Tokens(Struct, frozen=True):
    """Tokens consumed and produced, of a unit or of the session so far."""

    input_text: int = 0
    input_audio: int = 0
    input_vision: int = 0
    cached: int = 0
    output_text: int = 0
    output_audio: int = 0

    @property
    def given(self) -> int:
        """Tokens of the input."""
        return self.input_text + self.input_audio + self.input_vision

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            self.input_text + other.input_text,
            self.input_audio + other.input_audio,
            self.input_vision + other.input_vision,
            self.cached + other.cached,
            self.output_text + other.output_text,
            self.output_audio + other.output_audio,
        )


NO_TOKENS: Final = Tokens()


def usage(tokens: Tokens) -> TokenUsage:
    """The public form of token counts."""
    given = tokens.input_text + tokens.input_audio + tokens.input_vision
    made = tokens.output_text + tokens.output_audio
    return TokenUsage(
        total_tokens=given + made,
        input_tokens=given,
        output_tokens=made,
        input_token_details=InputTokenDetails(
            tokens.input_text, tokens.input_audio, tokens.input_vision, tokens.cached
        ),
        output_token_details=OutputTokenDetails(tokens.output_text, tokens.output_audio),
    )
