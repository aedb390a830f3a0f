"""The shipped images: built, talked with and stopped, by every tool for containers that works here."""

import json
import os
import shutil
import socket
import subprocess
import wave
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests.cli.support.process import run_cli
from tests.deploy import containers
from tests.deploy.containers import Container
from tests.deploy.files import DEPLOY
from tests.deploy.test_image_files import pins
from tests.e2e.conftest import FOLDER
from tests.support.long import long
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import free_port

pytestmark = [long, pytest.mark.timeout(5400)]

TOOLS = ("docker", "podman", "buildah")
WITHOUT_USRMERGE = (
    'mkdir -p "$1/etc/apt/preferences.d" && '
    'printf "Package: usrmerge\\nPin: version *\\nPin-Priority: -1\\n" > "$1/etc/apt/preferences.d/merged"'
)
"""That package brings 46 MB of Perl."""

MIRROR = "http://deb.debian.org/debian"
BUILD_S = 2400.0
"""For a build, or for a base: they copy gigabytes."""

USER = 10001
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


@dataclass
class Images:
    """The images `antiphon-adapter:test` and `antiphon-worker-cpu:test`, and who can start them."""

    tools: list[str]
    variables: dict[str, str] = field(default_factory=dict)


def make_base(name: str, packages: str, tool: str, folder: Path, variables: Mapping[str, str]) -> None:
    """Make an image of Debian with mmdebstrap."""
    home = folder / name
    home.mkdir()
    words = ["mmdebstrap", "--variant=essential", f"--include=usr-is-merged,{packages}"]
    words += ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", f"--setup-hook={WITHOUT_USRMERGE}"]
    words += [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "man", "locale", "info")]
    made = subprocess.run(
        [*words, "bookworm", home / "root.tar", MIRROR], capture_output=True, text=True, timeout=BUILD_S
    )
    assert made.returncode == 0, made.stderr
    (home / "Dockerfile").write_text("FROM scratch\nADD root.tar /\n")
    built = [tool, "build", "--format", "docker", "--tag", name, "--file", home / "Dockerfile", home]
    subprocess.run(built, check=True, capture_output=True, timeout=BUILD_S, env=os.environ | dict(variables))
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    folder = tmp_path_factory.mktemp("images")
    variables = containers.private_storage(folder)
    tools = [tool for tool in TOOLS if containers.works(tool, variables)]
    if not tools:
        pytest.skip("neither docker nor podman nor buildah works here: apt install buildah crun mmdebstrap")
    builder = tools[0]
    made = {"BUILDER_TOOL": builder, "TAG": "test"}
    try:
        if builder != "docker" and shutil.which("mmdebstrap"):
            compiler = "python3-dev,python3-venv,gcc,libc6-dev"
            make_base("antiphon-builder", compiler, builder, folder, variables)
            make_base("antiphon-base", "python3,libstdc++6", builder, folder, variables)
            made |= {"BUILDER": "localhost/antiphon-builder", "BASE": "localhost/antiphon-base"}
        done = subprocess.run(
            [DEPLOY / "images/build.sh", "adapter", "worker-cpu"],
            capture_output=True,
            text=True,
            timeout=2 * BUILD_S,
            env=os.environ | variables | made,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        yield Images([builder] if builder == "docker" else tools, variables)
    finally:
        if builder != "docker":
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Pair:
    """A worker and an adapter as containers, which share a socket."""

    worker: Container
    adapter: Container
    ports: dict[str, int]


@pytest.fixture(scope="module", params=TOOLS)
def pair(
    request: pytest.FixtureRequest, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    tool = request.param
    if tool not in images.tools:
        pytest.skip(f"{tool} does not work here, or has not built the images")
    folder = tmp_path_factory.mktemp(f"containers-{tool}")
    ports = {name: free_port() for name in ("clients", "adapter", "worker")}
    volumes = {}
    for name in ("socket", "adapter", "worker", "cache"):
        (folder / name).mkdir()
        os.chown(folder / name, USER, USER) if os.geteuid() == 0 else (folder / name).chmod(0o777)
    shared = {"/run/antiphon": folder / "socket"}
    with ExitStack() as stack:

        def start(name: str, image: str, settings: dict[str, str], places: Mapping[str, Path]) -> Container:
            log = stack.enter_context((folder / f"{name}.log").open("w+"))
            container = containers.run(
                tool,
                f"antiphon-test-{name}-{ports['clients']}",
                f"{'' if tool == 'docker' else 'localhost/'}antiphon-{image}:test",
                log,
                settings=settings,
                volumes=places,
                variables=images.variables,
            )
            stack.callback(container.remove)
            container.until_said(f"{name} ready on")
            return container

        volumes = {"/tmp": folder / "worker", "/opt/antiphon/cache": folder / "cache", **shared}
        worker = {
            "ANTIPHON_WORKER__LISTEN": "unix:/run/antiphon/worker.sock",
            "ANTIPHON_WORKER__SLOTS": "2",
            "ANTIPHON_WORKER__ADMIN_PORT": str(ports["worker"]),
        }
        adapter = {
            "ANTIPHON_ADAPTER__WORKER": "unix:/run/antiphon/worker.sock",
            "ANTIPHON_ADAPTER__HOST": "127.0.0.1",
            "ANTIPHON_ADAPTER__PORT": str(ports["clients"]),
            "ANTIPHON_ADAPTER__ADMIN_PORT": str(ports["adapter"]),
            "ANTIPHON_ADAPTER__MAX_LOOP_LAG_MS": "0",  # other tests share the cores
            "ANTIPHON_ADAPTER__MAX_CPU": "0",
        }
        yield Pair(
            start("worker", "worker-cpu", worker, volumes),
            start("adapter", "adapter", adapter, {"/tmp": folder / "adapter", **shared}),
            ports,
        )


def health_command(file: str, shipped: int, port: int) -> list[str]:
    """Return the words of a Dockerfile's health check, with another port."""
    [line] = [
        line
        for line in (DEPLOY / "images" / file).read_text().splitlines()
        if line.lstrip().startswith("CMD [")
    ]
    assert f":{shipped}/" in line
    return [
        str(word)
        for word in json.loads(line.strip().removeprefix("CMD ").replace(f":{shipped}/", f":{port}/"))
    ]


def test_containers_hold_a_spoken_conversation_and_end_by_sigterm(pair: Pair, tmp_path: Path) -> None:
    answer = tmp_path / "answer.wav"
    url = f"ws://127.0.0.1:{pair.ports['clients']}"

    talked = run_cli("talk", FOLDER / "joke.wav", "--url", url, "--out", answer, timeout_s=2 * PATIENCE_S)
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
