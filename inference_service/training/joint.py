"""Second stage: the language model learns when to listen, when to speak and what to say."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM

from inference_service.media.mel import BANDS
from inference_service.models.audio_encoder import AudioEncoder
from inference_service.models.tokenizer import Tokenizer
from inference_service.training.augment import Augmenter
from inference_service.training.composition import FRAMES, LISTEN, Composer, Conversation, reply_plans
from inference_service.training.corpus import load
from inference_service.training.domain import Exchange, Intent, Split, draw
from inference_service.training.recipe import AUDIO, LANGUAGE, PROMPT_PREFIX, PROMPT_SUFFIX

_AUDIO = -1
_IGNORED = -100
_PER_UNIT = FRAMES // (2 * AUDIO.pool)
_LISTEN_WEIGHT = 0.5
PROMPTS = (
    "You are a helpful assistant.", "Answer briefly.", "", "You are a friendly voice assistant.",
    "Be brief and clear.", "You help people with numbers.", "Speak with the user.",
    "Today is a good day. Answer in one sentence.",
)  # fmt: skip


@dataclass
class Row:
    """One training sequence: ids (-1 where audio goes), what the next token should be, and its audio."""

    ids: list[int]
    labels: list[int]
    mel: np.ndarray | None = None


class Writer:
    """Writes conversations as token sequences."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random) -> None:
        self._tokenizer = tokenizer
        self._rng = rng
        self._ids: dict[str, list[int]] = {}
        self.listen = self._one(LISTEN)

    def _one(self, token: str) -> int:
        return self.encode(token)[0]

    def encode(self, token: str) -> list[int]:
        """Ids of one planned token: a special token by its name or a word with its leading space."""
        if token not in self._ids:
            encode = self._tokenizer.encode_template if token.startswith("<") else self._tokenizer.encode
            self._ids[token] = encode(token)
        return self._ids[token]

    def _prompt(self) -> list[int]:
        prompt = self._rng.choice(PROMPTS)
        return [
            *self._tokenizer.encode_template(PROMPT_PREFIX),
            *self._tokenizer.encode(prompt),
            *self._tokenizer.encode_template(PROMPT_SUFFIX),
        ]

    def _decisions(self, row: Row, tokens: list[str], taught: bool) -> None:
        decided = [token for planned in tokens for token in self.encode(planned)]
        for token in decided:
            row.labels[-1] = token if taught else _IGNORED
            row.ids.append(token)
            row.labels.append(_IGNORED)

    def conversation(self, conversation: Conversation) -> Row:
        """The sequence of a whole spoken session."""
        prompt = self._prompt()
        row = Row(prompt, [_IGNORED] * len(prompt), conversation.mel)
        for plan in conversation.units:
            row.ids += [self._one("<unit>"), *[_AUDIO] * _PER_UNIT]
            row.labels += [_IGNORED] * (_PER_UNIT + 1)
            self._decisions(row, plan.tokens, plan.taught)
            row.ids.append(self._one("</unit>"))
            row.labels.append(_IGNORED)
        return row

    def text(self, exchanges: list[Exchange]) -> Row:
        """Questions in writing instead of sound, several in one sequence: the cheap way to learn facts."""
        prompt = self._prompt()
        row = Row(prompt, [_IGNORED] * len(prompt))
        for exchange in exchanges:
            question = self._tokenizer.encode(exchange.question)
            row.ids += [self._one("<unit>"), *question]
            row.labels += [_IGNORED] * (len(question) + 1)
            for i, plan in enumerate(reply_plans(exchange.reply)):
                if i:
                    row.ids.append(self._one("<unit>"))
                    row.labels.append(_IGNORED)
                self._decisions(row, plan.tokens, True)
                row.ids.append(self._one("</unit>"))
                row.labels.append(_IGNORED)
        return row


class JointModel(nn.Module):
    """Ear and language model under the names they have in the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.llm = Qwen3ForCausalLM(LANGUAGE)
        self.apm = AudioEncoder(AUDIO, LANGUAGE.hidden_size)

    def hidden(self, rows: list[Row], ear_learns: bool) -> tuple[Tensor, Tensor]:
        """Final hidden states [rows, length, hidden] and labels [rows, length] of a padded batch."""
        length = -(-max(len(row.ids) for row in rows) // 32) * 32
        ids = torch.zeros(len(rows), length, dtype=torch.long)
        labels = torch.full((len(rows), length), _IGNORED)
        for i, row in enumerate(rows):
            ids[i, : len(row.ids)] = torch.tensor(row.ids)
            labels[i, : len(row.labels)] = torch.tensor(row.labels)
        embeds = self.llm.model.embed_tokens(ids.clamp(min=0))
        heard = [row.mel for row in rows if row.mel is not None]
        if heard:
            frames = -(-max(len(mel) for mel in heard) // (2 * FRAMES)) * 2 * FRAMES
            mel = torch.full((len(heard), frames, BANDS), -3.0)
            for i, sound in enumerate(heard):
                mel[i, : len(sound)] = torch.from_numpy(sound)
            with torch.set_grad_enabled(ear_learns):
                states = self.apm.hear(mel)
            embedded = self.apm.embed(states)
            counts = [len(sound) // (2 * AUDIO.pool) for sound in heard]
            audio = torch.cat([embedded[i, :count] for i, count in enumerate(counts)])
            embeds = embeds.masked_scatter((ids == _AUDIO)[..., None], audio.to(embeds.dtype))
        return self.llm.model(inputs_embeds=embeds, use_cache=False).last_hidden_state, labels


def loss_of(
    model: JointModel, rows: list[Row], ear_learns: bool, listen: int, smoothing: float
) -> tuple[Tensor, float]:
    """Weighted cross entropy over all taught decisions, and the share of right ones while speaking."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden, labels = model.hidden(rows, ear_learns)
        taught = labels != _IGNORED
        logits = model.llm.lm_head(hidden[taught]).float()
    target = labels[taught]
    loss = F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)
    weight = torch.where(target == listen, _LISTEN_WEIGHT, 1.0)
    right = (logits.argmax(-1) == target)[target != listen].float().mean()
    return (loss * weight).sum() / weight.sum(), float(right)


def train(
    corpus_path: Path, tokenizer_path: Path, ear: Path, out: Path, seconds: float, resume: bool = False,
    frozen_share: float = 0.4, peak: float = 2e-3, batch: int = 12, seed: int = 2, smoothing: float = 0.02,
) -> None:  # fmt: skip
    """Trains for `seconds` of wall time: first with the ear held still, then everything together."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = Tokenizer.load(tokenizer_path)
    model = JointModel()
    if resume:
        model.load_state_dict(torch.load(out, weights_only=True))
    else:
        model.apm.load_state_dict(torch.load(ear, weights_only=True))
    augmenter = Augmenter(seed)
    composer, writer = Composer(load(corpus_path), augmenter), Writer(tokenizer, augmenter.rng)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.02, betas=(0.9, 0.98))
    start, step, loss_average, right_average, preparing = time.monotonic(), 0, 0.0, 0.0, 0.0
    while (elapsed := time.monotonic() - start) < seconds:
        before = time.monotonic()
        units = augmenter.rng.choice([8, 12, 18, 26, 36])
        size = max(4, batch * 18 // units)
        rows = [writer.conversation(composer.conversation(units)) for _ in range(size)]
        for _ in range(6):
            intents = [Intent.ARITHMETIC if augmenter.rng.random() < 0.6 else None for _ in range(12)]
            rows.append(writer.text([draw(augmenter.rng, Split.TRAIN, intent) for intent in intents]))
        preparing += time.monotonic() - before
        share = elapsed / seconds
        ear_learns = share >= frozen_share
        for settings in optimizer.param_groups:
            settings["lr"] = (
                peak * min(1, step / 100 + 0.02) * (1 - share * 0.95) * (0.6 if ear_learns else 1)
            )
        loss, right = loss_of(model, rows, ear_learns, writer.listen, smoothing)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        loss_average = loss.item() if step == 1 else 0.97 * loss_average + 0.03 * loss.item()
        right_average = right if step == 1 else 0.97 * right_average + 0.03 * right
        if step % 20 == 0:
            print(
                f"joint {step:6d} {elapsed:6.0f} s  loss {loss_average:.3f}"
                f"  spoken tokens right {right_average:.3f}  data {preparing / (elapsed + 1e-9):.2f}",
                flush=True,
            )
        if step % 100 == 0:
            torch.save(model.state_dict(), out)
    torch.save(model.state_dict(), out)
