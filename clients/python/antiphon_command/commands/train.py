"""`antiphon train`: training of a small model for a domain, or of the default model."""

import argparse
from pathlib import Path

from antiphon_command.arguments.parser import (
    Subcommands,
    add_command,
    examples,
    positive_float,
    positive_int,
)
from antiphon_command.output.failure import ExitCode, Failure, require_extra


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "train",
        "train a small model from a file of phrases and answers",
        examples(
            "antiphon train lift.yaml",
            "antiphon train lift.yaml --scale 0.01 --work /tmp/lift --out /tmp/lift-model",
        ),
        run,
        "[FILE]",
    )
    command.add_argument(
        "file", metavar="FILE", nargs="?", type=Path, default=None,
        help="the domain, in YAML (default: that of antiphon-mini)",
    )  # fmt: skip
    add = command.add_argument
    add("--work", type=Path, default=None, metavar="DIR", help="folder of stages (default NAME-training)")
    add("--out", type=Path, default=None, metavar="DIR", help="folder of the model (default NAME)")
    add("--scale", type=positive_float, default=1.0, help="share of the domain's minutes (default 1)")
    add("--utterances", type=positive_int, default=None, metavar="N", help="spoken training sentences")
    add("--processes", type=positive_int, default=2, metavar="N", help="processes for synthesis (default 2)")
    add("--questions", type=positive_int, default=100, metavar="N", help="for the evaluation (default 100)")


def run(arguments: argparse.Namespace) -> int:
    """Run the incomplete stages, evaluate the model and print the commands that serve it."""
    require_extra("train", "train")
    from antiphon_training.domains.document import DomainFileError
    from antiphon_training.domains.domain import FEWEST_UTTERANCES
    from antiphon_training.domains.file import read_domain
    from antiphon_training.domains.mini import MINI
    from antiphon_training.evaluation import evaluate
    from antiphon_training.run import (
        Budget,
        Recipe,
        WorkFolderError,
        missing_programs,
    )

    try:
        domain = read_domain(arguments.file) if arguments.file else MINI
    except DomainFileError as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    if missing := missing_programs():
        raise Failure(
            f"Training needs the speech synthesisers {' and '.join(missing)}, which are not installed. "
            f"On Debian and Ubuntu: apt-get install {' '.join(missing)}",
            ExitCode.USAGE,
        )
    utterances = arguments.utterances or domain.utterances
    if utterances < FEWEST_UTTERANCES:
        raise Failure(f"--utterances is {FEWEST_UTTERANCES} or more.", ExitCode.USAGE)
    work = arguments.work or Path(f"{domain.name}-training")
    out = arguments.out or Path(domain.name)
    out.mkdir(parents=True, exist_ok=True)  # fail now, not after hours, if it is not writable
    recipe = Recipe(
        domain, work, Budget.of(domain, arguments.scale), utterances,
        arguments.processes,
    )  # fmt: skip
    try:
        recipe.run(out)
    except WorkFolderError as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    print(evaluate(domain, out, arguments.questions))
    print(f"\nServe it:                 antiphon worker --model {out}")
    print(f"With its page and queue:  antiphon serve --model {out}")
    return ExitCode.OK
