"""Programs of integers by their bytes: the digits of a and b, and a product for each weight.

Each product adds to the result, from the highest weight on; or one kernel computes them all.
"""

from __future__ import annotations

from dataclasses import replace

from dxgemm.choice.emulation_parts import buffers
from dxgemm.choice.kernel_files import configs_of
from dxgemm.choice.legality import Candidate
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.kernels import digit_wgmma, digits
from dxgemm.lower.product import lower_product
from dxgemm.lower.steps import file_step
from dxgemm.problem.dtypes import ITEM_SIZES, factor_dtypes
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.integer_forms import DigitForm, JoinedForm
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.program import OUT, C, Name, Program, Step, Symbol, Value

NOTHING = ((0, 0, 0), (0, 0, 0))  # strides and sizes of what is not read
DIGITS_OF = {name: Symbol(f"digits of {name}") for name in "ab"}  # buffers


def lower_digits(form: DigitForm, candidate: Candidate, device: DeviceFacts) -> Program:
    """Program of a product of integers.

    Args:
        form: the form.
        candidate: kernel of the products of bytes.
        device: the GPU.
    """
    sizes: dict[Name, int] = {DIGITS_OF[name].name: _size(form, name) for name in "ab"}
    problem, program = form.problem, Program(_splitting(form), sizes)
    for index, (term, part) in enumerate(zip(form.terms, form.passes, strict=True)):
        a_offset, b_offset = form.offsets(term)
        values: dict[Name, Value] = {
            "a": DIGITS_OF["a"] + a_offset,
            "b": DIGITS_OF["b"] + b_offset,
            "alpha": Symbol("alpha", part=f"<< {term.shift}"),
            "beta": Symbol("beta", part="<< 0"),
        }
        if index > 0:
            part = replace(part, c=problem.out, reads_c=True, in_place=True)
            values |= {"c": OUT, "beta": 1}
        product = lower_product(candidate.implementation, part, candidate.config, device)
        program += product.given(values)
    return program


def _size(form: DigitForm, name: str) -> int:
    """Bytes of the digits of a factor."""
    return size_of(form.problem, name, form.digits * form.step)


def size_of(problem: Problem, name: str, row_bytes: int) -> int:
    """Bytes of a factor's matrices, with so many for each row of a, or column of b."""
    batch = problem.batch if getattr(problem, name).batch else 1
    return batch * along_of(problem, name) * row_bytes


def lower_joined(form: JoinedForm, candidate: Candidate, device: DeviceFacts) -> Program:
    """Program of a product of integers by one kernel for all products of digits.

    Args:
        form: the form.
        candidate: `wgmma`, with the config of that kernel.
        device: the GPU.
    """
    triangle = candidate.part_of(form.product).triangle
    k, pitch = form.products * form.step, form.digits * form.step
    product = form.of_bytes(k, pitch, triangle=triangle)
    config, stored = candidate.config, (triangle,) if triangle else ()
    sizes: dict[Name, int] = {DIGITS_OF[name].name: _size(form, name) for name in "ab"}
    multiplying = file_step(
        digit_wgmma, product, (form.problem.dtype, *stored), config,
        blocks=digit_wgmma.KERNEL.grid(config, product, device.sm_count),
        values=(
            *DIGITS_OF.values(), C, OUT,
            Symbol("alpha", part="<< 0"), Symbol("beta", part="<< 0"),
        ),
    )  # fmt: skip
    multiplying = replace(
        multiplying,
        maps=digit_wgmma.tensor_maps(config, product),
        tiles=digit_wgmma.KERNEL.block_count(config, product),
    )
    return Program((*_splitting(form), multiplying), sizes)


def _splitting(form: DigitForm) -> tuple[Step, ...]:
    """Steps that split both factors."""
    steps = []
    for name, direction in (("a", "up"), ("b", "down")):
        pitch = form.digits * form.step
        rows = Strides(along_of(form.problem, name) * pitch, pitch, 1)
        how = str(form.digits), form.kind, direction
        sizes = 0, form.problem.k, form.step
        steps.append(splitting_step(form.problem, name, sizes, rows, form.step, how))
    return tuple(steps)


def along_of(problem: Problem, name: str) -> int:
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
        flag: number that is set to 0; None for none. The modulus of a problem follows it.
    """
    strides = problem.a if name == "a" else problem.b.transposed()
    along, dtype = along_of(problem, name), factor_dtypes(problem.dtype)[name == "b"]
    first_k, slice_k, step = sizes
    numbers = [FusedOperand("number", dtype) for dtype in ("int64", "float64") if problem.modulus]
    batch, k = (problem.batch if strides.batch else 1), min(slice_k, problem.k - first_k)
    arguments = KernelArguments(
        dtype, along, k, 0, batch, strides, Strides(0, apart, step), out=rows, out_dtype="int8",
        a_alignment=1 if first_k else getattr(problem, f"{name}_alignment"),
        epilogue=Fusion((), (*buffers("int32"), *numbers)) if flag else None,
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
    operands: tuple[Value, ...] = (flag, 1) if flag else ()
    if problem.modulus:
        operands += (problem.modulus, 1 / problem.modulus)
    return file_step(digits, arguments, variant, config, values=values, operands=operands)
