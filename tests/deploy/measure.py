"""Measure images and first steps: `python -m tests.deploy.measure images [NAME...]`, or `... clone`.

`images` builds the named images (adapter and worker-cpu), prints their sizes, how long these two take from
the making of their containers until they are ready, and until a recorded question has its spoken answer. Of
worker-cuda it prints how its container ends on a machine without a GPU; the build needs 25 GB of disk.
`clone` clones this repository, runs `make install` and `make demo`, and prints how long each took. Both print
the machine, the date and how busy it was.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from tests.cli.support.process import run_cli
from tests.deploy import containers
from tests.deploy.files import ROOT
from tests.deploy.images import Images, name_of, prepare
from tests.deploy.pair import running
from tests.e2e.conftest import FOLDER

_ANSWER_S = 300.0
_STEP_S = 3600.0
_PACED = ("adapter", "worker-cpu")


def machine() -> str:
    """Return what measures, and how busy it is."""
    [model] = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ][:1]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{date.today()}, {platform.machine()}, {model}, {os.cpu_count()} cores, load {load}"


def size_of(tool: str, image: str, images: Images) -> str:
    """Return the size as the tool tells it."""
    words = [tool, "images", "--format", "{{.Size}}", name_of(tool, image)]
    done = subprocess.run(
        words, check=True, capture_output=True, text=True, env=os.environ | images.variables
    )
    return done.stdout.split("\n")[0].strip()


def measure_images(names: Sequence[str]) -> None:
    """Build, weigh, start and talk."""
    with tempfile.TemporaryDirectory(prefix="antiphon-measure-") as scratch:
        folder = Path(scratch)
        images = prepare(folder)
        if images is None:
            sys.exit("neither docker nor podman nor buildah works here")
        tool = images.tools[0]
        for name in names:
            began = time.monotonic()
            images.build(name)
            seconds = time.monotonic() - began
            print(f"antiphon-{name}: {size_of(tool, name, images)}, by {tool} in {seconds:.0f} s", flush=True)
        if "worker-cuda" in names:
            print_refusal(tool, images, folder)
        if not {*_PACED} <= {*names}:
            return
        (folder / "pair").mkdir()
        with running(tool, images, folder / "pair") as pair:
            for name, seconds in pair.start_s.items():
                print(f"{name}: ready {seconds:.1f} s after its container began to be made")
            began = time.monotonic()
            question = FOLDER / "joke.wav"
            talked = run_cli(
                "talk", question, "--url", pair.url, "--out", folder / "a.wav", timeout_s=_ANSWER_S
            )
            assert talked.code == 0, talked.err
            print(f"question and spoken answer: {time.monotonic() - began:.1f} s")


def print_refusal(tool: str, images: Images, folder: Path) -> None:
    """Start the worker for CUDA and print its exit code and what it says; there must be no GPU here."""
    (folder / "cuda").mkdir()
    (folder / "cuda").chmod(0o777)
    with (folder / "cuda.log").open("w+") as log:
        container = containers.run(
            tool,
            f"antiphon-measure-cuda-{os.getpid()}",
            name_of(tool, "worker-cuda"),
            log,
            settings={"ANTIPHON_WORKER__LISTEN": "unix:/tmp/worker.sock"},
            volumes={"/tmp": folder / "cuda"},
            variables=images.variables,
        )
        try:
            code = container.process.wait(_ANSWER_S)
            print(f"worker-cuda without a GPU: exit code {code}: {container.said.strip()}", flush=True)
        finally:
            container.remove()


def measure_clone() -> None:
    """Clone, install, and hold the conversation of the demo."""
    with tempfile.TemporaryDirectory(prefix="antiphon-measure-") as scratch:
        checkout = Path(scratch) / "antiphon"
        steps = {
            "git clone": ["git", "clone", "--quiet", "--local", "--no-hardlinks", str(ROOT), str(checkout)],
            "make install": ["make", "--silent", "-C", str(checkout), "install"],
            "make demo": ["make", "--silent", "-C", str(checkout), "demo"],
        }
        total_s = 0.0
        for name, words in steps.items():
            began = time.monotonic()
            done = subprocess.run(words, capture_output=True, text=True, timeout=_STEP_S)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
            seconds = time.monotonic() - began
            total_s += seconds
            print(f"{name}: {seconds:.1f} s", flush=True)
        print(f"from git clone to a spoken answer: {total_s:.0f} s")


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.measure", description=__doc__)
    parser.add_argument("what", choices=("images", "clone"))
    parser.add_argument("names", nargs="*", default=list(_PACED), metavar="NAME")
    arguments = parser.parse_args()
    print(machine(), flush=True)
    if arguments.what == "images":
        measure_images(arguments.names)
    else:
        measure_clone()


if __name__ == "__main__":
    main()
