"""Pictures of shapes: what is drawn, and when the camera of a composed session shows it."""

import random

import numpy as np
import pytest

from antiphon_training.corpus.augment import Augmenter
from antiphon_training.corpus.camera import Camera
from antiphon_training.corpus.composition import CHUNK_END, SPEAK, TURN_END, Composer
from antiphon_training.corpus.pictures import NOTHING, SCENES, PictureSet, Scene, draw_picture, encoded
from antiphon_training.corpus.spoken import Utterance
from antiphon_training.corpus.writing import Writer
from antiphon_training.domains.mini import COLOURS, MINI, NOTHING_SEEN_REPLY, SHAPES, Intent
from antiphon_training.stages.joint import SEEING_LESSON, question_row
from inference_service.media.image import MAX_FRAMES, decode_frame
from tests.training.conftest import utterances

SIZE = (320, 240)


@pytest.fixture(scope="module")
def corpus() -> list[Utterance]:
    return utterances((Intent.VISION, Intent.NAME), most=120)


def test_there_is_a_scene_for_every_colour_and_shape_and_one_for_nothing() -> None:
    assert len(set(SCENES)) == len(COLOURS) * len(SHAPES) + 1
    assert {scene.reply for scene in SCENES} >= {NOTHING_SEEN_REPLY, "i see a red circle"}


@pytest.mark.parametrize("scene", SCENES)
def test_same_seed_draws_the_same_picture_and_the_worker_reads_it(scene: Scene) -> None:
    first, second = (draw_picture(np.random.default_rng(3), scene, SIZE) for _ in range(2))
    assert first.size == SIZE
    assert first.tobytes() == second.tobytes()
    data = encoded(np.random.default_rng(SCENES.index(scene)), first)
    assert decode_frame(data, field="frame", side=64).shape == (64, 64, 3)


@pytest.mark.long
def test_an_album_has_pictures_of_every_scene(album: PictureSet) -> None:
    assert album.pixels.shape == (400, 64, 64, 3)
    assert set(album.labels.tolist()) == set(range(len(SCENES)))


@pytest.mark.parametrize("seed", range(20))
def test_a_camera_films_at_most_four_pictures_a_unit(album: PictureSet, seed: int) -> None:
    camera = Camera(np.random.default_rng(seed), album, unfilmed=0.3)
    camera.advance(20)
    assert len(camera.units) == 20
    assert all(len(filmed) <= MAX_FRAMES for filmed in camera.units)
    assert camera.films or not any(camera.units)


def test_camera_seen_label_is_nothing_before_and_newest_picture_after_filming(album: PictureSet) -> None:
    labels = {
        pixels.tobytes(): SCENES[label] for pixels, label in zip(album.pixels, album.labels, strict=True)
    }
    for seed in range(40):
        camera = Camera(np.random.default_rng(seed), album, unfilmed=0.0)
        for units in range(1, 15):
            camera.advance(units)
            filmed = [picture for unit in camera.units for picture in unit]
            if not filmed:
                assert camera.seen is NOTHING
                continue
            shown = (filmed[-1], filmed[-1][:, ::-1])  # it may be mirrored
            assert camera.seen in [labels.get(np.ascontiguousarray(it).tobytes()) for it in shown]


def test_composed_vision_answer_matches_picture_seen_at_its_start(
    album: PictureSet, corpus: list[Utterance]
) -> None:
    for seed in range(20):
        composer = Composer(MINI, corpus, Augmenter(seed), album, unfilmed=0.2)
        conversation = composer.conversation(20)
        said = " ".join(
            token.strip()
            for plan in conversation.units
            for token in plan.tokens
            if token not in (SPEAK, TURN_END, CHUNK_END, "<|listen|>")
        )
        about = [e.reply for e in conversation.exchanges if e.intent is Intent.VISION]
        assert all(reply in said for reply in about)
        shown = any(plan.pictures for plan in conversation.units)
        assert shown or set(about) <= {NOTHING_SEEN_REPLY}


def test_a_written_sequence_holds_its_pictures_between_their_marks(album: PictureSet, writer: Writer) -> None:
    begin, end = writer.encode("<image>")[0], writer.encode("</image>")[0]
    for seed in range(10):
        camera = Camera(np.random.default_rng(seed), album, unfilmed=0.0)
        row = question_row(MINI, random.Random(seed), writer, camera, SEEING_LESSON)
        marks = [i for i, token in enumerate(row.ids) if token == begin]
        assert len(marks) == len(row.pictures)
        assert all(row.ids[i + 5] == end and set(row.ids[i + 1 : i + 5]) == {-2} for i in marks)
        assert len(row.labels) == len(row.ids)
