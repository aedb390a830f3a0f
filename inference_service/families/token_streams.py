"""What a model needs to hold token streams."""

from collections.abc import Sequence
from typing import cast

import torch

from inference_service.api.engine import SessionFailed, Sink
from inference_service.api.setups import TokensSetup, Window
from inference_service.engine.batch.context import Context
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.engine.sessions.tokens import TokensPreprocessor, TokensSession
from inference_service.media.memo import PROMPTS_KNOWN, Memo, digest
from inference_service.models.plain_tokenizer import PlainTokenizer


class Tokens:
    """Opens the token streams of a runtime and feeds their chunks; `ends` are the model's own end tokens."""

    def __init__(self, runtime: Runtime, tokenizer: PlainTokenizer, ends: frozenset[int]) -> None:
        self._runtime = runtime
        self._tokenizer = tokenizer
        self._ends = ends
        self._known: Memo[list[int]] = Memo(PROMPTS_KNOWN)

    def open(self, session_id: str, slot: int, setup: TokensSetup, sink: Sink) -> TokensSession:
        """A session in a clean slot."""
        limit, prompt = self._runtime.info.context_limit, setup.system_prompt
        return TokensSession(
            session_id,
            slot,
            sink,
            Context(self._runtime.language, slot, Window(), limit),
            TokensPreprocessor(
                self._tokenizer,
                limit,
                lambda: self._known.get(digest(prompt), lambda: self._tokenizer.encode(prompt)),
            ),
            setup=setup,
            tokenizer=self._tokenizer,
            ends=self._ends,
            generator=torch.Generator().manual_seed(setup.seed),
        )

    def start(self, stream: TokensSession) -> SessionFailed | None:
        """Begins with the prompt, if there is one; the refusal of one that leaves no room."""
        ids, limit = cast(TokensPreprocessor, stream.preprocessor).opening(), self._runtime.info.context_limit
        if len(ids) >= limit:
            return SessionFailed("CONFIG_INVALID", f"has {len(ids)} tokens; at most {limit - 1} leave room")
        stream.start(self._runtime.embed(ids) if ids else None)
        return None

    def hear(self, streams: Sequence[TokensSession]) -> None:
        """Embeds the next ids of each stream's chunk."""
        for stream in streams:
            with blame(stream):
                stream.read(self._runtime.embed(stream.next_ids()))
