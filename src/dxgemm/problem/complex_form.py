"""Complex problems as real ones of twice the columns and twice the k, or as they are.

A row-major complex matrix (m, n) is a real one (m, 2 n) in memory, whose neighbours are real and
imaginary parts. So C (m, n) = a (m, k) @ b (k, n) is a real product of the matrices (m, 2 k), as
a lies, and (2 k, 2 n): b expanded by a copy, in which the row [re, im, ...] of b times i follows
each row. It takes as many operations as complex arithmetic does, 8 m n k, in the same terms.

With few rows, expanding b costs more than the product. Then its real and its imaginary parts make
two rows of each row of a, whose real product with b in place, (k, 2 n), has all products of
parts. Or out.T = b.T @ a.T is computed, in which a is the operand to expand.

Most products in the dtype's own arithmetic are not expanded: one kernel reads complex elements as
they lie. With an epilogue, which wants complex numbers, all others are left in a workspace, from
which the kernel `complex_sum` takes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dxgemm.handwritten.kernels.complex_sum import OF_PARTS
from dxgemm.problem.dtypes import COMPLEX_PARTS, ITEM_SIZES, THREE_PRODUCTS
from dxgemm.problem.fusion import FusedOperand, Fusion
from dxgemm.problem.kernel_arguments import KernelArguments
from dxgemm.problem.layout import MAX_ALIGNMENT, NO_STRIDES, Strides, copied_step
from dxgemm.problem.problem import EXCHANGE, MOST_FLATTENED_ROWS, Problem, changed, exchanged

# Bytes that a large GPU moves while a kernel starts, in 2 or 3 us: what one kernel more may cost.
START_BYTES = 2**23

# Largest m, n and k of a batch that is computed without expansion: those of a tile of
# `complex_batch`.
MOST_SMALL = 80

# Rows, or columns, up to which real products are computed, which read the larger operand once.
MOST_FEW_ROWS = 16


@dataclass(frozen=True)
class ComplexCopy:
    """Copy of a complex matrix, as the kernel `complex_copy` makes it.

    Attributes:
        sizes: what the kernel is launched with: sizes in complex elements, strides in real ones.
        conjugates: True to conjugate the elements.
        expands: what is written in the place of the elements, as the kernel names it; else "".
        conjugates_factor: True if the elements are multiplied by the conjugate of the factor.
        size: real elements that are written to the workspace; 0 if it is an array of the call.
    """

    sizes: KernelArguments
    conjugates: bool = False
    expands: str = ""
    conjugates_factor: bool = False
    size: int = 0

    @property
    def variant(self) -> tuple[str, str, str]:
        source = self.sizes.a
        is_turned = abs(source.row) < abs(source.col) and self.sizes.m > 1
        order = "turned" if is_turned else "straight"
        return order, "conjugate" if self.conjugates else "", self.expands

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written; an expanded matrix is written twice."""
        p = self.sizes
        accesses = 3 if self.expands in ("i", "-i") else 2
        return 2 * accesses * p.batch * p.m * p.n * ITEM_SIZES[p.dtype]


@dataclass(frozen=True)
class ComplexForm:
    """Complex problem, its real product, and the copies around it.

    Attributes:
        problem: the complex problem, in the orientation in which it is computed.
        product: the real problem; a c that is another array has the strides of the result. Or the
            complex problem for one kernel, see `direct_form`.
        conjugates: names of the operands of the complex problem that are conjugated.
        copies: copies by name: "a" and "b" are made before the product, "c" puts beta * c where
            the product is written, and "out" takes the result from the workspace to its place.
        products: products that the kernel `complex_sum` makes the result of, as it names them, or
            "slices" of a product of b expanded; "" if the product is the result.
    """

    problem: Problem
    product: Problem
    conjugates: str
    copies: dict[str, ComplexCopy]
    products: str = ""

    @property
    def is_direct(self) -> bool:
        """True if one kernel multiplies complex elements in place."""
        return self.product.dtype in COMPLEX_PARTS

    @property
    def part(self) -> int:
        """Real elements from one part of a sum to the next, in the workspace."""
        sums = self.product.out.batch
        return sums // 2 if self.products in OF_PARTS else sums

    @property
    def cost_bytes(self) -> int:
        """Bytes moved by all kernels, and `START_BYTES` for each but that of the product."""
        copied = sum(copy.bytes_moved + START_BYTES for copy in self.copies.values())
        if self.products:
            copied += START_BYTES + self.product.result_bytes + self.problem.result_bytes
            copied += self.problem.result_bytes * self.problem.reads_c
        return self.product.bytes_moved + copied

    def __str__(self) -> str:
        if self.is_direct:
            text = "real and imaginary parts in one kernel, in place"
            return "; ".join([text, *(f"copy: {name} conjugated" for name in self.copies)])
        if self.problem.triangle:
            return f"two products of {self.product.dtype}, by half their tiles: real and imaginary"
        if self.products == "three":
            return f"three products of {self.product.dtype}, of real and imaginary parts"
        told = {
            "a": "a in parts" if self.products in OF_PARTS else "a in rows", "b": "b expanded",
            "c": "c where the result is written", "out": "the result to its place",
        }  # fmt: skip
        copied = ", ".join(told[name] for name in self.copies)
        product = self.product
        sizes = " x ".join(map(str, (product.m, product.n, product.k)))
        text = f"a product of {product.dtype}, {sizes}"
        text += "; epilogue: by another kernel" if self.products == "slices" else ""
        return f"{text}; copies: {copied}" if copied else text


def is_small_batch(problem: Problem) -> bool:
    """True for a batch of small matrices."""
    return problem.batch > 1 and max(problem.m, problem.n, problem.k) <= MOST_SMALL


def suits_tiles(problem: Problem) -> bool:
    """True if kernels with tiles are quicker than those that read the larger operand once."""
    return min(problem.m, problem.n) > MOST_FEW_ROWS


def with_parts_of_beta(epilogue: Fusion | None, dtype: str) -> Fusion:
    """Epilogue of kernels that store complex elements: its arguments end with the parts of beta."""
    epilogue = epilogue or Fusion((), ())
    parts = (FusedOperand("number", COMPLEX_PARTS[dtype]),) * 2
    return replace(epilogue, operands=(*epilogue.operands, *parts))


def direct_form(problem: Problem, conjugates: str) -> ComplexForm:
    """Form of a complex problem for one kernel: see `with_parts_of_beta`.

    Args:
        problem, conjugates: as `real_forms` takes them.
    """
    epilogue = with_parts_of_beta(problem.epilogue, problem.dtype)
    names = "".join(sorted(conjugates))  # one kernel for "ab" and "ba"
    product = changed(problem, epilogue=epilogue, conjugates=names)
    return ComplexForm(problem, product, conjugates, {})


def real_form(problem: Problem, conjugates: str, *, is_any: bool = True) -> ComplexForm:
    """Real form of a complex problem: of `real_forms` the one that moves the fewest bytes.

    Args:
        problem, conjugates: as `real_forms` takes them.
        is_any: False for the first form, whatever it costs.
    """
    if problem.epilogue is not None:
        plain = replace(problem, epilogue=None, out_dtype=problem.dtype)
        return replace(_summed_form(plain, conjugates), problem=problem)
    if problem.triangle or problem.precision == THREE_PRODUCTS:
        return _summed_form(problem, conjugates)
    forms = real_forms(problem, conjugates)
    return min(forms if is_any else forms[:1], key=lambda form: form.cost_bytes)


def real_forms(problem: Problem, conjugates: str) -> list[ComplexForm]:
    """Real forms of a complex problem: b expanded; out.T = b.T @ a.T, a expanded; a in parts.

    Args:
        problem: the problem, of dtype complex64 or complex128. If it has a triangle, b is the
            conjugate transpose of a.
        conjugates: names of the operands of the problem that are conjugated: "", "a", "b" or "ab".
    """
    forms = [_expanded_form(problem, conjugates)]
    if problem.k == 0 or problem.is_empty:
        return forms
    forms.append(_expanded_form(exchanged(problem), conjugates.translate(EXCHANGE)))
    if problem.b.col == 1 or problem.n == 1:
        forms.append(_parted_form(problem, conjugates))
    return forms


def _parted_form(problem: Problem, conjugates: str) -> ComplexForm:
    """Form that reads b in place, whose rows are contiguous.

    With the conjugate of b, it is the conjugate of a product with b.
    """
    is_b_conjugate = "b" in conjugates
    copy = _parted(problem, "a", 2, is_conjugate=("a" in conjugates) != is_b_conjugate)
    real, m, n = copy.sizes.dtype, problem.m, problem.n
    step = copied_step(2 * n, real)
    sums = Strides(2 * m * step, step, 1)
    product = replace(
        problem, dtype=real, out_dtype=real, m=2 * m, n=2 * n, a=copy.sizes.out,
        b=_viewed(problem.b), c=sums, out=sums, a_alignment=MAX_ALIGNMENT, reads_c=False,
        in_place=True,
    )  # fmt: skip
    return ComplexForm(problem, product, conjugates, {"a": copy}, OF_PARTS[is_b_conjugate])


def _expanded_form(problem: Problem, conjugates: str) -> ComplexForm:
    """Form in which b is expanded, and a is read in place if its rows are contiguous."""
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
        copies["out"] = replace(back, sizes=_returning(back.sizes))
    is_c_in_place = in_rows and (problem.in_place or problem.c == problem.out)
    if problem.reads_c and not is_c_in_place:
        addend = _copy_arguments(real, m, n, problem.batch, in_parts(problem.c), out)
        copies["c"] = ComplexCopy(addend)
    product = replace(
        problem, dtype=real, out_dtype=real, n=2 * n, k=2 * k, a=a, b=b, c=out, out=out,
        a_alignment=alignment, b_alignment=MAX_ALIGNMENT,
        in_place=problem.in_place or not is_c_in_place,
    )  # fmt: skip
    return ComplexForm(problem, product, conjugates, copies)


def _summed_form(problem: Problem, conjugates: str) -> ComplexForm:
    """Form whose result is made by `complex_sum`, of products in a workspace."""
    if problem.triangle:
        return _hermitian(problem, conjugates)
    if problem.precision == THREE_PRODUCTS:
        return _three_products(problem, conjugates)
    form = _expanded_form(replace(problem, reads_c=False, in_place=True), conjugates)
    copies = {name: copy for name, copy in form.copies.items() if name != "out"}
    step = copied_step(2 * problem.n, form.product.dtype)
    sums = Strides(problem.m * step, step, 1)
    product = replace(form.product, c=sums, out=sums)
    return ComplexForm(problem, product, conjugates, copies, "slices")


def _three_products(problem: Problem, conjugates: str) -> ComplexForm:
    """Form of a complex problem as a batch of three real products, for each of its matrices.

    They are those of the real parts, of the imaginary parts, and of the sums of both; all come from
    and go to the workspace.
    """
    real, m, n, batch = COMPLEX_PARTS[problem.dtype], problem.m, problem.n, problem.batch
    copies = {
        name: _parted(problem, name, 3, is_conjugate=name in conjugates, is_repeated=True)
        for name in "ab"
    }
    a, b = (copies[name].sizes.out for name in "ab")
    step = copied_step(n, real)
    sums = Strides(m * step, step, 1)
    product = replace(
        problem, dtype=real, out_dtype=real, batch=3 * batch, precision=None, reads_c=False,
        a=a._replace(batch=a.batch // 3), b=b._replace(batch=b.batch // 3), c=sums, out=sums,
        a_alignment=MAX_ALIGNMENT, b_alignment=MAX_ALIGNMENT, in_place=True,
    )  # fmt: skip
    return ComplexForm(problem, product, conjugates, copies if problem.k else {}, "three")


def _hermitian(problem: Problem, conjugates: str) -> ComplexForm:
    """Form of a @ a.conj().T as a batch of two real products, half of whose tiles are computed.

    With P = [re, im] and Q = [im, -re] of a, the real part of the result is P @ P.T, the imaginary
    one Q @ P.T. The first is symmetric, the second one antisymmetric: what lies on and below the
    diagonal makes all of the result. b is not read.
    """
    real, m, k = COMPLEX_PARTS[problem.dtype], problem.m, problem.k
    half, step = copied_step(k, real), copied_step(m, real)
    copy = KernelArguments(
        real, m, k, half, 1, in_parts(problem.a), c=Strides(2 * m * half, 0, 0),
        out=Strides(0, 2 * half, 1),
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
    return ComplexForm(problem, product, conjugates, copies if k else {}, problem.triangle)


def _parted(
    problem: Problem, name: str, count: int, *, is_conjugate: bool, is_repeated: bool = False
) -> ComplexCopy:
    """Copy of an operand as matrices of its real parts, of its imaginary parts, and of their sums.

    Args:
        problem: the complex problem.
        name: "a" or "b".
        count: 2, or 3 with the sums.
        is_conjugate: True to take the conjugate.
        is_repeated: True to copy a matrix that is broadcast once for each of the batch.
    """
    real, source = COMPLEX_PARTS[problem.dtype], in_parts(getattr(problem, name))
    rows, columns = (problem.m, problem.k) if name == "a" else (problem.k, problem.n)
    step = copied_step(columns, real)
    has_batch = bool(source.batch) or is_repeated
    batch = problem.batch if has_batch else 1
    copy = KernelArguments(
        real, rows, columns, 1, batch, source, c=Strides(rows * step, 0, 0),
        out=Strides(count * rows * step * has_batch, step, 1),
    )  # fmt: skip
    expands = "parts and sums" if count == 3 else "parts"
    return ComplexCopy(copy, is_conjugate, expands, size=count * batch * rows * step)


def scaling_copy(form: ComplexForm) -> ComplexCopy:
    """Copy of beta * c to where the result is written; both have the same strides."""
    product, problem = form.product, form.problem
    in_place = in_parts(problem.out)
    return ComplexCopy(
        _copy_arguments(product.dtype, problem.m, problem.n, problem.batch, in_place, in_place)
    )


def _viewed(strides: Strides) -> Strides:
    """Strides of a row-major complex matrix as a real one of twice the columns."""
    return Strides(2 * strides.batch, 2 * strides.row, 1)


def in_parts(strides: Strides) -> Strides:
    """Strides of complex elements, in real ones."""
    return Strides(2 * strides.batch, 2 * strides.row, 2 * strides.col)


def result_in_parts(problem: Problem) -> Strides:
    """Strides of the result of a complex problem in real elements, which an epilogue may make."""
    return in_parts(problem.out) if problem.out_dtype in COMPLEX_PARTS else problem.out


def _copy_arguments(
    dtype: str, m: int, n: int, batch: int, source: Strides, target: Strides, copies: int = 1
) -> KernelArguments:
    """Arguments of a copy; a batch whose rows have one stride on both sides is one matrix.

    Args:
        dtype: dtype of the real and the imaginary parts.
        m, n, batch: sizes of what is copied, in complex elements.
        source, target: strides in real elements.
        copies: rows of the target for each row of the source.
    """
    if target.col == 1:  # of a real matrix: complex elements are two apart
        target = target._replace(col=2)
    lies_evenly = source.batch == m * source.row and target.batch == copies * m * target.row
    if batch > 1 and lies_evenly and batch * m <= MOST_FLATTENED_ROWS:
        m, batch = batch * m, 1
        source, target = source._replace(batch=0), target._replace(batch=0)
    return KernelArguments(dtype, m, n, 1, batch, source, out=target)


def _returning(copy: KernelArguments) -> KernelArguments:
    """Arguments of the way back of a copy, which writes along the contiguous dimension."""
    back = replace(copy, a=copy.out, out=copy.a)
    if abs(back.out.row) >= abs(back.out.col) or back.m == 1:
        return back
    return replace(back, m=back.n, n=back.m, a=back.a.transposed(), out=back.out.transposed())


def _copied(
    dtype: str, strides: Strides, rows: int, columns: int, batch: int
) -> tuple[Strides, ComplexCopy]:
    """Strides of a row-major copy as a real matrix, and the copy that makes it."""
    step = copied_step(2 * columns, dtype)
    count = batch if strides.batch else 1
    target = Strides(rows * step if strides.batch else 0, step, 1)
    copied = _copy_arguments(dtype, rows, columns, count, in_parts(strides), target)
    return target, ComplexCopy(copied, size=count * rows * step)


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
    step = copied_step(2 * columns, dtype)
    count = problem.batch if b.batch else 1
    target = Strides(2 * rows * step if b.batch else 0, step, 1)
    copy = ComplexCopy(
        _copy_arguments(dtype, rows, columns, count, source, target, copies=2),
        is_conjugate != factor_too,
        expands,
        factor_too,
        count * 2 * rows * step,
    )
    return target if in_rows else target.transposed(), copy
