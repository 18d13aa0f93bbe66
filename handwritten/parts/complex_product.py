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


def make_scale(count: int) -> Any:
    """A device function: (values, factor_re, factor_im) -> `count` elements times a factor.

    An infinite part is not multiplied by 0, the imaginary part of a real factor.
    """
    from dxgemm.handwritten.parts.intrinsics import device_function, plus_scaled, scaled
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    def scale(values, factor_re, factor_im):
        if factor_im == 0:
            results = scaled(factor_re, values)
        else:
            results = ()
            for place in static_range(0, 2 * count, 2):
                re, im = values[place], values[place + 1]
                results = results + (
                    plus_scaled(scaled(factor_re, re), -factor_im, im),
                    plus_scaled(scaled(factor_re, im), factor_im, re),
                )
        return results

    return device_function(unroll(scale))


def make_plus_multiple(count: int) -> Any:
    """A device function: (values, factor_re, factor_im, added) -> values + factor * added."""
    from dxgemm.handwritten.parts.intrinsics import device_function, plus_scaled
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    def plus_multiple(values, factor_re, factor_im, added):
        if factor_im == 0:
            results = plus_scaled(values, factor_re, added)
        else:
            results = ()
            for place in static_range(0, 2 * count, 2):
                re, im = added[place], added[place + 1]
                results = results + (
                    plus_scaled(plus_scaled(values[place], factor_re, re), -factor_im, im),
                    plus_scaled(plus_scaled(values[place + 1], factor_re, im), factor_im, re),
                )
        return results

    return device_function(unroll(plus_multiple))
