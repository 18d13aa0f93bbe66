"""Programs of integers by their bytes: the digits of a and b, and a product for each weight.

Products modulo 2**32 are added to the result by their kernels. Those modulo 2**64 are left in a
workspace, and added by another kernel, for as much of k as their sums are exact.
"""

from __future__ import annotations

from dataclasses import replace

from dxgemm.choice.emulation_parts import buffers
from dxgemm.choice.kernel_files import configs_of
from dxgemm.choice.legality import Candidate
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.kernels import add_digits, digits
from dxgemm.lower.product import lower_product
from dxgemm.lower.steps import file_step
from dxgemm.problem.byte_form import ByteForm, Term
from dxgemm.problem.dtypes import ITEM_SIZES, factor_dtypes
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.program import ALPHA, BETA, OUT, C, Name, Program, Step, Symbol, Value

NOTHING = ((0, 0, 0), (0, 0, 0))  # strides and sizes of what is not read
DIGITS_OF = {name: Symbol(f"digits of {name}") for name in "ab"}  # buffers


def lower_bytes(form: ByteForm, candidate: Candidate, device: DeviceFacts) -> Program:
    """Program of a product of integers.

    Args:
        form: the form.
        candidate: kernel of the products of bytes.
        device: the GPU.
    """
    sizes: dict[Name, int] = {DIGITS_OF[name].name: _size(form, name) for name in "ab"}
    lower = _modulo_32_bits if form.bits == 32 else _modulo_64_bits
    return Program((), sizes) + lower(form, candidate, device)


def _modulo_32_bits(form: ByteForm, candidate: Candidate, device: DeviceFacts) -> Program:
    """Program of a result that each product adds to, from the highest weight on."""
    problem, program = form.problem, _splitting(form, first_k=0)
    for place, term in enumerate(form.terms):
        part = form.product(term)
        values: dict[Name, Value] = {
            "alpha": Symbol("alpha", part=f"<< {term.shift}"),
            "beta": Symbol("beta", part="<< 0"),
        }
        if place > 0:
            part = replace(part, c=problem.out, reads_c=True, in_place=True)
            values |= {"c": OUT, "beta": 1}
        values |= _digits(form, term, 0)
        product = lower_product(candidate.implementation, part, candidate.config, device)
        program += product.given(values)
    return program


def _modulo_64_bits(form: ByteForm, candidate: Candidate, device: DeviceFacts) -> Program:
    """Program of a result that another kernel makes of products: of rows and parts of k in turn."""
    problem, rows, terms = form.problem, form.rows, form.terms
    products = [
        lower_product(candidate.implementation, form.product(term), candidate.config, device)
        for term in terms
    ]
    sums = Symbol("products of digits")
    items = problem.batch * rows * form.sums_row
    program = Program((), {sums.name: 4 * items * len(terms)})
    for first_k in range(0, problem.k, form.slice_k):
        program += _splitting(form, first_k)
        for row in range(0, problem.m, rows):
            for place, (term, product) in enumerate(zip(terms, products)):
                target = sums + 4 * items * place
                values: dict[Name, Value] = {"c": target, "out": target, "alpha": 1, "beta": 0}
                program += product.given(values | _digits(form, term, row))
            program += _adding(form, sums, row, first_k > 0)
    return program


def _digits(form: ByteForm, term: Term, row: int) -> dict[Name, Value]:
    """Addresses of the digits of a term, of a from a row on."""
    a_offset, b_offset = form.offsets(term)
    a_offset += row * form.digits * form.step
    return {"a": DIGITS_OF["a"] + a_offset, "b": DIGITS_OF["b"] + b_offset}


def _adding(form: ByteForm, sums: Symbol, row: int, adds_to_result: bool) -> Program:
    """Program that makes rows of the result from products, or adds to what is there."""
    own, rows = form.problem, min(form.rows, form.problem.m - row)
    slot = own.batch * form.rows * form.sums_row
    item_bytes = ITEM_SIZES[own.out_dtype]
    c, reads_c = (own.out, True) if adds_to_result else (own.c, own.reads_c)
    arguments = KernelArguments(
        "int64", rows, own.n, len(form.terms), own.batch,
        Strides(form.rows * form.sums_row, form.sums_row, slot), c=c, out=own.out,
        epilogue=Fusion((), buffers("int32")), out_dtype=own.out_dtype, reads_c=reads_c,
        extents={"a": NOTHING, "b": NOTHING},
    )  # fmt: skip
    target, source = OUT + row * own.out.row * item_bytes, C + row * own.c.row * item_bytes
    addend: tuple[Symbol, Value] = (target, 1) if adds_to_result else (source, BETA)
    values = sums, sums, addend[0], target, ALPHA, addend[1]
    operands = sums, slot * len(form.terms)
    variant = (own.out_dtype,)
    return Program((file_step(add_digits, arguments, variant, values=values, operands=operands),))


def _size(form: ByteForm, name: str) -> int:
    """Bytes of the digits of a factor."""
    own = form.problem
    batch = own.batch if getattr(own, name).batch else 1
    return batch * _along(own, name) * form.digits * form.step


def _splitting(form: ByteForm, first_k: int) -> Program:
    """Program that splits both factors, from an element of k on."""
    kind = "balanced" if form.is_balanced else "bytes"
    steps = []
    for name, direction in (("a", "up"), ("b", "down")):
        pitch = form.digits * form.step
        rows = Strides(_along(form.problem, name) * pitch, pitch, 1)
        how = str(form.digits), kind, direction
        sizes = first_k, form.slice_k, form.step
        steps.append(splitting_step(form.problem, name, sizes, rows, form.step, how))
    return Program(tuple(steps))


def _along(problem: Problem, name: str) -> int:
    """Rows of a, or columns of b."""
    return problem.m if name == "a" else problem.n


def splitting_step(
    problem: Problem,
    name: str,
    sizes: tuple[int, int, int],
    rows: Strides,
    apart: int,
    how: tuple[str, str, str],
    flag: Symbol | None = None,
) -> Step:
    """Step that splits a factor into bytes.

    Args:
        problem: the problem of integers.
        name: "a" or "b".
        sizes: first element of k, number of elements, and bytes of each row that are written.
        rows: strides of what is written, in bytes.
        apart: bytes from a digit or residue to the next.
        how: variant of `digits`.
        flag: number that is set to 0; None for none.
    """
    strides = problem.a if name == "a" else problem.b.transposed()
    along, dtype = _along(problem, name), factor_dtypes(problem.dtype)[name == "b"]
    first_k, slice_k, step = sizes
    batch, k = (problem.batch if strides.batch else 1), min(slice_k, problem.k - first_k)
    arguments = KernelArguments(
        dtype, along, k, 0, batch, strides, Strides(0, apart, step), out=rows, out_dtype="int8",
        epilogue=Fusion((), buffers("int32")) if flag else None,
        extents={
            "a": (strides, (batch, along, k)),
            "b": NOTHING,
            "c": NOTHING,
            "out": ((*rows, apart), (batch, along, step, int(how[0]))),
        },
    )  # fmt: skip
    config = configs_of(digits)[0]
    variant = (*digits.KERNEL.variant(config, arguments), *how)
    source = Symbol(name) + first_k * strides.col * ITEM_SIZES[dtype]
    target = DIGITS_OF[name]
    values = source, source, target, target, 0, 0
    operands = (flag, 1) if flag else ()
    return file_step(digits, arguments, variant, config, values=values, operands=operands)
