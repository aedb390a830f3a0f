"""Which device has compiled regions, and what may be chosen."""

import pytest
import torch

from inference_service.device import compiling
from inference_service.errors import ConfigurationError
from inference_service.options import WorkerOptions


@pytest.mark.parametrize(
    ("choice", "cpu", "cuda"), [(None, False, True), ("on", True, True), ("off", False, False)]
)
def test_regions_are_compiled_on_cuda_alone_unless_chosen(
    monkeypatch: pytest.MonkeyPatch, choice: str | None, cpu: bool, cuda: bool
) -> None:
    monkeypatch.setattr(compiling, "_chosen", None)
    compiling.choose(choice)
    assert compiling.compiles(torch.device("cpu")) is cpu
    assert compiling.compiles(torch.device("cuda:1")) is cuda


def test_choice_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="compile must be one of off, on, not 'fast'"):
        WorkerOptions(compile="fast")
    with pytest.raises(ValueError, match="compile must be one of off, on, not 'fast'"):
        compiling.choose("fast")
