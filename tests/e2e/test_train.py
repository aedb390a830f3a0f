"""A second domain from its file to a model that a worker serves, with a run that is killed on the way."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from antiphon.v1 import inference_service_pb2 as pb
from antiphon_training import domains
from antiphon_training.run import missing_programs
from tests.e2e.conftest import running_worker
from tests.inference_service.engine.support.reference import second
from tests.inference_service.support.caller import Caller, channel_to, duplex
from tests.support.patience import START_S

LIFT = Path(domains.__file__).with_name("lift.yaml")
TRAIN = (
    *(sys.executable, "-m", "antiphon_command", "train", str(LIFT), "--scale", "0.00001"),
    *("--utterances", "40", "--questions", "2", "--processes", "1"),
)
"""As little as there can be; every trained stage takes a step at least."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        bool(missing_programs()), reason="needs synthesised speech: apt-get install espeak-ng flite"
    ),
]


def wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START_S
    while not path.exists():
        assert process.poll() is None, "it ended before that stage"
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("lift")
    command = [*TRAIN, "--work", str(folder / "work"), "--out", str(folder / "lift")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        try:
            wait_for(folder / "work" / "part-refined.pt", first)
        finally:
            first.kill()
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * START_S, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "lift", done.stdout


def test_killed_training_goes_on_and_says_how_to_serve_its_model(trained: tuple[Path, str]) -> None:
    folder, said = trained

    for stage in ("[1/11] tokenizer", "[2/11] corpus.npz", "[3/11] ear.pt", "[4/11] joint.pt"):
        assert f"{stage}: exists already\n" in said
    assert "[11/11] speech.pt\n" in said
    assert f"antiphon worker --model {folder}\n" in said
    assert [line.split()[:2] for line in said.splitlines()[-6:-3]] == [
        ["greeting", "1"], ["go", "1"], ["together", "2"],
    ]  # fmt: skip


async def test_worker_serves_the_model_of_a_domain_file(trained: tuple[Path, str]) -> None:
    with running_worker("--model", str(trained[0]), slots=1) as server:
        async with channel_to(server.address) as channel:
            caller = await Caller(channel).open()
            await caller.configure(mode=pb.SESSION_MODE_AUDIO, seed=1)
            heard = await caller.unit(1, duplex(second(1)), force_listen=True)
            answered = await caller.unit(2, duplex(np.zeros(16_000, np.float32)))
            await caller.half_close(*caller.calls)

    assert heard.done.end == pb.UNIT_END_LISTEN
    assert answered.done.end in (pb.UNIT_END_LISTEN, pb.UNIT_END_CHUNK, pb.UNIT_END_TURN)
