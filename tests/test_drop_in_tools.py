"""NumPy's own tests, as `tools/drop_in.py` runs them, with NumPy in the place of CuPy."""

from types import SimpleNamespace

import numpy as np
import numpy_tests

from dxgemm.drop_in.routing import current


def test_tests_of_a_library_that_is_right_pass():
    counts = numpy_tests.run(numpy_tests.LINALG, "MatrixPower", np)
    assert counts["passed"] > 10 and counts["failed"] == [] and counts["skipped"] == {}


def test_what_is_wrong_under_the_patch_alone_fails():
    def matmul(a, b, **options):
        if current() is not None and np.ndim(a) == 1:
            return np.matmul(a, b, **options) + 1
        return np.matmul(a, b, **options)

    library = SimpleNamespace(**{**vars(np), "matmul": matmul})
    counts = numpy_tests.run(
        numpy_tests.ARRAYS, "TestMatmul and (vector_vector or shapes)", library
    )
    assert counts["failed"] and all("vector" in text for text in counts["failed"])
    assert counts["passed"] > 2
