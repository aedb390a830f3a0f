"""Counts of tokens, by kind."""

from ws_adapter.protocol.wire.events import InputTokenDetails, OutputTokenDetails, TokenUsage


def tokens(
    input_text: int = 0,
    input_audio: int = 0,
    input_vision: int = 0,
    cached: int = 0,
    output_text: int = 0,
    output_audio: int = 0,
) -> TokenUsage:
    """So many of each, and their sums."""
    given, made = input_text + input_audio + input_vision, output_text + output_audio
    return TokenUsage(
        given + made,
        given,
        made,
        InputTokenDetails(input_text, input_audio, input_vision, cached),
        OutputTokenDetails(output_text, output_audio),
    )
