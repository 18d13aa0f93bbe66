"""Programs: which kernels a problem takes, in which order, and what each of them is given."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from known_devices import H200

import dxgemm
from dxgemm.choice.legality import Candidate
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.complex_product import lower_complex
from dxgemm.lower.emulated import PARTS_OF
from dxgemm.lower.group_offsets import OffsetGroup, lower_group
from dxgemm.lower.indexed_rows import IndexedRows
from dxgemm.lower.pieces import lower_pieces
from dxgemm.lower.product import lower_candidate
from dxgemm.lower.reduced import ResultArray, lower_reduced
from dxgemm.problem.complex_form import direct_form, real_forms
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.fusion import FusedReduction, Fusion
from dxgemm.problem.layout import Strides
from dxgemm.problem.pieces import Piece
from dxgemm.runtime import program
from dxgemm.runtime.program import ProgramLaunch, Symbol
from dxgemm.runtime.workspace import ALIGNMENT

CALL = {"a": 0x1000, "b": 0x2000, "c": 0x3000, "out": 0x4000, "alpha": 2.0, "beta": 3.0}


def candidate(name, dtype, **options):
    implementation = find_implementation(name)
    configs = [c for c in implementation.kernel.configs if getattr(c, "split_k", 1) == 1]
    return Candidate(implementation, configs[0], **options)


def lowered(name, dtype, m=96, n=64, k=160, slices=1, **changes):
    problem = contiguous_problem(dtype, m, n, k, precision=changes.pop("precision", None))
    problem = replace(problem, **changes)
    return lower_candidate(problem, candidate(name, dtype, slices=slices), H200)


def complex_program(index, **changes):
    problem = replace(contiguous_problem("complex64", 96, 64, 160), reads_c=True, **changes)
    form = real_forms(problem, "")[index]
    return lower_complex(form, lower_candidate(form.product, candidate("tuned", "float32"), H200))


def reduced(*, stores_matrix):
    reduction = FusedReduction("sum", 1, ("float32",))
    problem = contiguous_problem("float32", 96, 64, 160)
    problem = replace(problem, epilogue=Fusion((), reduction.buffers, reduction=reduction))
    results = {"values": ResultArray("float32", Strides(0, 1, 0), 0)}
    chosen = candidate("tuned", "float32", stores_matrix=stores_matrix)
    return lower_reduced(problem, chosen, results, H200)


def group(rows=None, out_rows=None, dtype="float32"):
    problem = contiguous_problem(dtype, 96, 64, 160)
    problem = replace(problem, b=problem.b._replace(batch=64 * 160))
    return lower_group(OffsetGroup(problem, "m", 3, "int32", rows, out_rows), H200)


ROWS = IndexedRows("int32", 200, Strides(0, 160, 1))
PROGRAMS = {
    "one kernel": (lambda: lowered("tuned", "float32"), ["tuned: a, b, c, out"]),
    "split-K": (
        lambda: lowered("tuned", "float32", slices=4),
        ["tuned: a, b, sums of 4 slices", "add_slices: sums of 4 slices, c, out"],
    ),
    "aligned copies": (
        lambda: lowered("wgmma", "float16", n=65, k=161),
        ["align_rows: a, aligned a", "align_rows: b, aligned b",
         "wgmma: aligned a, aligned b, c, out"],
    ),
    "emulated float32": (
        lambda: lowered("emulated_float32", "float32", precision="emulated"),
        ["decompose: a, parts of a", "decompose: b, parts of b",
         "validity_check: invalid, parts of a, parts of b, fallbacks",
         "emulated_float32: parts of a, parts of b, c, out, invalid",
         "native_fallback: a, b, c, out, invalid"],
    ),
    "emulated float64": (
        lambda: lowered("emulated_float64", "float64", precision="emulated"),
        ["residues: a, parts of a", "residues: b, parts of b",
         "validity_check: invalid, parts of a, parts of b, fallbacks",
         "emulated_float64: parts of a, parts of b, residues of the result, invalid",
         "reconstruct: a, b, c, out, residues of the result, parts of a, parts of b, invalid",
         "native_fallback: a, b, c, out, invalid"],
    ),
    "emulated, k is 0": (
        lambda: lowered("emulated_float32", "float32", k=0, precision="emulated"),
        ["tuned: a, b, c, out"],
    ),
    "b of a complex product expanded": (
        lambda: complex_program(0),
        ["complex_copy: b, copy of b", "complex_copy: c, out", "tuned: a, copy of b, out",
         "tuned: a, copy of b, c, out"],
    ),
    "a of a complex product in parts": (
        lambda: complex_program(2),
        ["complex_copy: a, copy of a", "tuned: copy of a, b, products",
         "complex_sum: products, c, out"],
    ),
    "a reduction, fused": (
        lambda: reduced(stores_matrix=False),
        ["tuned: a, b, c, out, partial results 0", "merge_partials: partial results 0"],
    ),
    "a reduction, unfused": (
        lambda: reduced(stores_matrix=True),
        ["tuned: a, b, c, matrix", "reduce_tiles: matrix, partial results 1",
         "merge_partials: partial results 1"],
    ),
    "a group": (
        group,
        ["group_offsets: a, b, c, out, table, scalars", "grouped: a, b, c, out, table, scalars"],
    ),
    "a group of rows by indices": (
        lambda: group(ROWS, ROWS),
        ["align_rows: a, gathered rows",
         "group_offsets: gathered rows, b, c, result rows, table, scalars",
         "grouped: gathered rows, b, c, result rows, table, scalars",
         "scatter_rows: result rows, out"],
    ),
    "a group by TMA": (
        lambda: group(dtype="float16"),
        ["group_offsets: a, b, c, out, table, scalars", "grouped_wgmma: a, b, c, out, table"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_kernels_of_a_program(configs_of_a_gpu, name):
    make, expected = PROGRAMS[name]
    made = make()
    configs = [str(step.spec.config) for step in made.steps]
    found = [str(step).replace(f" {config}", "") for step, config in zip(made.steps, configs)]
    assert found == expected
    used = {v.name for s in made.steps for v in (*s.values, *s.operands) if isinstance(v, Symbol)}
    names = {name for name in used if isinstance(name, str)} - {*CALL, "fallbacks"}
    assert names == made.buffers.keys() and all(made.buffers.values())


@pytest.fixture
def calls_of(monkeypatch, configs_of_a_gpu):
    """Arguments of all kernels that a call of a program launches, with the workspace at 2**20."""
    monkeypatch.setattr(program.Step, "bind", lambda step, *place: step)
    monkeypatch.setattr(program, "fallback_counter", lambda ordinal: SimpleNamespace(pointer=8))

    def calls(made, prepared=None, operands=(), **changes):
        launch = ProgramLaunch(made, H200.arch, 0)
        if prepared:
            launch = launch.prepared(*prepared)
        found = launch._calls((*(CALL | changes).values(), *operands), 2**20)
        return [(step.spec.module.rpartition(".")[2], *values[:6]) for step, values in found]

    return calls


def test_a_complex_beta_is_multiplied_before_the_product(calls_of):
    made = complex_program(0)
    copied, product = calls_of(made)
    assert copied[-2:] == (1.0, 0.0) and product[3:] == (0x3000, 0x4000, 2.0, 3.0)
    copied, scaled, product = calls_of(made, alpha=2 + 1j, beta=3 - 4j)
    assert (copied[0], *copied[-2:]) == ("complex_copy", 2.0, 1.0)
    assert scaled == ("complex_copy", 0x3000, 0x3000, 0x4000, 0x4000, 3.0, -4.0)
    assert product[3:] == (0x4000, 0x4000, 1.0, 1.0)


def test_one_kernel_takes_complex_factors_by_their_parts(calls_of):
    form = direct_form(contiguous_problem("complex64", 96, 64, 160), "")
    product = lower_candidate(form.product, candidate("complex_tile", "complex64"), H200)
    made = lower_complex(form, product)
    assert made.is_by_parts and not made.is_one_kernel and product.is_one_kernel
    ((_, *values),) = calls_of(made, alpha=2 + 1j)
    assert values[4:] == [2.0, 1.0]


def test_a_part_of_a_factor_that_is_given_is_that_of_the_given_one(calls_of):
    form = direct_form(contiguous_problem("complex64", 96, 64, 160), "")
    product = lower_candidate(form.product, candidate("complex_tile", "complex64"), H200)
    made = lower_complex(form, product).given({"alpha": 5 - 6j, "out": Symbol("out", 8)})
    ((_, *values),) = calls_of(made)
    assert values[3:] == [0x4008, 5.0, -6.0]


def test_parts_that_are_prepared_are_not_made(calls_of):
    made = lowered("emulated_float32", "float32", precision="emulated")
    names = [name for name, *_ in calls_of(made)]
    with_b = calls_of(made, prepared=(PARTS_OF["b"].name, SimpleNamespace(pointer=0x9000)))
    assert names.count("decompose") == 2
    assert [name for name, *_ in with_b] == names[1:]
    (product,) = (values for name, *values in with_b if name == "emulated_float32")
    assert product[1] == 0x9000


def test_buffers_lie_apart_and_start_aligned(calls_of):
    made = lowered("emulated_float64", "float64", precision="emulated")
    launch = ProgramLaunch(made, H200.arch, 0)
    ends = [start + made.buffers[name] for name, start in launch.offsets.items()]
    starts = [*launch.offsets.values()]
    assert all(start % ALIGNMENT == 0 for start in starts)
    assert all(end <= start for end, start in zip(ends, [*starts[1:], launch._size], strict=True))


def test_pieces_share_a_workspace_and_add_up_along_k(calls_of):
    whole = contiguous_problem("float16", 96, 65, 322, out_dtype="float32")
    piece = replace(whole, k=161)
    part = lower_candidate(piece, candidate("wgmma", "float16"), H200)
    pieces = [(Piece(piece, 0, 0, 0, depth), part, False) for depth in (0, 161)]
    made = lower_pieces(whole, pieces, ())
    assert made.buffers == part.buffers
    first, second = (c for c in calls_of(made) if c[0] == "wgmma")
    assert first[1:3] == second[1:3], "the copies"
    assert first[3:] == (0x3000, 0x4000, 2.0, 3.0) and second[3:] == (0x4000, 0x4000, 2.0, 1)


def test_explain_lists_the_kernels_of_a_call():
    found = dxgemm.explain_shape(300, 200, 10000, gpu="H200")
    assert len(found.steps) == 2 and f"kernels         {found.steps[0]}\n" in found.full()
    assert "kernels         tuned | add_slices\n" in str(found)
    single = dxgemm.explain_shape(4096, 4096, 4096, gpu="H200")
    assert len(single.steps) == 1 and "kernels  " not in str(single)
