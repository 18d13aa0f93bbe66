"""Programs of integers modulo 2**64, or a number.

Those by residues make those of a and b, of their product, and from these the result. Others are one
kernel, which takes the modulus as an operand.
"""

from __future__ import annotations

from dataclasses import replace

from dxgemm.choice.emulation import residues_problem
from dxgemm.choice.emulation_parts import NUMBER_BYTES, buffers
from dxgemm.choice.legality import Candidate
from dxgemm.gpu.facts import DeviceFacts
from dxgemm.handwritten.kernels import add_residues
from dxgemm.handwritten.parts.moduli import numbers_modulo
from dxgemm.handwritten.parts.residue_store import row_bytes
from dxgemm.lower.byte_products import DIGITS_OF, NOTHING, along_of, size_of, splitting_step
from dxgemm.lower.product import lower_product, lower_sums
from dxgemm.lower.steps import file_step
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.integer_forms import SUM_BYTES, RemainderForm, ResidueForm
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.program import OUT, C, Name, Program, Step, Symbol, Value

RESIDUES, FLAG = Symbol("residues of the result"), Symbol("flag")
INTEGER, REAL = FusedOperand("number", "int64"), FusedOperand("number", "float64")


def _factors(problem: Problem) -> dict[Name, Value]:
    """Alpha and beta of a call: modulo a number, their residues."""
    part = f"% {problem.modulus}" if problem.modulus else ""
    return {name: Symbol(name, part=part) for name in ("alpha", "beta")}


def lower_modular(problem: Problem, candidate: Candidate, device: DeviceFacts) -> Program:
    """Program of a product modulo a number by a kernel that multiplies the integers themselves."""
    part = candidate.part_of(problem)
    taking = replace(part, epilogue=Fusion((), (INTEGER, REAL)))
    program = lower_product(candidate.implementation, taking, candidate.config, device)
    numbers: dict[Name, Value] = {0: problem.modulus, 1: 1 / problem.modulus}
    program = program.given(numbers | _factors(problem))
    if candidate.uses_workspace:
        return lower_sums(problem, part, program, problem.triangle)
    return program


def lower_residues(form: ResidueForm, candidate: Candidate, device: DeviceFacts) -> Program:
    """Program of a product of integers.

    Args:
        form: the form.
        candidate: kernel of emulated float64, which multiplies the residues.
        device: the GPU.
    """
    own, count, k = form.problem, form.count, form.slice_k
    pitch, sizes = row_bytes(k), {FLAG.name: NUMBER_BYTES}
    sizes |= {DIGITS_OF[name].name: size_of(own, name, count * pitch) for name in "ab"}
    result_size = own.batch * count * own.m * row_bytes(own.n)
    sizes[RESIDUES.name] = result_size
    product = form.product
    spec = candidate.implementation.spec_for(candidate.config, product)  # type: ignore[attr-defined]
    maps = candidate.implementation.kernel.tensor_maps(candidate.config, product, *spec.variant)
    blocks = candidate.implementation.block_count(candidate.config, product, device.sm_count)
    values: tuple[Value, ...] = *DIGITS_OF.values(), RESIDUES, RESIDUES, 0, 0
    multiplying = Step(
        spec, residues_problem(product), blocks, values, (FLAG, 1, count), maps
    )  # fmt: skip
    program, kind = Program((), sizes), "reduced residues" if own.modulus else "residues"
    for first_k in range(0, own.k, k):
        program += Program(_splitting(own, (first_k, k, pitch), count, kind))
        program += Program((multiplying, _adding(form, result_size, first_k > 0)))
    return program


def _splitting(
    problem: Problem, sizes: tuple[int, int, int], count: int, kind: str
) -> tuple[Step, ...]:
    """Steps that make so many residues of a part of k of both factors: see `splitting_step`."""
    steps = []
    for name in "ab":
        pitch, matrix = sizes[2], along_of(problem, name) * sizes[2]
        rows, how = Strides(count * matrix, pitch, 1), (str(count), kind, "up")
        steps.append(splitting_step(problem, name, sizes, rows, matrix, how, flag=FLAG))
    return tuple(steps)


def lower_remainders(form: RemainderForm, candidate: Candidate, device: DeviceFacts) -> Program:
    """Program of a product modulo a number up to 256.

    Args:
        form: the form.
        candidate: kernel of the product of bytes.
        device: the GPU.
    """
    own, k, step = form.problem, form.slice_k, form.step
    items = own.batch * own.m * row_bytes(own.n)
    sizes: dict[Name, int] = {FLAG.name: NUMBER_BYTES, RESIDUES.name: SUM_BYTES * items}
    sizes |= {DIGITS_OF[name].name: size_of(own, name, step) for name in "ab"}
    product = lower_product(candidate.implementation, form.product, candidate.config, device)
    values: dict[Name, Value] = {"c": RESIDUES, "out": RESIDUES, "alpha": 1, "beta": 0}
    values |= {name: DIGITS_OF[name] for name in "ab"}
    program = Program((), sizes)
    for first_k in range(0, own.k, k):
        program += Program(_splitting(own, (first_k, k, step), 1, "reduced"))
        program += product.given(values)
        program += Program((_adding(form, items, first_k > 0),))
    return program


def _adding(form: ResidueForm | RemainderForm, size: int, adds_to_result: bool) -> Step:
    """Step that makes the result of its residues or sums, or adds to what is there."""
    own = form.problem
    c, reads_c = (own.out, True) if adds_to_result else (own.c, own.reads_c)
    numbers: tuple[Value, ...] = ()
    variant: tuple[str, ...] = own.out_dtype, "1", "sums"
    if isinstance(form, RemainderForm):
        numbers = own.modulus, 1 / own.modulus
    elif own.modulus:
        numbers = numbers_modulo(own.modulus, form.count)
        variant = own.out_dtype, str(form.count), "modular"
    else:
        variant = own.out_dtype, str(form.count)
    loaded = "int32" if isinstance(form, RemainderForm) else "int8"
    taken = *buffers(loaded), *(REAL if isinstance(x, float) else INTEGER for x in numbers)
    arguments = KernelArguments(
        "int64", own.m, own.n, 0, own.batch, c=c, out=own.out, epilogue=Fusion((), taken),
        out_dtype=own.out_dtype, reads_c=reads_c, extents={"a": NOTHING, "b": NOTHING},
    )  # fmt: skip
    factors = _factors(own)
    addend: tuple[Value, Value] = (OUT, 1) if adds_to_result else (C, factors["beta"])
    return file_step(
        add_residues, arguments, variant,
        values=(RESIDUES, RESIDUES, addend[0], OUT, factors["alpha"], addend[1]),
        operands=(RESIDUES, size, *numbers),
    )  # fmt: skip
