"""The runtime: a model on its device, with the KV caches of all slots and the steps of a tick."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inference_service.device.rows import Rows
from inference_service.device.transfer import Array, download
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.decoder import MOST_ROWS, PackedDecoder, Segment
from inference_service.engine.batch.draw import Draw
from inference_service.engine.batch.prefix import shared_names
from inference_service.engine.batch.sampler import (
    DrawTable,
    choose_beside,
    choose_by_rows,
    choose_together,
    goes_by_rows,
)
from inference_service.interface.engine import ModelInfo, SessionFailed, Sink
from inference_service.interface.setups import SessionSetup
from inference_service.session.base.session import Session, SessionKind

logger = logging.getLogger(__name__)

CPU_ROWS = 128
"""Limit of rows without a deadline in one forward on the CPU. Linear layers take this many in one piece, and
more rows only make the forward longer.
"""


class Runtime:
    """The runtime of a model family. Only the engine thread calls it, except for `open`."""

    budget = MOST_ROWS
    """Limit of rows in one forward of all sessions."""
    slice_rows = 1
    """Embeddings of a slice of a picture."""

    def __init__(self, info: ModelInfo, language: PackedDecoder, head: nn.Module) -> None:
        """Create the runtime; `language` has the embeddings of its ids."""
        self.info = info
        self.most_waiting = CPU_ROWS if language.cache.device.type == "cpu" else self.budget
        """Limit of rows without a deadline in one forward."""
        self.language = language
        self.kinds: dict[type[SessionSetup], SessionKind[Any]] = {}
        """The model's kinds of session, by the type of their setup."""
        self.by_rows = goes_by_rows(self.device, info.vocabulary)
        """Whether the host samples; then speculative sampling gains nothing."""
        self._expected: Mapping[int, Draw] = {}
        self._foreseen: list[SpeculativeTokens] = []
        self._head = head

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.language.cache.device

    def open(self, session_id: str, slot: int, setup: SessionSetup, sink: Sink) -> Session[Any]:
        """Return a session of one of the model's kinds in a clean slot. Any thread may call this."""
        kind = self.kinds.get(type(setup))
        if kind is None:
            raise TypeError(f"This model takes no {type(setup).__name__}.")
        session: Session[Any] = kind.open(session_id, slot, setup, sink)
        session.kind = kind
        return session

    @torch.inference_mode()
    def share(self, system_prompts: Iterable[str]) -> None:
        """Let sessions of every tenant find the pages of these prompts. Must be called before the first
        session.
        """
        for prompt in system_prompts:
            for kind in self.kinds.values():
                for rows in kind.rows_of(prompt):
                    self.language.cache.share(shared_names(rows))

    def prepare(self, session: Session[Any]) -> Iterator[None]:
        """Do the long work of a session's opening in portions; see `SessionKind.prepare`."""
        return session.kind.prepare(session)

    def start(self, session: Session[Any]) -> SessionFailed | None:
        """Begin the session's context; return a refusal if its settings do not fit this model."""
        return session.kind.start(session)

    def hear(self, sessions: Sequence[Session[Any]]) -> None:
        """Give each session its next unit, in one batch for each kind; see `SessionKind.hear`."""
        groups: dict[SessionKind[Any], list[Session[Any]]] = {}
        for session in sessions:
            groups.setdefault(session.kind, []).append(session)
        for kind, group in groups.items():
            kind.hear(group)

    def see(self, slices: list[Any]) -> list[Tensor]:
        """Return embeddings [n, hidden] of slices of pictures."""
        raise RuntimeError("This model has no vision encoder.")

    def speak(self, sessions: Sequence[Session[Any]]) -> None:
        """Run one step of speech for the sessions in stage SPEAK. Errors follow the rule of `hear`."""
        raise RuntimeError("This model has no speech output.")

    def think(self, segments: list[Segment]) -> list[Tensor | None]:
        """Return the final hidden state [hidden] of each segment's last row; None where it is not finite.

        Such a row makes every later row of its session wrong.
        """
        asked = [row for row, segment in enumerate(segments) if segment.slot in self._expected]
        if asked:
            hidden, sums = self._drawn_beside(segments, asked)
        else:
            hidden, _ = self.language.last(segments)
            sums = _sums_here(hidden)
        sound = np.isfinite(sums).tolist()
        return [row if is_sound else None for row, is_sound in zip(hidden.unbind(), sound, strict=True)]

    def _drawn_beside(self, segments: list[Segment], asked: list[int]) -> tuple[Tensor, Array]:
        """Return hidden states and their sums, with one upload and one download for tokens and forward."""
        asked.sort(key=lambda row: id(self._expected[segments[row].slot].forbidden))
        draws = [self._expected[segments[row].slot] for row in asked]
        table = DrawTable(draws)
        hidden, (rows, cells) = self.language.last(segments, np.array(asked), table.cells)
        table.attach(cells)
        scores = self.scores(hidden.index_select(0, rows))
        chosen, (sums,) = choose_beside(scores, draws, table, _sums(hidden))
        self._foreseen.append(SpeculativeTokens(hidden, asked, draws, chosen))
        return hidden, sums

    def expect(self, draws: Mapping[int, Draw]) -> None:
        """Announce by slot the next draws of the sessions that are fed next, so that `think` can sample
        speculatively.

        Without draws `think` samples nothing. Earlier samples are kept until other draws are announced.
        """
        self._expected = draws
        if draws:
            self._foreseen.clear()

    def settle(self, contexts: list[Context]) -> None:
        """Feed the pending rows, so that they are in the slot before the window slides."""
        carried = [context.carry() for context in contexts]
        try:
            segments = [
                context.segment(Rows.of_ids(ids)) for context, ids in zip(contexts, carried, strict=True)
            ]
            fed = self.think(segments)
        except Exception:
            for context in contexts:
                context.rewind()
            raise
        for context, segment, hidden in zip(contexts, segments, fed, strict=True):
            if hidden is None:
                context.rewind()
            else:
                context.advance(len(segment.rows))

    def rebuild(self, contexts: list[Context]) -> None:
        """Feed the extended ends of prompts after the window slid; then call `end_rebuild`."""
        self.think([context.rebuild() for context in contexts])

    def probe(self, slot: int) -> None:
        """Compute one row in a slot whose session is over; raises if the device fails."""
        self.think([Segment(slot, 0, 0, Rows.of_ids([0]))])

    def scores(self, hidden: Tensor) -> Tensor:
        """Return float32 scores [n, vocabulary] on the device for hidden states [n, hidden]."""
        logits: Tensor = self._head(hidden)
        return logits.float()

    def choose(self, hidden: list[Tensor], draws: list[Draw]) -> list[int | None]:
        """Return the next token for each of n last hidden states; None where the scores are not finite."""
        if self.by_rows:
            together = hidden[0][None] if len(hidden) == 1 else torch.stack(hidden)
            return choose_by_rows(self.scores(together), draws)
        known = {row: token for it in self._foreseen for row, token in it.tokens(hidden, draws)}
        rows = [row for row in range(len(draws)) if row not in known]
        if rows:
            rows.sort(key=lambda row: id(draws[row].forbidden))
            scores = self.scores(torch.stack([hidden[row] for row in rows]))
            chosen = choose_together(scores, [draws[row] for row in rows])
            known |= dict(zip(rows, chosen, strict=True))
        return [known[row] for row in range(len(draws))]

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture repeated work on a device other than the CPU, before the first session."""
        backend = self.language.backend
        if backend is not None:
            fields = {"backend": backend.name, "reason": backend.why}
            logger.info("attention backend for rows of one token", extra=fields)
        for decoder in self.decoders:
            decoder.capture()

    @property
    def decoders(self) -> list[PackedDecoder]:
        """The decoders that make a step for each token or code."""
        return [self.language]

    def clear(self, slot: int) -> None:
        """Clear a session's slot."""
        self.language.cache.clear(slot)


class SpeculativeTokens:
    """Tokens that were sampled together with a forward, before it was known that they were needed."""

    def __init__(self, hidden: Tensor, rows: list[int], draws: list[Draw], tokens: list[int | None]) -> None:
        """Keep `tokens`, which were sampled by `draws` from these rows of hidden states [n, hidden]."""
        self._hidden = hidden  # keeps the memory, so that no other tensor gets the addresses of its rows
        begin, size = hidden.data_ptr(), hidden.stride(0) * hidden.element_size()
        places = (begin + row * size for row in rows)
        self._drawn = dict(zip(places, zip(draws, tokens, strict=True), strict=True))

    def tokens(self, hidden: list[Tensor], draws: list[Draw]) -> Iterator[tuple[int, int | None]]:
        """Yield the tokens of hidden states, each [hidden], that are now drawn in the same way."""
        for row, (state, draw) in enumerate(zip(hidden, draws, strict=True)):
            asked, token = self._drawn.get(state.data_ptr(), (None, None))
            if asked is not None and asked.is_like(draw):
                yield row, token


def _sums_here(states: Tensor) -> Array:
    """Sum as `_sums` does, on the host."""
    if states.device.type == "cpu" and states.dtype is torch.float32:  # torch takes three times as long
        return np.add.reduce(states.numpy(), axis=1)  # type: ignore[no-any-return]
    (sums,) = download(_sums(states))
    return sums


def _sums(states: Tensor) -> Tensor:
    """Sum rows [n, hidden] to float32 [n]; the sum is NaN where a number of the row is."""
    return states.sum(dim=1, dtype=torch.float32)
