"""`antiphon chat` against a server that plays a script: one question, and a chat in a terminal."""

import asyncio
import base64
import json
import os
import pty
import re
import signal
import subprocess
import wave
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon import write_wav
from antiphon.audio.samples import to_base64
from tests.cli.support.process import ANTIPHON, Outcome, run
from tests.sdk.replay import Peer, replay
from tests.support.patience import PATIENCE_S

Script = Callable[[Peer], Awaitable[None]]

PREFILLED = {"type": "prefill_done", "input_tokens": 27}
HALF_SECOND = (0.1 * np.sin(np.arange(12_000) * 0.2)).astype(np.float32)


def chunk(text: str, audio: np.ndarray | None = None) -> dict[str, object]:
    return {"type": "chunk", "text_delta": text, "audio_data": None if audio is None else to_base64(audio)}


def done(text: str, audio: str | None = None) -> dict[str, object]:
    counts = {"generated_tokens": 4, "input_tokens": 27}
    return {"type": "done", "text": text, **counts, "audio_data": audio, "recording_session_id": None}


def answering(*events: dict[str, object], close: int | None = None) -> Script:
    """Take a request and send these events; then close the connection with a code."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*events)
        if close is not None:
            await peer.socket.close(close)

    return script


class Requests(list[dict[str, Any]]):
    """The clients' requests; each is answered with the next of `texts`, spoken on request."""

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)

    async def answer(self, peer: Peer) -> None:
        request: dict[str, Any] = await peer.request()
        self.append(request)
        text = self._texts.pop(0)
        audio = HALF_SECOND if request["tts"]["enabled"] else None
        if request["streaming"]:
            await peer.send(PREFILLED, chunk(text[:3], audio), chunk(text[3:]), done(text))
        else:
            await peer.send(PREFILLED, done(text, None if audio is None else to_base64(audio)))


async def chat(script: Script, *arguments: str | Path, piped: str | None = None, **options: Any) -> Outcome:
    """Runs `antiphon chat` against a server that plays `script`; standard input is a pipe."""
    async with replay(script) as url:
        command = [*ANTIPHON, "chat", *map(str, arguments), "--url", url]
        if piped is None:
            return await asyncio.to_thread(run, command, options.get("env"), options.get("cwd"), PATIENCE_S)
        done = await asyncio.to_thread(
            subprocess.run, command, input=piped, capture_output=True, text=True, timeout=PATIENCE_S
        )
        return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("words", "piped"),
    [(["Name a prime."], None), ([], "Name a prime.\n"), (["-"], "Name a prime.\n")],
    ids=["argument", "pipe", "dash"],
)
async def test_one_question_as_an_argument_or_from_a_pipe(words: list[str], piped: str | None) -> None:
    requests = Requests("Seven.")
    outcome = await chat(requests.answer, *words, piped=piped)

    assert outcome == Outcome(0, "Seven.\n", "")
    assert requests[0]["messages"] == [{"role": "user", "content": "Name a prime."}]
    assert (requests[0]["streaming"], requests[0]["tts"]) == (True, {"enabled": False})
    assert requests[0]["generation"] == {}


async def test_every_option_reaches_the_server() -> None:
    requests = Requests("Seven.")
    numbers = ("--max-new-tokens", "9", "--temperature", "0", "--top-p", "0.5", "--length-penalty", "1.2")
    outcome = await chat(
        requests.answer, "Prime?", "--system", "Be brief.", "--thinking", "--no-stream", *numbers
    )

    assert outcome == Outcome(0, "Seven.\n", "")
    [request] = requests
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    drawn = {"max_new_tokens": 9, "temperature": 0.0, "top_p": 0.5, "length_penalty": 1.2}
    assert request["generation"] == drawn
    assert (request["enable_thinking"], request["streaming"]) == (True, False)


async def test_pictures_and_recordings_stand_before_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "b.jpg").write_bytes(b"\xff\xd8")
    write_wav(tmp_path / "c.wav", HALF_SECOND)
    requests = Requests("A circle.")
    attached = ("--image", tmp_path / "a.png", "--audio", tmp_path / "c.wav", "--image", tmp_path / "b.jpg")
    outcome = await chat(requests.answer, "What is it?", *attached)

    assert outcome.code == 0, outcome
    content = requests[0]["messages"][0]["content"]
    assert [part["type"] for part in content] == ["image", "image", "audio", "text"]
    assert base64.b64decode(content[1]["data"]) == b"\xff\xd8"
    assert base64.b64decode(content[2]["data"]) == (tmp_path / "c.wav").read_bytes()


async def test_video_is_seen_and_heard(tmp_path: Path) -> None:
    mp4 = b"\0\0\0\x10ftypisom" + bytes(99)
    (tmp_path / "video.mp4").write_bytes(mp4)
    requests = Requests("A circle.")
    outcome = await chat(requests.answer, "What is it?", "--video", tmp_path / "video.mp4")

    assert outcome == Outcome(0, "A circle.\n", "")
    video, text = requests[0]["messages"][0]["content"]
    assert video == {"type": "video", "data": base64.b64encode(mp4).decode(), "stack_frames": 1}
    assert text["text"] == "What is it?"
    assert requests[0]["omni_mode"] is True


async def test_recording_or_video_is_a_question_by_itself(tmp_path: Path) -> None:
    write_wav(tmp_path / "audio", HALF_SECOND)
    (tmp_path / "video").write_bytes(b"\x1aE\xdf\xa3")
    for kind in ("audio", "video"):
        requests = Requests("Seven.")
        outcome = await chat(requests.answer, f"--{kind}", tmp_path / kind)

        assert outcome == Outcome(0, "Seven.\n", "")
        assert [part["type"] for part in requests[0]["messages"][0]["content"]] == [kind]


@pytest.mark.parametrize("stream", [[], ["--no-stream"]])
async def test_spoken_answer_is_saved(tmp_path: Path, stream: list[str]) -> None:
    requests = Requests("Seven.")
    answer = tmp_path / "seven.wav"
    outcome = await chat(requests.answer, "Prime?", "--speak", "--out", answer, *stream)

    assert outcome == Outcome(0, "Seven.\n", f"saved {answer}, 0.50 s of audio\n")
    assert requests[0]["tts"] == {"enabled": True}
    with wave.open(str(answer)) as file:
        assert (file.getframerate(), file.getnframes()) == (24_000, 12_000)


async def test_spoken_answer_is_saved_to_answer_wav_by_default(tmp_path: Path) -> None:
    outcome = await chat(Requests("Seven.").answer, "Prime?", "--speak", cwd=tmp_path)

    assert outcome.err == "saved answer.wav, 0.50 s of audio\n"
    assert (tmp_path / "answer.wav").exists()


async def test_answer_without_speech_is_reported() -> None:
    outcome = await chat(answering(PREFILLED, chunk("Seven."), done("Seven.")), "Prime?", "--speak")

    assert (outcome.code, outcome.out) == (1, "Seven.\n")
    assert outcome.err == "The answer was written, but not spoken. Does this model speak?\n"


async def test_events_as_json() -> None:
    place = {"position": 1, "estimated_wait_s": 9.5, "estimate_is_guess": True}
    queued: list[dict[str, object]] = [
        {"type": "queued", **place, "queue_length": 1, "ticket_id": "t"},
        {"type": "queue_done"},
    ]
    script = answering(*queued, PREFILLED, chunk("Sept é", HALF_SECOND), done("Sept é"))
    outcome = await chat(script, "Prime?", "--json")

    counts = {"input_tokens": 27, "generated_tokens": 4}
    events = [json.loads(line) for line in outcome.out.splitlines()]
    assert all(event.pop("time_s") >= 0 for event in events)
    assert events == [
        {"type": "queued", **place},
        {"type": "prefilled", "input_tokens": 27},
        {"type": "text", "text": "Sept é"},
        {"type": "audio", "audio_s": 0.5},
        {"type": "answer", "text": "Sept é", "audio_s": 0.5, **counts, "unsupported_fields": []},
    ]
    assert outcome.err == ""


@pytest.mark.parametrize("where", ["file", "variable"])
async def test_key_comes_from_a_file_or_a_variable(tmp_path: Path, where: str) -> None:
    seen: list[str | None] = []

    async def script(peer: Peer) -> None:
        assert peer.socket.request is not None
        seen.append(peer.socket.request.headers.get("Authorization"))
        await peer.request()
        await peer.send(PREFILLED, done("Seven."))

    (tmp_path / "key").write_text("of-file\n")
    options = ["--key-file", tmp_path / "key"] if where == "file" else []
    await chat(script, "Prime?", *options, env=os.environ | {"ANTIPHON_API_KEY": "of-variable"})

    assert seen == [f"Bearer of-{where}"]


async def test_unsupported_option_is_reported() -> None:
    script = answering(PREFILLED, done("Seven.") | {"unsupported_fields": ["enable_thinking"]})
    outcome = await chat(script, "Prime?", "--thinking")

    assert outcome == Outcome(0, "Seven.\n", "settings without effect: enable_thinking\n")


@pytest.mark.parametrize(
    ("code", "text", "exit_code"),
    [
        ("queue_full", "The server refused the conversation: No. Try again later.", 4),
        ("invalid_payload", "The server refused the conversation: No.", 1),
        ("unauthorized", "The server refused the conversation: No. Name a file that holds it with --key", 4),
    ],
)
async def test_rejected_request_is_reported_with_exit_code(code: str, text: str, exit_code: int) -> None:
    script = answering({"type": "error", "error": "No.", "code": code}, close=1008)
    outcome = await chat(script, "Prime?")

    assert (outcome.code, outcome.out) == (exit_code, "")
    assert outcome.err.startswith(text)


async def test_interrupted_answer_is_printed_and_fails() -> None:
    error: dict[str, object] = {"type": "error", "error": "Lost.", "code": "inference_error"}
    outcome = await chat(answering(PREFILLED, chunk("Sev"), error, close=1011), "Prime?")

    assert (outcome.code, outcome.out) == (1, "Sev\n")
    assert outcome.err == "The session ended: backend_error (code 1011). Lost.\n"


async def test_ctrl_c_stops_the_answer() -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(PREFILLED, chunk("One, "))
        begun.set()
        await peer.socket.wait_closed()
        gone.set()

    async with replay(script) as url:
        process = await asyncio.create_subprocess_exec(
            *ANTIPHON, "chat", "Count.", "--url", url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readexactly(5), PATIENCE_S) == b"One, "
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        await asyncio.wait_for(gone.wait(), PATIENCE_S)

    assert (process.returncode, out, err) == (1, b"\n", b"Interrupted.\n")


class Terminal:
    """`antiphon chat` on a terminal of its own."""

    def __init__(self, url: str, *arguments: str, no_color: str = "") -> None:
        self._parent, child = pty.openpty()
        env = os.environ | {"TERM": "xterm", "NO_COLOR": no_color, "INPUTRC": os.devnull}
        command = [*ANTIPHON, "chat", "--url", url, *arguments]
        self.process = subprocess.Popen(
            command, stdin=child, stdout=child, stderr=child, env=env, start_new_session=True
        )
        os.close(child)
        self.seen = ""

    async def until(self, text: str) -> str:
        """Reads until `text` comes; returns what came up to it, without escape sequences."""
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.seen:
                self.seen += (await asyncio.to_thread(os.read, self._parent, 4096)).decode()
        before, _, self.seen = self.seen.partition(text)
        return re.sub(r"\x1b\[\??[0-9;]*[a-zA-Z]|\r", "", before)

    def type(self, text: str) -> None:
        os.write(self._parent, text.encode())

    async def interrupt(self) -> None:
        """Presses Ctrl-C at the prompt, and again if nothing happens: one that comes in the instant between
        the prompt and Python's wait for a key is not seen before the next key."""
        for _ in range(10):
            self.process.send_signal(signal.SIGINT)
            try:
                await asyncio.to_thread(self.process.wait, PATIENCE_S / 10)
                return
            except subprocess.TimeoutExpired:
                continue

    async def ends(self, key: str = "") -> None:
        """Wait for a good end, upon a key if one is given."""
        self.type(key)
        assert await asyncio.to_thread(self.process.wait, PATIENCE_S) == 0
        os.close(self._parent)


async def test_terminal_chat_sends_earlier_messages_with_each_turn(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    requests = Requests("A circle.", "Red.")
    async with replay(requests.answer) as url:
        terminal = Terminal(url, "--image", str(tmp_path / "a.png"), "--system", "Be brief.")
        assert "Ctrl-D ends the chat" in await terminal.until("> ")
        terminal.type("What is it?\n")
        assert "A circle.\n" in await terminal.until("> ")
        terminal.type("\nWhich colour?\n")
        await terminal.until("> ")
        assert "Red.\n" in await terminal.until("> ")
        await terminal.ends("\x04")

    first, second = (request["messages"] for request in requests)
    assert [part["type"] for part in first[1]["content"]] == ["image", "text"]
    assert second == [
        *first,
        {"role": "assistant", "content": "A circle."},
        {"role": "user", "content": "Which colour?"},
    ]


async def test_ctrl_c_in_a_terminal_stops_the_answer_and_then_the_chat() -> None:
    requests: list[dict[str, Any]] = []

    async def script(peer: Peer) -> None:
        requests.append(await peer.request())
        await peer.send(PREFILLED, chunk("One, "))
        if len(requests) == 1:
            await peer.socket.wait_closed()
        else:
            await peer.send(done("One, "))

    async with replay(script) as url:
        terminal = Terminal(url)
        await terminal.until("> ")
        terminal.type("Count.\n")
        await terminal.until("One, ")
        terminal.process.send_signal(signal.SIGINT)
        assert "(stopped; not part of the chat)" in await terminal.until("> ")
        terminal.type("Again.\n")
        await terminal.until("One, ")
        await terminal.until("> ")
        await terminal.interrupt()
        await terminal.ends()

    assert requests[1]["messages"] == [{"role": "user", "content": "Again."}]


async def test_error_in_a_terminal_ends_the_first_question_only() -> None:
    count = 0

    async def script(peer: Peer) -> None:
        nonlocal count
        count += 1
        await peer.request()
        if count == 2:
            await peer.send({"type": "error", "error": "Not now.", "code": "queue_full"})
        else:
            await peer.send(PREFILLED, done("Seven."))

    async with replay(script) as url:
        terminal = Terminal(url)
        for answer in ("Seven.", "Not now.", "Seven."):
            await terminal.until("> ")
            terminal.type("Prime?\n")
            await terminal.until(answer)
        await terminal.until("> ")
        await terminal.ends("\x04")


@pytest.mark.parametrize("no_color", ["", "1"])
async def test_place_in_the_queue_is_shown_on_a_terminal_and_erased(no_color: str) -> None:
    place = {"position": 2, "queue_length": 3, "estimated_wait_s": 9.5, "ticket_id": "t"}
    queued: list[dict[str, object]] = [{"type": "queued", **place}, {"type": "queue_done"}]
    async with replay(answering(*queued, PREFILLED, done("Seven\x1b]0;title\x07."))) as url:
        terminal = Terminal(url, "Prime?", no_color=no_color)
        await terminal.until("waiting: place 2 of 3, about 10 s")
        assert await terminal.until("]0;title.") == "Seven"
        await terminal.ends()
