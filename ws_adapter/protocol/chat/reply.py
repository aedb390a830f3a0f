"""The model's reply to a chat turn, collected piece by piece."""

from typing import Final, Literal, TypeAlias

from antiphon.contract import Reason
from ws_adapter.protocol.chat.saved import SavedReply
from ws_adapter.protocol.chat.tools import CallPiece, Calls
from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.signals import Finish, Piece, Prefilled, UnitDone, UnitEnd
from ws_adapter.protocol.wire.errors import VERDICTS, ErrorCode, Refusal
from ws_adapter.protocol.wire.events import Metrics

MOST_AUDIO_BYTES: Final = 32 * 2**20
"""The most audio bytes of an answer that is not streamed: about six minutes."""

_INPUTS: Final = ("turn.messages", "turn.tools", "turn.tool_choice")
"""Fields of the contract whose paths are also public."""

DoneReason: TypeAlias = Literal["turn_end", "length", "cancelled", "error"]


class Reply:
    """One answer. `asked_at` is the time of its request. Audio is kept only without `streaming`."""

    def __init__(self, asked_at: float, *, streaming: bool) -> None:
        self.streaming = streaming
        self.prefilled: Prefilled | None = None
        self._asked_at = asked_at
        self._text: list[str] = []
        self._audio: list[bytes] = []
        self._thinking: list[str] = []
        self.calls = Calls()
        self.audio_bytes = 0
        """The number of kept audio bytes."""

    def save(self, now: float, blobs: Blobs) -> SavedReply:
        """Return the state."""
        return SavedReply(
            self.streaming,
            now - self._asked_at,
            self.prefilled,
            self.text,
            self.thinking,
            blobs.keep_all(self._audio),
            self.calls.save(),
        )

    @classmethod
    def restored(cls, saved: SavedReply, blobs: Saved, now: float) -> "Reply":
        """Return a reply from a saved state. Raises `KeyError`."""
        made = cls(now - saved.asked_ago, streaming=saved.streaming)
        made.prefilled = saved.prefilled
        made._text, made._thinking = [saved.text], [saved.thinking]
        made._audio = [blobs[number] for number in saved.audio]
        made.audio_bytes = sum(map(len, made._audio))
        made.calls.restore(saved.calls)
        return made

    def add(self, piece: Piece) -> CallPiece | None:
        """Add a piece; return its part of a call. Raises `Refusal` if an unstreamed answer is too long."""
        self._text.append(piece.text)
        self._thinking.append(piece.thinking)
        called = self.calls.add(piece.call) if piece.call is not None else None
        if self.streaming:
            return called
        self._audio.append(piece.audio)
        self.audio_bytes += len(piece.audio)
        if self.audio_bytes > MOST_AUDIO_BYTES:
            message = "the answer is too long to be sent at once; ask for it with streaming"
            raise Refusal(ErrorCode.INFERENCE_ERROR, message)
        return called

    @property
    def thinking(self) -> str:
        """The whole thinking text."""
        return "".join(self._thinking)

    @property
    def text(self) -> str:
        """The whole text of the answer."""
        return "".join(self._text)

    @property
    def audio(self) -> bytes:
        """The whole audio of the answer; empty if it is streamed."""
        return b"".join(self._audio)

    @property
    def input_tokens(self) -> int:
        """The tokens that the model has read."""
        return self.prefilled.tokens.input_tokens if self.prefilled is not None else 0

    def metrics(self, done: UnitDone, now: float, *, context_limit: int, clipped_samples: int) -> Metrics:
        """Return the figures of the whole turn."""
        times, tokens, read = done.timings, done.tokens, self.prefilled
        return Metrics(
            kv_cache_length=done.context_tokens,
            n_past_max=context_limit or None,
            queue_ms=times.queue,
            prefill_ms=times.prefill if read is None else read.timings.prefill or times.prefill,
            generate_ms=times.total,
            cost_llm_ms=times.decode,
            cost_tts_ms=times.speech,
            cost_token2wav_ms=times.vocoder,
            wall_clock_ms=round((now - self._asked_at) * 1000, 1),
            n_tokens=tokens.output_token_details.text_tokens,
            n_tts_tokens=tokens.output_token_details.audio_tokens,
            vision_slices=read.vision_slices or None if read is not None else None,
            vision_tokens=tokens.input_token_details.vision_tokens or None,
            clipped_samples=clipped_samples or None,
        )


def done_reason(done: UnitDone) -> DoneReason:
    """Return the public reason for the end of an answer."""
    match done.end:
        case UnitEnd.FAILED:
            return "error"
        case UnitEnd.CANCELLED:
            return "cancelled"
        case UnitEnd.CONTEXT_FULL:
            return "length"
    return "length" if done.finish is Finish.LENGTH else "turn_end"


def failure(done: UnitDone) -> Refusal:
    """Return the error of a failed turn; if its input was at fault, `param` is the path in the request."""
    verdict = VERDICTS.get(done.failure or Reason.INFERENCE_FAILED, VERDICTS[Reason.INFERENCE_FAILED])
    path = done.field.removeprefix("turn.") if done.field.startswith(_INPUTS) else ""
    path = path.replace(".parameters_json", ".function.parameters")
    message = f"{path}: {done.problem or verdict.message}" if path else verdict.message
    return Refusal(verdict.code or ErrorCode.INFERENCE_ERROR, message, path or None)
