"""The duplex model: ear, language model, speech head and vocoder in one module, without any session state."""

from torch import nn
from transformers import Qwen3ForCausalLM

from inference_service.models.audio_encoder import AudioEncoder
from inference_service.models.config import ModelConfig
from inference_service.models.speech_head import SpeechHead
from inference_service.models.vocoder import Vocoder


class DuplexModel(nn.Module):
    """Submodules carry the prefixes of the published parameter names: `llm`, `apm`, `tts`; plus `vocoder`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.language.hidden_size
        self.llm = Qwen3ForCausalLM(config.language)
        self.apm = AudioEncoder(config.audio, hidden)
        self.tts = SpeechHead(config.speech, hidden, config.language.vocab_size)
        self.vocoder = Vocoder(config.vocoder)
