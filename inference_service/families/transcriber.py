"""What the duplex model needs to hold transcription sessions."""

from collections.abc import Sequence

import torch

from inference_service.api.engine import SessionFailed, Sink
from inference_service.api.setups import TranscribeSetup, WindowMode
from inference_service.engine.batch.context import Context
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.engine.sessions.components import Ear
from inference_service.engine.sessions.duplex_transcription import (
    DuplexTranscription,
    DuplexTranscriptionPreprocessor,
)
from inference_service.engine.text.textstream import Detokenizer
from inference_service.models.tokenizer import Tokenizer


class Transcriber:
    """Opens, starts and hears the transcription sessions of a duplex runtime."""

    def __init__(
        self,
        runtime: Runtime,
        encoder: Ear,
        tokenizer: Tokenizer,
        prompt: str,
        second_tokens: int,
    ) -> None:
        self._runtime = runtime
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._prompt = tokenizer.encode_template(prompt)
        self._second_tokens = second_tokens
        size = runtime.language.backbone.config.vocab_size
        written = {tokenizer.special.chunk_eos}
        self._forbidden = torch.tensor(
            [i for i in range(size) if not tokenizer.is_text(i) and i not in written]
        )

    def open(self, session_id: str, slot: int, setup: TranscribeSetup, sink: Sink) -> DuplexTranscription:
        """A session in a clean slot."""
        info = self._runtime.info
        deaf = self._encoder.initial_state()
        return DuplexTranscription(
            session_id,
            slot,
            sink,
            Context(self._runtime.language, slot, info.window, info.context_limit),
            DuplexTranscriptionPreprocessor(),
            setup,
            torch.Generator().manual_seed(setup.seed),
            Detokenizer(self._tokenizer.decode),
            special=self._tokenizer.special,
            forbidden=self._forbidden,
            prompt=self._prompt,
            second_tokens=self._second_tokens,
            deaf=deaf,
            ear=deaf,
            ear_before=deaf,
        )

    def start(self, session: DuplexTranscription) -> SessionFailed | None:
        """The prompt is fed with the first second of each utterance; here it only has to fit."""
        room = session.context.limit
        if session.context.window.mode is WindowMode.BASIC:
            room = session.context.window.low_tokens
        needed = len(self._prompt) + 2 * session.longest_second
        if needed > room:
            return SessionFailed(
                "CONFIG_INVALID",
                f"a transcription needs a context of {needed} tokens; this worker has {room}",
            )
        session.ready(len(self._prompt))
        return None

    def hear(self, sessions: Sequence[DuplexTranscription]) -> None:
        """Encodes the next second of each session in one batch."""
        if not sessions:
            return
        self._slide(sessions)
        device = self._runtime.device
        seconds = [session.next_second().to(device) for session in sessions]
        heard, states = self._encoder.encode(seconds, [session.ear for session in sessions])
        for session, audio, state in zip(sessions, heard, states, strict=True):
            with blame(session):
                session.start_second(self._runtime.embed(session.next_tokens()), audio, state)

    def _slide(self, sessions: Sequence[DuplexTranscription]) -> None:
        """A unit of many seconds may outgrow the window before it ends."""
        sliding = [session for session in sessions if session.context.must_slide]
        if sliding:
            self._runtime.settle([session.context for session in sliding])
            for session in sliding:
                with blame(session):
                    session.dropped_units += session.context.slide()
