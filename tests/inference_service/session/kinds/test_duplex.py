"""The rules of a duplex unit, decision by decision; the model is a script."""

import pytest
import torch

from inference_service.interface.engine import End, Finish, Prefilled, Ready, SessionFailed, UnitUsage
from inference_service.interface.setups import UnitOverrides, Window, WindowMode
from inference_service.models.config import TurnBound
from inference_service.session.base.session import Stage, summed
from inference_service.session.kinds.duplex import MAX_CHARACTERS
from tests.inference_service.engine.support.decisions import decide
from tests.inference_service.engine.support.talk import PROMPT, UNIT_TOKENS, VOCABULARY, Talk

NAN = torch.full((VOCABULARY,), torch.nan)
EIGHT_CHARACTERS = 599
"""A token of the recordings' vocabulary: eight asterisks."""


def begin(talk: Talk, *tokens: int) -> None:
    """The next unit is heard, and these tokens are decided."""
    talk.hear()
    talk.generate()
    talk.decide(*tokens)


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_session_is_ready_when_it_has_read_its_prompt_and_fails_if_it_cannot() -> None:
    assert Talk().opening == [Ready(PROMPT)]
    assert Talk(poisoned=True).opening == [
        SessionFailed("INFERENCE_FAILED", "The model cannot read this prompt.")
    ]


@pytest.mark.parametrize(
    ("decided", "end", "text", "is_open"),
    [
        (["<listen>"], End.LISTEN, "", False),
        (["<speak>", " I am here", "<chunk_eos>"], End.CHUNK, " I am here", True),
        (["<speak>", " Yes", "<turn_eos>", "<chunk_eos>"], End.TURN, " Yes", False),
        (["<speak>", " Yes", "<turn_eos>", " Yes", "<chunk_eos>"], End.CHUNK, " Yes Yes", True),
        (["<speak>", " Yes", "<turn_eos>", "<listen>"], End.TURN, " Yes", False),
    ],
    ids=["listens", "speaks", "ends its turn", "speaks on", "ends its turn and listens"],
)
def test_decisions_of_a_unit_end_it(
    talk: Talk, decided: list[str], end: End, text: str, is_open: bool
) -> None:
    marks = {
        f"<{name}>": getattr(talk.special, name) for name in ("listen", "speak", "chunk_eos", "turn_eos")
    }
    said = talk.unit(*(i for it in decided for i in ([marks[it]] if it in marks else talk.encode(it))))
    assert (said.done.end, said.done.finish) == (end, Finish.EOS)
    assert (said.text, said.samples) == (text, 24_000 if text else 0)
    words = [i for it in decided if it not in marks for i in talk.encode(it)]
    assert list(said.token_ids) == words
    assert talk.conversation.turn_open is is_open
    assert (talk.conversation.speech.length > 0) is is_open


@pytest.mark.parametrize("name", ["listen", "chunk_eos", "chunk_tts_eos"])
def test_terminator_is_not_fed_but_carried_into_the_next_unit(talk: Talk, name: str) -> None:
    terminator = getattr(talk.special, name)
    said = talk.unit(terminator)
    assert talk.fed[-1] == -1
    assert said.closed.context_tokens == PROMPT + 1 + UNIT_TOKENS + 2
    talk.hear()
    assert talk.fed[-3 - UNIT_TOKENS : -UNIT_TOKENS] == [terminator, talk.special.unit_end, talk.special.unit]


def test_listen_inside_a_turn_becomes_tts_bos() -> None:
    talk = Talk()
    talk.unit(talk.special.speak, *talk.encode(" I"), talk.special.chunk_eos)
    said = talk.unit(talk.special.listen, *talk.encode(" am"), talk.special.chunk_eos)
    assert said.text == " am"
    assert talk.fed[-3:] == [talk.special.tts_bos, *talk.encode(" am")]
    talk = Talk()
    talk.unit(talk.special.speak, talk.special.listen, talk.special.chunk_eos)
    assert talk.fed[-2:] == [talk.special.speak, talk.special.tts_bos]


def test_first_token_of_a_unit_is_never_text(talk: Talk) -> None:
    first, second = talk.encode("f"), talk.encode("g")
    said = talk.unit(*first, *second, talk.special.chunk_eos)
    assert said.text == "g"
    assert talk.fed[-2:] == [*first, *second]


def test_unit_without_words_listens_outside_a_turn_and_goes_on_speaking_inside(talk: Talk) -> None:
    assert talk.unit(talk.special.chunk_eos).done.end is End.LISTEN
    assert not talk.conversation.turn_open
    talk.unit(talk.special.speak, *talk.encode(" I am here"), talk.special.chunk_eos)
    said = talk.unit(talk.special.chunk_eos)
    assert (said.done.end, said.text, said.samples) == (End.CHUNK, "", 24_000)


def test_token_that_would_reach_28_characters_is_not_said(talk: Talk) -> None:
    begin(talk, talk.special.speak, *[EIGHT_CHARACTERS] * 4)
    said = talk.speak()
    assert said.text == "*" * 24
    assert len(said.text) + 8 >= MAX_CHARACTERS
    assert said.done.finish is Finish.LENGTH
    assert said.done.usage.output_text_tokens == 5  # the discarded one was sampled, too
    assert talk.conversation.running
    assert talk.conversation.running.terminator == talk.special.chunk_eos


def test_last_of_the_allowed_steps_belongs_to_the_terminator_or_ends_the_turn(talk: Talk) -> None:
    said = talk.unit(talk.special.speak, *talk.encode("a") * 18)
    assert (said.text, said.done.finish) == ("a" * 18, Finish.LENGTH)
    assert talk.conversation.context.pending == [talk.special.chunk_eos, talk.special.unit_end]
    said = talk.unit(talk.special.tts_bos, *talk.encode("a") * 17, talk.special.turn_eos)
    assert (said.done.end, said.done.finish) == (End.TURN, Finish.LENGTH)


def test_overrides_hold_for_one_unit(talk: Talk) -> None:
    letter = talk.encode("a")
    short = talk.unit(talk.special.speak, *letter * 3, overrides=UnitOverrides(max_new_tokens=5))
    assert short.text == "aaa"
    long = talk.unit(*letter * 6, talk.special.chunk_eos)
    assert long.text == "aaaaa"


def test_no_override_outgrows_the_slot() -> None:
    window = Window(WindowMode.BASIC, high_tokens=200, low_tokens=199)
    talk = Talk(window=window, limit=200, prompt=169, max_new_speak_tokens_per_chunk=1)
    finishes, frees = [], []
    for _ in range(4):
        talk.hear()
        talk.generate(overrides=UnitOverrides(max_new_tokens=100))
        while talk.conversation.stage is Stage.DECODE:
            talk.decide(talk.special.speak)
        talk.speak()
        finishes.append(talk.finalize().done.usage.output_text_tokens)
        frees.append(talk.conversation.context.free)
    assert finishes[0] == 99
    assert finishes[1] < 40
    assert min(frees) >= 0


def test_forced_listen_runs_no_decision_and_outside_a_turn_ends_none(talk: Talk) -> None:
    said = talk.unit(force_listen=True)
    assert (said.done.end, said.done.usage.output_text_tokens) == (End.LISTEN, 0)
    assert talk.conversation.context.pending == [talk.special.listen, talk.special.unit_end]


def test_forced_listen_closes_the_turn_without_a_forward(talk: Talk) -> None:
    talk.unit(talk.special.speak, *talk.encode(" I am"), talk.special.chunk_eos)
    assert talk.conversation.speech.length > 0
    talk.unit(force_listen=True)
    assert not talk.conversation.turn_open
    assert talk.conversation.speech.length == 0
    assert talk.fed[-1] == -1
    turn_end = [talk.special.turn_eos, talk.special.listen, talk.special.unit_end]
    assert talk.conversation.context.pending == turn_end


def test_first_units_heard_are_forced_to_listen() -> None:
    talk = Talk(force_listen_count=2)
    ends = [talk.unit().done.end, talk.unit().done.end]
    ends.append(talk.unit(talk.special.speak, talk.special.chunk_eos).done.end)
    assert ends == [End.LISTEN, End.LISTEN, End.CHUNK]


def test_cancelled_units_count_as_heard_for_the_forced_listens() -> None:
    talk = Talk(force_listen_count=1)
    talk.conversation.queue.cancel(1)
    talk.unit()
    assert talk.unit(talk.special.speak, talk.special.chunk_eos).done.end is End.CHUNK


@pytest.fixture
def bounded() -> Talk:
    return Talk(turn_bound=TurnBound(units=2, rest=3))


def babble(talk: Talk) -> list[int]:
    return [talk.special.speak, *talk.encode(" and"), talk.special.chunk_eos]


def test_turn_that_goes_on_is_ended_in_its_last_unit_and_others_may_speak(bounded: Talk) -> None:
    said = [bounded.unit(*babble(bounded)), bounded.unit(*babble(bounded), bounded.special.chunk_eos)]
    rest = [bounded.unit() for _ in range(3)]
    again = bounded.unit(*babble(bounded))
    assert [unit.done.end for unit in said] == [End.CHUNK, End.TURN]
    assert (said[1].text, said[1].samples) == (" and", 24_000)
    assert [unit.done.end for unit in rest] == [End.LISTEN] * 3
    assert bounded.fed.count(bounded.special.turn_eos) == 1
    assert again.done.end is End.CHUNK


def test_turn_that_ends_by_itself_in_time_needs_no_rest(bounded: Talk) -> None:
    bounded.unit(*babble(bounded))
    special = bounded.special
    ended = bounded.unit(special.speak, *bounded.encode(" yes"), special.turn_eos, special.chunk_eos)
    next_turn = bounded.unit(*babble(bounded))
    assert [ended.done.end, next_turn.done.end] == [End.TURN, End.CHUNK]


def test_last_unit_of_a_turn_says_nothing_after_its_end(bounded: Talk) -> None:
    bounded.unit(*babble(bounded))
    said = bounded.unit(bounded.special.speak, bounded.special.turn_eos, bounded.encode(" more")[0])
    assert (said.done.end, said.text) == (End.TURN, "")


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_turn_ends_also_where_the_last_unit_has_no_step_to_spare(steps: int) -> None:
    talk = Talk(turn_bound=TurnBound(units=2, rest=1), max_new_speak_tokens_per_chunk=steps)
    talk.unit(*babble(talk)[: steps - 1])
    said = talk.unit(*[talk.special.speak, *talk.encode(" a b c d")][: steps - 1])
    assert said.done.end is End.TURN


def test_forced_listen_begins_the_count_of_a_turn_anew(bounded: Talk) -> None:
    bounded.unit(*babble(bounded))
    bounded.unit(force_listen=True)
    first, last = bounded.unit(*babble(bounded)), bounded.unit(*babble(bounded), bounded.special.chunk_eos)
    assert [first.done.end, last.done.end] == [End.CHUNK, End.TURN]


def assert_heard_but_not_spoken(talk: Talk) -> None:
    said = talk.said
    assert said.one(Prefilled).failure is None
    assert (said.done.end, said.samples) == (End.CANCELLED, 0)
    talk.finalize()
    assert talk.conversation.context.pending == [talk.special.chunk_eos, talk.special.unit_end]


@pytest.mark.parametrize("comes_first", [True, False])
def test_cancel_before_the_unit_is_generated(talk: Talk, comes_first: bool) -> None:
    if comes_first:
        talk.conversation.queue.cancel(1)
    talk.hear()
    if not comes_first:
        talk.conversation.queue.cancel(1)
    talk.generate()
    assert_heard_but_not_spoken(talk)


def test_cancel_during_decision_stops_at_next_step_and_keeps_context(talk: Talk) -> None:
    begin(talk, talk.special.speak, *talk.encode(" I"))
    before = talk.conversation.context.tokens
    talk.conversation.queue.cancel(1)
    talk.decide(talk.special.speak)
    assert (talk.conversation.context.tokens, talk.said.text) == (before, "")
    assert_heard_but_not_spoken(talk)


def test_cancel_at_the_last_step_comes_before_the_text(talk: Talk) -> None:
    talk.hear()
    talk.generate(overrides=UnitOverrides(max_new_tokens=4))
    talk.decide(talk.special.speak, *talk.encode(" I"))
    scores = torch.zeros(VOCABULARY)
    scores[300] = 1000.0
    talk.decide_on(scores, cancelled=True)
    assert talk.said.text == ""
    assert_heard_but_not_spoken(talk)


@pytest.mark.parametrize("end", [(), ("turn_eos",)])
def test_cancel_while_speaking_leaves_the_turn_as_it_was(talk: Talk, end: tuple[str, ...]) -> None:
    begin(talk)
    ends = [getattr(talk.special, name) for name in (*end, "chunk_eos")]
    talk.decide(talk.special.speak, *talk.encode(" I am"), *ends)
    talk.conversation.queue.cancel(1)
    talk.speak()
    assert_heard_but_not_spoken(talk)
    assert talk.conversation.turn_open is not bool(end)


def test_cancel_after_the_last_word_changes_nothing(talk: Talk) -> None:
    begin(talk, talk.special.listen)
    talk.conversation.queue.cancel(1)
    assert talk.finalize().done.end is End.LISTEN


def test_cancel_ends_earlier_and_spares_later_units(talk: Talk) -> None:
    talk.conversation.queue.cancel(2)
    ends = [talk.unit().done.end, talk.unit().done.end, talk.unit(talk.special.listen).done.end]
    assert ends == [End.CANCELLED, End.CANCELLED, End.LISTEN]


def test_cancelled_turn_stays_open_until_a_forced_listen(talk: Talk) -> None:
    begin(talk, talk.special.speak, *talk.encode(" I"))
    talk.conversation.queue.cancel(1)
    talk.decide(talk.special.listen)
    talk.finalize()
    assert talk.conversation.turn_open
    talk.unit(force_listen=True)
    assert not talk.conversation.turn_open
    assert talk.conversation.context.pending[0] == talk.special.turn_eos


def test_words_after_a_cancel_begin_on_a_clean_voice(talk: Talk) -> None:
    talk.unit(talk.special.speak, *talk.encode(" I am"), talk.special.chunk_eos)
    talk.conversation.queue.cancel(2)
    talk.unit()
    assert talk.conversation.speech.length == 0


def codes_may_be_few(talk: Talk, *tokens: int) -> bool:
    begin(talk, *tokens)
    job = talk.conversation.speech_job()
    assert job is not None
    may_be_short = job.may_be_short
    talk.speak()
    talk.finalize()
    return may_be_short


def test_only_first_and_last_unit_of_a_turn_may_be_short(talk: Talk) -> None:
    word, special = talk.encode(" I"), talk.special
    short = [
        codes_may_be_few(talk, special.speak, *word, special.chunk_eos),
        codes_may_be_few(talk, special.tts_bos, *word, special.chunk_eos),
        codes_may_be_few(talk, special.tts_bos, *word, special.turn_eos, special.chunk_eos),
        codes_may_be_few(talk, special.speak, *word, special.chunk_eos),
    ]
    assert short == [True, False, True, True]


def test_speech_is_given_everything_fed_but_the_first_token(talk: Talk) -> None:
    word = talk.encode(" I")
    begin(talk, talk.special.speak, *word, talk.special.turn_eos, talk.special.chunk_eos)
    job = talk.conversation.speech_job()
    assert job is not None
    assert job.tokens == [*word, talk.special.turn_eos]
    assert len(job.hidden) == 2


def test_session_without_audio_says_text_alone() -> None:
    talk = Talk(generate_audio=False)
    said = talk.unit(talk.special.speak, *talk.encode(" I am"), talk.special.chunk_eos)
    assert (said.text, said.samples, said.done.usage.output_audio_tokens) == (" I am", 0, 0)


def assert_goes_on(talk: Talk) -> None:
    said = talk.unit(talk.special.speak, *talk.encode(" I am"), talk.special.chunk_eos)
    assert (said.text, said.samples, said.done.end) == (" I am", 24_000, End.CHUNK)


def test_unit_poisoned_while_heard_fails_and_leaves_nothing(talk: Talk) -> None:
    talk.unit(talk.special.listen)
    context = talk.conversation.context
    before = context.tokens, list(context.pending), talk.conversation.ear
    heard = talk.hear(poisoned=True).one(Prefilled)
    done = talk.generate().done
    talk.finalize()
    assert heard.failure
    assert heard.failure.reason == "INFERENCE_FAILED"
    assert (done.end, done.failure) == (End.FAILED, heard.failure)
    assert (context.tokens, context.pending, talk.conversation.ear) == before
    assert_goes_on(talk)


@pytest.mark.parametrize("where", ["scores", "hidden state"])
def test_unit_poisoned_while_deciding_fails_and_leaves_nothing(talk: Talk, where: str) -> None:
    talk.unit(talk.special.speak, *talk.encode(" I"), talk.special.chunk_eos)
    context = talk.conversation.context
    before = context.tokens, list(context.pending)
    begin(talk, talk.special.tts_bos, *talk.encode(" am"))
    scores = torch.zeros(VOCABULARY)
    scores[talk.special.turn_eos] = 1000.0
    talk.decide_on(NAN if where == "scores" else scores, poisoned=where == "hidden state")
    said = talk.finalize()

    assert said.done.end is End.FAILED
    assert said.done.failure
    assert said.done.failure.retryable
    assert (context.tokens, context.pending) == before
    assert talk.conversation.turn_open  # as before the unit
    assert said.text == ""
    assert_goes_on(talk)


def test_unit_poisoned_while_spoken_fails_and_the_text_stays_in_the_context(talk: Talk) -> None:
    begin(talk, talk.special.speak, *talk.encode(" I am"), talk.special.chunk_eos)
    tokens = talk.conversation.context.tokens
    talk.speak(codes=3, poisoned=True)
    said = talk.finalize()
    assert (said.done.end, said.text, said.samples) == (End.FAILED, " I am", 0)
    assert said.closed.context_tokens == tokens + 2
    assert talk.conversation.speech.length == 0
    assert_goes_on(talk)


def test_usage_of_a_unit_and_of_the_session(talk: Talk) -> None:
    listened = talk.unit(talk.special.listen)
    assert listened.one(Prefilled).usage == UnitUsage(
        input_text_tokens=1, input_audio_tokens=UNIT_TOKENS, cached_tokens=PROMPT
    )
    assert listened.done.usage == UnitUsage(
        input_text_tokens=1, input_audio_tokens=UNIT_TOKENS, cached_tokens=PROMPT, output_text_tokens=1
    )

    words = talk.encode(" I am")
    spoken = talk.unit(talk.special.speak, *words, talk.special.chunk_eos, codes=20)
    assert spoken.done.usage == UnitUsage(
        input_text_tokens=3,  # the two tokens that closed the unit before, and `<unit>`
        input_audio_tokens=UNIT_TOKENS,
        cached_tokens=PROMPT + 1 + UNIT_TOKENS,
        output_text_tokens=len(words) + 2,
        output_audio_tokens=20,
    )
    assert spoken.closed.session_usage == summed(listened.done.usage, spoken.done.usage)
    heard = PROMPT + 3 + 2 * (1 + UNIT_TOKENS) - 1
    tokens = [it.context_tokens for it in (spoken.one(Prefilled), spoken.done, spoken.closed)]
    assert tokens == [heard, heard + 1 + len(words), heard + 1 + len(words) + 2]


def test_context_is_full_when_the_longest_unit_would_no_longer_fit() -> None:
    talk = Talk()
    longest = talk.conversation.longest_unit
    listening = 1 + UNIT_TOKENS + 2
    talk = Talk(limit=PROMPT + 2 * listening + longest - 1)
    ends = [talk.unit(talk.special.listen).done.end, talk.unit(talk.special.listen).done.end]
    assert ends == [End.LISTEN, End.CONTEXT_FULL]


def test_unit_that_comes_when_the_context_is_full_is_answered_but_not_heard() -> None:
    talk = Talk(limit=PROMPT + 40)
    assert talk.unit(talk.special.listen).done.end is End.CONTEXT_FULL
    tokens = talk.conversation.context.tokens
    heard = talk.hear().one(Prefilled)
    done = talk.generate().done
    closed = talk.finalize().closed
    assert heard.failure
    assert heard.failure.reason == "INPUT_TOO_LONG"
    assert (done.end, done.failure, done.usage) == (End.CONTEXT_FULL, None, UnitUsage())
    assert closed.context_tokens == tokens


def test_unit_seed_fixes_draws_regardless_of_earlier_draws() -> None:
    generator = torch.Generator().manual_seed(7)
    scores = torch.randn(12, VOCABULARY, generator=generator)

    def drawn(warm_up: int) -> list[int]:
        talk = Talk(text_repetition_penalty=1.0, temperature=1.5, top_k=500, top_p=1.0)
        for row in scores[:warm_up]:
            decide(talk.conversation.sampler, row, talk.conversation.setup.duplex)
        talk.hear()
        talk.generate(overrides=UnitOverrides(seed=5))
        for row in scores[6:]:
            talk.decide_on(row)
        return talk.fed[-6:]

    assert drawn(0) == drawn(5)
