"""GPU time of contractions, against torch.einsum on the same tensors.

The cases come from quantum chemistry (changes of basis, coupled cluster, density fitting),
attention and layers, and tensor networks. Each result must agree with torch's before it is timed.
Both allocate their results, and are timed interleaved; `comparison.py` says how.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from comparison import L2_BYTES, SMOKE, Timer, make_timer, take_turns
from interleave import replay, replay_clock

import dxgemm
from dxgemm.problem.dtypes import ITEM_SIZES, step_flops
from dxgemm.tuning import sampling

CASE_S = 0.1  # of timing a case, unless fewest rounds take longer
MOST_SETS = 4  # of operands, which are large
OWN, RIVAL = "dxgemm", "torch.einsum"
TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-12}  # of a result's norm, by the bytes of a real number

pytestmark = pytest.mark.benchmark(timer=replay_clock)


class Contraction(NamedTuple):
    """Subscripts with the size of each label, such as "i64 jk32"."""

    subscripts: str
    dtype: str
    sizes: str

    def __str__(self) -> str:
        return f"{self.dtype}-{self.subscripts}"

    @property
    def size_of(self) -> dict[str, int]:
        found = {}
        for text in self.sizes.split():
            labels = text.rstrip("0123456789")
            found.update(dict.fromkeys(labels, 3 if SMOKE else int(text[len(labels) :])))
        return found

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        terms = self.subscripts.partition("->")[0].split(",")
        return [tuple(self.size_of[label] for label in term) for term in terms]


CASES = [
    # Quantum chemistry.
    Contraction("pqrs,sl->pqrl", "float64", "pqrs64 l48"),
    Contraction("mp,mnrs->pnrs", "float64", "mpnrs64"),
    Contraction("nq,pnrs->pqrs", "float64", "nqprs64"),
    Contraction("ijab,abcd->ijcd", "float64", "ij20 abcd48"),
    Contraction("kcld,ldjb->kcjb", "float64", "klj24 cdb64"),
    Contraction("ikac,kjcb->ijab", "float64", "ijk24 abc48"),
    Contraction("Pij,Pkl->ijkl", "float64", "P256 ijkl48"),
    Contraction("Pia,Pjb->iajb", "float32", "P512 ij24 ab96"),
    # Attention and layers.
    Contraction("bhqd,bhkd->bhqk", "bfloat16", "b4 h16 qk1024 d64"),
    Contraction("bqhd,bkhd->bhqk", "bfloat16", "b4 h16 qk1024 d64"),
    Contraction("bhqk,bkhd->bqhd", "bfloat16", "b4 h16 qk1024 d64"),
    Contraction("bsd,dhe->bshe", "bfloat16", "b4 s2048 d1024 h16 e64"),
    Contraction("bshe,hed->bsd", "bfloat16", "b4 s2048 d1024 h16 e64"),
    Contraction("becd,edf->becf", "float16", "b4 e8 cd512 f1024"),
    Contraction("bsd,df->bsf", "float32", "b4 s1024 d1024 f2048"),
    # Tensor networks.
    Contraction("abc,cde->abde", "complex64", "ace256 bd4"),
    Contraction("lwm,lpr->wmpr", "float64", "lmr256 w8 p2"),
    Contraction("wmpr,wpvq->mrvq", "float64", "mr256 wv8 pq2"),
    Contraction("aibjc,ijkl->akblc", "complex64", "ac256 b64 ijkl2"),
    Contraction("ab,bc,cd,de->ae", "float32", "ae2048 bd512 c1024"),
]


def operands(case: Contraction, rng: Any) -> list[Any]:
    """Tensors of normal numbers on the GPU; NumPy arrays on the simulator."""
    if SMOKE:
        dtype = "float32" if case.dtype == "bfloat16" else case.dtype
        return [rng.standard_normal(shape).astype(dtype) for shape in case.shapes]
    import torch

    return [torch.randn(s, dtype=getattr(torch, case.dtype), device="cuda") for s in case.shapes]


def calls_of(case: Contraction, arrays: list[Any]) -> dict[str, Callable[[], Any]]:
    calls = {OWN: lambda: dxgemm.einsum(case.subscripts, *arrays)}
    if SMOKE:
        return calls
    import torch

    return calls | {RIVAL: lambda: torch.einsum(case.subscripts, *arrays)}


def error_of(case: Contraction, arrays: list[Any], result: Any) -> float:
    """Norm of the difference to the rival's result, over that of the result."""
    if SMOKE:
        expected = np.einsum(case.subscripts, *arrays)
        return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))
    expected = calls_of(case, arrays)[RIVAL]()
    if not expected.is_complex():
        expected, result = expected.double(), result.double()
    return float((result - expected).norm() / expected.norm())


def tolerance_of(case: Contraction) -> float:
    """Largest `error_of` of a right result."""
    parts = 2 if case.dtype.startswith("complex") else 1
    return TOLERANCE[ITEM_SIZES[case.dtype] // parts]


@pytest.fixture(scope="module")
def timer() -> Iterator[Timer]:
    yield make_timer()


@pytest.mark.parametrize("case", CASES, ids=str)
def bench_einsum(benchmark: Any, timer: Timer, case: Contraction) -> None:
    if not SMOKE:
        pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = operands(case, rng)
    steps = dxgemm.explain_einsum(case.subscripts, *arrays)
    if error_of(case, arrays, calls_of(case, arrays)[OWN]()) > tolerance_of(case):
        pytest.fail(f"a wrong result for {case}", pytrace=False)
    bytes_moved = sum(ITEM_SIZES[case.dtype] * int(np.prod(shape)) for shape in case.shapes)
    count = sampling.sets_of_operands(bytes_moved, L2_BYTES, MOST_SETS)
    sets = [calls_of(case, operands(case, rng)) for _ in range(count)]
    calls = {name: [each[name] for each in sets] for name in sets[0]}
    call_s = {name: timer(of_one[:1]) for name, of_one in calls.items()}
    samples_s = take_turns(calls, call_s, timer, CASE_S)
    medians = {name: statistics.median(samples) for name, samples in samples_s.items()}
    flops = step_flops(case.dtype) * sum(
        int(np.prod(product.a.shape)) * product.b.shape[-1] for product in steps.products
    )
    benchmark.group = str(case)
    benchmark.extra_info.update(
        subscripts=case.subscripts,
        dtype=case.dtype,
        sizes=case.sizes,
        copied=steps.copied,
        gpu_us=1e6 * medians[OWN],
        tflops=1e-12 * flops / medians[OWN],
        vs_rival=medians[RIVAL] / medians[OWN] if RIVAL in medians else None,
        rival=RIVAL,
    )
    replay(benchmark, samples_s[OWN])
