"""`antiphon convert-vocoder`: conversion of MiniCPM-o's published vocoder for workers."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from antiphon.audio.wav import decode_wav, is_wav, not_a_wav, read_header
from antiphon_command.arguments.parser import Subcommands, add_command, examples
from antiphon_command.output.failure import ExitCode, Failure, require_extra

if TYPE_CHECKING:
    from inference_service.checkpoints.vocoder_conversion import Recording

_PUBLISHED_VOICE: Final = "HT_ref_audio.wav"
"""The file of the default voice, beside the vocoder's folder in the published checkpoint."""


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "convert-vocoder",
        "convert MiniCPM-o's vocoder, safe and quick to load",
        examples(
            "antiphon convert-vocoder MiniCPM-o-4_5/assets/token2wav MiniCPM-o-4_5/vocoder",
            "antiphon convert-vocoder SRC DST --voice default=me.wav --voice anna=anna.wav",
        ),
        run,
        "SRC DST",
    )
    command.add_argument("source", metavar="SRC", type=Path, help="folder with flow.pt, hift.pt, flow.yaml")
    command.add_argument("target", metavar="DST", type=Path, help="folder to create")
    command.add_argument(
        "--voice",
        metavar="[ID=]WAV",
        action="append",
        default=[],
        help="add a voice, by default under the id default",
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert the published files; their pickles are read without running code."""
    require_extra("convert-vocoder", "worker")
    from inference_service.checkpoints.vocoder_conversion import convert
    from inference_service.models.errors import CheckpointError, VoiceError

    source, target = arguments.source, arguments.target
    voices = dict(_voice(text) for text in arguments.voice)
    published = source.parent / _PUBLISHED_VOICE
    if not voices and published.is_file():
        voices["default"] = _recording(published)
    try:
        config = convert(source, target, voices)
    except (CheckpointError, VoiceError) as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    kind = "causal HiFT" if config.vocoder.is_causal else "HiFT"
    print(f"{target}: {config.estimator.depth} blocks and {kind}. Voices: {', '.join(voices) or 'none'}.")
    if "default" not in voices:
        print("It has no default voice: sessions must bring a recording. Give one with --voice WAV.")
    return ExitCode.OK


def _voice(text: str) -> "tuple[str, Recording]":
    name, found, path = text.rpartition("=")
    return name if found else "default", _recording(Path(path))


def _recording(path: Path) -> "Recording":
    from inference_service.checkpoints.vocoder_conversion import Recording

    raw = path.read_bytes()
    header = read_header(raw) if is_wav(raw) else None
    if header is None:
        raise not_a_wav(path)
    rate_hz = header[0].rate_hz
    return Recording(decode_wav(raw, path, rate_hz), rate_hz)
