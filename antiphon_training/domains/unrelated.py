"""Random everyday sentences, which are outside a small domain."""

import random
from collections.abc import Callable

from antiphon_training.domains.domain import join

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


def unrelated(rng: random.Random) -> str:
    """Draw a sentence in lower-case words."""
    kinds: list[Callable[[], str]] = [
        lambda: join(rng.choice(_PEOPLE), rng.choice(_VERBS), rng.choice(_OBJECTS), rng.choice(_TIMES)),
        lambda: join(rng.choice(_PEOPLE), rng.choice(_VERBS), rng.choice(_OBJECTS)),
        lambda: join(rng.choice(_REQUESTS), rng.choice(_OBJECTS), rng.choice(["", *_TIMES])),
        lambda: join(rng.choice(_REMARKS), rng.choice(_QUALITIES), rng.choice(["", *_TIMES])),
    ]
    return rng.choice(kinds)()
