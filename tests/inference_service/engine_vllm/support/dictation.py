"""Transcriptions through the public protocols, and what transformers writes for the same sound."""

import asyncio
import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from transformers import VoxtralRealtimeForConditionalGeneration as Network
from websockets.asyncio.client import connect

from antiphon import Client, Transcript
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from tests.inference_service.engine.support.dictation import Sound, noise
from tests.inference_service.engine.support.tiny_voxtral import CONTROLS, WORDS
from tests.inference_service.families.test_voxtral import generated, text_ids
from tests.support.patience import PATIENCE_S

SOUND: Final = (np.round(noise(3, 2.0).clip(-1, 1) * 32767) / 32768).astype(np.float32)
"""Sound that 16 bits hold exactly."""


def written(folder: Path, sound: Sound) -> str:
    """Return what transformers' `generate` writes."""
    network = Network.from_pretrained(folder, attn_implementation="eager").eval()
    spelled = b"".join(WORDS[token - CONTROLS] for token in text_ids(generated(network, sound)))
    return spelled.decode(errors="replace")


def speech(sound: Sound, *, begins: bool = True, ends: bool = False) -> pb.StreamInput:
    """A chunk of float32 sound for gRPC."""
    audio = common.AudioChunk(
        encoding=common.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=16_000, data=sound.tobytes()
    )
    return pb.StreamInput(audio=audio, begin_utterance=begins, end_utterance=ends)


async def transcripts(address: str, sounds: Sequence[Sound]) -> list[str]:
    """Return what `/v1/transcription` writes for utterances that are sent one after the other."""
    texts = []
    async with Client(address) as client, client.transcribe() as session:
        for sound in sounds:
            await session.send_audio(sound)
            await session.end_utterance()
            async with asyncio.timeout(PATIENCE_S):
                async for event in session:
                    if isinstance(event, Transcript):
                        texts.append(event.text)
                        break
    return texts


async def in_openais_events(address: str, model: str, sound: Sound) -> str:
    """Return what `/v1/realtime?intent=transcription` writes for a sound, which it hears at 24 kHz."""
    pcm = np.interp(np.arange(0, len(sound), 2 / 3), np.arange(len(sound)), sound)
    audio = base64.b64encode((pcm * 32767).astype("<i2").tobytes()).decode()
    heard = {"transcription": {"model": model}, "turn_detection": None}
    events = (
        {"type": "session.update", "session": {"type": "transcription", "audio": {"input": heard}}},
        {"type": "input_audio_buffer.append", "audio": audio},
        {"type": "input_audio_buffer.commit"},
    )
    url = f"{address.replace('http', 'ws', 1)}/v1/realtime?intent=transcription"
    async with connect(url) as socket, asyncio.timeout(PATIENCE_S):
        for event in events:
            await socket.send(json.dumps(event))
        async for frame in socket:
            told = json.loads(frame)
            assert told["type"] != "error", told
            if told["type"] == "conversation.item.input_audio_transcription.completed":
                return str(told["transcript"])
    raise AssertionError("The server ended the session.")
