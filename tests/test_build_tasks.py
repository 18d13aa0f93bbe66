"""Kernels built ahead of time are all that contiguous operands need."""

import random
from itertools import product

import pytest
from known_devices import A100, H200

from dxgemm.builds import build_tasks
from dxgemm.call.complex_call import form_of_problem
from dxgemm.lower.complex_product import lower_complex
from dxgemm.problem.define import LAYOUTS, contiguous_problem
from dxgemm.problem.dtypes import COMPLEX_PARTS, RESULT_DTYPES, result_dtypes
from dxgemm.runtime.program import Program
from dxgemm.tuning.measure import candidate_specs, candidates


def problems(dtype):
    """Problems of sizes of all magnitudes, each a multiple of 16 or odd, or 1."""
    rng = random.Random(0)

    def size(is_aligned):
        drawn = int(2 ** rng.uniform(0, 12))
        return drawn // 16 * 16 + 16 if is_aligned else drawn | 1

    for layout, *aligned in product(LAYOUTS, *3 * [(False, True)]):
        for batch, out_dtype in product((1, 100), result_dtypes(dtype)):
            sizes = map(size, aligned)
            yield contiguous_problem(dtype, *sizes, batch, layout=layout, out_dtype=out_dtype)


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.arch)
@pytest.mark.parametrize("dtype", RESULT_DTYPES)
def test_candidates_for_contiguous_operands_are_built(configs_of_a_gpu, dtype, device):
    built = {spec for spec, _ in build_tasks([device.arch], (dtype,), None)}
    for problem in problems(dtype):
        for candidate in candidates(problem, device).values():
            for spec in candidate_specs(problem, candidate):
                assert spec in built, (problem.m, problem.n, problem.k, problem.batch, problem.a)


@pytest.mark.parametrize("dtype", COMPLEX_PARTS)
def test_kernels_around_real_products_are_built(configs_of_a_gpu, dtype):
    built = {spec for spec, _ in build_tasks([H200.arch], (COMPLEX_PARTS[dtype],), None)}
    for problem in problems(dtype):
        form = form_of_problem(problem, "", None, H200)
        specs = lower_complex(form, Program(())).specs if not form.is_direct else []
        for candidate in candidates(form.product, H200).values():
            specs += candidate_specs(form.product, candidate)
        assert set(specs) <= built, (problem.m, problem.n, problem.k, problem.batch, problem.a)


def test_a_result_of_odd_width_of_aligned_operands_is_built(configs_of_a_gpu):
    built = {spec for spec, _ in build_tasks([H200.arch], ("float64",), ("tensor_core",))}
    problem = contiguous_problem("float64", 1797, 1797, 64, layout="row_col")  # of `dxgemm demo`
    needed = {
        spec
        for name, candidate in candidates(problem, H200).items()
        if name.startswith("tensor_core ")
        for spec in candidate_specs(problem, candidate)
    }
    assert needed and needed <= built
