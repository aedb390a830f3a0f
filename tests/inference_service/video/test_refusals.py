"""Refuse unusable videos with the reason in one sentence, whatever their decoder does."""

import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import pytest

from inference_service import child
from inference_service.errors import UnitRefused
from inference_service.video import process
from inference_service.video.messages import Order
from inference_service.video.process import VideoReader
from tests.support.drawing import jpeg
from tests.support.hostile_videos import (
    covered,
    huge,
    huge_in_disguise,
    many_tracks,
    noisy,
    retagged,
    sound_alone,
)
from tests.support.videos import numbered, short, tone, video

FIELD = "turn.messages[0].content[0].video"
ALL = Order(600.0, 4_000_000, hears=True)


Processes = list[subprocess.Popen[bytes]]


def refusal(data: bytes, order: Order = ALL, watch: Callable[[], None] = lambda: None) -> str:
    """Return the refusal's message after the field's name."""
    with pytest.raises(UnitRefused) as refused, VideoReader(data, order, field=FIELD, watch=watch) as reader:
        list(reader.pictures())
    failure = refused.value.failure
    assert (failure.reason, failure.field) == ("VIDEO_INVALID", FIELD)
    assert failure.message.startswith(f"{FIELD} ")
    return failure.message.removeprefix(f"{FIELD} ")


@cache
def cut(container: str, share: float, **options: str) -> bytes:
    whole = video(
        numbered(40), rate=10, container=container, sound=tone(4.0), codec=_CODECS[container],
        container_options=options,
    )  # fmt: skip
    return whole[: int(len(whole) * share)]


_CODECS = {"mp4": "libx264", "webm": "libvpx", "matroska": "libx264"}
_OTHER = "must be an MP4, MOV, WebM or Matroska file."
_CUT, _DAMAGED, _STILL = "is cut short.", "is damaged.", "has no moving pictures."
_CODEC = "has pictures in {}; they must be in H.264, HEVC, VP8, VP9, AV1."
_LONG, _LARGE = "must last at most 600 s, not {} s.", "must be at most 4096 x 4096, not {}."
_FRAGMENTS = {"movflags": "empty_moov+frag_keyframe"}

BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", _OTHER),
    "text": (lambda: b"#EXTM3U\nfile:///etc/passwd\n" * 99, _OTHER),
    "picture": (jpeg, _OTHER),
    "MP4 cut short": (lambda: cut("mp4", 0.5), _CUT),
    "MP4 cut short behind its index": (lambda: cut("mp4", 0.8, **_FRAGMENTS), _CUT),
    "WebM cut short": (lambda: cut("webm", 0.5), _CUT),
    "Matroska cut short": (lambda: cut("matroska", 0.9), _CUT),
    "MP4 without an index": (lambda: short()[: short().index(b"moov") - 4], _DAMAGED),
    "MP4 of noise": (lambda: noisy(video(numbered(20))), _DAMAGED),
    "WebM of noise": (lambda: b"\x1aE\xdf\xa3" + bytes(2000), _DAMAGED),
    "sound alone": (sound_alone, _STILL),
    "sound with a cover": (covered, _STILL),
    "other codec": (lambda: video(numbered(4), codec="mpeg4"), _CODEC.format("mpeg4")),
    "unknown codec": (
        lambda: retagged(video(numbered(4)), b"avc1", b"zzzz"),
        _CODEC.format("an unknown codec"),
    ),
    "too long": (lambda: video(numbered(601), rate=1), _LONG.format(601.0)),
    "long by its own account": (lambda: video(numbered(10), rate=Fraction(1, 100)), _LONG.format(1000.0)),
    "too large": (lambda: video(numbered(1, (4112, 64))), _LARGE.format("4112 x 64")),
    "far too large": (huge, _LARGE.format("8192 x 8192")),
    "far too large behind a small container": (huge_in_disguise, _LARGE.format("8192 x 8192")),
    "too many frames a second": (
        lambda: video(numbered(600), rate=1000),
        "must have at most 240 frames a second, not 1000.",
    ),
    "too many tracks": (many_tracks, "must have at most 32 tracks, not 301."),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.sample(
    "nothing", "picture", "MP4 cut short", "WebM cut short", "*noise", "other codec", "far too large"
)
def test_bad_video_is_refused_in_one_sentence(name: str) -> None:
    make, told = BAD[name]
    assert refusal(make()) == told


def test_more_frames_than_any_video_of_that_length_are_not_counted_to_the_end() -> None:
    assert refusal(video(numbered(600), rate=600), Order(1.0, 65_536)) == (
        "has more than 240 frames, 240 for each of 1 s."
    )


def test_time_that_other_videos_have_taken_is_not_there_any_more() -> None:
    assert refusal(short(), Order(1.5, 65_536)) == "must last at most 1.5 s, not 2.0 s."


def send(started: Processes, what: signal.Signals) -> Callable[[], None]:
    """A watch that sends a signal to the process when it is looked at first."""
    sent: list[int] = []

    def watch() -> None:
        if not sent:
            sent.append(started[0].pid)
            started[0].send_signal(what)

    return watch


def test_decoder_that_hangs_is_killed(started: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STALL_S", 0.3)
    assert refusal(short(), watch=send(started, signal.SIGSTOP)) == "could not be decoded in time."
    assert started[0].returncode == -signal.SIGKILL


def test_crashed_decoder_is_refused_and_logged(started: Processes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert refusal(short(), watch=send(started, signal.SIGSEGV)) == "could not be decoded."
    assert "video decoder failed: it ended with exit code -11" in caplog.text


def test_decoder_that_takes_too_long_is_killed(started: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CPU_S_A_MINUTE", 0.02)
    monkeypatch.setattr(process, "WAIT", 100_000)  # which bounds the time on the clock
    assert refusal(short()) == "takes more than 0.02 s of processor time a minute to decode."
    assert started[0].returncode == -signal.SIGKILL


def test_decoder_of_too_much_memory_is_killed(started: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MEMORY_BYTES", 1 << 20)
    assert refusal(short()) == "needs more than 1 GiB of memory."
    assert started[0].returncode == -signal.SIGKILL


def test_decoder_of_abandoned_video_is_killed(started: Processes) -> None:
    class Gone(Exception):
        pass

    def watch() -> None:
        raise Gone

    with pytest.raises(Gone):
        VideoReader(short(), ALL, field=FIELD, watch=watch)
    assert started[0].returncode == -signal.SIGKILL


HEADER = b'{"frames": 20, "rate": 10.0, "width": 192, "height": 64, "samples": 0}'
ANSWERS = {
    "nothing": b"",
    "noise": b"\0" * 4096,
    "other message": b"P" + (4).to_bytes(4, "big") + b"abcd",
    "endless header": b"H" + b"\xff" * 8192,
    "no JSON": b"H" + (3).to_bytes(4, "big") + b"abc",
    "no header": b"H" + (2).to_bytes(4, "big") + b"{}",
    "nested header": b"H" + (500).to_bytes(4, "big") + b"[" * 500,
    "huge picture": b"H" + (len(HEADER) + 4).to_bytes(4, "big") + HEADER.replace(b"192", b"1920000"),
    "endless sound": b"H" + (len(HEADER) + 9).to_bytes(4, "big") + HEADER.replace(b" 0}", b" 9999999999}"),
    "short picture": b"H" + len(HEADER).to_bytes(4, "big") + HEADER + b"S\0\0\0\0P\0\0\0\x05abcde",
    "refusal with control characters": b"R" + (5).to_bytes(4, "big") + b"a\n\x1b[m",
    "refusal of other bytes": b"R" + (3).to_bytes(4, "big") + b"\xff\xfe\0",
    "refusal without end": b"R" + (5000).to_bytes(4, "big") + b"a" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_decoder_that_answers_nonsense_is_not_believed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import sys; sys.stdout.buffer.write({ANSWERS[name]!r})"
    monkeypatch.setattr(child, "command", lambda *_: [sys.executable, "-c", program])
    assert refusal(short()) == "could not be decoded."
