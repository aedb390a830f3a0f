"""The checked-in inputs of each target: `tests/fuzz/corpus/<target>/<name>`.

    python -m tests.fuzz.seeds

writes the first ones, made from valid input; every input that once broke something is added by hand.
"""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from antiphon.v1 import common_pb2
from antiphon.v1 import inference_service_pb2 as pb

FOLDER = Path(__file__).parent / "corpus"


def load(target: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((FOLDER / target).iterdir())}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


_PCM = np.linspace(-0.5, 0.5, 400, dtype="<f4").tobytes()
_SECOND = np.sin(np.arange(700, dtype="<f4")).astype("<f4").tobytes()


def _picture(encoding: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image = Image.new("RGB", (24, 16), (200, 40, 40))
    image.putpixel((3, 3), (0, 0, 255))
    image.save(file, encoding, **options)
    return file.getvalue()


_PICTURES = {
    "jpeg": _picture("JPEG"),
    "progressive": _picture("JPEG", progressive=True),
    "png": _picture("PNG"),
    "webp": _picture("WEBP"),
    "lossless": _picture("WEBP", lossless=True),
    "gif": _picture("GIF"),
    "empty": b"",
    "claims_to_be_huge": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\x7f\xff\xff\xff" * 2 + b"\x08\x02\0\0\0",
}
_JPEG = _base64(_PICTURES["jpeg"])


def _wav(encoding: int, channels: int, rate: int, bits: int, body: bytes) -> bytes:
    frame = channels * bits // 8
    head = b"fmt \x10\x00\x00\x00" + encoding.to_bytes(2, "little") + channels.to_bytes(2, "little")
    head += rate.to_bytes(4, "little") + (rate * frame).to_bytes(4, "little")
    head += frame.to_bytes(2, "little") + bits.to_bytes(2, "little")
    data = b"data" + len(body).to_bytes(4, "little") + body
    return b"RIFF" + (4 + len(head) + len(data)).to_bytes(4, "little") + b"WAVE" + head + data


_WAVS = {
    "pcm16": _wav(1, 1, 16_000, 16, bytes(16_000)),
    "pcm24": _wav(1, 2, 8_000, 24, bytes(24_000)),
    "pcm32": _wav(1, 1, 8_000, 32, bytes(16_000)),
    "float": _wav(3, 1, 8_000, 32, _PCM * 10),
    "raw": _PCM * 20,
    "no_data": b"RIFF\x04\x00\x00\x00WAVE",
}

_REALTIME: dict[str, Any] = {
    "init": {
        "type": "session.init",
        "payload": {
            "system_prompt": "Answer briefly.",
            "config": {"length_penalty": 1.1, "top_k": 5},
            "voice": {"ref_audio_base64": _base64(_WAVS["float"])},
            "seed": 7,
        },
    },
    "empty_init": {"type": "session.init", "payload": {}},
    "append": {
        "type": "input.append",
        "input": {
            "audio": _base64(_SECOND),
            "video_frames": [_JPEG],
            "max_slice_nums": 1,
            "input_id": "in-7",
        },
    },
    "long_spelling": {
        "type": "input.append",
        "input": {"audio": {"data": _base64(_PCM)}, "hints": {"force_listen": True}, "format": "pcm16"},
    },
    "close": {"type": "session.close", "reason": "user_stop"},
    "update": {
        "type": "session.update",
        "session": {"instructions": "Answer briefly.", "voice_config": {"temperature": 0.5}},
    },
    "earlier_append": {"type": "input_audio_buffer.append", "audio": _base64(_SECOND), "force_listen": False},
}
_DUPLEX: dict[str, Any] = {
    "prepare": {
        "type": "prepare",
        "system_prompt": "Hi.",
        "config": {"length_penalty": 1.1},
        "max_slice_nums": 1,
    },
    "chunk": {"type": "audio_chunk", "audio_base64": _base64(_SECOND), "frame_base64_list": [_JPEG]},
    "short_names": {
        "type": "audio_chunk",
        "audio": _base64(_PCM),
        "video_frame": _JPEG,
        "force_listen": True,
    },
    "frame": {"type": "video_frame", "frame_base64": _JPEG},
    "pause": {"type": "pause", "timeout": 30},
    "resume": {"type": "resume"},
    "interrupt": {"type": "interrupt"},
    "stop": {"type": "stop"},
    "diagnostic": {"type": "client_diagnostic", "drift_ms": 12},
}
_ASKED: dict[str, Any] = {
    "text": {"messages": [{"role": "user", "content": "Name a prime."}], "tts": {"enabled": False}},
    "history": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Answer briefly."}]},
            {"role": "user", "content": "Name a prime."},
            {"role": "assistant", "content": "Seven."},
            {"role": "user", "content": "Another."},
        ],
        "streaming": False,
        "generation": {"max_new_tokens": 64, "temperature": 0, "top_p": 1, "length_penalty": 1.1},
        "enable_thinking": True,
    },
    "media": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image", "data": _JPEG},
                    {"type": "audio", "data": _base64(_SECOND), "sample_rate": 8000},
                    {"type": "audio", "data": _base64(_WAVS["pcm24"])},
                    {"type": "video", "data": "AAAA", "stack_frames": 1},
                ],
            }
        ],
        "tts": {"ref_audio_data": _base64(_WAVS["float"]), "ref_audio_path": "amber", "mode": "omni"},
        "image": {"max_slice_nums": 2, "use_image_id": False},
        "use_tts_template": True,
        "omni_mode": True,
    },
}
_ASKED["clip"] = {
    "messages": [{"role": "user", "content": _ASKED["media"]["messages"][0]["content"][:3]}],
}
_CHAT: dict[str, Any] = {
    "init": {"type": "session.init", "payload": {"system_prompt": "Hi.", "seed": 7, "config": {"top_k": 3}}},
    **{name: {"type": "input.append", "input": fields} for name, fields in _ASKED.items()},
    "update": {"type": "session.update"},
    "close": {"type": "session.close"},
}
_TRANSCRIPTION: dict[str, Any] = {
    "update": {"type": "session.update", "model": "antiphon-mini", "language": "en"},
    "commit": {"type": "input_audio_buffer.commit"},
    "append": {"type": "input_audio_buffer.append", "audio": _base64(_PCM)},
    "final": {"type": "input_audio_buffer.commit", "final": True},
    "final_word": {"type": "input_audio_buffer.commit", "final": "Yes"},
}


def _frames(events: dict[str, Any]) -> dict[str, bytes]:
    return {name: json.dumps(event).encode() for name, event in events.items()}


def _conversation(events: dict[str, Any], *names: str) -> bytes:
    return b"\n".join(_frames(events)[name] for name in names)


def _prefills() -> dict[str, bytes]:
    audio = common_pb2.AudioChunk(
        encoding=common_pb2.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=16_000, data=_PCM
    )
    requests = {
        "config": pb.PrefillRequest(
            config=pb.SessionConfig(
                mode=pb.SESSION_MODE_VIDEO,
                system_prompt="Hi.",
                duplex=common_pb2.DuplexConfig(top_k=3, temperature=0.2),
                sampling=common_pb2.SamplingParams(seed=3, stop=["x"]),
                window=common_pb2.WindowConfig(mode=common_pb2.WINDOW_MODE_BASIC, high_tokens=400),
                voice=common_pb2.Voice(llm_reference=audio, voice_id="amber"),
            )
        ),
        "unit": pb.PrefillRequest(unit=1, duplex=pb.DuplexInput(audio=audio)),
        "pictures": pb.PrefillRequest(
            unit=2,
            duplex=pb.DuplexInput(
                audio=audio, frames=[common_pb2.Image(data=_PICTURES["png"])], max_slice_nums=2
            ),
        ),
        "turn": pb.PrefillRequest(unit=1, turn=pb.TurnInput()),
        "stream": pb.PrefillRequest(unit=1, stream=pb.StreamInput(text="x")),
    }
    return {name: request.SerializeToString() for name, request in requests.items()}


_URL: dict[str, Any] = {"url": f"data:image/jpeg;base64,{_JPEG}", "detail": "low"}
_CLIP: dict[str, Any] = {"data": _base64(_wav(1, 1, 16_000, 16, bytes(64))), "format": "wav"}
_COMPLETIONS: dict[str, Any] = {
    "text": {"model": "antiphon-mini", "messages": [{"role": "user", "content": "Name a prime."}], "n": 1},
    "stream": {
        "model": "antiphon-mini",
        "messages": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hello."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": ["a", "b"],
        "seed": 7,
        "max_completion_tokens": 9,
        "logit_bias": {},
    },
    "media": {
        "model": "antiphon-mini",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": _URL},
                    {"type": "input_audio", "input_audio": _CLIP},
                    {"type": "text", "text": "What is it?"},
                ],
            }
        ],
        "modalities": ["text", "audio"],
        "audio": {"voice": "amber", "format": "wav"},
    },
}


def first_inputs() -> dict[str, dict[str, bytes]]:
    return {
        "realtime_event": _frames(_REALTIME),
        "duplex_event": _frames(_DUPLEX),
        "realtime_conversation": {
            "current": _conversation(_REALTIME, "empty_init", "append", "append", "long_spelling", "close"),
            "earlier": _conversation(_REALTIME, "update", "earlier_append", "earlier_append", "close"),
            "out_of_order": _conversation(_REALTIME, "append", "earlier_append", "init", "update", "append"),
        },
        "duplex_conversation": {
            "plain": _conversation(_DUPLEX, "prepare", "chunk", "frame", "chunk", "short_names", "stop"),
            "break": _conversation(_DUPLEX, "prepare", "pause", "chunk", "resume", "interrupt", "chunk"),
            "out_of_order": _conversation(_DUPLEX, "chunk", "pause", "diagnostic", "prepare", "prepare"),
        },
        "chat_request": _frames(_ASKED),
        "completion": _frames(_COMPLETIONS),
        "chat_conversation": _frames(_ASKED) | {"two": _conversation(_ASKED, "text", "history")},
        "realtime_chat_conversation": {
            "plain": _conversation(_CHAT, "init", "text", "history", "clip", "media", "close"),
            "out_of_order": _conversation(_CHAT, "text", "update", "init", "init", "clip"),
        },
        "transcription_event": _frames(_TRANSCRIPTION),
        "transcription_conversation": {
            "plain": _conversation(_TRANSCRIPTION, "update", "commit", "append", "append", "final"),
            "ahead": _conversation(
                _TRANSCRIPTION,
                "update",
                "append",
                "final",
                "commit",
                "append",
                "final_word",
                "commit",
                "final",
            ),
            "out_of_order": _conversation(_TRANSCRIPTION, "final", "append", "commit", "update", "final"),
        },
        "audio": {
            "second": _base64(_SECOND).encode(),
            "spaced": b" \n".join([_base64(_PCM).encode()[:8]] * 4),
            "nan": _base64(np.array([np.nan, np.inf], "<f4").tobytes()).encode(),
            "loud": _base64(np.array([1.5, -17.0], "<f4").tobytes()).encode(),
        },
        "reference_audio": _WAVS,
        "reference_audio_path": {
            "id": b"amber",
            "windows": b"C:\\voices\\Amber.WAV",
            "climbing": b"../../etc/passwd",
        },
        "public_picture": _PICTURES,
        "picture": _PICTURES,
        "prefill": _prefills(),
        "call_metadata": {
            "id": b"session-1",
            "trace": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        },
        "http_request": {
            "get": b"GET /health?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
            "post": b'POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n{"a":1}',
            "chunked": b"PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            "handshake": b"GET /ws/chat HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"\r\n\x81\x82\0\0\0\0{}\x89\x80\0\0\0\0",
            "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        },
        "request_target": {
            "realtime": b"/v1/realtime?mode=audio&session_id=x\nrealtime",
            "duplex": b"/ws/duplex/adx_%6c%2fabel/",
            "intent": b"/v1/realtime?intent=transcription",
        },
        "key_file": {
            "one": b"# keys\nalice:" + b"0" * 64 + b"\n",
            "admin": b"bob:" + b"1" * 64 + b":admin\r\n",
            "broken": b"alice\n",
        },
    }


def main() -> None:
    for target, inputs in first_inputs().items():
        folder = FOLDER / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
