"""Training chats in the chat template: typed questions with pictures, clips and tools."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers.utils.chat_template_utils import render_jinja_template

from antiphon_training.corpus.augment import Augmenter
from antiphon_training.corpus.camera import Pixels
from antiphon_training.corpus.composition import FRAMES
from antiphon_training.corpus.pictures import (
    NOTHING,
    PictureSet,
    Scene,
    random_scene,
)
from antiphon_training.corpus.spoken import Utterance
from antiphon_training.corpus.vocabulary import SPECIAL
from antiphon_training.corpus.writing import Row, Writer
from antiphon_training.domains.domain import (
    ONES,
    Domain,
    Exchange,
    Split,
)
from antiphon_training.domains.tool import Tool, unused_tool
from inference_service.media.mel import BANDS, log_mel

_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
_NO_TOOLS = "{%- set tools = none -%}\n"

CLIP_ASIDE = (
    "", "", "", "Please answer.", "listen", "answer the question", "Listen to this.", "here is my question",
    "Answer the question in the recording.", "What do you say?", "Please reply to this recording.",
    "please listen to the audio and answer", "Here is a recording.",
)  # fmt: skip
"""Texts that accompany a spoken question; an empty one stands for none."""
_DRILLS = 0.45
"""The share of chats that are long and contain only text."""
_TOOLED = 0.45
"""The share of chats in which a caller offers tools, if the domain has a tool."""
_OFFERED = 0.85
"""The share of chats with tools in which the domain's tool is offered."""
_USING = 0.5
"""The share of questions that ask for the tool, in chats with tools."""
_ANSWER_BEGIN = "assistant\n"
_ASKING = frozenset("what what's who how can could do are whats where when why did does".split())
_SIGNS = {"plus": ("+",), "minus": ("-", "-", "−"), "times": ("*", "x", "×")}
_OPENERS = frozenset("oh well please hey so okay great no now and good hello".split())
_SYLLABLES = (
    "ba be bo ca co da di do en er fi fo ga ge ha he hi in ja ka ki la le li lo ma me mi mo na ne ni no on "
    "or pa pe po qu ra re ri ro sa se si so ta te ti to un ur va ve wa we wi xi ya yo za zu ing th sh ch ent"
).split()


@dataclass(frozen=True)
class Clip:
    """A recording inside a message: log-mel [frames, 80] of whole seconds."""

    mel: NDArray[np.float32]


@dataclass(frozen=True)
class Call:
    """A call of a tool, with one argument."""

    name: str
    key: str
    value: str

    def __str__(self) -> str:
        """Return the call as the chat template writes it."""
        arguments = json.dumps({self.key: self.value}, ensure_ascii=False)
        return f'<tool_call>\n{{"name": "{self.name}", "arguments": {arguments}}}\n</tool_call>'


Part = str | Pixels | Clip | Call


@dataclass
class Message:
    """One message; its parts are text, pictures [side, side, 3] and clips, or one call."""

    role: str
    parts: list[Part]
    taught: bool = True
    """Whether an answer is a training target."""


@dataclass
class Talk:
    """A chat, and the offered tools in the form for chat templates."""

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class _State:
    """The state of a chat: its messages, the scene in the newest picture, and the offered tool."""

    talk: Talk = field(default_factory=Talk)
    seen: Scene = NOTHING
    tool: Tool | None = None
    """The domain's tool, if it is offered."""

    def add(self, role: str, *parts: Part, taught: bool = True) -> None:
        """Add a message."""
        self.talk.messages.append(Message(role, list(parts), taught))


def with_digits(text: str, rng: random.Random) -> str:
    """Return text with number words up to twenty as digits, and perhaps the signs of arithmetic."""
    words = text.split()
    numbers = {word: str(i) for i, word in enumerate(ONES)} | {"twenty": "20"}
    signs = rng.random() < 0.7
    told = [
        numbers.get(word, rng.choice(_SIGNS[word]) if signs and word in _SIGNS else word) for word in words
    ]
    written = " ".join(told)
    if rng.random() < 0.4:
        written = re.sub(r"(\d) ([^\w\s]|x) (\d)", r"\1\2\3", written)
    if rng.random() < 0.25:
        written = re.sub(r"(?<=\d) (?=\d)", ", ", written)
    return written


def styled(text: str, rng: random.Random) -> str:
    """Return a sentence as people may type it: with random capitals, punctuation, digits and apostrophes."""
    words = text.split()
    if not words or rng.random() < 0.3:
        return text
    if rng.random() < 0.45:
        text = with_digits(text, rng)
    if rng.random() < 0.25:
        text = text.replace("what's", rng.choice(["whats", "what’s", "what is"]))
    elif rng.random() < 0.15:
        text = text.replace("what is", "what's", 1)
    if words[0] in _OPENERS and len(words) > 1 and rng.random() < 0.4:
        text = text.replace(words[0], words[0] + ",", 1)
    if text.endswith((" please", " my friend")) and rng.random() < 0.4:
        text = re.sub(r" (please|my friend)$", r", \1", text)
    asks = words[0] in _ASKING or (len(words) > 1 and words[0] in _OPENERS and words[1] in _ASKING)
    if rng.random() < 0.75:
        end = rng.random()
        mark = "?" if asks and end < 0.85 else rng.choice([".", ".", "!"])
        if re.search(r"\d$", text) and _SIGNS.keys() & words and not asks and end < 0.3:
            mark = rng.choice([" =", "=", " = ?", "=?", "?"])
        text += rng.choice(["!!", "??", " ?", "..."]) if end > 0.97 else mark
    if rng.random() < 0.8:
        text = re.sub(r"\bi\b", "I", text)
        text = text[0].upper() + text[1:]
    shape = rng.random()
    if shape < 0.03:
        text = text.upper()
    elif shape < 0.05:
        text = text.title()
    if rng.random() < 0.04:
        text = rng.choice([f" {text}", f"{text} ", f"{text}\n", f"\n{text}", text.replace(" ", "  ", 1)])
    return text


def strange(rng: random.Random) -> str:
    """Return text outside any domain: made-up words, or random characters."""
    words = []
    for _ in range(rng.randint(1, 14)):
        word = "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(1, 4)))
        words.append(word.capitalize() if rng.random() < 0.15 else word)
    opening = rng.choice([
        "what is the", "who is", "how do i", "why is the", "tell me about", "can you", "write", "what is a",
        "how many", "where is", "translate", "explain the", "do you like", "what was", "i want to", "please",
        "", "", "", "", "",
    ])  # fmt: skip
    text = f"{opening} {' '.join(words)}".strip()
    if rng.random() < 0.1:
        text = "".join(
            rng.choice("abcdefghijklmnopqrstuvwxyz0123456789 .,:;-_/()äöüßéñ漢字") for _ in range(20)
        )
    return text.strip() or "hm"


class ChatComposer:
    """A composer of random chats, with a corpus for clips and the set `album` for pictures."""

    def __init__(
        self, domain: Domain, corpus: list[Utterance], album: PictureSet | None, augmenter: Augmenter
    ) -> None:
        self._a = augmenter
        self._domain = domain
        self._album = album
        by_intent: dict[str, list[Utterance]] = {}
        for utterance in corpus:
            by_intent.setdefault(utterance.exchange.intent, []).append(utterance)
        self._by_intent = by_intent
        self._cumulative = list(accumulate(domain.typed.get(intent, 1.0) for intent in domain.intents))

    def talk(self) -> Talk:
        """Compose a chat of one to five questions with their answers, or one of six to nine in text alone."""
        rng = self._a.rng
        state = _State()
        if self._domain.tool and rng.random() < _TOOLED:
            self._offer(self._domain.tool, state)
        if rng.random() < 0.45:
            prompt = rng.choice(self._domain.prompts) if rng.random() < 0.8 else strange(rng)
            state.add("system", prompt)
        drill = rng.random() < _DRILLS
        turns = rng.randint(6, 9) if drill else 1 if rng.random() < 0.25 else rng.randint(2, 5)
        only_last = not drill and rng.random() < 0.35
        sighted = not drill and self._album is not None and rng.random() < 0.5
        heard = not drill and rng.random() < 0.5
        for turn in range(turns):
            exchange = self._ask(state, sighted, heard)
            taught = turn == turns - 1 or not only_last
            answer = self._answer(state, exchange, taught)
            state.add("assistant", answer if rng.random() < 0.6 else f" {answer}", taught=taught)
        return state.talk

    def _offer(self, tool: Tool, state: _State) -> None:
        """Offer the domain's tool, other tools, or both."""
        rng = self._a.rng
        if rng.random() < _OFFERED:
            state.tool = tool
        others = rng.choice([0, 0, 0, 1, 2]) if state.tool else rng.randint(1, 2)
        state.talk.tools = [unused_tool(rng) for _ in range(others)]
        if state.tool:
            state.talk.tools.insert(rng.randint(0, others), tool.offer(rng))

    def _answer(self, state: _State, exchange: Exchange, taught: bool) -> str:
        """Return the answer in words; before it, add a call and its result if the question needs the tool."""
        tool = state.tool
        if tool is None or exchange.reply not in tool.values:
            return exchange.reply
        state.add("assistant", Call(tool.name, tool.key, tool.values[exchange.reply]), taught=taught)
        result, answer = tool.result(self._a.rng, exchange.reply)
        state.add("tool", result)
        return answer

    def _ask(self, state: _State, sighted: bool, heard: bool) -> Exchange:
        """Add a random question; return it with its answer."""
        rng = self._a.rng
        parts: list[Part] = []
        if sighted and rng.random() < 0.6:
            for _ in range(1 if rng.random() < 0.8 else rng.randint(2, 3)):
                parts.append(self._picture(state))
        domain = self._domain
        looks = domain.looking and rng.random() < (0.75 if parts else 0.3 if sighted else 0.04)
        asked = domain.looking if looks else None
        intent = asked or rng.choices(domain.intents, cum_weights=self._cumulative)[0]
        if domain.tool and state.talk.tools and rng.random() < _USING:
            intent = domain.tool.intent
        if parts and looks and rng.random() < 0.08:
            state.add("user", *parts)
            return Exchange(domain.looking or "", "", state.seen.reply)
        if heard and rng.random() < 0.7 and intent in self._by_intent:
            utterance = rng.choice(self._by_intent[intent])
            exchange = utterance.exchange
            words: list[Part] = [self._clip(utterance)]
            if aside := rng.choice(CLIP_ASIDE):
                words.insert(rng.randint(0, 1), aside)
        else:
            exchange = domain.draw(rng, Split.TRAIN, intent)
            if intent == domain.out_of_domain and rng.random() < 0.5:
                exchange = Exchange(intent, strange(rng), exchange.reply)
            words = [styled(exchange.question, rng)]
        if exchange.intent == domain.looking:
            exchange = replace(exchange, reply=state.seen.reply)
        state.add("user", *(parts + words if rng.random() < 0.7 else words + parts))
        return exchange

    def _picture(self, state: _State) -> Pixels:
        assert self._album is not None
        state.seen = random_scene(self._a.noise_rng)
        return self._album.picture(self._a.noise_rng, state.seen)

    def _clip(self, utterance: Utterance) -> Clip:
        """Return a recording of one utterance, zero-padded to whole seconds."""
        rng = self._a.rng
        speech = self._a.speech(utterance.power)
        before = rng.choice([0, rng.randint(0, 30), rng.randint(0, 200)])
        after = rng.choice([0, rng.randint(0, 30), rng.randint(0, 150)])
        length = before + len(speech) + after
        power = np.zeros((-(-length // FRAMES) * FRAMES, BANDS), np.float32)
        if rng.random() > 0.3:
            power[:length] = self._a.noise(length, float(speech.mean()))
        power[before : before + len(speech)] += speech
        return Clip(log_mel(power))


def template(*, with_tools: bool) -> str:
    """Return the chat template of a model with or without tools."""
    text = _TEMPLATE.read_text()
    return text if with_tools else _NO_TOOLS + text


def rendered(
    messages: list[dict[str, Any]],
    add_generation_prompt: bool = False,
    tools: Sequence[dict[str, Any]] = (),
) -> str:
    """Return the text into which the chat template renders messages."""
    texts, _ = render_jinja_template(
        [messages],
        tools=list(tools) or None,
        chat_template=template(with_tools=True),
        add_generation_prompt=add_generation_prompt,
    )
    return str(texts[0])


_FIRST_MARK = 0xE000
_SPECIAL = re.compile("(" + "|".join(re.escape(token) for token in SPECIAL) + "|[\ue000-\uf8ff])")


def chat_row(writer: Writer, talk: Talk) -> Row:
    """Return the training row of a chat; its targets are the answers with `taught`.

    The text of messages is encoded together with the template's text around it.
    """
    messages = talk.messages
    parts = [part for message in messages for part in message.parts]
    marks = iter(range(_FIRST_MARK, _FIRST_MARK + len(parts)))
    text = rendered(
        [
            {"role": message.role, "content": "\n".join(chr(next(marks)) for _ in message.parts)}
            for message in messages
        ],
        tools=talk.tools,
    )
    lessons = {id(m.parts[0]) for m in messages if m.role == "assistant" and m.taught}
    row, pending, in_lesson = Row(), "", False
    for piece in _SPECIAL.split(text):
        part = parts[ord(piece) - _FIRST_MARK] if len(piece) == 1 and ord(piece) >= _FIRST_MARK else None
        in_lesson = in_lesson or id(part) in lessons
        if part is None and piece not in SPECIAL:
            pending += piece
        elif isinstance(part, str | Call) and not in_lesson:
            pending += str(part)
        else:
            if pending:
                row.add(writer.plain(pending))
                pending = ""
            if part is not None:
                _insert(writer, row, part)
            else:
                (row.decide if in_lesson else row.add)(writer.encode(piece))
                in_lesson = False
    return row


def _insert(writer: Writer, row: Row, part: Part) -> None:
    if isinstance(part, str):
        row.decide(writer.plain(f" {part.strip()}"))
    elif isinstance(part, Call):
        begun = len(writer.plain(_ANSWER_BEGIN))
        row.decide(writer.plain(f"{_ANSWER_BEGIN}{part}")[begun:])
    elif isinstance(part, Clip):
        row.add(writer.encode("<|audio_start|>"))
        row.sounds.append(part.mel)
        row.hear(len(part.mel))
        row.add(writer.encode("<|audio_end|>"))
    else:
        row.add(writer.encode("<image>"))
        row.look(part)
        row.add(writer.encode("</image>"))
