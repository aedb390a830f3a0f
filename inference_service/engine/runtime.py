"""A model on its device, with the KV caches of all slots; the parts that a tick is made of."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from inference_service.api.engine import ModelInfo, SessionFailed, Sink
from inference_service.api.setups import SessionSetup
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.draw import Draw
from inference_service.engine.batch.sampler import choose
from inference_service.engine.session import Session, SessionKind

CPU_ROWS = 128
"""Rows of one forward on the CPU, where more of them only take longer."""


class Runtime:
    """One family of models. Only the engine thread calls it, but for `open`."""

    budget = 1024
    """Rows of one forward, all sessions together."""
    slice_rows = 1
    """Embeddings of a slice of a picture."""

    def __init__(
        self, info: ModelInfo, language: PackedDecoder, embeddings: nn.Module, head: nn.Module
    ) -> None:
        self.info = info
        self.most_waiting = CPU_ROWS if language.cache.device.type == "cpu" else self.budget
        """Rows of one forward that may have no deadline."""
        self.language = language
        self.kinds: dict[type[SessionSetup], SessionKind[Any]] = {}
        """The kinds of session that the model holds, each by what its sessions are set up with."""
        self._embeddings = embeddings
        self._head = head

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.language.cache.device

    def open(self, session_id: str, slot: int, setup: SessionSetup, sink: Sink) -> Session[Any]:
        """A session of one of the model's kinds, in a slot that is clean. Any thread may call this."""
        kind = self.kinds.get(type(setup))
        if kind is None:
            raise TypeError(f"This model takes no {type(setup).__name__}.")
        session: Session[Any] = kind.open(session_id, slot, setup, sink)
        session.kind = kind
        return session

    def start(self, session: Session[Any]) -> SessionFailed | None:
        """Begins the session's context; the refusal if its settings do not fit this model."""
        return session.kind.start(session)

    def hear(self, sessions: Sequence[Session[Any]]) -> None:
        """Hands each session its next unit, in one batch for each kind; see `SessionKind.hear`."""
        groups: dict[SessionKind[Any], list[Session[Any]]] = {}
        for session in sessions:
            groups.setdefault(session.kind, []).append(session)
        for kind, group in groups.items():
            kind.hear(group)

    def see(self, slices: list[Any]) -> list[Tensor]:
        """Embeddings [n, hidden] of slices of pictures."""
        raise RuntimeError("This model has no eye.")

    def speak(self, sessions: Sequence[Session[Any]]) -> None:
        """One step of speech for those in stage SPEAK; what has been heard of raising holds here too."""
        raise RuntimeError("This model has no voice.")

    def embed(self, ids: list[int]) -> Tensor:
        """Language embeddings [n, hidden] of ids."""
        embedded: Tensor = self._embeddings(torch.tensor(ids, dtype=torch.long, device=self.device))
        return embedded

    def think(self, segments: list[Segment]) -> list[Tensor | None]:
        """Final hidden states [n, hidden] of each segment; None where they are not numbers any more."""
        hidden = self.language.forward(segments)
        # One bad row spoils every later one of its session, so the last row tells.
        sound = torch.stack([rows[-1] for rows in hidden]).isfinite().all(dim=1).tolist()
        return [rows if is_sound else None for rows, is_sound in zip(hidden, sound, strict=True)]

    def settle(self, contexts: list[Context]) -> None:
        """Feeds what is pending, so that it is in the slot before the window slides."""
        carried = [context.carry() for context in contexts]
        try:
            embeds = [self.embed(ids) for ids in carried]
            segments = [context.segment(rows) for context, rows in zip(contexts, embeds, strict=True)]
            fed = self.think(segments)
        except Exception:
            for context in contexts:
                context.rewind()
            raise
        for context, hidden in zip(contexts, fed, strict=True):
            if hidden is None:
                context.rewind()
            else:
                context.advance(len(hidden))

    def rebuild(self, contexts: list[Context]) -> None:
        """Feeds the ends of prompts that say more now, after the window slid; then comes `end_rebuild`."""
        self.think([context.rebuild(self.embed(context.rebuilt)) for context in contexts])

    def probe(self, slot: int) -> None:
        """One row in a slot whose session is over: raises if not even that can be computed."""
        self.think([Segment(slot, 0, 0, self.embed([0]))])

    def scores(self, hidden: list[Tensor]) -> Tensor:
        """Float32 scores [n, vocabulary] on the device for n last hidden states."""
        logits: Tensor = self._head(torch.stack(hidden))
        return logits.float()

    def choose(self, hidden: list[Tensor], draws: list[Draw]) -> list[int | None]:
        """The next token for each of n last hidden states; None where the scores are no numbers."""
        rows = sorted(range(len(draws)), key=lambda row: id(draws[row].forbidden))
        chosen = choose(self.scores([hidden[row] for row in rows]), [draws[row] for row in rows])
        by_row = dict(zip(rows, chosen, strict=True))
        return [by_row[row] for row in range(len(draws))]

    def clear(self, slot: int) -> None:
        """Nothing of a session stays in its slot."""
        self.language.cache.clear(slot)
