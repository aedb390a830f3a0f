"""A token stream inside the engine: one context that grows by a chunk with each unit.

The slot keeps the keys and values of everything fed, and nothing is fed twice. A unit feeds its chunk, then
samples tokens until one of them ends the unit. The last sampled token is sent but not fed. When the unit is
closed, the token is dropped, or carried into the next forward if the caller asked to keep it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field

from antiphon.contract import Reason
from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.draw import UNIFORMS, Draw, drawn_by
from inference_service.engine.batch.noise import Noise
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.errors import UnitRefused
from inference_service.interface.engine import (
    End,
    Failure,
    Finalized,
    Finish,
    Piece,
    Ready,
    SessionFailed,
    Sink,
)
from inference_service.interface.setups import (
    Content,
    Sampling,
    StreamInput,
    TokensSetup,
    Window,
)
from inference_service.media.memo import PROMPTS_KNOWN, Memo, digest
from inference_service.media.pool import Priority
from inference_service.models.plain_tokenizer import PlainTokenizer
from inference_service.session.base.session import (
    Preprocessor,
    Run,
    Session,
    SessionKind,
    Stage,
)
from inference_service.session.kinds.text import Detokenizer

IDS_AT_ONCE = 1024
"""Limit of one tick's rows of a chunk: a long chunk must not delay other sessions."""
_LONG_TEXT = 65_536
"""Characters beyond which tokenizing a chunk takes long."""
_LEAD = 4
"""Ids of a chunk that precede its output for detokenizing: a decoder may join them with the following ids."""
_POISONED = Failure("INFERENCE_FAILED", "The model gave no usable numbers for this unit.", retryable=True)


@dataclass(frozen=True)
class TokensChunk:
    """The ids that a unit appends."""

    ids: tuple[int, ...]
    begins: bool = False
    """Whether the context is first cut back to its prompt."""
    ends: bool = False


class TokensPreprocessor(Preprocessor[TokensChunk]):
    """The preparation of chunks: text becomes ids."""

    def __init__(self, tokenizer: PlainTokenizer, limit: int, write: Callable[[], list[int]]) -> None:
        """Create the preprocessor; `write` returns the ids of the session's prompt."""
        self._tokenizer = tokenizer
        self._limit = limit
        self._write = write
        self._prompt: list[int] | None = None

    def priority(self, content: Content | None) -> Priority:
        chunk = content.chunk if isinstance(content, StreamInput) else None
        return Priority.REST if isinstance(chunk, str) and len(chunk) > _LONG_TEXT else Priority.SOUND

    def begin(self) -> None:
        self.prompt()

    def prompt(self) -> list[int]:
        """Return the ids of the session's prompt; the first call makes them."""
        if self._prompt is None:
            self._prompt = self._write()
        return self._prompt

    def prepare(self, content: Content) -> TokensChunk:
        if not isinstance(content, StreamInput):
            raise TypeError(f"A token stream takes StreamInput, not {type(content).__name__}.")
        match content.chunk:
            case str() as text:
                ids = self._ids_of(text)
            case tuple() as given:
                ids = given
            case None:
                ids = ()
            case _:
                raise TypeError("A token stream takes ids or text.")
        return TokensChunk(ids, content.begins, content.ends)

    def _ids_of(self, text: str) -> tuple[int, ...]:
        least = self._tokenizer.least_tokens(text)
        if least > self._limit:
            problem = f"has at least {least} tokens; the context holds {self._limit}"
            raise UnitRefused(Reason.INPUT_TOO_LONG, f"stream.text {problem}.", "stream.text")
        ids = tuple(self._tokenizer.encode(text))
        if not ids:
            raise UnitRefused(Reason.PARAMS_INVALID, "stream.text has no tokens.", "stream.text")
        return ids


@dataclass
class TokensRun(Run[TokensChunk]):
    """The running unit: a chunk that is appended and continued."""

    _: KW_ONLY
    sampling: Sampling
    noise: Noise
    text: Detokenizer
    end: End
    ids: tuple[int, ...] = ()
    """Ids of the chunk that are not embedded yet."""
    said: list[int] = field(default_factory=list)
    unfed: int | None = None
    """The last sampled token, if no forward took it."""


@dataclass(eq=False)
class TokensSession(Session[TokensChunk]):
    """One TOKENS session."""

    preprocessor: TokensPreprocessor
    _: KW_ONLY
    setup: TokensSetup
    tokenizer: PlainTokenizer
    ends: frozenset[int]
    """The model's end-of-sequence ids."""
    noise: Noise
    running: TokensRun | None = None

    def start(self, prompt: list[int]) -> None:
        """Begin the context with these ids, which may be empty."""
        if prompt:
            self.to_feed = self.context.begin(Rows.of_ids(prompt))
        else:
            self._ready()

    def _ready(self) -> None:
        self.context.end_prompt()
        self.events.append(Ready(self.context.prompt))
        self.stage = Stage.IDLE

    @property
    def run(self) -> TokensRun:
        """The running unit."""
        assert self.running is not None
        return self.running

    @property
    def is_cancelled(self) -> bool:
        """Whether the unit must end without further tokens."""
        return self.queue.is_cancelled(self.run.unit)

    # ------------------------------------------------------------------- input

    def refuse_unit(self) -> bool:
        """Return whether the unit is answered without feeding a chunk, because it has none or an unusable
        one.
        """
        if self.stage is Stage.PREFILL:
            return False
        assert self.queue.first is not None
        unit = self.queue.first
        chunk = unit.input or TokensChunk(())
        self.running = TokensRun(
            unit,
            sampling=self.setup.sampling,
            noise=self.noise,
            text=Detokenizer(self.tokenizer.decode),
            end=End.TURN if chunk.ends else End.CHUNK,
            ids=chunk.ids,
        )
        self.run.failure = unit.failure or self._too_long(chunk)
        if self.run.failure is None:
            self._open(chunk)
        if self.run.failure is None and chunk.ids:
            return False
        self._heard()
        return True

    def _too_long(self, chunk: TokensChunk) -> Failure | None:
        """Return why the chunk does not fit; a context without any room ends the session."""
        limit = self.context.limit
        before = self.context.prompt if chunk.begins else self.context.tokens
        if before + len(chunk.ids) <= limit:
            return None
        if before >= limit:
            self.run.end = End.CONTEXT_FULL
        problem = f"has {len(chunk.ids)} tokens; the context of {limit} has room for {max(0, limit - before)}"
        remedy = "Begin a new utterance, or open a new session."
        return Failure(Reason.INPUT_TOO_LONG, f"The chunk {problem}. {remedy}", "stream.chunk")

    def _open(self, chunk: TokensChunk) -> None:
        if chunk.begins:
            self.context.cut(self.context.prompt)
        self.run.cached = self.context.length
        if chunk.ids:
            carried = self.context.carry()
            self.run.ids = (*carried, *chunk.ids)
            self.run.text_rows = len(self.run.ids)
            for token in chunk.ids[-_LEAD:]:
                self.run.text.add(token)

    def next_ids(self) -> list[int]:
        """Return the next ids of the chunk to feed."""
        ids = self.run.ids
        self.run.ids = ids[IDS_AT_ONCE:]
        return list(ids[:IDS_AT_ONCE])

    def read(self) -> None:
        """Queue rows to feed."""
        self.to_feed = Rows.of_ids(self.next_ids())
        self.stage = Stage.PREFILL

    def taken(self) -> None:
        if self.stage is Stage.PROMPT:
            self._ready()
        elif self.stage is Stage.PREFILL and not self.run.ids:
            self.run.heard_at = time.monotonic()
            self._heard()

    def _heard(self) -> None:
        self.events.append(self.run.prefilled(self.context.tokens))
        self.stage = Stage.HEARD

    # ------------------------------------------------------------------ output

    def begin_generate(self) -> bool:
        run = self.run
        assert run.unit.overrides is not None
        run.decided_at = time.monotonic()
        if run.failure is not None:
            self._finish(run.end if run.end is End.CONTEXT_FULL else End.FAILED)
        elif run.unit.rejection is not None:
            self._undo()
            run.failure = run.unit.rejection
            self._finish(End.FAILED)
        elif self.is_cancelled:
            self._finish(End.CANCELLED)
        elif not run.text_rows:
            self._finish(run.end)
        else:
            run.sampling = run.unit.overrides.sampling(self.setup.sampling)
            if run.unit.overrides.seed is not None:
                run.noise = Noise(run.unit.overrides.seed)
            self.stage = Stage.DECODE
        return self.stage is Stage.DECODE

    def foresee(self) -> Draw | None:
        return self._draw() if self.stage is Stage.DECODE else None

    def draw(self) -> Draw | None:
        if self.is_cancelled:
            self._finish(End.CANCELLED)
            return None
        return self._draw()

    def _draw(self) -> Draw:
        return drawn_by(self.run.sampling, self.run.noise, self.run.said, self.ends)

    def decide(self, token: int | None) -> int | None:
        run = self.run
        if token is None:
            self.poisoned()
            return None
        run.noise.use(UNIFORMS)
        run.sampled += 1
        run.said.append(token)
        self.events.append(Piece(run.number, run.text.add(token), (token,)))
        run.finish = self._finish_at(token)
        if run.finish is None:
            return token
        run.unfed = token
        self._finish(run.end)
        return None

    def _finish_at(self, token: int) -> Finish | None:
        """Return the reason why this token ends the unit; None if it does not."""
        run = self.run
        if token in run.sampling.stop_token_ids:
            return Finish.STOP
        if token in self.ends and not run.sampling.ignore_eos:
            return Finish.EOS
        if run.sampled >= run.sampling.max_new_tokens:
            return Finish.LENGTH
        if not self.context.has_room_for(1):
            run.end = End.CONTEXT_FULL
            return Finish.LENGTH
        return None

    def feed(self, token: int) -> None:
        self.to_feed = Rows.of_ids([token])

    def poisoned(self) -> None:
        """Fail the unit; its chunk is not in the context."""
        self.to_feed = None
        if self.stage is Stage.PROMPT:
            self.context.restart()
            self.events.append(SessionFailed("INFERENCE_FAILED", "The model cannot read this prompt."))
            return
        self._undo()
        self.run.failure = _POISONED
        if self.stage is Stage.PREFILL:
            self.run.ids = ()
            self._heard()
        else:
            self._finish(End.FAILED)

    def _undo(self) -> None:
        """Remove the rows of the unit from the context; an utterance still counts as begun."""
        if self.run.text_rows:
            self.context.rewind()

    def _finish(self, end: End) -> None:
        if end is End.CHUNK and not self.context.has_room_for(1):
            end = End.CONTEXT_FULL
        self.conclude(self.run, end)

    # ---------------------------------------------------------------------- end

    def end_unit(self) -> None:
        """Add the last sampled token to the context only if it is to be kept."""
        unit = self.run.unit
        if self.run.unfed is not None and unit.keep_last_token and self.context.has_room_for(1):
            self.context.pending.append(self.run.unfed)
            self.run.unfed = None

    def finalize(self) -> None:
        discarded = int(self.run.unfed is not None)
        self.events.append(
            Finalized(self.run.number, self.context.tokens, 0, self.usage, discarded_tokens=discarded)
        )
        self.queue.close_first()
        self.running = self.last_hidden = None
        self.stage = Stage.IDLE


class TokensKind(SessionKind[TokensSession]):
    """The token streams of a model; `ends` are its own end tokens."""

    def __init__(self, runtime: Runtime, tokenizer: PlainTokenizer, ends: frozenset[int]) -> None:
        self._runtime = runtime
        self._tokenizer = tokenizer
        self._ends = ends
        self._known: Memo[list[int]] = Memo(PROMPTS_KNOWN)

    def open(self, session_id: str, slot: int, setup: TokensSetup, sink: Sink) -> TokensSession:
        limit, prompt = self._runtime.info.context_limit, setup.system_prompt
        return TokensSession(
            session_id,
            slot,
            sink,
            Context(self._runtime.language, slot, Window(), limit, setup.tenant),
            TokensPreprocessor(
                self._tokenizer,
                limit,
                lambda: self._known.get(
                    digest(setup.tenant.salt, prompt), lambda: self._tokenizer.encode(prompt)
                ),
            ),
            setup=setup,
            tokenizer=self._tokenizer,
            ends=self._ends,
            noise=Noise(setup.seed),
        )

    def rows_of(self, system_prompt: str) -> Iterator[Rows]:
        yield Rows.of_ids(self._tokenizer.encode(system_prompt))

    def start(self, session: TokensSession) -> SessionFailed | None:
        """Begin with the prompt, if there is one; return the refusal of a prompt that leaves no room."""
        ids, limit = session.preprocessor.prompt(), self._runtime.info.context_limit
        if len(ids) >= limit:
            return SessionFailed("CONFIG_INVALID", f"has {len(ids)} tokens; at most {limit - 1} leave room")
        session.start(ids)
        return None

    def hear(self, sessions: Sequence[TokensSession]) -> None:
        for session in sessions:
            with blame(session):
                session.read()
