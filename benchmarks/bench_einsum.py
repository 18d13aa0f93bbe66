"""GPU time of contractions, against torch.einsum on the same tensors.

The cases come from quantum chemistry (changes of basis, coupled cluster, density fitting),
attention and layers, and tensor networks. Each result must agree with torch's before it is timed.
Both allocate their results.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import SMOKE, Call, Case, Operands, agree, as_tensor, normal, to_dtype, torch, widened
from measuring import Found, Row, bench

import dxgemm
from dxgemm.problem.dtypes import ITEM_SIZES, step_flops

if not SMOKE:
    pytest.importorskip("torch", reason="operands are torch's")

OWN, RIVAL = "dxgemm", "torch.einsum"
BFLOAT16 = "float32" if SMOKE else "bfloat16"  # NumPy, which the simulator takes, has none


@dataclass(frozen=True)
class Contraction:
    """Subscripts with the size of each label, such as "i64 jk32"."""

    subscripts: str
    dtype: str
    sizes: str
    flops = 0  # as the explanation says

    def __str__(self) -> str:
        return f"{self.dtype}-{self.subscripts}"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        size_of: dict[str, int] = {}
        for text in self.sizes.split():
            labels = text.rstrip("0123456789")
            size_of |= dict.fromkeys(labels, 3 if SMOKE else int(text[len(labels) :]))
        terms = self.subscripts.partition("->")[0].split(",")
        return [tuple(size_of[label] for label in term) for term in terms]

    @property
    def bytes_moved(self) -> int:
        """Each operand read once."""
        return ITEM_SIZES[self.dtype] * sum(map(math.prod, self.shapes))

    def operands(self, rng: Any, is_exact: bool = False) -> Operands:
        """Tensors of normal numbers on the GPU; NumPy arrays on the simulator."""
        draw = Case(self.dtype, 0, 0, 0).draw
        arrays = [to_dtype(draw(normal, rng, shape), self.dtype) for shape in self.shapes]
        return Operands(arrays=arrays if SMOKE else [as_tensor(array) for array in arrays])

    def expected(self, x: Operands) -> Any:
        return widened((np.einsum if SMOKE else torch().einsum)(self.subscripts, *x.arrays))

    def check(self, name: str, call: Call, x: Operands, expected: Any) -> dict[str, Any]:
        Case.require(self, agree(call(), expected, self.dtype), name)  # type: ignore[arg-type]
        return {}


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
    Contraction("bhqd,bhkd->bhqk", BFLOAT16, "b4 h16 qk1024 d64"),
    Contraction("bqhd,bkhd->bhqk", BFLOAT16, "b4 h16 qk1024 d64"),
    Contraction("bhqk,bkhd->bqhd", BFLOAT16, "b4 h16 qk1024 d64"),
    Contraction("bsd,dhe->bshe", BFLOAT16, "b4 s2048 d1024 h16 e64"),
    Contraction("bshe,hed->bsd", BFLOAT16, "b4 s2048 d1024 h16 e64"),
    Contraction("becd,edf->becf", "float16", "b4 e8 cd512 f1024"),
    Contraction("bsd,df->bsf", "float32", "b4 s1024 d1024 f2048"),
    # Tensor networks.
    Contraction("abc,cde->abde", "complex64", "ace256 bd4"),
    Contraction("lwm,lpr->wmpr", "float64", "lmr256 w8 p2"),
    Contraction("wmpr,wpvq->mrvq", "float64", "mr256 wv8 pq2"),
    Contraction("aibjc,ijkl->akblc", "complex64", "ac256 b64 ijkl2"),
    Contraction("ab,bc,cd,de->ae", "float32", "ae2048 bd512 c1024"),
]


def own(case: Contraction, x: Operands) -> Call:
    def call() -> Any:
        return dxgemm.einsum(case.subscripts, *x.arrays)

    call.explain = lambda: dxgemm.explain_einsum(  # type: ignore[attr-defined]
        case.subscripts, *x.arrays
    )
    return call


def rival(case: Contraction, x: Operands) -> Call:
    einsum = torch().einsum
    return lambda: einsum(case.subscripts, *x.arrays)


def describe(row: Row, name: str, found: Found) -> dict[str, Any]:
    steps, dtype = found[name].explanation, row.case.dtype
    pairs = sum(math.prod((*each.a.shape, each.b.shape[-1])) for each in steps.products)
    rate = 1e-12 * step_flops(dtype) * pairs / found[name].seconds
    return {"copied": steps.copied, "tflops": rate}


bench_einsum = bench(CASES, {OWN: own}, {RIVAL: rival}, describe, rivals=(RIVAL,), budget_s=0.1)
