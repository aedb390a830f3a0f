"""The domain of `antiphon-mini`: the questions of people and the answers of the model.

A hash of its words puts a sentence on one side of the split. Bare core phrases ("hello", "stop") are
always on the training side.
"""

import random
from collections.abc import Callable, Iterable
from enum import StrEnum

from antiphon_training.domains.domain import (
    HELD_OUT_PERCENT,
    ONES,
    Domain,
    Exchange,
    Split,
    bucket_of,
    join,
    jsgf,
    spell,
)
from antiphon_training.domains.tool import Tool
from antiphon_training.domains.unrelated import unrelated


class Intent(StrEnum):
    """The intents of sentences."""

    GREETING = "greeting"
    NAME = "name"
    HOW_ARE_YOU = "how_are_you"
    ABILITIES = "abilities"
    ARITHMETIC = "arithmetic"
    COUNTING = "counting"
    DIGITS = "digits"
    DIRECTION = "direction"
    LIGHT = "light"
    JOKE = "joke"
    THANKS = "thanks"
    GOODBYE = "goodbye"
    STOP = "stop"
    OUT_OF_DOMAIN = "out_of_domain"
    VISION = "vision"


SPOKEN_INTENTS = tuple(intent for intent in Intent if intent is not Intent.VISION)
"""The intents whose answer depends on the words alone."""

COLOURS = ("red", "green", "blue", "yellow", "white", "black")
SHAPES = ("circle", "square", "triangle")


def split_of(question: str) -> Split:
    """Return the side of the split on which a sentence lies, by a hash of its words alone."""
    if question in _ALWAYS_TRAINED:
        return Split.TRAIN
    return Split.HELD_OUT if bucket_of(question) < HELD_OUT_PERCENT else Split.TRAIN


def _product(before: Iterable[str], core: Iterable[str], after: Iterable[str]) -> list[str]:
    after = list(after)
    core = list(core)
    return [join(b, c, a) for b in before for c in core for a in after]


_PARTS: dict[Intent, tuple[list[str], list[str], list[str]]] = {
    Intent.GREETING: (
        ["", "oh", "well"],
        ["hello", "hi", "hey", "good morning", "good evening", "good afternoon", "hello hello", "greetings"],
        ["", "there", "my friend", "to you", "again"],
    ),
    Intent.NAME: (
        ["", "please", "hey", "so", "excuse me"],
        [
            "what is your name",
            "what's your name",
            "who are you",
            "tell me your name",
            "say your name",
            "do you have a name",
            "can you tell me your name",
            "what are you called",
        ],
        ["", "please", "now"],
    ),
    Intent.HOW_ARE_YOU: (
        ["", "hey", "so", "and", "tell me"],
        [
            "how are you",
            "how are you doing",
            "how do you do",
            "how do you feel",
            "are you well",
            "how is it going",
        ],
        ["", "today", "now", "my friend"],
    ),
    Intent.ABILITIES: (
        ["", "please", "hey", "so"],
        [
            "what can you do",
            "help me",
            "can you help me",
            "i need help",
            "how can you help me",
            "what can i ask you",
            "what do you know",
            "tell me what you can do",
        ],
        ["", "please", "now", "today"],
    ),
    Intent.LIGHT: (
        ["", "please", "can you", "could you please", "now"],
        [
            f"{verb} {thing}"
            for state in ("on", "off")
            for verb, thing in (
                (f"turn {state}", "the light"),
                (f"switch {state}", "the light"),
                ("turn the light", state),
                ("switch the light", state),
                ("turn the lights", state),
                ("put the light", state),
            )
        ],
        ["", "please", "now"],
    ),
    Intent.JOKE: (
        ["", "please", "can you", "hey", "now"],
        [
            "tell me a joke",
            "tell a joke",
            "tell me a good joke",
            "tell me something funny",
            "say something funny",
            "make me laugh",
            "tell us a joke",
            "tell me another joke",
        ],
        ["", "please", "now", "today"],
    ),
    Intent.THANKS: (
        ["", "okay", "great", "good", "oh"],
        ["thank you", "thanks", "thank you very much", "thanks a lot", "many thanks", "thank you so much"],
        ["", "for your help", "my friend", "again"],
    ),
    Intent.GOODBYE: (
        ["", "okay", "well", "thanks and", "so"],
        [
            "goodbye",
            "bye bye",
            "see you later",
            "good night",
            "bye for now",
            "see you tomorrow",
            "see you soon",
        ],
        ["", "my friend", "then"],
    ),
    Intent.STOP: (
        ["", "please", "okay", "hey", "no"],
        ["stop", "stop it", "be quiet", "stop talking", "wait", "stop that", "silence", "quiet"],
        ["", "please", "now"],
    ),
    Intent.VISION: (
        ["", "please", "hey", "so", "and", "now"],
        [
            "what do you see",
            "what can you see",
            "what is this",
            "what is that",
            "what do you see here",
            "tell me what you see",
            "tell me what this is",
            "what is in the picture",
            "what is in the image",
            "what is in front of you",
            "what am i holding",
            "what am i showing you",
            "look what is this",
            "describe what you see",
            "what does the camera see",
            "can you tell me what this is",
            "can you see this",
            "do you know what this is",
            "look at this what is it",
        ],
        ["", "please", "now"],
    ),
}
"""Words before the phrases, the phrases, and words behind them."""
_PHRASES = {intent: _product(*parts) for intent, parts in _PARTS.items()}
_DIRECTIONS = [f"{depth} {side}" for depth in ("front", "rear", "side") for side in ("left", "right")] + [
    "front center",
    "rear center",
    "center",
]
_DIRECTION_BEFORE = [
    "", "this is", "this is the", "it is", "it is the", "now the", "now", "say", "look", "go to the",
    "that was", "that is the", "here is the", "it comes from the", "turn to the",
]  # fmt: skip
_DIRECTION_AFTER = ["", "please", "now", "speaker", "side"]
_ARITHMETIC_BEFORE = [
    "what is", "what's", "how much is", "", "tell me", "can you calculate", "calculate", "please tell me",
    "do you know what is", "and what is", "and", "so how much is",
]  # fmt: skip
_COUNT_BEFORE = [
    "count to", "please count to", "can you count to", "count up to", "now count to", "count from one to",
    "could you count to", "please count up to",
]  # fmt: skip
_COUNT_AFTER = ["", "please", "now", "for me"]
_DIGITS_BEFORE = ["repeat after me", "repeat", "please repeat", "say after me", "say", "say the numbers"]

ABILITIES_REPLY = "i can calculate count repeat and tell a joke"
JOKE_REPLY = "why did the robot cross the road because a chicken programmed it"
OUT_OF_DOMAIN_REPLY = "sorry i did not understand"
NOTHING_SEEN_REPLY = "i see nothing"
"""The reply without any picture, or to a picture without a shape."""
_FIXED_REPLIES = {
    Intent.GREETING: "hello how can i help you",
    Intent.NAME: "my name is antiphon",
    Intent.HOW_ARE_YOU: "i am fine thank you",
    Intent.ABILITIES: ABILITIES_REPLY,
    Intent.JOKE: JOKE_REPLY,
    Intent.THANKS: "you are welcome",
    Intent.GOODBYE: "goodbye",
    Intent.STOP: "okay",
    Intent.OUT_OF_DOMAIN: OUT_OF_DOMAIN_REPLY,
    Intent.VISION: NOTHING_SEEN_REPLY,
}
_ALWAYS_TRAINED = frozenset(phrases[0] for phrases in _PHRASES.values()) | {
    "hi", "good morning", "bye bye", "thanks", "how are you", "wait", "be quiet",
}  # fmt: skip


_OPERATORS = "(plus | minus | times)"
_BARE_NUMBERS = 0.45
"""The share of recognised digits that stand without a request to repeat them."""


def _any(options: Iterable[str]) -> str:
    """Return a JSGF group of options; it is optional if one of them is empty."""
    options = list(options)
    said = " | ".join(filter(None, options))
    return f"[{said}]" if "" in options else f"({said})"


def _draw_phrase(rng: random.Random, intent: Intent) -> Exchange:
    question = rng.choice(_PHRASES[intent])
    if intent is Intent.LIGHT:
        return Exchange(intent, question, "the light is " + ("off" if "off" in question.split() else "on"))
    return Exchange(intent, question, _FIXED_REPLIES[intent])


def _draw_arithmetic(rng: random.Random) -> Exchange:
    operator = rng.choice(["plus", "minus", "times"])
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    return arithmetic(rng.choice(_ARITHMETIC_BEFORE), a, operator, b)


def arithmetic(before: str, a: int, operator: str, b: int) -> Exchange:
    """Return the arithmetic exchange "`before` a operator b"; `operator` is plus, minus or times."""
    value = {"plus": a + b, "minus": a - b, "times": a * b}[operator]
    task = f"{spell(a)} {operator} {spell(b)}"
    return Exchange(Intent.ARITHMETIC, join(before, task), f"{task} is {spell(value)}")


def _draw_counting(rng: random.Random) -> Exchange:
    last = rng.randint(2, 12)
    question = join(rng.choice(_COUNT_BEFORE), spell(last), rng.choice(_COUNT_AFTER))
    return Exchange(Intent.COUNTING, question, " ".join(spell(i) for i in range(1, last + 1)))


def _draw_digits(rng: random.Random) -> Exchange:
    digits = " ".join(ONES[rng.randint(0, 9)] for _ in range(rng.randint(2, 4)))
    return Exchange(Intent.DIGITS, join(rng.choice(_DIGITS_BEFORE), digits), digits)


def _draw_direction(rng: random.Random) -> Exchange:
    direction = rng.choice(_DIRECTIONS)
    question = join(rng.choice(_DIRECTION_BEFORE), direction, rng.choice(_DIRECTION_AFTER))
    return Exchange(Intent.DIRECTION, question, direction)


def _draw_out_of_domain(rng: random.Random) -> Exchange:
    return Exchange(Intent.OUT_OF_DOMAIN, unrelated(rng), OUT_OF_DOMAIN_REPLY)


_DRAWS: dict[Intent, Callable[[random.Random], Exchange]] = {
    Intent.ARITHMETIC: _draw_arithmetic,
    Intent.COUNTING: _draw_counting,
    Intent.DIGITS: _draw_digits,
    Intent.DIRECTION: _draw_direction,
    Intent.OUT_OF_DOMAIN: _draw_out_of_domain,
}

TRAINING_WEIGHTS: dict[Intent, float] = {
    Intent.GREETING: 6,
    Intent.NAME: 5,
    Intent.HOW_ARE_YOU: 5,
    Intent.ABILITIES: 6,
    Intent.ARITHMETIC: 26,
    Intent.COUNTING: 7,
    Intent.DIGITS: 12,
    Intent.DIRECTION: 8,
    Intent.LIGHT: 6,
    Intent.JOKE: 5,
    Intent.THANKS: 5,
    Intent.GOODBYE: 5,
    Intent.STOP: 6,
    Intent.OUT_OF_DOMAIN: 12,
}
"""The relative frequency of each intent in training; the evaluation draws intents uniformly.

Questions about pictures have a corpus of their own, so they are drawn only by name.
"""


def draw(rng: random.Random, split: Split, intent: str | None = None) -> Exchange:
    """Draw one random exchange from one side of the split, of any intent but `VISION` if none is named."""
    weights = TRAINING_WEIGHTS
    chosen = Intent(intent) if intent else rng.choices(list(weights), list(weights.values()))[0]
    make = _DRAWS.get(chosen)
    while True:
        exchange = make(rng) if make else _draw_phrase(rng, chosen)
        if split_of(exchange.question) is split:
            return exchange


def seen_reply(colour: str, shape: str) -> str:
    """Return the answer to a question about a picture of one shape."""
    return f"i see a {colour} {shape}"


def seen_replies() -> list[str]:
    """Return every answer to a question about a picture."""
    return [NOTHING_SEEN_REPLY, *(seen_reply(colour, shape) for colour in COLOURS for shape in SHAPES)]


def standing_replies() -> list[str]:
    """Return the replies that hold no number, sorted."""
    lights = {"the light is on", "the light is off"}
    return sorted({*_FIXED_REPLIES.values(), *lights, *_DIRECTIONS, *seen_replies()})


def heard_replies() -> list[str]:
    """Return every reply without a picture, except repeated digits, which are any two to four digit words."""
    replies = set(standing_replies()) - set(seen_replies())
    replies |= {" ".join(spell(i) for i in range(1, last + 1)) for last in range(2, 13)}
    for operator in ("plus", "minus", "times"):
        replies |= {arithmetic("", a, operator, b).reply for a in range(21) for b in range(21)}
    return sorted(replies)


def all_replies() -> list[str]:
    """Return every reply of the domain except repeated digits."""
    return sorted([*heard_replies(), *seen_replies()])


_RANDOM_DIGITS = 900


class Mini(Domain):
    """The domain of `antiphon-mini`."""

    def draw(self, rng: random.Random, split: Split, intent: str | None = None) -> Exchange:
        return draw(rng, split, intent)

    def words(self) -> list[str]:
        """Return every word that people or the model say inside the domain, without questions about pictures.

        The names of colours and shapes are left out, so that the vocabulary stays that of earlier
        checkpoints; the tokenizer splits them into several tokens.
        """
        rng = random.Random(0)
        heard = {
            word
            for intent in SPOKEN_INTENTS
            if intent is not Intent.OUT_OF_DOMAIN
            for _ in range(1500)
            for word in draw(rng, Split.TRAIN, intent).question.split()
        }
        said = {word for reply in heard_replies() for word in reply.split()}
        return sorted(heard | said | {word for n in range(401) for word in spell(n).split()})

    def replies(self) -> list[str]:
        """Return every reply, with a sample of the repeated digits."""
        rng = random.Random(7)
        digits = [
            " ".join(rng.choice(ONES[:10]) for _ in range(rng.randint(2, 4))) for _ in range(_RANDOM_DIGITS)
        ]
        drawn = {draw(rng, Split.TRAIN).reply for _ in range(500)}
        return sorted(set(all_replies()) | set(digits) | drawn)

    def standing_replies(self) -> list[str]:
        """Return the replies that hold no number."""
        return standing_replies()

    def grammar(self) -> str:
        """Return the grammar of all questions; numbers alone count as numbers to repeat."""
        number, digit = _any([*ONES, "twenty"]), _any(ONES[:10])
        digits = f"{digit} {digit} [{digit}] [{digit}]"
        phrases = {intent.value: " ".join(map(_any, parts)) for intent, parts in _PARTS.items()}
        return jsgf(
            phrases
            | {
                Intent.ARITHMETIC.value: f"{_any(_ARITHMETIC_BEFORE)} {number} {_OPERATORS} {number}",
                Intent.COUNTING.value: f"{_any(_COUNT_BEFORE)} {number} {_any(_COUNT_AFTER)}",
                Intent.DIGITS.value: f"{_any(['', *_DIGITS_BEFORE])} {digits} | {number}",
                Intent.DIRECTION.value: " ".join(
                    map(_any, (_DIRECTION_BEFORE, _DIRECTIONS, _DIRECTION_AFTER))
                ),
            }
        )

    def recognised(self, exchange: Exchange, rng: random.Random) -> Exchange:
        """Return the exchange, or numbers alone instead of a request to repeat digits."""
        if exchange.intent != Intent.DIGITS or rng.random() >= _BARE_NUMBERS:
            return exchange
        said = exchange.reply if rng.random() < 0.6 else spell(rng.randint(0, 20))
        return Exchange(Intent.DIGITS, said, said)

    def written(self, rng: random.Random) -> Exchange:
        """Draw sums in 60 % of the cases, since they take the longest to learn."""
        return draw(rng, Split.TRAIN, Intent.ARITHMETIC if rng.random() < 0.6 else None)


SET_LIGHT = Tool(
    intent=Intent.LIGHT,
    name="set_light",
    key="state",
    descriptions=(
        "Turn the light on or off.", "Switch the light.", "Switches the light on or off.",
        "Controls the lights of a room.", "Set the light on or off", "Turn the lamp on or off.",
        "Turn the light in the room on or off. Call it when the user asks for it.",
        "Sets the state of the light.",
    ),
    values={"the light is on": "on", "the light is off": "off"},
    failures={"the light is on": "sorry the light is off", "the light is off": "sorry the light is on"},
)  # fmt: skip
"""The tool of `antiphon-mini`."""
MINI = Mini(
    name="antiphon-mini",
    intents=SPOKEN_INTENTS,
    out_of_domain=Intent.OUT_OF_DOMAIN,
    interruption=Intent.STOP,
    looking=Intent.VISION,
    tool=SET_LIGHT,
    utterances=26_000,
    minutes=18_110 / 60,
    asked={Intent.LIGHT: 4.0, Intent.DIGITS: 1.5, Intent.COUNTING: 1.5, Intent.VISION: 3.5},
    dictated={Intent.DIGITS: 2.0, Intent.LIGHT: 2.0, Intent.COUNTING: 1.5},
    typed={
        Intent.ARITHMETIC: 7.0, Intent.DIGITS: 3.0, Intent.COUNTING: 1.5, Intent.OUT_OF_DOMAIN: 2.5,
    },
)  # fmt: skip
"""The domain of `antiphon-mini`.

Sessions contain intents that are hard to distinguish more often than the corpus does.
"""
