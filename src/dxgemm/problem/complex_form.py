"""Complex problems as real ones of twice the columns and twice the k.

A row-major complex matrix (m, n) is a real one (m, 2 n) as it lies, whose neighbours are real and
imaginary parts. So C (m, n) = a (m, k) @ b (k, n) is a real product of the matrices (m, 2 k), as
a lies, and (2 k, 2 n): b expanded by a copy, in which the row [re, im, ...] of b times i follows
each row. It takes as many operations as complex arithmetic does, 8 m n k, in the same terms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, THREE_PRODUCTS
from dxgemm.problem.layout import MAX_ALIGNMENT, NO_STRIDES, SECTOR_BYTES, Strides
from dxgemm.problem.problem import Problem, exchanged


@dataclass(frozen=True)
class ComplexCopy:
    """Copy of a complex matrix, as the kernel `complex_copy` makes it.

    Attributes:
        problem: its problem: sizes in complex elements, strides in real ones.
        conjugates: True to conjugate the elements.
        expands: "i" or "-i" to write each row again, times that, below itself; "parts" or "halves"
            for several real products; else "".
        conjugates_factor: True if the elements are multiplied by the conjugate of the factor.
        size: real elements that are written to the workspace; 0 if it is an array of the call.
    """

    problem: Problem
    conjugates: bool = False
    expands: str = ""
    conjugates_factor: bool = False
    size: int = 0

    @property
    def variant(self) -> tuple[str, str, str]:
        source = self.problem.a
        is_turned = abs(source.row) < abs(source.col) and self.problem.m > 1
        order = "turned" if is_turned else "straight"
        return order, "conjugate" if self.conjugates else "", self.expands


@dataclass(frozen=True)
class ComplexForm:
    """Complex problem, its real product, and the copies around it.

    Attributes:
        problem: the complex problem.
        product: the real problem, in place.
        conjugates: names of the operands of the complex problem that are conjugated.
        copies: copies by name: "a" and "b" are made before the product, "c" puts beta * c where
            the product is written, and "out" takes the result from the workspace to its place. Of
            several products, `complex_sum` makes the result.
    """

    problem: Problem
    product: Problem
    conjugates: str
    copies: dict[str, ComplexCopy]

    @property
    def has_three_products(self) -> bool:
        """True if the product is a batch of three for each complex one: see `three_products`."""
        return self.problem.precision == THREE_PRODUCTS

    @property
    def is_summed(self) -> bool:
        """True if `complex_sum` makes the result of several products."""
        return self.has_three_products or self.problem.triangle != ""

    def __str__(self) -> str:
        if self.problem.triangle:
            return f"two products of {self.product.dtype}, by half their tiles: real and imaginary"
        if self.has_three_products:
            return f"three products of {self.product.dtype}, of real and imaginary parts"
        told = {
            "a": "a in rows", "b": "b expanded", "c": "c where the result is written",
            "out": "the result to its place",
        }  # fmt: skip
        copied = ", ".join(told[name] for name in self.copies)
        product = self.product
        sizes = " x ".join(map(str, (product.m, product.n, product.k)))
        text = f"a product of {product.dtype}, {sizes}"
        return f"{text}; copies: {copied}" if copied else text


def real_form(problem: Problem, conjugates: str) -> ComplexForm:
    """Real form of a complex problem: of one product, of three, or of a Hermitian result.

    Args:
        problem: the problem, of dtype complex64 or complex128. If it has a triangle, b is the
            conjugate transpose of a.
        conjugates: names of the operands of the problem that are conjugated: "", "a", "b" or "ab".
    """
    if problem.triangle:
        return hermitian(problem, conjugates)
    in_three = problem.precision == THREE_PRODUCTS
    return (three_products if in_three else one_product)(problem, conjugates)


def one_product(problem: Problem, conjugates: str) -> ComplexForm:
    """Form of a complex problem as one real product, of a and the expanded b: see `real_form`."""
    real = COMPLEX_PARTS[problem.dtype]
    m, n, k = problem.m, problem.n, problem.k
    copies: dict[str, ComplexCopy] = {}
    a, b, out = _viewed(problem.a), NO_STRIDES, _viewed(problem.out)
    alignment = problem.a_alignment
    if k > 0:
        if problem.a.col != 1 and k > 1:
            a, copies["a"] = _copied(real, problem.a, m, k, problem.batch)
            alignment = MAX_ALIGNMENT
        b, copies["b"] = _expanded(problem, real, conjugates)
    in_rows = problem.out.col == 1 or n == 1
    if not in_rows:
        out, back = _copied(real, problem.out, m, n, problem.batch)
        copied = back.problem
        copies["out"] = replace(back, problem=replace(copied, a=copied.out, out=copied.a))
    if problem.reads_c and not (problem.in_place and in_rows):
        addend = _copy_problem(real, m, n, problem.batch, in_parts(problem.c), out)
        copies["c"] = ComplexCopy(addend)
    product = replace(
        problem, dtype=real, out_dtype=real, n=2 * n, k=2 * k, a=a, b=b, c=out, out=out,
        a_alignment=alignment, b_alignment=MAX_ALIGNMENT, in_place=True,
    )  # fmt: skip
    return ComplexForm(problem, product, conjugates, copies)


def three_products(problem: Problem, conjugates: str) -> ComplexForm:
    """Form of a complex problem as a batch of three real products, for each of its matrices.

    They are those of the real parts, of the imaginary parts, and of the sums of both; all come from
    and go to the workspace. Arguments are those of `real_form`.
    """
    real, batch = COMPLEX_PARTS[problem.dtype], problem.batch
    m, n, k = problem.m, problem.n, problem.k
    copies = {}
    for name, rows, columns in (("a", m, k), ("b", k, n)):
        step = _row_step(columns, real)
        part = Strides(rows * step, step, 1)  # one of three
        source = in_parts(getattr(problem, name))
        copy = Problem(
            dtype=real, m=rows, n=columns, k=1, batch=batch, a=source, b=NO_STRIDES,
            c=Strides(part.batch, 0, 0), out=part._replace(batch=3 * part.batch), out_dtype=real,
        )  # fmt: skip
        copies[name] = ComplexCopy(copy, name in conjugates, "parts", size=3 * batch * rows * step)
    a, b = (copies[name].problem.out for name in "ab")
    step = _row_step(n, real)
    sums = Strides(m * step, step, 1)
    product = replace(
        problem, dtype=real, out_dtype=real, batch=3 * batch, precision=None, reads_c=False,
        a=a._replace(batch=a.batch // 3), b=b._replace(batch=b.batch // 3), c=sums, out=sums,
        a_alignment=MAX_ALIGNMENT, b_alignment=MAX_ALIGNMENT, in_place=True,
    )  # fmt: skip
    return ComplexForm(problem, product, conjugates, copies)


def hermitian(problem: Problem, conjugates: str) -> ComplexForm:
    """Form of a @ a.conj().T as a batch of two real products, half of whose tiles are computed.

    With P = [re, im] and Q = [im, -re] of a, the real part of the result is P @ P.T, the imaginary
    one Q @ P.T. The first is symmetric, the second one antisymmetric: what lies on and below the
    diagonal makes all of the result. Arguments are those of `real_form`; b is not read.
    """
    real, m, k = COMPLEX_PARTS[problem.dtype], problem.m, problem.k
    half, step = _row_step(k, real), _row_step(m, real)
    copy = Problem(
        dtype=real, m=m, n=k, k=half, batch=1, a=in_parts(problem.a), b=NO_STRIDES,
        c=Strides(2 * m * half, 0, 0), out=Strides(0, 2 * half, 1), out_dtype=real,
    )  # fmt: skip
    a = Strides(2 * m * half, 2 * half, 1)
    sums = Strides(m * step, step, 1)
    product = replace(
        problem, dtype=real, out_dtype=real, k=2 * half if k else 0, batch=2, a=a,
        b=a.transposed()._replace(batch=0), c=sums, out=sums, a_alignment=MAX_ALIGNMENT,
        b_alignment=MAX_ALIGNMENT, reads_c=False, in_place=True, triangle="lower",
        precision=None if problem.precision == THREE_PRODUCTS else problem.precision,
    )  # fmt: skip
    copies = {"a": ComplexCopy(copy, "a" in conjugates, "halves", size=4 * m * half)}
    return ComplexForm(problem, product, conjugates, copies)


def cheaper_side(problem: Problem) -> Problem:
    """Orientation of a complex problem in which its copies move fewer bytes.

    The b of the problem is expanded. Where the result has few rows, the caller's a is the smaller
    operand, and out.T = b.T @ a.T goes to its place from the workspace.
    """
    other = exchanged(problem)
    return other if _copied_elements(other) < _copied_elements(problem) else problem


def scaling_copy(form: ComplexForm) -> ComplexCopy:
    """Copy that multiplies the result in place: C = beta * C, before the product is added to it."""
    product, problem = form.product, form.problem
    in_place = in_parts(problem.out)
    return ComplexCopy(
        _copy_problem(product.dtype, problem.m, problem.n, problem.batch, in_place, in_place)
    )


def _copied_elements(problem: Problem) -> int:
    """Elements that the copies of a complex problem read and write, and the product reads anew."""
    m, n, k = problem.m, problem.n, problem.k
    copied = 5 * k * n * (problem.batch if problem.b.batch else 1)  # read, and twice there and back
    if problem.a.col != 1 and k > 1:
        copied += 2 * m * k * (problem.batch if problem.a.batch else 1)
    if problem.out.col != 1 and n > 1:
        copied += 2 * m * n * problem.batch
    return copied


def _viewed(strides: Strides) -> Strides:
    """Strides of a row-major complex matrix as a real one of twice the columns."""
    return Strides(2 * strides.batch, 2 * strides.row, 1)


def in_parts(strides: Strides) -> Strides:
    """Strides of complex elements, in real ones."""
    return Strides(2 * strides.batch, 2 * strides.row, 2 * strides.col)


def _row_step(columns: int, dtype: str) -> int:
    """Real elements from one row of a copy to the next: whole sectors."""
    width = SECTOR_BYTES // ITEM_SIZES[dtype]
    return -(-columns // width) * width


def _copy_problem(
    dtype: str, m: int, n: int, batch: int, source: Strides, target: Strides
) -> Problem:
    if target.col == 1:  # of a real matrix: complex elements are two apart
        target = target._replace(col=2)
    return Problem(
        dtype=dtype, m=m, n=n, k=1, batch=batch, a=source, b=NO_STRIDES, c=NO_STRIDES, out=target,
        out_dtype=dtype,
    )  # fmt: skip


def _copied(
    dtype: str, strides: Strides, rows: int, columns: int, batch: int
) -> tuple[Strides, ComplexCopy]:
    """Strides of a row-major copy as a real matrix, and the copy that makes it."""
    step = _row_step(2 * columns, dtype)
    count = batch if strides.batch else 1
    target = Strides(rows * step if strides.batch else 0, step, 1)
    problem = _copy_problem(dtype, rows, columns, count, in_parts(strides), target)
    return target, ComplexCopy(problem, size=count * rows * step)


def _expanded(problem: Problem, dtype: str, conjugates: str) -> tuple[Strides, ComplexCopy]:
    """Strides of the expanded b, and the copy that makes it.

    Rows of b are expanded where they are contiguous: z and i z below each other. Otherwise the
    columns are: their 2 k real elements are those of conj(z) and, in the next column, of i conj(z).
    For the conjugate of a, whose imaginary parts change their sign, i z becomes -i z, and conj(z)
    becomes z.
    """
    k, n, b = problem.k, problem.n, problem.b
    in_rows = n > 1 and (k == 1 or abs(b.col) <= abs(b.row))
    is_conjugate, expands = "b" in conjugates, "-i" if "a" in conjugates else "i"
    source, rows, columns = in_parts(b), k, n
    if not in_rows:
        source, rows, columns = source.transposed(), n, k
    factor_too = not in_rows and expands == "i"
    step = _row_step(2 * columns, dtype)
    count = problem.batch if b.batch else 1
    target = Strides(2 * rows * step if b.batch else 0, step, 1)
    copy = ComplexCopy(
        _copy_problem(dtype, rows, columns, count, source, target),
        is_conjugate != factor_too,
        expands,
        factor_too,
        count * 2 * rows * step,
    )
    return target if in_rows else target.transposed(), copy
