"""The tokenizer of `antiphon-mini`: bytes, the words of its world as single tokens, special tokens."""

import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from inference_service.training.corpus.domain import HEARING, Intent, Split, draw, heard_replies, spell
from inference_service.training.corpus.recipe import VOCABULARY

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "</image>", "<slice>", "</slice>", "<unit>",
    "</unit>", "<|audio_start|>", "<|audio_end|>", "<|audio_bos|>", "<|tts_bos|>", "<|tts_eos|>",
    "<|tts_pad|>", "<|listen|>", "<|speak|>", "<|turn_eos|>", "<|chunk_eos|>", "<|chunk_tts_eos|>",
]  # fmt: skip


def words() -> list[str]:
    """Return every word that people or the model say inside the domain, pictures aside.

    The names of colours and shapes are spelled in pieces, so the vocabulary is that of earlier checkpoints.
    """
    rng = random.Random(0)
    heard = {
        word
        for intent in HEARING
        if intent is not Intent.OUT_OF_DOMAIN
        for _ in range(1500)
        for word in draw(rng, Split.TRAIN, intent).question.split()
    }
    said = {word for reply in heard_replies() for word in reply.split()}
    return sorted(heard | said | {word for n in range(401) for word in spell(n).split()})


def build(out: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` into `out`."""
    vocabulary = [*words(), "system", "You are a helpful assistant.", "Answer briefly."]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(vocabulary, trainer)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(
        '{\n "tokenizer_class": "PreTrainedTokenizerFast",\n "eos_token": "<|im_end|>"\n}\n'
    )
