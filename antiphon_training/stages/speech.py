"""The last trained stage: the speech head learns the codes of words."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon_training.corpus.answers import SpokenReply, load
from antiphon_training.corpus.recipe import LANGUAGE, SPEECH
from antiphon_training.corpus.writing import Row, Writer
from antiphon_training.domains.domain import Domain, Exchange, Split
from antiphon_training.domains.mini import seen_replies
from antiphon_training.stages import chat
from antiphon_training.stages.chat import Message, Talk
from antiphon_training.stages.joint import JointModel
from antiphon_training.stages.precision import mixed
from antiphon_training.stages.rounds import Bar, save
from inference_service.models.speech_head import SpeechHead
from inference_service.models.tokenizer import Tokenizer

_IGNORED = -100
_WRONG_CODES = 0.05
"""The share of input codes that are replaced by random ones."""
_CUT_SHORT = 0.08
"""The share of longer turns that an interruption ends."""
_SEEN_SHARE = 0.15
"""The share of turns that are replies about pictures."""
_CHATTED_SHARE = 0.35
"""The share of turns with the hidden states of a chat answer."""
HELD_OUT = 60
"""Replies that are held out to report the loss, at most a tenth of all."""


@dataclass
class Turn:
    """One reply: the text tokens and the codes of each unit.

    `hidden` has the tokens' hidden states in a spoken session, `chatted` those in a chat answer. In a
    chat the token of the turn's end is fed only for its hidden state.
    """

    text: str
    tokens: list[list[int]]
    hidden: list[Tensor]
    chatted: list[Tensor]
    codes: list[list[int]]


@torch.no_grad()
def turns(
    corpus: list[SpokenReply], codes: list[list[list[int]]], writer: Writer, model: JointModel
) -> list[Turn]:
    """Return each reply as a turn, with the language model's hidden states of its tokens."""
    turn_end = writer.encode("<|turn_eos|>")
    result = []
    for reply, units in zip(corpus, codes, strict=True):
        text = reply.text
        spoken = writer.text([Exchange("", text, text)])
        chatted = chat.chat_row(writer, Talk([Message("user", [text]), Message("assistant", [text])]))
        chatted.ids = [*chatted.ids[:-1], *turn_end]
        tokens = [[t for word in chunk for t in writer.encode(f" {word}")] for chunk in reply.words]
        tokens[-1] += turn_end
        hidden, answered = (_states(model, row, tokens) for row in (spoken, chatted))
        result.append(Turn(text, tokens, hidden, answered, units))
    return result


def _states(model: JointModel, row: Row, tokens: list[list[int]]) -> list[Tensor]:
    """Return the hidden states of the tokens of each unit, which occur last in the row."""
    hidden, _ = model.hidden([row], ear_learns=False)
    states: list[Tensor] = []
    at = len(row.ids) - 1
    for chunk in reversed(tokens):
        while row.ids[at] != chunk[-1]:
            at -= 1
        assert row.ids[at - len(chunk) + 1 : at + 1] == chunk
        states.insert(0, hidden[0, at - len(chunk) + 1 : at + 1].float())
        at -= len(chunk)
    return states


def write(
    head: SpeechHead, turn: Turn, turn_end: int, generator: torch.Generator
) -> tuple[Tensor, list[int]]:
    """Return embeddings [length, hidden] and labels of one turn, sometimes with an interruption."""
    units = len(turn.tokens)
    states = turn.chatted if float(torch.rand(1, generator=generator)) < _CHATTED_SHARE else turn.hidden
    cut = units
    if units > 1 and float(torch.rand(1, generator=generator)) < _CUT_SHORT:
        cut = int(torch.randint(1, units, (1,), generator=generator))
    rows: list[Tensor] = []
    labels: list[int] = []
    for i in range(cut):
        codes = turn.codes[i]
        target = (
            [*codes, SPEECH.end_code] if i == units - 1 and len(codes) < SPEECH.codes_per_second else codes
        )
        heard = torch.tensor(codes)
        wrong = torch.rand(len(codes), generator=generator) < _WRONG_CODES
        heard = torch.where(wrong, torch.randint(SPEECH.codes, (len(codes),), generator=generator), heard)
        rows += [
            head.condition(torch.tensor(turn.tokens[i]), _blurred(states[i], generator)),
            head.embed_codes(heard),
        ]
        labels += [_IGNORED] * len(turn.tokens[i]) + target + [_IGNORED] * (len(codes) + 1 - len(target))
    if cut < units:
        rows.append(head.condition(torch.tensor([turn_end]), _blurred(states[-1][-1:], generator)))
        labels += [_IGNORED, SPEECH.end_code]
    return torch.cat(rows), labels


def draw_turn(domain: Domain, data: list[Turn], by_text: dict[str, Turn], rng: random.Random) -> Turn:
    """Draw a turn: by its frequency in the domain, about a picture, or uniformly from `data`."""
    kind = rng.random()
    frequent = None
    if kind < 0.45:
        frequent = by_text.get(domain.draw(rng, Split.TRAIN).reply)
    elif domain.looking and kind < _SEEN_SHARE + 0.45:
        frequent = by_text.get(rng.choice(seen_replies()))
    return frequent or rng.choice(data)


def _blurred(hidden: Tensor, generator: torch.Generator) -> Tensor:
    """Return hidden states with noise, since spoken questions lead to other states than written ones."""
    noise = torch.randn(hidden.shape, generator=generator) * hidden.std()
    return hidden + noise * torch.rand(1, generator=generator)


def loss_of(head: SpeechHead, batch: list[tuple[Tensor, list[int]]]) -> Tensor:
    """Return the cross entropy over the codes of a padded batch."""
    length = -(-max(len(labels) for _, labels in batch) // 32) * 32
    embeds = torch.stack([F.pad(rows, (0, 0, 0, length - len(rows))) for rows, _ in batch])
    labels = torch.tensor([[*labels, *[_IGNORED] * (length - len(labels))] for _, labels in batch])
    with mixed():
        hidden = head.model(inputs_embeds=embeds, use_cache=False).last_hidden_state
        taught = labels != _IGNORED
        return F.cross_entropy(head.logits(hidden[taught]).float(), labels[taught], label_smoothing=0.02)


def train(
    domain: Domain, corpus_path: Path, codec: Path, tokenizer_path: Path, joint: Path | None, out: Path,
    seconds: float, resume: bool, peak: float = 1.5e-3,
) -> None:  # fmt: skip
    """Train for `seconds` of wall time and write the speech head's weights to `out`.

    Without `joint` the language model has random weights.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    tokenizer = Tokenizer.load(tokenizer_path)
    writer = Writer(tokenizer, random.Random(0), domain.prompts)
    model = JointModel(tokenizer.size)
    if joint is not None:
        model.load_state_dict(torch.load(joint, weights_only=True))
    data = turns(load(corpus_path), torch.load(codec, weights_only=True)["codes"], writer, model)
    order = torch.randperm(len(data), generator=generator).tolist()
    aside = min(HELD_OUT, len(data) // 10)
    unheard = {data[i].text for i in order[:aside]} - set(domain.standing_replies())
    held_out = [turn for turn in data if turn.text in unheard]
    data = [turn for turn in data if turn.text not in unheard]
    head = SpeechHead(SPEECH, LANGUAGE.hidden_size, model.llm.config.vocab_size)
    if resume:
        head.load_state_dict(torch.load(out, weights_only=True))
    by_text, rng = {turn.text: turn for turn in data}, random.Random(1)
    turn_end = writer.encode("<|turn_eos|>")[0]
    optimizer = torch.optim.AdamW(head.parameters(), lr=peak, weight_decay=0.02, betas=(0.9, 0.98))
    bar = Bar("speech", seconds)
    start, step, average = time.monotonic(), 0, 0.0
    while (elapsed := time.monotonic() - start) < seconds:
        for settings in optimizer.param_groups:
            settings["lr"] = peak * min(1, step / 100 + 0.02) * (1 - elapsed / seconds * 0.95)
        chosen = [draw_turn(domain, data, by_text, rng) for _ in range(24)]
        loss = loss_of(head, [write(head, turn, turn_end, generator) for turn in chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        step += 1
        average = loss.item() if step == 1 else 0.97 * average + 0.03 * loss.item()
        bar.move(elapsed)
        if step % 50 == 0:
            save(head.state_dict(), out)
            note = f"loss {average:.3f}"
            if held_out:
                with torch.no_grad():
                    unseen = loss_of(head, [write(head, turn, turn_end, generator) for turn in held_out])
                note += f"  unseen replies {unseen:.3f}"
            bar.note(step, elapsed, note)
    bar.close()
    save(head.state_dict(), out)
