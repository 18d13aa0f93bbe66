"""Elementary functions for epilogues: as exact as libdevice's, without branches and calls.

libdevice selects a formula by the magnitude of the argument, and IEEE division has a slow path. An
epilogue has elements of all magnitudes, so a warp would run both sides of such a branch, and a
thread would finish one element before it begins the next. Here the code per element is free of
branches, so that the elements of a thread overlap. Results are within 5 units in the last place,
subnormal ones too, except for float64's `times_normal_cdf` of negative numbers; NaN stays NaN.

The type of the argument, float32 or float64, selects the function; integers become float64. One
function is for integers: the product that generates random numbers.

For results that are then rounded to float16 or bfloat16 there are functions with half the
instructions. Their results are within 2**-14 of the exact result; the rounding itself may cost
2**-12. Weights between 0 and 1 that are below 2**-126 may come out as any number up to that.

An SM executes 128 multiply-adds per clock, but only 16 reciprocals, exponentials or hyperbolic
tangents, and the code of an epilogue is long: every instruction counts. The normal distribution
function is a power of two whose exponent is a polynomial. Tried, and slower, although it takes
fewer special functions: to divide by multiply-adds in the logistic function.

Sources: J.-M. Muller, "Elementary Functions", 3rd ed., 2016, chapters 3 and 11, for polynomials and
the reduction of exp's argument; M. M. Shepherd and J. G. Laframboise, "Chebyshev approximation of
(1 + 2x) exp(x^2) erfc x in 0 <= x < inf", Mathematics of Computation 36, 1981, for the normal tail;
P. Markstein, "IA-64 and Elementary Functions", 2000, for division by refining a reciprocal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numba.core import config as _config

from dxgemm.handwritten.parts.intrinsics import device_function
from dxgemm.handwritten.parts.unroll import static_range, unroll


@dataclass(frozen=True)
class NormalTail:
    """Phi(-x) = exp(-x * x / 2) * y * p(scale * y + offset) with y = 1 / (x + shift).

    Attributes:
        shift, scale, offset: constants that map x from 0 to `end` to an argument of p from 1 to -1.
        end: least x from which on Phi(-x) rounds to 0.
        coefficients: coefficients of the polynomial p, that of the highest power first.
    """

    shift: float
    scale: float
    offset: float
    end: float
    coefficients: tuple[float, ...]


# Written by docs/elementary.py, which fits them.
# fit:begin
# (exp(r) - 1 - r) / r**2 for |r| up to ln(2) / 2, the highest power first.
EXPM1_REST = (
    2.5100472505694996e-08,
    2.7620201591031547e-07,
    2.7557268276905696e-06,
    2.4801521057868204e-05,
    0.00019841269863171557,
    0.0013888888917367081,
    0.008333333333330039,
    0.041666666666623824,
    0.16666666666666669,
    0.5000000000000001,
)
NORMAL_TAIL_FLOAT32 = NormalTail(
    shift=2.0,
    scale=4.533203125,
    offset=-1.2666015625,
    end=15.0,
    coefficients=(
        -1.7267418495538736e-05,
        -3.818111735945509e-05,
        0.00022512240746752306,
        -9.899172805182667e-05,
        -0.0010967314624198213,
        0.002796389444143325,
        0.0018478267103877715,
        -0.024788750943409592,
        0.01238364672764328,
        0.29705984953071984,
        0.7117270764129865,
    ),
)
NORMAL_TAIL_FLOAT64 = NormalTail(
    shift=4.0,
    scale=8.8203125,
    offset=-1.205078125,
    end=39.0,
    coefficients=(
        7.691320373719789e-11,
        -1.131027342808464e-10,
        -7.067075614026232e-10,
        1.6846559739338012e-09,
        2.6737759097675656e-09,
        -1.37857761188851e-08,
        1.7240921015963833e-09,
        8.393251855620107e-08,
        -1.139382736362568e-07,
        -4.3550265199588425e-07,
        1.2136447099543457e-06,
        2.1842589862931603e-06,
        -1.0466824564914321e-05,
        -1.3622773617511685e-05,
        8.849127979511046e-05,
        0.00014721672462219163,
        -0.0007375648713366493,
        -0.0025016826915621754,
        0.003259557167186301,
        0.04290985462301787,
        0.15637671171380654,
        0.36391261215148313,
        0.6212416817653494,
        0.8153242877866808,
    ),
)
# log2(Phi(-x)) for x up to the end, the highest power first, for results of 11 bits or fewer.
NORMAL_LOG_END = 13.0
NORMAL_LOG = (
    -1.7228355015726054e-09,
    1.2794229495969018e-07,
    -4.1829036989775725e-06,
    7.963796168556283e-05,
    -0.0009875762792215042,
    0.00850329982234675,
    -0.05350319887641742,
    -0.45942569478087186,
    -1.1506367335484804,
    -1.0000600802256385,
)
# (Phi(-x)**(1/4) - (1/2)**(1/4)) / x for x up to the end, the highest power first.
NORMAL_ROOT_END = 8.3
NORMAL_ROOT = (
    3.102467970355473e-20,
    -2.246383098002978e-18,
    7.497949987861461e-17,
    -1.527177525378766e-15,
    2.1149898067233255e-14,
    -2.09256137673177e-13,
    1.4942576379089384e-12,
    -7.28060302294152e-12,
    1.6697697268259432e-11,
    7.878962347241809e-11,
    -1.0367783193507974e-09,
    5.302301838097877e-09,
    -1.4941871179270163e-08,
    2.599670725974765e-08,
    7.4014717976467856e-09,
    -1.0880831791896876e-06,
    6.391472001896405e-06,
    1.6112634756288202e-05,
    -0.0002045741483844041,
    -0.00018165310566885603,
    0.0039157280939021806,
    0.004596948881092754,
    -0.050187307918655485,
    -0.1677345667413498,
)
# fit:end

TWICE_FOURTH_ROOT_OF_HALF = 2.0 * 0.5**0.25
TWICE_ROOT_OF_HALF = 2.0 * 0.5**0.5

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.6931471805599453  # and the rest of ln 2
LN2_LOW = 2.3190468138462996e-17
# Adding this to a float64 below 2**51 leaves the nearest integer in the low bits of the sum.
TO_INTEGER = 1.5 * 2.0**52
# The power of two in exp is first made too large by this exponent, since the smallest powers are
# subnormal.
HEADROOM = 128
# From these x on exp(-x) rounds to 0, and tanh to 1.
EXP_END_FLOAT32, EXP_END_FLOAT64 = 104.0, 746.0
TANH_END = 20.0
# Below this, x * Phi(x) and gelu_tanh are -0.0 in every dtype; minus infinity times 0 would be NaN.
TIMES_NORMAL_CDF_END = GELU_TANH_END = -40.0
# gelu_tanh(x) = x * logistic(x * (GELU_TANH_FIRST + GELU_TANH_THIRD * x**2)).
GELU_TANH_FIRST = 2.0 * math.sqrt(2.0 / math.pi)
GELU_TANH_THIRD = 0.044715 * GELU_TANH_FIRST

if _config.ENABLE_CUDASIM:

    def fma(a: Any, b: Any, c: Any) -> Any:
        scalar = type(a)
        b, c = scalar(b), scalar(c)
        if not all(map(math.isfinite, (a, b, c))):
            return a * b + c
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        return scalar(exact) if exact else a * b + c  # this has the right sign of zero

    def wide_product(a: Any, b: Any) -> Any:
        return np.uint64(a) * np.uint64(b)

    def reciprocal_estimate(x: Any) -> Any:
        return type(x)(1 / x * (1 + 2.0**-20))

    def exp2_estimate(x: Any) -> Any:
        power = np.exp2(x)
        return type(x)(0.0) if power < np.finfo(type(x)).smallest_normal else power

    def tanh_estimate(x: Any) -> Any:
        mantissa, exponent = np.frexp(np.tanh(x))
        return np.ldexp(np.rint(mantissa * np.float32(2.0**11)), exponent - 11)

    def power_of_two(integer: Any) -> Any:
        return math.ldexp(1.0, int(integer - TO_INTEGER)) if integer == integer else math.nan

    without_sign = abs

    def positive_part(x: Any) -> Any:
        return -0.0 if np.signbit(x) else x

    _PAIRS: dict[str, Any] = {}  # those of the host serve

    def larger(x: Any, y: Any) -> Any:
        return x if x > y or x != x or (x == y and np.signbit(y)) else y

    def smaller(x: Any, y: Any) -> Any:
        return x if x < y or x != x else y

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.extending import intrinsic, overload
    from numba.cuda.typing import signature

    from dxgemm.handwritten.parts.intrinsics import inline_ptx

    @intrinsic
    def fma(typing_context, a, b, c):
        """a * b + c, rounded once, in the type of a."""

        def generate(context, builder, sig, args):
            return builder.fma(*args)

        return signature(a, a, a, a), generate

    @intrinsic
    def wide_product(typing_context, a, b):
        """a * b of two uint32 as uint64, in one instruction, which LLVM does not find."""

        def generate(context, builder, sig, args):
            word = ir.IntType(32)
            function = ir.FunctionType(ir.IntType(64), [word, word])
            text = "mul.wide.u32 $0, $1, $2;"
            return builder.call(ir.InlineAsm(function, text, "=l,r,r", False), args)

        return signature(types.uint64, types.uint32, types.uint32), generate

    def _estimate(operation: str, x: Any) -> Any:
        name, register = {types.float32: ("f32", "f"), types.float64: ("f64", "d")}[x]

        def generate(context, builder, sig, args):
            function = ir.FunctionType(args[0].type, [args[0].type])
            text = f"{operation}.approx.ftz.{name} $0, $1;"
            return builder.call(
                ir.InlineAsm(function, text, f"={register},{register}", False), args
            )

        return signature(x, x), generate

    @intrinsic
    def reciprocal_estimate(typing_context, x):
        """1 / x to about 20 bits in float64, to the last bit in float32; x and 1 / x are normal."""
        return _estimate("rcp", x)

    @intrinsic
    def exp2_estimate(typing_context, x):
        """2.0**x of a float32, to 22 bits; 0 where the result is not normal."""
        return _estimate("ex2", x)

    @intrinsic
    def tanh_estimate(typing_context, x):
        """tanh(x) of a float32, within 2**-11 of itself, in one instruction."""

        def generate(context, builder, sig, args):
            function = ir.FunctionType(args[0].type, [args[0].type])
            text = "tanh.approx.f32 $0, $1;"
            return builder.call(ir.InlineAsm(function, text, "=f,f", False), args)

        return signature(x, x), generate

    @intrinsic
    def power_of_two(typing_context, integer):
        """2.0**n, where n is in the low bits of a sum with `TO_INTEGER`."""

        def generate(context, builder, sig, args):
            bits = ir.IntType(64)
            shifted = builder.shl(builder.bitcast(args[0], bits), bits(52))
            return builder.bitcast(builder.add(shifted, bits(1023 << 52)), args[0].type)

        return signature(types.float64, types.float64), generate

    def _extreme_float32(operation: str) -> Any:
        """`min` or `max` that NaN passes through, an instruction since compute capability 8.0."""

        @intrinsic
        def extreme(typing_context, x, y):
            def generate(context, builder, sig, args):
                function = ir.FunctionType(args[0].type, [args[0].type] * 2)
                text = f"{operation}.NaN.f32 $0, $1, $2;"
                return builder.call(ir.InlineAsm(function, text, "=f,f,f", False), args)

            return signature(x, x, x), generate

        return extreme

    _larger_float32, _smaller_float32 = _extreme_float32("max"), _extreme_float32("min")

    def larger(x, y):
        raise NotImplementedError("for kernels")

    def smaller(x, y):
        raise NotImplementedError("for kernels")

    @overload(larger)
    def _choose_larger(x, y):
        if x == y == types.float32:
            return lambda x, y: _larger_float32(x, y)
        return lambda x, y: x if x > y or x != x else y

    @overload(smaller)
    def _choose_smaller(x, y):
        if x == y == types.float32:
            return lambda x, y: _smaller_float32(x, y)
        return lambda x, y: x if x < y or x != x else y

    def _make_pair(operation: str) -> Any:
        @intrinsic
        def pair(typing_context, x, y):
            halves = ir.VectorType(ir.IntType(16), 2)

            def generate(context, builder, sig, args):
                given = zip(args, sig.args)
                words = [context.cast(builder, *each, types.int32) for each in given]
                if ConfigStack().top().compute_capability >= (9, 0):  # one instruction, or half
                    text = f"{operation.replace('sum', 'add')}.s16x2 $0, $1, $2;"
                    return inline_ptx(builder, ir.IntType(32), text, "=r,r,r", words)
                first, second = (builder.bitcast(word, halves) for word in words)
                if operation == "sum":
                    found = builder.add(first, second)
                else:
                    order = builder.icmp_signed(">" if operation == "max" else "<", first, second)
                    found = builder.select(order, first, second)
                return builder.bitcast(found, ir.IntType(32))

            return signature(types.int32, x, y), generate

        return pair

    _PAIRS = {f"pair_{name}": _make_pair(name) for name in ("sum", "max", "min")}

    def _on_words(text: str) -> Any:
        """Operation on the two words of a float64 that is opaque to the compiler.

        The compiler would turn it into an instruction of the FP64 unit, which is busy, while the
        integer units are free.
        """

        @intrinsic
        def operate(typing_context, x):
            def generate(context, builder, sig, args):
                function = ir.FunctionType(args[0].type, [args[0].type])
                words = "{ .reg .b32 low, high, sign; mov.b64 {low, high}, $1; "
                whole = f"{words}{text} mov.b64 $0, {{low, high}}; }}"
                return builder.call(ir.InlineAsm(function, whole, "=d,d", False), args)

            return signature(types.float64, types.float64), generate

        return operate

    without_sign = _on_words("and.b32 high, high, 0x7fffffff;")
    # x, or -0.0 if the sign bit of x is set.
    positive_part = _on_words(
        "shr.s32 sign, high, 31; lop3.b32 high, high, sign, 0x80000000, 0xb8; "
        "not.b32 sign, sign; and.b32 low, low, sign;"
    )


def _make_polynomial(coefficients: tuple[float, ...]) -> Callable[..., Any]:
    """Device function of x by Horner's scheme; the coefficient of the highest power is first."""
    terms = len(coefficients)

    def polynomial(x):
        value = fma(x, coefficients[0], coefficients[1])
        for i in static_range(2, terms):
            value = fma(x, value, coefficients[i])
        return value

    return device_function(unroll(polynomial))


_expm1_rest = _make_polynomial(EXPM1_REST)


@device_function
def _reciprocal_of_sum(x, y):
    """1 / (x + y), as if the sum were not rounded; x, y and the result must be normal."""
    estimate = reciprocal_estimate(x + y)
    error = fma(-estimate, x, fma(-estimate, y, 1.0))
    return fma(estimate, fma(error, error, error), estimate)


@device_function
def _bounded(x, end):
    """The smaller of |x| and `end`."""
    magnitude = abs(x)
    return end if magnitude > end else magnitude


@device_function
def _reduced(x):
    """n and p with exp(x) = 2**n * (1 + p); the integer n is given as a sum with `TO_INTEGER`."""
    integer = fma(x, LOG2_E, TO_INTEGER)
    n = integer - TO_INTEGER
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    return integer, fma(r * r, _expm1_rest(r), r)


@device_function
def _exp_float32(x):
    return math.exp(x)


@device_function
def _exp_float64(x):
    """exp(x) for x from -780 to 0; values beyond would need libdevice's branches."""
    integer, p = _reduced(x)
    power = power_of_two(integer + HEADROOM)
    return fma(power, p, power) * 2.0**-HEADROOM


@device_function
def _tanh_float32(x):
    return math.tanh(x)


@device_function
def _tanh_float64(x):
    """-q / (2 + q) with q = exp(-2 |x|) - 1, which loses no digits near 0."""
    integer, p = _reduced(-2.0 * _bounded(x, TANH_END))
    power = power_of_two(integer)
    q = fma(power, p, power - 1.0)
    return math.copysign(q * _reciprocal_of_sum(q, 2.0), x)


def _make_decay(scalar: Any, exp: Callable[..., Any], end: float) -> Callable[..., Any]:
    end = scalar(end)

    def decay(x):
        """exp(-|x|)"""
        return exp(-_bounded(x, end))

    return device_function(decay)


# exp(-|x|) by the dtype of the argument.
DECAY = {
    "float32": _make_decay(np.float32, _exp_float32, EXP_END_FLOAT32),
    "float64": _make_decay(np.float64, _exp_float64, EXP_END_FLOAT64),
}


def _make_logistic(scalar: Any, decay: Callable[..., Any]) -> Callable[..., Any]:
    zero, one = scalar(0.0), scalar(1.0)

    def logistic(x):
        small = decay(x)
        inverse = _reciprocal_of_sum(small, one)
        return inverse if x >= zero else small * inverse

    return device_function(logistic)


def _make_normal_cdf(scalar: Any, exp: Callable[..., Any], tail: NormalTail) -> Callable[..., Any]:
    zero, half, one = scalar(0.0), scalar(0.5), scalar(1.0)
    shift, scale, offset, end = map(scalar, (tail.shift, tail.scale, tail.offset, tail.end))
    polynomial = _make_polynomial(tail.coefficients)

    def normal_cdf(x):
        magnitude = _bounded(x, end)
        y = _reciprocal_of_sum(magnitude, shift)
        square = magnitude * magnitude
        # The rounding error of the square would be hundreds of units in the last place of exp.
        rounded_off = fma(magnitude, magnitude, -square)
        power = exp(-half * square)
        power = fma(power, -half * rounded_off, power)
        upper = power * (y * polynomial(fma(y, scale, offset)))
        return upper if x < zero else one - upper

    return device_function(normal_cdf)


_logistic_float32 = _make_logistic(np.float32, DECAY["float32"])
_logistic_float64 = _make_logistic(np.float64, DECAY["float64"])
_normal_cdf_float32 = _make_normal_cdf(np.float32, _exp_float32, NORMAL_TAIL_FLOAT32)
_normal_cdf_float64 = _make_normal_cdf(np.float64, _exp_float64, NORMAL_TAIL_FLOAT64)
_normal_root = _make_polynomial(NORMAL_ROOT)


def _make_times_normal_cdf(normal_cdf: Callable[..., Any]) -> Callable[..., Any]:
    end = np.float32(TIMES_NORMAL_CDF_END)

    def times_normal_cdf(x):
        bounded = end if x < end else x
        return bounded * normal_cdf(bounded)

    return device_function(times_normal_cdf)


_times_normal_cdf_float32 = _make_times_normal_cdf(_normal_cdf_float32)


@device_function
def _times_normal_cdf_float64(x):
    """max(x, 0) - |x| Phi(-|x|) in half the instructions of x times `normal_cdf`.

    The error is about 2 units in the last place of x, as with erf, and of the result where x is
    positive. A fourth power replaces exp: it is tiny where the polynomial is merely small. The
    polynomial leaves out its value at 0, and so does the square, so that little is lost to
    rounding: (r + v)**2 - r**2 = v * (v + 2 * r).
    """
    magnitude = without_sign(x)
    is_far = magnitude > NORMAL_ROOT_END
    bounded = NORMAL_ROOT_END if is_far else magnitude
    above = bounded * _normal_root(bounded)
    above = above * (above + TWICE_FOURTH_ROOT_OF_HALF)
    upper = 0.0 if is_far else fma(above, above + TWICE_ROOT_OF_HALF, 0.5)
    return fma(-bounded, upper, positive_part(x))


def _by_type(single: Callable[..., Any], double: Callable[..., Any]) -> Callable[..., Any]:
    """Combine two device functions into one: `single` for float32, `double` for float64."""
    if _config.ENABLE_CUDASIM:
        return lambda x: single(x) if isinstance(x, np.float32) else double(np.float64(x))

    def function(x):
        raise NotImplementedError("for kernels")

    @overload(function)
    def choose(x):
        return (lambda x: single(x)) if x == types.float32 else (lambda x: double(np.float64(x)))

    return function


def _make_gelu_tanh(scalar: Any, logistic: Callable[..., Any]) -> Callable[..., Any]:
    first, third, end = map(scalar, (GELU_TANH_FIRST, GELU_TANH_THIRD, GELU_TANH_END))

    def gelu_tanh(x):
        bounded = end if x < end else x
        return bounded * logistic(bounded * fma(bounded * bounded, third, first))

    return device_function(gelu_tanh)


_gelu_tanh_float32 = _make_gelu_tanh(np.float32, _logistic_float32)
_gelu_tanh_float64 = _make_gelu_tanh(np.float64, _logistic_float64)
_normal_log = _make_polynomial(NORMAL_LOG)


@device_function
def _rounded_normal_cdf(x):
    upper = exp2_estimate(_normal_log(_bounded(x, np.float32(NORMAL_LOG_END))))
    return upper if x < np.float32(0.0) else np.float32(1.0) - upper


@device_function
def _rounded_times_normal_cdf(x):
    """max(x, 0) - |x| Phi(-|x|)"""
    bounded = _bounded(x, np.float32(NORMAL_LOG_END))
    return fma(-bounded, exp2_estimate(_normal_log(bounded)), larger(x, np.float32(-0.0)))


@device_function
def _inverse_of_power(x):
    """1 / (1 + 2**x)"""
    return reciprocal_estimate(exp2_estimate(x) + np.float32(1.0))


@device_function
def _rounded_logistic(x):
    return _inverse_of_power(np.float32(-LOG2_E) * x)


@device_function
def _rounded_gelu_tanh(x):
    first, third = np.float32(-LOG2_E * GELU_TANH_FIRST), np.float32(-LOG2_E * GELU_TANH_THIRD)
    end = np.float32(GELU_TANH_END)
    bounded = end if x < end else x
    return bounded * _inverse_of_power(bounded * fma(bounded * bounded, third, first))


# The keys are the names in `dxgemm.epilogues.elementary`.
FUNCTIONS = {
    "larger": larger,
    "smaller": smaller,
    "fast_tanh": _by_type(tanh_estimate, _tanh_float64),
    "gelu_tanh": _by_type(_gelu_tanh_float32, _gelu_tanh_float64),
    "logistic": _by_type(_logistic_float32, _logistic_float64),
    "normal_cdf": _by_type(_normal_cdf_float32, _normal_cdf_float64),
    "tanh": _by_type(_tanh_float32, _tanh_float64),
    "times_normal_cdf": _by_type(_times_normal_cdf_float32, _times_normal_cdf_float64),
    "wide_product": wide_product,
    **_PAIRS,
}
# Functions for results that are rounded to float16 or bfloat16.
ROUNDED_FUNCTIONS = FUNCTIONS | {
    "gelu_tanh": _by_type(_rounded_gelu_tanh, _gelu_tanh_float64),
    "logistic": _by_type(_rounded_logistic, _logistic_float64),
    "normal_cdf": _by_type(_rounded_normal_cdf, _normal_cdf_float64),
    "times_normal_cdf": _by_type(_rounded_times_normal_cdf, _times_normal_cdf_float64),
}
