"""Tests of failing commands: the message has cause and remedy, with an exit code and no traceback."""

import os
import pty
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from antiphon import write_wav
from tests.cli.support.process import ANTIPHON, Outcome, run, run_cli, run_without
from tests.cli.support.processes import Serve, serving
from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.calls import Authority
from tests.ws_adapter.support.keyfile import KeyFile


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A bound socket without a listener: its port is reserved."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken


def assert_failed(done: Outcome, code: int, text: str) -> None:
    assert done.err.strip() == text
    assert done.code == code


@pytest.mark.parametrize(
    ("command", "option"), [("serve", "--port"), ("adapter", "--port"), ("serve", "--tls-port")]
)
def test_port_in_use_is_reported(taken: socket.socket, command: str, option: str, tmp_path: Path) -> None:
    taken.listen()
    busy_port = taken.getsockname()[1]
    cert, key = Authority(tmp_path).issue()
    more = ["--worker", "unix:none"] if command == "adapter" else []
    more += ["--port", "0", "--tls-cert", str(cert), "--tls-key", str(key)] if option == "--tls-port" else []
    done = run_cli(command, *more, option, str(busy_port))

    text = f"Port {busy_port} is in use by another process. Choose another with {option}, or stop it."
    assert done.err.splitlines()[-1] == text  # before it the log may say that there is no such worker
    assert done.code == 2
    assert command == "adapter" or len(done.err.splitlines()) == 1, "no model was loaded"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("talk none.wav", "none.wav does not exist. Check the path."),
        ("transcribe none.wav", "none.wav does not exist. Check the path."),
        ("chat --audio none.wav", "none.wav does not exist. Check the path."),
        ("chat --image none.wav", "none.wav does not exist. Check the path."),
        ("chat --video none.wav", "none.wav does not exist. Check the path."),
        ("chat Prime? --out answer.wav", "--out is for the spoken answer. Add --speak."),
        ("chat '  '", "There is no question. Write one as PROMPT, or pipe it in."),
        ("worker --quantization awq", "quantization is for vLLM: leave it out, or pass --engine vllm."),
    ],
)
def test_usage_mistake_is_reported_in_one_sentence(tmp_path: Path, words: str, text: str) -> None:
    assert_failed(run_cli(*shlex.split(words), cwd=tmp_path), 2, text)


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ("chat --video a.mp3", ["a.mp3 is no MP4, MOV, WebM or Matroska file. Convert it: ffmpeg -i a.mp3"]),
        ("chat --audio a.mp3", ["a.mp3 is no WAV file. Convert it: ffmpeg -i a.mp3"]),
        ("transcribe a.wav --key-file empty", ["is empty: it should hold the key and nothing else"]),
        ("transcribe a.wav --key-file none", ["cannot read "]),
        ("talk a.mp3 --out none/a.wav", ["argument --out: there is no folder none: make it"]),
        ("demo --out none/a.wav", ["argument --out: there is no folder none: make it"]),
        ("serve --slots x", ["argument --slots: 'x' is no whole number"]),
        ("serve --port 1.5", ["argument --port: '1.5' is no whole number"]),
        ("adapter --worker unix:none --max-lag-s x", ["argument --max-lag-s: 'x' is no number"]),
        ("serve --host 0.0.0.0", ["Refusing to listen on 0.0.0.0 without a key.", "--allow-anonymous"]),
        ("adapter --worker unix:none --host 0.0.0.0", ["Refusing to listen on 0.0.0.0", "--allow-anonymous"]),
        ("serve --host 192.0.2.1 --allow-anonymous --port 0", ["Cannot listen on 192.0.2.1", "--host"]),
        ("worker --listen 0.0.0.0:0", ["Refusing to listen on 0.0.0.0:0 without a worker key"]),
        (
            "worker --listen 0.0.0.0:0 --worker-key-file key",
            ["Refusing to listen on 0.0.0.0:0: gRPC is plain text there", "--insecure-grpc"],
        ),
    ],
)
def test_unusable_input_is_named_in_error(tmp_path: Path, words: str, texts: list[str]) -> None:
    (tmp_path / "a.mp3").write_bytes(b"ID3")
    (tmp_path / "empty").write_text("")
    (tmp_path / "key").write_text("0123456789abcdef")
    done = run_cli(*words.split(), cwd=tmp_path)

    assert done.code == 2
    assert [text for text in texts if text not in done.err] == []


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_missing_model_is_reported_before_torch_is_loaded(command: str) -> None:
    code = (
        "import sys; from antiphon_command.command import main\n"
        f"code = main([{command!r}, '--model', '/none'])\n"
        "print('torch' in sys.modules); sys.exit(code)"
    )
    done = run([sys.executable, "-c", code], None, None, 30)

    text = "There is no model '/none'. Give a checkpoint folder or a shipped name (antiphon-mini)."
    assert_failed(done, 2, text)
    assert done.out == "False\n"


@pytest.mark.parametrize(
    ("words", "module", "needs", "extra"),
    [
        ("serve", "torch", "`antiphon serve` needs PyTorch.", "all"),
        ("demo", "soxr", "`antiphon demo` needs soxr.", "all"),
        ("worker", "torch", "`antiphon worker` needs PyTorch.", "worker"),
        ("adapter --worker unix:none", "msgspec", "`antiphon adapter` needs msgspec.", "adapter"),
        ("key alice", "msgspec", "`antiphon key` needs msgspec.", "adapter"),
        ("talk", "sounddevice", "Microphone and speakers need the package sounddevice.", "mic"),
        ("convert-vocoder a b", "torch", "`antiphon convert-vocoder` needs PyTorch.", "worker"),
    ],
)
@pytest.mark.sample("serve-*", "key*", "talk*", "convert-vocoder*")
def test_missing_extra_is_named(words: str, module: str, needs: str, extra: str) -> None:
    text = f"{needs} Install with: pip install 'antiphon[{extra}]'"
    assert_failed(run_without(module, *words.split()), 2, text)


@pytest.mark.parametrize(
    ("command", "address"),
    [
        ("talk", "ws://127.0.0.1:{port}/v1/realtime?mode=audio"),
        ("chat", "ws://127.0.0.1:{port}/ws/chat"),
        ("transcribe", "http://127.0.0.1:{port}/v1/models"),
    ],
)
def test_unreachable_server_is_reported(
    question: Path, taken: socket.socket, command: str, address: str
) -> None:
    closed_port = taken.getsockname()[1]
    done = run_cli(command, question, "--url", f"ws://127.0.0.1:{closed_port}")

    text = f"Nothing listens at {address.format(port=closed_port)} (refused). Is the server running? "
    assert_failed(done, 4, text + "Start one with: antiphon serve")


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    folder = tmp_path_factory.mktemp("serve")
    cert, key = Authority(folder).issue()
    with serving(folder, "reply", "--tls-cert", cert, "--tls-key", key, "--tls-port", "0") as serve:
        yield serve


@pytest.fixture(scope="module")
def keyed_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("serve")
    keys = KeyFile(folder / "keys", "alice")
    with serving(folder, "reply", "--auth", "keys", "--keys", keys.path) as serve:
        yield serve.address("Health").removesuffix("/readyz")


COMMANDS = ("talk", "chat", "transcribe")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "scheme", "remedy"),
    [
        ("Health", "wss", "If its port is a plain one, write ws:// instead of wss://."),
        ("Chat", "ws", "If its port speaks TLS, write wss:// instead of ws://."),
    ],
    ids=["plain", "tls"],
)
def test_wrong_url_scheme_is_reported_with_the_right_one(
    tls_server: Serve, question: Path, command: str, name: str, scheme: str, remedy: str
) -> None:
    port = urlsplit(tls_server.address(name)).port
    done = run_cli(command, question, "--url", f"{scheme}://127.0.0.1:{port}")

    assert (done.code, len(done.err.splitlines())) == (4, 1)
    assert done.err.endswith(f"{remedy}\n")


@pytest.mark.parametrize(
    ("command", "url"),
    [
        *(("talk", "ws://127.0.0.1:65536"), ("talk", "ws://127.0.0.1:0"), ("talk", "ws://127.0.0.1:x")),
        *(("chat", "ws://127.0.0.1:0"), ("transcribe", "ws://127.0.0.1:x"), ("talk", "localhost:8006")),
    ],
)
def test_invalid_url_is_reported_without_colour_where_there_is_no_terminal(
    question: Path, command: str, url: str
) -> None:
    done = run_cli(command, question, "--url", url)

    assert (done.code, len(done.err.splitlines())) == (4, 1)
    assert done.err.startswith(f"'{url}' is no address of a server")
    assert done.err.endswith("Write it like ws://localhost:8006.\n")
    assert "\x1b" not in done.err


def test_unserved_model_is_reported_once_without_further_errors(tls_server: Serve, tmp_path: Path) -> None:
    write_wav(tmp_path / "long.wav", np.zeros(1_600_000, np.float32), 16_000)
    url = tls_server.address("Health").removesuffix("/readyz")
    pace = ("--realtime", "--url", url)
    done = run_cli("transcribe", tmp_path / "long.wav", "--model", "sphinx", *pace, timeout_s=PATIENCE_S)

    assert (done.code, done.out) == (1, "")
    assert "the model sphinx is not served here" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("command", [*COMMANDS, "probe", "bench"])
def test_missing_key_error_names_option_of_command(question: Path, keyed_url: str, command: str) -> None:
    files = [question] if command != "bench" else []
    done = run_cli(command, *files, "--url", keyed_url)

    remedy = "Name a file that holds it with --key-file, or set the variable ANTIPHON_API_KEY.\n"
    assert (done.code, len(done.err.splitlines())) == (4, 1)
    assert done.err.endswith(f"requires a key, or another key (HTTP 401). {remedy}")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["talk", "a.wav", "--jsno"], "antiphon talk: error: unknown option --jsno, perhaps --json."),
        (["serve", "--slot=3"], "antiphon serve: error: unknown option --slot, perhaps --slots."),
        (["chat", "hi", "--zzz"], "antiphon chat: error: unknown option --zzz."),
        (["transcribe", "a", "b"], "antiphon transcribe: error: 'b' is one argument too many."),
    ],
)
def test_unknown_flag_shows_the_usage_of_the_command(arguments: list[str], text: str) -> None:
    done = run_cli(*arguments)

    usage, error = done.err.splitlines()
    assert done.code == 2
    assert usage.startswith(f"usage: antiphon {arguments[0]} [options]")
    assert error == f"{text} See antiphon {arguments[0]} --help"


@pytest.mark.parametrize("command", ["talk", "transcribe"])
def test_recording_of_another_rate_is_refused_with_a_conversion_command(tmp_path: Path, command: str) -> None:
    path = tmp_path / "music.wav"
    write_wav(path, np.zeros(100, np.float32), 44_100)
    done = run_without("soundfile", command, str(path))

    assert done.code == 2
    assert "mono at 16000 Hz" in done.err
    assert "ffmpeg -i" in done.err
    assert "pip install 'antiphon[audio]'" in done.err


def test_missing_device_is_reported() -> None:
    done = run_cli("worker", "--listen", "127.0.0.1:0", "--device", "cuda:99", timeout_s=PATIENCE_S)

    assert done.code == 2
    assert done.err.startswith("Cannot use the device 'cuda:99' (")
    assert "Pass --device cpu" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (None, "manifest.json does not exist. "),
        ("{", "is no list of recordings. "),
        ("[]", 'is marked with "demo": true. '),
        ('[{"demo": true}]', "is no list of recordings. "),
    ],
)
def test_demo_with_unusable_recordings_fails(tmp_path: Path, manifest: str | None, text: str) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    done = run_cli("demo", "--recordings", tmp_path)

    assert done.code == 2
    assert text in done.err
    assert "--recordings" in done.err


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run_cli("talk", "--debug", tmp_path / "none.wav")

    assert done.code == 1
    assert "Traceback" in done.err
    assert "FileNotFoundError" in done.err


def on_terminal(no_color: str) -> bytes:
    """Return a failing command's output to a terminal."""
    parent, child = pty.openpty()
    env = os.environ | {"TERM": "xterm", "NO_COLOR": no_color}
    subprocess.run([*ANTIPHON, "talk", "/none.wav"], stderr=child, env=env, timeout=PATIENCE_S, check=False)
    os.close(child)
    text = os.read(parent, 4096)
    os.close(parent)
    return text


def test_errors_are_red_on_a_terminal_unless_no_color_is_set() -> None:
    assert b"\x1b[31m" in on_terminal("")
    assert b"\x1b" not in on_terminal("1")
