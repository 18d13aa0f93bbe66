"""Programs of complex products: one kernel, or copies of operands and then a real product."""

from __future__ import annotations

from dataclasses import replace

from dxgemm.choice.cublas_limits import supports
from dxgemm.choice.kernel_files import configs_of
from dxgemm.errors import UnsupportedProblemError
from dxgemm.handwritten.kernels import complex_copy, complex_sum
from dxgemm.lower.cublas import CublasStep
from dxgemm.lower.steps import file_step
from dxgemm.problem.complex_form import (
    ComplexCopy,
    ComplexForm,
    in_parts,
    result_in_parts,
    scaling_copy,
    with_parts_of_beta,
)
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES
from dxgemm.problem.fusion import Fusion
from dxgemm.problem.kernel_arguments import Extents, KernelArguments
from dxgemm.problem.layout import Strides
from dxgemm.problem.problem import Problem
from dxgemm.runtime.program import (
    ALPHA,
    ALPHA_PARTS,
    BETA,
    BETA_PARTS,
    OUT,
    A,
    B,
    C,
    Name,
    Program,
    Step,
    Symbol,
    Value,
    parameters,
)

ONE = 1.0, 0.0  # parts of a factor


def lower_complex(form: ComplexForm, product: Program) -> Program:
    """Program of a complex problem, around that of the product of its form."""
    if form.is_direct:
        return _by_parts(product, form.product.epilogue)
    return _summed(form, product) if form.products else _copied(form, product)


def _by_parts(program: Program, epilogue: Fusion | None) -> Program:
    """Program whose kernels take complex alpha and beta: see `with_parts_of_beta`."""
    *_, real, imag = parameters(epilogue)
    given = dict(zip(("alpha", "beta", real.name, imag.name), (*ALPHA_PARTS, *BETA_PARTS)))
    return program.given(given)


def _copied(form: ComplexForm, product: Program) -> Program:
    """Program of the copies that a complex problem needs, and of its real product.

    A complex alpha is multiplied into b, a complex beta into c, before the product; real ones are
    factors of the product.
    """
    copies = form.copies
    program, places = _workspace(form, [name for name in copies if name != "c"])
    target = places.pop("out", OUT)
    values: dict[Name, Value] = {**places, "out": target}
    values["alpha"] = Symbol("alpha", part="if real")
    if "a" in copies:
        program += _copying(copies["a"], A, places["a"])
    if "b" in copies:
        imag = "if complex, -imag" if copies["b"].conjugates_factor else "if complex, imag"
        factor = Symbol("alpha", part="if complex, real"), Symbol("alpha", part=imag)
        program += _copying(copies["b"], B, places["b"], factor)
    if "c" in copies:
        program += _copying(copies["c"], C, target, BETA_PARTS)
        values |= {"c": target, "beta": 1.0}
    elif form.problem.reads_c:
        is_complex = BETA, True
        program += _copying(scaling_copy(form), C, OUT, BETA_PARTS).given({}, is_complex)
        program += product.given({**values, "c": OUT, "beta": 1.0}, is_complex)
        product = product.given({}, (BETA, False))
    program += product.given(values)
    return program + _copying(copies["out"], target, OUT) if "out" in copies else program


def _summed(form: ComplexForm, product: Program) -> Program:
    """Program of real products, and of the kernel that makes the complex result of them."""
    own, sums = form.product, Symbol("products")
    program, places = _workspace(form, [*form.copies])
    for name, copy in form.copies.items():
        program += _copying(copy, Symbol(name), places[name])
    if form.problem.triangle and places:
        places["b"] = places["a"]
    program += product.given({**places, "c": sums, "out": sums, "alpha": 1.0, "beta": 0.0})
    count = {"three": 3, "slices": 1}.get(form.products, 2)
    width = 2 if form.products in (*complex_sum.OF_PARTS, "slices") else 1
    strides = Strides(count * form.part, own.out.row, width)
    epilogue = with_parts_of_beta(form.problem.epilogue, form.problem.dtype)
    problem = replace(form.problem, epilogue=epilogue)
    adding = complex_sum_step(problem, form.products, sums, strides, form.part, 1)
    size = own.batch * own.out.batch * ITEM_SIZES[own.dtype]
    return program + _by_parts(Program((adding,), {sums.name: size}), epilogue)


def _workspace(form: ComplexForm, names: list[str]) -> tuple[Program, dict[Name, Symbol]]:
    """Program without steps, with buffers for copies by name, and the symbols of the buffers."""
    item_size = ITEM_SIZES[form.product.dtype]
    places: dict[Name, Symbol] = {name: Symbol(f"copy of {name}") for name in names}
    buffers: dict[Name, int] = {
        f"copy of {name}": form.copies[name].size * item_size for name in names
    }
    return Program((), buffers), places


def complex_sum_step(
    problem: Problem, products: str, sums: Symbol, strides: Strides, part: int, slices: int
) -> Step:
    """Step that makes a complex result of real products, or of sums of complex slices.

    Args:
        problem: the complex problem; its epilogue ends with the parts of beta.
        products: what the sums are, as `complex_sum` names it.
        sums, strides: the sums, and their strides in real elements.
        part: real elements from one part of a sum, or slice, to the next.
        slices: number of slices.
    """
    m, n, batch, epilogue = problem.m, problem.n, problem.batch, problem.epilogue
    c, out = in_parts(problem.c), result_in_parts(problem)
    count = {"three": 3, "slices": slices}.get(products, 2)
    is_real = epilogue is not None and epilogue.is_real
    extents: Extents = {
        "a": ((*strides, part, 1), (batch, m, n, count, strides.col)),
        "c": ((*c, 1), (batch if problem.reads_c else 0, m, n, 2)),
        "out": (out, (batch, m, n)) if is_real else ((*out, 1), (batch, m, n, 2)),
    }
    arguments = KernelArguments(
        COMPLEX_PARTS[problem.dtype], m, n, slices, batch, strides, Strides(part, 0, 0), c, out,
        epilogue, reads_c=problem.reads_c, extents=extents,
    )  # fmt: skip
    values = sums, sums, C, OUT, ALPHA, BETA
    operands = parameters(epilogue)
    return file_step(complex_sum, arguments, (products,), values=values, operands=operands)


def _copying(
    copy: ComplexCopy, source: Symbol, target: Symbol, factor: tuple[Value, Value] = ONE
) -> Program:
    """Program of a copy, with the parts of a complex factor."""
    batch, m, n, out = copy.sizes.batch, copy.sizes.m, copy.sizes.n, copy.sizes.out
    config = complex_copy.choose_config(configs_of(complex_copy), n)
    part, rows, columns, count = copy.sizes.c.batch or 1, m, n, 2
    if copy.expands in ("i", "-i"):
        rows *= 2
    elif copy.expands == "halves":
        columns = 2 * copy.sizes.k
    elif copy.expands == "parts and sums":
        count = 3
    read, written = (*copy.sizes.a, 1), (*out, part)
    extents: Extents = {
        "a": (read, (batch, m, n, 2)), "out": (written, (batch, rows, columns, count))
    }  # fmt: skip
    sizes = replace(copy.sizes, extents=extents)
    values = source, source, target, target, *factor
    return Program((file_step(complex_copy, sizes, copy.variant, config, values=values),))


def complex_cublas(form: ComplexForm, *, is_reduced: bool) -> Program:
    """Program of cuBLAS's own complex product, without copies.

    Raises:
        UnsupportedProblemError: cuBLAS cannot compute it.
    """
    problem = form.problem
    reason = supports(problem)
    if problem.precision:
        reason = "it multiplies complex numbers in their own arithmetic alone"
    if problem.triangle:
        reason = "its complex gemm writes both triangles"
    if problem.epilogue or is_reduced:
        reason = "it applies no functions to complex numbers, and reduces none"
    if reason:
        raise UnsupportedProblemError(
            f"gemm: implementation 'cublas' cannot compute this: {reason}."
        )
    return Program((CublasStep(None, problem, conjugates=form.conjugates),))
