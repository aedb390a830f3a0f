"""A token stream of the vLLM engine: the ids of its context, sent whole for each chunk.

The prefix cache holds the results of earlier chunks. As in the other engine, the last sampled token is not
part of the context unless it is to be kept.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from antiphon.contract import Reason
from inference_service.engine_vllm.generator import Generator, Request, seed_of
from inference_service.engine_vllm.session import VllmSession
from inference_service.interface.engine import (
    Deliver,
    End,
    Event,
    Failure,
    Finish,
    Piece,
    Ready,
    SessionFailed,
    Sink,
)
from inference_service.interface.setups import Sampling, TokensSetup
from inference_service.models.plain_tokenizer import PlainTokenizer
from inference_service.session.base.session import QueuedUnit, Run
from inference_service.session.kinds.text import Detokenizer
from inference_service.session.kinds.tokens import TokensChunk, TokensPreprocessor

_LEAD = 4
"""Ids of a chunk that precede its output for detokenizing: a decoder may join them with the following ids."""


@dataclass(frozen=True)
class StreamRules:
    """The facts about a model that its token streams need."""

    tokenizer: PlainTokenizer
    ends: frozenset[int]
    limit: int
    """Limit of tokens of the context."""


@dataclass
class StreamRun(Run[TokensChunk]):
    """The chunk being continued."""

    _: KW_ONLY
    sampling: Sampling
    text: Detokenizer
    end: End
    before: int
    """Length of the context without the chunk."""
    said: list[int] = field(default_factory=list)
    carried: bool = False
    """Whether its input begins with a token that was kept from the previous unit."""
    has_ended: bool = False
    """Whether the last token of `said` has ended the unit: then it is not part of the context yet."""


class VllmStream(VllmSession[TokensChunk]):
    """One TOKENS session."""

    preprocessor: TokensPreprocessor

    def __init__(
        self,
        session_id: str,
        sink: Sink,
        setup: TokensSetup,
        rules: StreamRules,
        generator: Generator,
        deliver: Deliver,
    ) -> None:
        preprocessor = TokensPreprocessor(
            rules.tokenizer, rules.limit, lambda: rules.tokenizer.encode(setup.system_prompt)
        )
        super().__init__(session_id, sink, preprocessor, generator, deliver)
        self._setup = setup
        self._rules = rules
        self._ids: list[int] = []
        self._prompt = 0
        self._kept = False
        """Whether the last id was kept from the previous unit, and counts as input of the next."""
        self._run: StreamRun | None = None

    @property
    def run(self) -> StreamRun:
        assert self._run is not None
        return self._run

    @property
    def context_tokens(self) -> int:
        run = self._run
        fed = 0 if run is None else len(run.said) - run.has_ended
        return len(self._ids) + fed

    def begin(self) -> Event:
        ids, limit = self.preprocessor.prompt(), self._rules.limit
        if len(ids) >= limit:
            return SessionFailed("CONFIG_INVALID", f"has {len(ids)} tokens; at most {limit - 1} leave room")
        self._ids = list(ids)
        self._prompt = len(ids)
        return Ready(len(ids))

    def read(self, unit: QueuedUnit[TokensChunk]) -> None:
        chunk = unit.input or TokensChunk(())
        before = self._prompt if chunk.begins else len(self._ids)
        self._run = run = StreamRun(
            unit,
            sampling=self._setup.sampling,
            text=Detokenizer(self._rules.tokenizer.decode),
            end=End.TURN if chunk.ends else End.CHUNK,
            before=before,
        )
        run.failure = unit.failure or self._too_long(chunk, before)
        if run.failure is not None:
            return
        if chunk.begins:
            self._kept = False
        del self._ids[before:]
        if chunk.ids:
            run.carried, self._kept = self._kept, False
            run.text_rows = len(chunk.ids) + run.carried
            self._ids += chunk.ids
            for token in chunk.ids[-_LEAD:]:
                run.text.add(token)

    def _too_long(self, chunk: TokensChunk, before: int) -> Failure | None:
        """Return why the chunk does not fit; a context without any room ends the session."""
        limit = self._rules.limit
        if before + len(chunk.ids) <= limit:
            return None
        if before >= limit:
            self.run.end = End.CONTEXT_FULL
        problem = f"has {len(chunk.ids)} tokens; the context of {limit} has room for {max(0, limit - before)}"
        remedy = "Begin a new utterance, or open a new session."
        return Failure(Reason.INPUT_TOO_LONG, f"The chunk {problem}. {remedy}", "stream.chunk")

    def refused(self) -> End | None:
        run = self.run
        if run.failure is not None:
            return run.end if run.end is End.CONTEXT_FULL else End.FAILED
        if run.unit.rejection is not None:
            del self._ids[run.before :]
            self._kept = run.carried
            run.failure = run.unit.rejection
            return End.FAILED
        if self.is_cancelled:
            return End.CANCELLED
        if not run.text_rows:
            return self._or_full(run.end)
        assert run.unit.overrides is not None
        run.sampling = run.unit.overrides.sampling(self._setup.sampling)
        return None

    def request(self) -> Request:
        run = self.run
        assert run.unit.overrides is not None
        own = run.unit.overrides.seed
        room = self._rules.limit - len(self._ids) + 1  # the token sampled last needs none
        return Request(
            tuple(self._ids),
            min(run.sampling.max_new_tokens, room),
            run.sampling,
            self._rules.ends,
            seed_of(self._setup.seed, run.number) if own is None else seed_of(own, 0),
            self._setup.tenant,
        )

    def decide(self, token: int, tell: Callable[[Event], None]) -> End | None:
        run = self.run
        run.said.append(token)
        tell(Piece(run.number, run.text.add(token), (token,)))
        run.finish = self._finish_at(token)
        if run.finish is None:
            return None
        run.has_ended = True
        return self._or_full(run.end)

    def _finish_at(self, token: int) -> Finish | None:
        """Return the reason why this token ends the unit; None if it does not."""
        run = self.run
        if token in run.sampling.stop_token_ids:
            return Finish.STOP
        if token in self._rules.ends and not run.sampling.ignore_eos:
            return Finish.EOS
        if run.sampled >= run.sampling.max_new_tokens:
            return Finish.LENGTH
        if self.context_tokens > self._rules.limit:
            run.end = End.CONTEXT_FULL
            return Finish.LENGTH
        return None

    def _or_full(self, end: End) -> End:
        return End.CONTEXT_FULL if end is End.CHUNK and self.context_tokens >= self._rules.limit else end

    def close_unit(self) -> int:
        run = self.run
        said, has_ended = run.said, run.has_ended
        keeps = has_ended and run.unit.keep_last_token and self.context_tokens < self._rules.limit
        self._ids += said if keeps or not has_ended else said[:-1]
        self._kept = self._kept or keeps
        self._run = None
        return int(has_ended and not keeps)
