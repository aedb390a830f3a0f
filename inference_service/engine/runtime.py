"""The model on its device, with the KV slabs of all slots; the parts that a tick is made of."""

import torch
from torch import Tensor

from inference_service.engine.api import WindowMode
from inference_service.engine.conversation import Conversation
from inference_service.engine.decoder import PackedDecoder
from inference_service.engine.speech import Speaker
from inference_service.media.mel import HOP, SAMPLE_RATE
from inference_service.models.config import ModelConfig
from inference_service.models.duplex import DuplexModel
from inference_service.models.tokenizer import Tokenizer

SPEECH_CAPACITY = 512
"""Entries of speech context in a slot: about fifteen units of one turn."""
_UNIT_ROOM = 128
"""Room above the window for the longest unit that settings allow."""


class Runtime:
    """Loaded weights and their caches. Only the engine thread calls it."""

    def __init__(self, model: DuplexModel, tokenizer: Tokenizer, config: ModelConfig, slots: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.unit_tokens = SAMPLE_RATE // HOP // 2 // config.audio.pool
        self.capacity = config.context_limit + _UNIT_ROOM
        self.language = PackedDecoder(model.llm.model, slots, self.capacity)
        self.speaker = Speaker(model.tts, slots, SPEECH_CAPACITY)
        special = tokenizer.special
        reserved = {
            special.chunk_eos,
            special.tts_pad,
            special.unit,
            special.unit_end,
            special.im_start,
            special.im_end,
        }
        self.forbidden = torch.tensor(sorted(reserved))
        self._prefix = tokenizer.encode_template(config.prompt_prefix)
        self._suffix = tokenizer.encode_template(config.prompt_suffix)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.llm.lm_head.weight.device

    def embed(self, ids: list[int]) -> Tensor:
        """Language embeddings [n, hidden] of ids."""
        embedded: Tensor = self.model.llm.model.embed_tokens(
            torch.tensor(ids, dtype=torch.long, device=self.device)
        )
        return embedded

    def start_prompt(self, conversation: Conversation) -> str | None:
        """Hands a session its prompt; the reason in words if its settings do not fit this model."""
        ids = [*self._prefix, *self.tokenizer.encode(conversation.setup.system_prompt), *self._suffix]
        window = conversation.setup.window
        room = self.config.context_limit
        if window.mode is WindowMode.BASIC:
            if not 0 < window.low_tokens <= window.high_tokens <= room:
                return f"window: 0 < low_tokens <= high_tokens <= {room} is needed"
            room = window.low_tokens
        room -= 2 * (conversation.longest_unit + 2)
        if len(ids) > room:
            return f"system_prompt: {len(ids)} tokens, at most {max(0, room)} fit"
        conversation.start_prompt(self.embed(ids))
        return None

    def hear(self, conversations: list[Conversation]) -> None:
        """Encodes the next unit of each session in one batch and hands it its embeddings to feed."""
        mels = [c.units[0].mel.to(self.device) for c in conversations]
        heard, states = self.model.apm.encode(mels, [c.ear for c in conversations])
        for conversation, audio, state in zip(conversations, heard, states, strict=True):
            conversation.ear = state
            cached = conversation.context.length
            ids = [*conversation.context.pending, self.tokenizer.special.unit]
            conversation.start_unit(torch.cat([self.embed(ids), audio]), cached)

    def scores(self, hidden: list[Tensor]) -> Tensor:
        """Float32 scores [n, vocabulary] on the CPU for n last hidden states."""
        logits: Tensor = self.model.llm.lm_head(torch.stack(hidden))
        return logits.float().cpu()

    def clear(self, slot: int) -> None:
        """Nothing of a session stays in its slot."""
        self.language.cache.clear(slot)
        self.speaker.decoder.cache.clear(slot)
