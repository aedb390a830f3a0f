"""Declares operators that a torchvision built for CUDA lacks beside a torch without it.

PyPI's torchvision cannot load its compiled part then, and its import fails because two operators have no
declaration. Models that see need its transforms alone, which are Python. `make vllm` runs this once in its
environment; where the compiled part can be loaded it does nothing.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

_MARK: Final = "# Declared by Antiphon's tests."
_SCHEMA: Final = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_DECLARATIONS: Final = f"""

{_MARK}
if not _has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{{_name}}", "{_SCHEMA}")
"""


def main() -> None:
    """Add the declarations to this environment's torchvision, once."""
    found = find_spec("torchvision")
    assert found is not None
    assert found.origin is not None
    module = Path(found.origin).with_name("extension.py")
    if _MARK not in (text := module.read_text()):
        module.write_text(text + _DECLARATIONS)


if __name__ == "__main__":
    main()
