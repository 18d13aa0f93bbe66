"""Products of complex elements in registers, which hold their real and imaginary parts in turn."""

from __future__ import annotations

from typing import Any

# Complex dtypes, and those of their real and imaginary parts.
COMPLEX_PARTS = {"complex64": "float32", "complex128": "float64"}


def make_add_products(thread_m: int, thread_n: int, conjugates: str) -> Any:
    """A device function: (acc, a_frag, b_frag) -> acc plus the product of a column and a row.

    The row of b is multiplied by the real parts of a as it is, and times i by the imaginary parts:
    the same registers, real and imaginary parts exchanged and one sign changed, which a
    multiply-add does for an operand. A conjugate changes signs, too.

    Args:
        thread_m, thread_n: elements of a_frag and of b_frag.
        conjugates: names of the operands that are conjugated: "", "a", "b" or "ab".
    """
    from dxgemm.handwritten.parts.intrinsics import device_function, outer_product
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    a_is_conjugate, b_is_conjugate = "a" in conjugates, "b" in conjugates

    def add_products(acc, a_frag, b_frag):
        a_re, a_im, b_straight, b_turned = (), (), (), ()
        for i in static_range(thread_m):
            im = a_frag[2 * i + 1]
            a_re = a_re + (a_frag[2 * i],)
            a_im = a_im + (-im if a_is_conjugate else im,)
        for j in static_range(thread_n):
            re, im = b_frag[2 * j], b_frag[2 * j + 1]
            if b_is_conjugate:
                im = -im
            b_straight = b_straight + (re, im)
            b_turned = b_turned + (-im, re)  # times i
        return outer_product(outer_product(acc, a_re, b_straight), a_im, b_turned)

    return device_function(unroll(add_products))
