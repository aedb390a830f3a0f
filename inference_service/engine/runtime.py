"""The model on its device, with the KV slabs of all slots; the parts that a tick is made of."""

from itertools import islice

import torch
from torch import Tensor

from inference_service.engine.api import SessionFailed, SessionSetup, Sink, WindowMode
from inference_service.engine.context import Context
from inference_service.engine.conversation import Conversation
from inference_service.engine.decoder import PackedDecoder, Segment
from inference_service.engine.sampler import TextSampler
from inference_service.engine.speech import Speaker, SpeechState
from inference_service.media.image import MAX_FRAMES
from inference_service.media.mel import HOP, SAMPLE_RATE
from inference_service.models.config import ModelConfig
from inference_service.models.duplex import DuplexModel
from inference_service.models.tokenizer import Tokenizer

SPEECH_CAPACITY = 512
"""Entries of speech context in a slot: about fifteen units of one turn."""
_UNIT_ROOM = 128
"""Room above the window for the longest unit that settings allow, pictures aside."""
_MARKS = 2
"""`<image>` and `</image>`."""


class Runtime:
    """Loaded weights and their caches. Only the engine thread calls it, but for `conversation`."""

    def __init__(self, model: DuplexModel, tokenizer: Tokenizer, config: ModelConfig, slots: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.unit_tokens = SAMPLE_RATE // HOP // 2 // config.audio.pool
        self.picture_tokens = config.vision.queries + _MARKS if config.vision else 0
        room = _UNIT_ROOM + MAX_FRAMES * self.picture_tokens
        self.language = PackedDecoder(model.llm.model, slots, config.context_limit + room)
        self.speaker = Speaker(model.tts, slots, SPEECH_CAPACITY)
        # A decision is text or a token of the unit loop; everything else would break the context's shape.
        decisions = tokenizer.special.decisions
        self.forbidden = torch.tensor(
            [i for i in range(config.language.vocab_size) if not tokenizer.is_text(i) and i not in decisions],
            dtype=torch.long,
        )
        self._prefix = tokenizer.encode_template(config.prompt_prefix)
        self._suffix = tokenizer.encode_template(config.prompt_suffix)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        weight: Tensor = self.model.llm.lm_head.weight
        return weight.device

    def conversation(self, session_id: str, slot: int, setup: SessionSetup, sink: Sink) -> Conversation:
        """A session that has heard nothing; its slot must be clean."""
        generator = torch.Generator().manual_seed(setup.seed)
        return Conversation(
            session_id,
            slot,
            setup,
            sink,
            self.tokenizer,
            Context(self.language, slot, setup.window, self.config.context_limit),
            self.model.apm.initial_state(),
            TextSampler(self.tokenizer.special, self.forbidden, generator),
            SpeechState(slot, torch.Generator().manual_seed(setup.seed)),
            self.model.vocoder.initial_state(setup.seed),
            self.unit_tokens,
            self.picture_tokens,
        )

    def embed(self, ids: list[int]) -> Tensor:
        """Language embeddings [n, hidden] of ids."""
        embedded: Tensor = self.model.llm.model.embed_tokens(
            torch.tensor(ids, dtype=torch.long, device=self.device)
        )
        return embedded

    def start_prompt(self, conversation: Conversation) -> SessionFailed | None:
        """Hands a session its prompt; the refusal if its settings do not fit this model."""
        ids = [*self._prefix, *self.tokenizer.encode(conversation.setup.system_prompt), *self._suffix]
        window = conversation.setup.window
        room = self.config.context_limit
        if window.mode is WindowMode.BASIC:
            if not 0 < window.low_tokens <= window.high_tokens <= room:
                return _refused(f"the window needs 0 < low_tokens <= high_tokens <= {room}")
            room = window.low_tokens
        room -= 2 * conversation.longest_unit
        if len(ids) > room:
            return _refused(f"has {len(ids)} tokens; at most {max(0, room)} leave room for units")
        conversation.to_feed = self.embed(ids)
        return None

    def hear(self, conversations: list[Conversation]) -> None:
        """Encodes the next unit of each session in one batch and hands it its embeddings to feed."""
        units = [c.orders.first for c in conversations if c.orders.first is not None]
        mels = [unit.mel.to(self.device) for unit in units]
        heard, states = self.model.apm.encode(mels, [c.ear for c in conversations])
        slices = iter(self._look([picture for unit in units for picture in unit.pictures]))
        for conversation, unit, audio, state in zip(conversations, units, heard, states, strict=True):
            carried = [*conversation.context.carry(), self.tokenizer.special.unit]
            seen = list(islice(slices, len(unit.pictures)))
            conversation.start_unit(self.embed(carried), seen, audio, state)

    def _look(self, pictures: list[Tensor]) -> list[Tensor]:
        """The slices of all pictures, each [n, hidden] with its marks, encoded in one batch."""
        if not pictures:
            return []
        special = self.tokenizer.special
        begin, end = self.embed([special.image, special.image_end]).split(1)
        slices = self.model.see([picture.to(self.device) for picture in pictures])
        return [torch.cat([begin, embeds, end]) for embeds in slices]

    def think(self, segments: list[Segment]) -> list[Tensor | None]:
        """Final hidden states [n, hidden] of each segment; None where they are not numbers any more."""
        hidden = self.language.forward(segments)
        # One bad row spoils every later one of its session, so the last row tells.
        sound = torch.stack([rows[-1] for rows in hidden]).isfinite().all(dim=1).tolist()
        return [rows if is_sound else None for rows, is_sound in zip(hidden, sound, strict=True)]

    def settle(self, contexts: list[Context]) -> None:
        """Feeds what is pending, so that it is in the slot before the window slides."""
        segments = [context.segment(self.embed(context.carry())) for context in contexts]
        for context, hidden in zip(contexts, self.think(segments), strict=True):
            if hidden is None:
                context.rewind()
            else:
                context.advance(len(hidden))

    def scores(self, hidden: list[Tensor]) -> Tensor:
        """Float32 scores [n, vocabulary] on the CPU for n last hidden states."""
        logits: Tensor = self.model.llm.lm_head(torch.stack(hidden))
        return logits.float().cpu()

    def clear(self, slot: int) -> None:
        """Nothing of a session stays in its slot."""
        self.language.cache.clear(slot)
        self.speaker.decoder.cache.clear(slot)


def _refused(problem: str) -> SessionFailed:
    return SessionFailed("CONFIG_INVALID", problem)
