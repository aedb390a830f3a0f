"""The shipped images: built, talked with and stopped, by every tool for containers that works here."""

import json
import shutil
import socket
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cli.support.process import run_cli
from tests.deploy.files import DEPLOY
from tests.deploy.images import TOOLS, Images, prepare
from tests.deploy.pair import USER, Pair, running
from tests.deploy.test_image_files import pins
from tests.e2e.conftest import FOLDER
from tests.support.long import long
from tests.support.patience import PATIENCE_S

pytestmark = [long, pytest.mark.timeout(5400)]

ADAPTER_MIB = 250

SIZE = """
import os
print(sum(
    os.lstat(os.path.join(folder, name)).st_size
    for top in ("bin", "etc", "lib", "opt", "sbin", "usr", "var")
    if not os.path.islink("/" + top)
    for folder, _, names in os.walk("/" + top)
    for name in names
))
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    folder = tmp_path_factory.mktemp("images")
    try:
        made = prepare(folder)
        if made is None:
            pytest.skip(
                "neither docker nor podman nor buildah works here: apt install buildah crun mmdebstrap"
            )
        made.build("adapter", "worker-cpu")
        yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", params=TOOLS)
def pair(
    request: pytest.FixtureRequest, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    tool = request.param
    if tool not in images.tools:
        pytest.skip(f"{tool} does not work here, or has not built the images")
    with running(tool, images, tmp_path_factory.mktemp(f"containers-{tool}")) as both:
        yield both


def health_command(file: str, shipped: int, port: int) -> list[str]:
    """Return the words of a Dockerfile's health check, with another port."""
    lines = (DEPLOY / "images" / file).read_text().splitlines()
    [line] = [line.strip() for line in lines if line.lstrip().startswith("CMD [")]
    assert f":{shipped}/" in line
    words = json.loads(line.removeprefix("CMD ").replace(f":{shipped}/", f":{port}/"))
    return [str(word) for word in words]


def test_containers_hold_a_spoken_conversation_and_end_by_sigterm(pair: Pair, tmp_path: Path) -> None:
    answer = tmp_path / "answer.wav"

    talked = run_cli(
        "talk", FOLDER / "joke.wav", "--url", pair.url, "--out", answer, timeout_s=2 * PATIENCE_S
    )
    assert talked.code == 0, (talked.err, pair.adapter.said, pair.worker.said)
    with wave.open(str(answer)) as file:
        assert np.frombuffer(file.readframes(-1), "<i2").any()

    for container, file, shipped, port in (
        (pair.worker, "worker.Dockerfile", 9465, pair.ports["worker"]),
        (pair.adapter, "adapter.Dockerfile", 8006, pair.ports["clients"]),
    ):
        healthy = container.execute(*health_command(file, shipped, port))
        assert healthy.returncode == 0, healthy.stderr
        assert container.execute("python", "-c", "import os; print(os.getuid())").stdout.split() == [
            str(USER)
        ]

    for container, lock in ((pair.adapter, "adapter"), (pair.worker, "worker-cpu")):
        bill = json.loads(container.execute("cat", "/opt/antiphon/sbom.cdx.json").stdout)
        listed = {(each["name"], each["version"]) for each in bill["components"]}
        assert pins(lock).items() <= listed
        assert any(each["purl"].startswith("pkg:deb/") for each in bill["components"])
    size = int(pair.adapter.execute("python", "-c", SIZE).stdout)
    assert size < ADAPTER_MIB * 2**20

    assert pair.adapter.terminate() == 0, pair.adapter.said
    assert pair.worker.terminate() == 0, pair.worker.said
    assert pair.adapter.written() == []
    assert pair.worker.written() == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", pair.ports["clients"])) != 0
