"""The duplex model: ear, eye, language model, speech head and vocoder in one module, without sessions."""

import torch
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM

from inference_service.models.audio_encoder import AudioEncoder
from inference_service.models.config import ModelConfig
from inference_service.models.speech_head import SpeechHead
from inference_service.models.vision_encoder import Resampler, VisionEncoder
from inference_service.models.vocoder import Vocoder


class DuplexModel(nn.Module):
    """A duplex model. Submodules have the prefixes of MiniCPM-o's parameter names, except `vocoder`.

    `llm`, `apm` and `tts` always exist; `vpm` and `resampler` exist only in a model with vision.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.language.hidden_size
        self.llm = Qwen3ForCausalLM(config.language)
        self.apm = AudioEncoder(config.audio, hidden)
        self.tts = SpeechHead(config.speech, hidden, config.language.vocab_size)
        self.vocoder = Vocoder(config.vocoder)
        if config.vision is not None:
            self.vpm = VisionEncoder(config.vision)
            self.resampler = Resampler(config.vision, hidden)

    def see(self, pictures: list[Tensor]) -> list[Tensor]:
        """Return embeddings [queries, hidden] of each picture, uint8 [side, side, 3]; one slice per
        picture."""
        return list(self.resampler(self.vpm(torch.stack(pictures)))) if pictures else []
