"""numpy's threads, of which an adapter takes none."""

import ctypes
from importlib.util import find_spec

from ws_adapter.process.blas import use_one_thread


def test_matrix_products_stay_on_their_thread() -> None:
    assert use_one_thread()

    found = find_spec("numpy._core._multiarray_umath")
    assert found is not None
    assert found.origin is not None
    assert ctypes.CDLL(found.origin).scipy_openblas_get_num_threads64_() == 1
