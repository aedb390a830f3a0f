"""Reads `input.append` of the full-duplex modes."""

from collections.abc import Callable

from ws_adapter.codec import decode_audio
from ws_adapter.dialects.errors import invalid, missing
from ws_adapter.dialects.events import AppendInput, AudioObject, InputAppend
from ws_adapter.dialects.units import NO_AUDIO, Append


def read_append(event: InputAppend, max_append_s: float, new_id: Callable[[str], str]) -> Append:
    """Checks an append whole; raises `Refusal`, and then nothing of it holds.

    Pictures are counted, not looked at: audio mode has no use for them.
    """
    fields = event.input
    if fields is None:
        raise missing("input", "an object")
    force_listen = fields.force_listen
    if force_listen is None and fields.hints is not None:
        force_listen = fields.hints.force_listen
    text, param = _audio(fields)
    clip = decode_audio(text, fields.format or "f32", param) if text else NO_AUDIO
    if not clip.samples.size and not force_listen:
        raise missing("input.audio", "base64 audio of at least one sample")
    frames = fields.video_frames or fields.frame_base64_list or fields.frames or []
    append = Append(clip, fields.input_id or new_id("input"), bool(force_listen), len(frames))
    if append.seconds > max_append_s:
        raise invalid(param, f"expected at most {max_append_s:g} s of audio, got {append.seconds:.6g} s")
    return append


def _audio(fields: AppendInput) -> tuple[str, str]:
    """The base64 text, empty if there is none, and the path of the field that held it."""
    audio = fields.audio
    if isinstance(audio, AudioObject):
        places = {
            "audio.data": audio.data,
            "audio.base64": audio.base64,
            "audio.audio_base64": audio.audio_base64,
        }
    else:
        places = {"audio": audio}
    places |= {"audio_base64": fields.audio_base64, "audio_data": fields.audio_data}
    return next(((text, f"input.{name}") for name, text in places.items() if text), ("", "input.audio"))
