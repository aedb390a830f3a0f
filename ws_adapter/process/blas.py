"""numpy's library for matrices, told how many threads to take."""

import ctypes
from importlib.util import find_spec
from typing import Final

_USER: Final = "numpy._core._multiarray_umath"
"""The library is a dependency of this module, so its functions are found there."""


def use_one_thread() -> bool:
    """Lets matrix products stay on the thread that asks for them; False where numpy has another library.

    Those of an adapter are small: threads of the library's own would wait for each other longer than they
    work, and on the processors of others.
    """
    found = find_spec(_USER)
    if found is None or found.origin is None:
        return False
    try:
        ctypes.CDLL(found.origin).scipy_openblas_set_num_threads64_(1)
    except (AttributeError, OSError):
        return False
    return True
