"""The small world of `antiphon-mini`: what people say in it and what the model answers.

Every sentence belongs to exactly one side of a split made by a hash of its words: the sentences of
`Split.HELD_OUT` are never used in training, only to measure. Bare core phrases ("hello", "stop")
are always on the training side.
"""

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

HELD_OUT_PERCENT = 12

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


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


HEARING = tuple(intent for intent in Intent if intent is not Intent.VISION)
"""The intents whose answer depends on the words alone."""

COLOURS = ("red", "green", "blue", "yellow", "white", "black")
SHAPES = ("circle", "square", "triangle")


class Split(StrEnum):
    """The side of the train / held-out split that a sentence is on."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class Exchange:
    """One question and its only right answer, both in lower-case words without punctuation."""

    intent: Intent
    question: str
    reply: str


def spell(number: int) -> str:
    """Spell a whole number from -999 to 999 in words: 42 is "forty two", -3 is "minus three"."""
    if number < 0:
        return "minus " + spell(-number)
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + (f" {ONES[number % 10]}" if number % 10 else "")
    rest = number % 100
    return f"{ONES[number // 100]} hundred" + (f" {spell(rest)}" if rest else "")


def split_of(question: str) -> Split:
    """Return the side of the split on which a sentence lies, by a hash of its words alone."""
    if question in _ALWAYS_TRAINED:
        return Split.TRAIN
    digest = hashlib.sha256(question.encode()).digest()
    bucket = int.from_bytes(digest[:4], "big") % 100
    return Split.HELD_OUT if bucket < HELD_OUT_PERCENT else Split.TRAIN


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _product(before: Iterable[str], core: Iterable[str], after: Iterable[str]) -> list[str]:
    after = list(after)
    core = list(core)
    return [_join(b, c, a) for b in before for c in core for a in after]


_PHRASES: dict[Intent, list[str]] = {
    Intent.GREETING: _product(
        ["", "oh", "well"],
        ["hello", "hi", "hey", "good morning", "good evening", "good afternoon", "hello hello", "greetings"],
        ["", "there", "my friend", "to you", "again"],
    ),
    Intent.NAME: _product(
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
    Intent.HOW_ARE_YOU: _product(
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
    Intent.ABILITIES: _product(
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
    Intent.LIGHT: _product(
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
    Intent.JOKE: _product(
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
    Intent.THANKS: _product(
        ["", "okay", "great", "good", "oh"],
        ["thank you", "thanks", "thank you very much", "thanks a lot", "many thanks", "thank you so much"],
        ["", "for your help", "my friend", "again"],
    ),
    Intent.GOODBYE: _product(
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
    Intent.STOP: _product(
        ["", "please", "okay", "hey", "no"],
        ["stop", "stop it", "be quiet", "stop talking", "wait", "stop that", "silence", "quiet"],
        ["", "please", "now"],
    ),
    Intent.VISION: _product(
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

_PEOPLE = (
    "my brother|my sister|the teacher|the doctor|her father|his mother|our neighbour|the children|a man|"
    "the old woman|they|we|the students|the driver|somebody|the farmer|your cousin|the captain"
).split("|")
_VERBS = (
    "bought|lost|found|wanted|painted|cleaned|broke|forgot|carried|sold|washed|ordered|borrowed|opened|"
    "hid|noticed|watched|needed"
).split("|")
_OBJECTS = (
    "a new car|the garden|some bread|an old book|the window|a red coat|the newspaper|two tickets|"
    "a bottle of water|the bicycle|a table|the kitchen|fresh apples|the keys|a letter|the piano|"
    "a yellow umbrella|the long road|some music|the computer"
).split("|")
_TIMES = (
    "yesterday|last week|in the morning|after dinner|at the station|near the river|before the rain|"
    "in the city|on monday|at school|without asking|in the summer|this afternoon|very slowly|"
    "with a friend|at the market"
).split("|")
_REQUESTS = (
    "please book|send|where did you put|set|do you remember|why did they sell|play|who wrote|describe|"
    "close|i would like to buy|when does he need|did you see|bring me|please clean|we should visit"
).split("|")
_REMARKS = (
    "the weather is|the movie was|my computer is|this soup is|the train is|that story was|"
    "the house looks|his answer was|the river is|the sky was|the music sounds|our dog is"
).split("|")
_QUALITIES = (
    "very nice|too slow|really long|quite cold|rather late|much too loud|deep and dark|warm today|"
    "not so bad|a little strange|beautiful in spring|better than before|terrible|empty at night"
).split("|")

ABILITIES_REPLY = "i can calculate count repeat and tell a joke"
JOKE_REPLY = "why did the robot cross the road because a chicken programmed it"
OUT_OF_DOMAIN_REPLY = "sorry i did not understand"
NOTHING_SEEN_REPLY = "i see nothing"
"""Without any picture, or with one that shows none of the shapes."""
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
    return Exchange(Intent.ARITHMETIC, _join(before, task), f"{task} is {spell(value)}")


def _draw_counting(rng: random.Random) -> Exchange:
    last = rng.randint(2, 12)
    question = _join(rng.choice(_COUNT_BEFORE), spell(last), rng.choice(_COUNT_AFTER))
    return Exchange(Intent.COUNTING, question, " ".join(spell(i) for i in range(1, last + 1)))


def _draw_digits(rng: random.Random) -> Exchange:
    digits = " ".join(ONES[rng.randint(0, 9)] for _ in range(rng.randint(2, 4)))
    return Exchange(Intent.DIGITS, _join(rng.choice(_DIGITS_BEFORE), digits), digits)


def _draw_direction(rng: random.Random) -> Exchange:
    direction = rng.choice(_DIRECTIONS)
    question = _join(rng.choice(_DIRECTION_BEFORE), direction, rng.choice(_DIRECTION_AFTER))
    return Exchange(Intent.DIRECTION, question, direction)


def _draw_out_of_domain(rng: random.Random) -> Exchange:
    kinds: list[Callable[[], str]] = [
        lambda: _join(rng.choice(_PEOPLE), rng.choice(_VERBS), rng.choice(_OBJECTS), rng.choice(_TIMES)),
        lambda: _join(rng.choice(_PEOPLE), rng.choice(_VERBS), rng.choice(_OBJECTS)),
        lambda: _join(rng.choice(_REQUESTS), rng.choice(_OBJECTS), rng.choice(["", *_TIMES])),
        lambda: _join(rng.choice(_REMARKS), rng.choice(_QUALITIES), rng.choice(["", *_TIMES])),
    ]
    return Exchange(Intent.OUT_OF_DOMAIN, rng.choice(kinds)(), OUT_OF_DOMAIN_REPLY)


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
"""How often each intent is drawn for training; evaluation draws them uniformly.

Questions about pictures are drawn by name only: they have a corpus of their own.
"""


def draw(rng: random.Random, split: Split, intent: Intent | None = None) -> Exchange:
    """Draw one random exchange of the domain from one side of the split, with no picture in view."""
    chosen = intent or rng.choices(list(TRAINING_WEIGHTS), list(TRAINING_WEIGHTS.values()))[0]
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
    """Reply that hold no number."""
    lights = {"the light is on", "the light is off"}
    return sorted({*_FIXED_REPLIES.values(), *lights, *_DIRECTIONS, *seen_replies()})


def heard_replies() -> list[str]:
    """Return every reply to words alone except the repeated digits, which are any two to four digit words."""
    replies = set(standing_replies()) - set(seen_replies())
    replies |= {" ".join(spell(i) for i in range(1, last + 1)) for last in range(2, 13)}
    for operator in ("plus", "minus", "times"):
        replies |= {arithmetic("", a, operator, b).reply for a in range(21) for b in range(21)}
    return sorted(replies)


def all_replies() -> list[str]:
    """Return every reply the domain knows except the repeated digits."""
    return sorted([*heard_replies(), *seen_replies()])
