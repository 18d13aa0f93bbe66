"""Programs of integers by their bytes: the digits of a and b, and a product for each weight.

Products modulo 2**32 are added to the result by their kernels. Those modulo 2**64 are left in a
workspace, and added by another kernel, for as much of k as their sums are exact.
"""

from __future__ import annotations

from dataclasses import replace

from dxgemm.choice.kernel_files import configs_of
from dxgemm.choice.legality import Candidate
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.kernels import digits
from dxgemm.lower.product import lower_product
from dxgemm.lower.steps import file_step
from dxgemm.problem.byte_form import ByteForm
from dxgemm.problem.dtypes import factor_dtypes
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import Strides
from dxgemm.runtime.program import OUT, Name, Program, Step, Symbol, Value

DIGITS_OF = {name: Symbol(f"digits of {name}") for name in "ab"}  # buffers


def lower_bytes(form: ByteForm, candidate: Candidate, device: DeviceFacts) -> Program:
    """Program of a product of integers.

    Args:
        form: the form.
        candidate: kernel of the products of bytes.
        device: the GPU.
    """
    problem = form.problem
    program = Program((), {DIGITS_OF[name].name: _size(form, name) for name in "ab"})
    program += Program(tuple(_splitting(form, name) for name in "ab"))
    for place, term in enumerate(form.terms):
        a_offset, b_offset = form.offsets(term)
        part = form.product(term)
        values: dict[Name, Value] = {
            "a": DIGITS_OF["a"] + a_offset,
            "b": DIGITS_OF["b"] + b_offset,
            "alpha": Symbol("alpha", part=f"<< {term.shift}"),
            "beta": Symbol("beta", part="<< 0"),
        }
        if place > 0:
            part = replace(part, c=problem.out, reads_c=True, in_place=True)
            values |= {"c": OUT, "beta": 1}
        product = lower_product(candidate.implementation, part, candidate.config, device)
        program += product.given(values)
    return program


def _rows(form: ByteForm, name: str) -> int:
    """Rows of all matrices of digits of a factor."""
    own = form.problem
    along, strides = (own.m, own.a) if name == "a" else (own.n, own.b)
    return along * (own.batch if strides.batch else 1)


def _size(form: ByteForm, name: str) -> int:
    """Bytes of the digits of a factor."""
    return _rows(form, name) * form.digits * form.step


def _splitting(form: ByteForm, name: str) -> Step:
    """Step that splits a factor."""
    own = form.problem
    along, strides = (own.m, own.a) if name == "a" else (own.n, own.b.transposed())
    dtype = factor_dtypes(own.dtype)[name == "b"]
    batch, pitch = (own.batch if strides.batch else 1), form.digits * form.step
    arguments = KernelArguments(
        dtype, along, own.k, 0, batch, strides, Strides(0, 0, form.step),
        out=Strides(along * pitch, pitch, 1), out_dtype="int8",
        extents={
            "b": ((0, 0, 0), (0, 0, 0)),
            "c": ((0, 0, 0), (0, 0, 0)),
            "a": (strides, (batch, along, own.k)),
            "out": ((along * pitch, pitch, 1), (batch, along, pitch)),
        },
    )  # fmt: skip
    config = configs_of(digits)[0]
    variant = (
        *digits.KERNEL.variant(config, arguments), str(form.digits),
        "balanced" if form.is_balanced else "bytes", "up" if name == "a" else "down",
    )  # fmt: skip
    source, target = Symbol(name), DIGITS_OF[name]
    values = source, source, target, target, 0, 0
    return file_step(digits, arguments, variant, config, values=values)
