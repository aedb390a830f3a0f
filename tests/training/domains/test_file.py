"""Domain files: what they become, and one clear error for each mistake."""

import pickle
import random
import re
from pathlib import Path
from textwrap import dedent

import pytest

from antiphon_training import domains
from antiphon_training.domains.document import DomainFileError
from antiphon_training.domains.domain import Domain, Split
from antiphon_training.domains.file import KEYS, read_domain, reference
from docs.drawing.source_tree import ROOT

PAGE = ROOT / "docs/training.md"
LIFT = Path(domains.__file__).with_name("lift.yaml")
SMALL = """\
name: small
slots:
  floor: 0..9
  state: {on: alight, off: dark}
intents:
  go:
    phrases:
      - go to floor <floor> please?
    answer: going to floor <floor>
  lamp:
    interrupts: true
    phrases:
      - (switch|turn) it <state> (now|please)?
    answer: it is <state>
out_of_domain:
  answer: sorry
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "small.yaml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def lift() -> Domain:
    return read_domain(LIFT)


def test_words_that_yaml_takes_for_truth_values_stay_words(tmp_path: Path) -> None:
    domain = read_domain(written(tmp_path, SMALL))
    drawn = {domain.draw(random.Random(seed), Split.TRAIN, "lamp") for seed in range(40)}
    assert {e.reply for e in drawn if " on" in e.question} == {"it is alight"}
    assert {e.reply for e in drawn if " off" in e.question} == {"it is dark"}
    assert (domain.interruption, domain.looking) == ("lamp", None)


def test_no_sentence_of_a_file_is_on_both_sides_of_the_split_and_each_intent_is_on_both(lift: Domain) -> None:
    rng = random.Random(1)
    for intent in lift.intents:
        trained, held_out = ({lift.draw(rng, s, intent).question for _ in range(300)} for s in Split)
        assert trained
        assert held_out
        assert not trained & held_out


def test_sentences_outside_the_domain_are_those_of_the_file_and_others(lift: Domain) -> None:
    rng = random.Random(1)
    drawn = [lift.draw(rng, Split.TRAIN, lift.out_of_domain) for _ in range(200)]
    own = [e for e in drawn if e.question.startswith(("is there a", "where is a"))]
    assert 60 < len(own) < 140
    assert {e.reply for e in drawn} == {"sorry i did not understand"}


def test_every_reply_that_is_drawn_is_one_that_the_voice_learns(lift: Domain) -> None:
    rng = random.Random(2)
    drawn = {lift.draw(rng, Split.TRAIN).reply for _ in range(2000)}
    assert drawn == set(lift.replies())
    assert set(lift.standing_replies()) == {reply for reply in drawn if "going to floor" not in reply}
    assert {word for reply in drawn for word in reply.split()} <= set(lift.words())


def test_domain_draws_the_same_in_another_process_and_changes_its_fingerprint_with_the_file(
    lift: Domain, tmp_path: Path
) -> None:
    again = pickle.loads(pickle.dumps(lift))
    first, second = ([d.draw(random.Random(seed), Split.TRAIN) for seed in range(50)] for d in (lift, again))
    other = written(tmp_path, LIFT.read_text().replace("answer: stopping", "answer: halting"))

    assert first == second
    assert lift.fingerprint() == again.fingerprint() == read_domain(LIFT).fingerprint()
    assert read_domain(other).fingerprint() != lift.fingerprint()


MISTAKES = [
    ("name: small", "nam: small", ":1: the file has no key nam: it takes"),
    ("name: small\n", "", ":1: the file needs the key name: add it."),
    ("name: small", "name: a/b", ":1: name is up to 40 letters, digits and dashes."),
    ("name: small", "name: small\nname: other", ":2: name is there twice: remove one."),
    ("name: small", "name: small\nvoice: anna", ":2: there is no voice anna: choose slt, awb, rms, kal16."),
    ("name: small", "name: [small]", ":1: name is a text: write it on one line."),
    ("0..9", "9..0", ":3: slot floor ends before it begins: write 0..9."),
    ("0..9", "0 to 9", ":3: slot floor is a list, keys, or a range such as 0..20."),
    ("alight", "5 watts", ":4: '5 watts' of slot state is no words"),
    ("  go:", "  Go:", ":6: 'Go' is no name: use lower-case letters"),
    ("go to floor <floor> please?", "go to <flor>", ":8: there is no slot <flor>: define it under slots."),
    ("<floor> please?", "<floor> (please", ":8: a ( has no ) behind it."),
    ("(switch|turn) it <state> (now|please)?", "turn it <state>", ":12: lamp has 2 sentences, and needs 8"),
    ("answer: going to floor <floor>", "answer: up <state>", ":9: not every phrase says <state>"),
    ("answer: going to floor <floor>", "answer: " + "x" * 21, ":9: 'xxxxxxxxxxxxxxxxxxxxx' has"),
    ("answer: going to floor <floor>", "answer: " + "going up there " * 9, ':9: "going up there going'),
    ("    answer: it is", "    answers: it is", ":14: lamp has no key answers: it takes answer"),
    ("interrupts: true", "interrupts: yes", ":11: interrupts is true or false."),
    ("answer: going", "interrupts: true\n    answer: going", ":12: only one intent interrupts, and go does"),
    ("answer: going", "weight: -1\n    answer: going", ":9: weight is a number from 0.01 to 1000."),
    ("answer: going", "weight: nan\n    answer: going", ":9: weight is a number from 0.01 to 1000."),
    ("  answer: sorry", "  answer: sorry\n  phrases:\n    - go to floor (one|two) (a|b|c)?",
     ':18: "go to floor one" is in intent go too, line 8: remove it from one.'),
    ("  answer: sorry", "  answer: sorry <floor>", ":16: not every phrase says <floor>"),
    ("out_of_domain:", "other:", ":15: the file has no key other"),
    ("      - go to", "      - {go} to", ":8: not YAML, expected <block end>"),
    ("name: small", "name: sm\u00e4ll", ":1: name is up to 40 letters"),
]  # fmt: skip


HOSTILE = [
    (b"", ": empty. Begin with the line: name: NAME"),
    (b"\xff\xfe\x00", ": not UTF-8. Save it as UTF-8."),
    (b"name: \x07", ": not YAML, "),
    (b"[" * 5_000, ": nested too deeply."),
    (b"# " + b"x" * 1_000_000, ": larger than 1000000 bytes."),
    (b"&a [*a]", ":1: the file has keys"),
    (b"--- a\n--- b\n", ":2: not YAML, but found another document."),
]


@pytest.mark.parametrize(
    ("content", "error"),
    [*((SMALL.replace(right, wrong, 1).encode(), error) for right, wrong, error in MISTAKES), *HOSTILE],
    ids=range(len(MISTAKES) + len(HOSTILE)),
)
def test_mistake_in_a_file_is_named_with_its_line_in_one_sentence(
    tmp_path: Path, content: bytes, error: str
) -> None:
    path = tmp_path / "small.yaml"
    path.write_bytes(content)
    with pytest.raises(DomainFileError) as refused:
        read_domain(path)
    assert str(refused.value).startswith(f"{path}{error}")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < len(str(path)) + 250


def test_every_mistake_is_made() -> None:
    assert [right for right, _, _ in MISTAKES if right not in SMALL] == []


def test_pattern_of_more_sentences_than_fit_is_refused_before_it_is_expanded(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.replace("please?", "(a|b) " * 60))
    with pytest.raises(DomainFileError, match=":8: more than 50000 sentences in the file"):
        read_domain(path)


def test_domain_of_the_tutorial_can_be_read(tmp_path: Path) -> None:
    [listing] = re.findall(r"    ```yaml\n(.+?)    ```\n", PAGE.read_text(), re.DOTALL)
    domain = read_domain(written(tmp_path, dedent(listing)))
    assert (domain.name, len(domain.intents), domain.interruption) == ("coffee", 7, "stop")


def test_documentation_has_the_keys_that_the_reader_takes() -> None:
    assert reference() in PAGE.read_text()
    assert {"the file", "an intent", "out_of_domain", "training"} == KEYS.keys()
