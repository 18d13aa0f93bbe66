"""Calls of `gemm_grouped` with lists of arrays: one launch for problems of any sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dxgemm.call.factors import number
from dxgemm.call.group import Group, define, in_turn
from dxgemm.call.operand import Operand, inspected
from dxgemm.call.prepare import Bound
from dxgemm.call.scales import with_scales
from dxgemm.epilogues.chain import BoundEpilogue
from dxgemm.errors import (
    ArrayTypeError,
    DeviceMismatchError,
    DtypeError,
    DxgemmError,
    LaunchError,
    OverlapError,
    ShapeError,
)
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.operands import FLOAT8, exchanged_dtype
from dxgemm.lower.grouped import GroupMember, GroupTable, needs_later
from dxgemm.problem.dtypes import COMPLEX_PARTS
from dxgemm.problem.overlap import find_overlap
from dxgemm.problem.problem import Problem
from dxgemm.runtime.arrays import HOST
from dxgemm.runtime.capture import is_captured, launching_on
from dxgemm.runtime.program import FixedLaunch
from dxgemm.runtime.streams import stream_handle
from dxgemm.runtime.upload import upload, upload_now
from dxgemm.runtime.workspace import Workspace, borrowed

SCALES = ("scale_a", "scale_b", "scale_out")

# Problems of a call and the shapes of their results, by the identities of their layouts, which are
# shared, and their factors.
_Defined = dict[tuple[Any, ...], tuple[Problem, tuple[int, ...]]]


class _Member(NamedTuple):
    """Problem of the call, in the kernels' orientation, with its operands."""

    problem: Problem
    operands: dict[str, Operand]
    target: Operand
    alpha: float | complex
    beta: float | complex
    epilogue: BoundEpilogue | None = None  # of scales

    @property
    def dtype(self) -> str:
        """Dtype of the product, or of a and of b, as the caller has them."""
        dtype = self.problem.dtype
        return exchanged_dtype(dtype) if self.problem.is_transposed else dtype

    @property
    def read(self) -> list[Operand]:
        """Operands that are read, and must not be written by any problem."""
        names = ["a", "b"] if self.problem.k else []
        if self.problem.reads_c:
            c, target = self.operands["c"], self.target
            # Where c has the addresses of the result, it is read element for element: in place.
            if (c.pointer, c.layout.strides) != (target.pointer, target.layout.strides):
                names.append("c")
        return [self.operands[name] for name in names]

    @property
    def is_launched(self) -> bool:
        """True if the problem is computed: C = 0 * A @ B + 1 * C in place keeps every bit."""
        keeps_all = self.problem.k == 0 and self.beta == 1 and "out" not in self.operands
        keeps_all = keeps_all and not self.problem.modulus
        return not (self.problem.is_empty or keeps_all)

    @property
    def launched(self) -> GroupMember:
        """The problem as its launch takes it."""
        first, second = ("b", "a") if self.problem.is_transposed else ("a", "b")
        added = self.operands.get("c", self.target)
        operands = self.operands[first], self.operands[second], added, self.target
        starts = [operand.pointer // operand.layout.item_size for operand in operands]
        # Where k is 0, even a NaN in alpha is ignored.
        assert isinstance(self.alpha, float) and isinstance(self.beta, float)
        return GroupMember(self.problem, starts, self.alpha if self.problem.k else 0.0, self.beta)


class GroupOfLists(Group):
    """Call with lists of arrays.

    `result` is the list of the arrays that are written. Each problem has a launch of its own if
    some operand is in host memory, where the copies take the time, if kernels are simulated, if the
    GPU is too old for those of groups, in complex dtypes, of integers and of float8.
    """

    def __init__(
        self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any, stream: Any,
        precision: str | None = None, scales: tuple[Any, Any, Any] = (None, None, None),
    ) -> None:  # fmt: skip
        """Check all arguments of the call, before anything is launched or written."""
        self._precision = precision
        self._stream = None if stream is None else stream_handle(stream)
        arrays = _arrays(a=a, b=b, c=c, out=out)
        count = len(arrays["a"])
        factors = {"alpha": alpha, "beta": beta}
        alphas, betas = (_scalars(name, value, count) for name, value in factors.items())
        has_scales = any(scale is not None for scale in scales)
        listed = [*zip(*(_scales(*entry, count) for entry in zip(SCALES, scales)))]
        target = "c" if out is None else "out"
        members: list[_Member] = []
        anchors = [arrays[name][0] for name in ("out", "c", "a") if arrays.get(name)]
        defined: _Defined = {}
        try:
            for index in range(count):
                operands = {
                    name: inspected(name, of_all[index], self._stream, *anchors)
                    for name, of_all in arrays.items()
                }
                alpha, epilogue = alphas[index], None
                if has_scales:
                    written = arrays[target][index] if target in arrays else None
                    given = arrays["a"][index], arrays["b"][index], written
                    factors_of = alpha, betas[index], None, None
                    alpha, epilogue = with_scales(given, *factors_of, listed[index])
                member = _member(operands, alpha, betas[index], defined, precision)
                members.append(member._replace(epilogue=epilogue))
        except DxgemmError as error:
            names = [*"abc", "out", *(name for name, x in factors.items() if _is_list(x))]
            error.name_call(**{name: f"{name}[{len(members)}]" for name in names})
            raise
        self.result = [member.target.array for member in members]
        self.members = [member for member in members if member.is_launched]
        if not members:
            return
        _check_alike(members)
        _check_overlaps(members)
        self._anchor = members[0].target
        self._ordinal = self._anchor.layout.device
        everything = [operand for member in self.members for operand in member.operands.values()]
        self._order(everything)
        is_on_host = any(operand.layout.device == HOST for operand in everything)
        first = members[0].problem
        is_alone = first.dtype in (*COMPLEX_PARTS, *FLOAT8) or first.is_integer
        self._is_one_by_one = simulator_enabled() or is_on_host or is_alone
        self._is_one_by_one = self._is_one_by_one or needs_later(self._ordinal)

    def run(self) -> None:
        if not self.members or self._is_one_by_one:
            self.bind()()
            return
        stream = self._current_stream()
        if is_captured(stream):
            raise LaunchError(
                "gemm_grouped: the stream is under capture, and the graph would need the table of "
                "the problems for as long as it lives; capture the call of a plan_grouped."
            )
        table = self._table()

        def launch(stream: int) -> None:
            with borrowed(table.bytes.nbytes, self._ordinal, stream) as address:
                upload(table.bytes, address, self._ordinal, stream)
                table.launch(address, stream)

        self._queue(launch)

    def bind(self) -> Callable[[], None]:
        if not self.members or self._is_one_by_one:
            return in_turn([self._bound(member) for member in self.members])
        with launching_on(self._current_stream()):
            table = self._table()
        workspace = Workspace(table.bytes.nbytes, self._ordinal)
        upload_now(table.bytes, workspace.pointer, self._ordinal)
        launch = FixedLaunch([workspace], [table.fixed(workspace.pointer)])
        return lambda: self._queue(launch)

    def _table(self) -> GroupTable:
        return GroupTable([member.launched for member in self.members], self._ordinal)

    def _bound(self, member: _Member) -> Bound:
        arrays = {name: operand.array for name, operand in member.operands.items()}
        factors = member.alpha, member.beta
        return self._call_of(arrays, *factors, member.epilogue, self._precision)


def _arrays(**lists: Any) -> dict[str, Sequence[Any]]:
    """Check that the arguments are lists of one length; leave out None."""
    given = {name: arrays for name, arrays in lists.items() if arrays is not None}
    for name in ("a", "b", *given):
        if not isinstance(given.get(name), list | tuple):
            raise ArrayTypeError(
                f"gemm_grouped: {name} is a {type(given.get(name)).__name__}; pass a list of "
                "arrays. A batch in one array is for gemm."
            )
    if len({len(arrays) for arrays in given.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(arrays)}" for name, arrays in given.items())
        raise ShapeError(f"gemm_grouped: {lengths} arrays; the lists must be equally long.")
    return given


def _scalars(name: str, value: Any, count: int) -> list[float | complex]:
    """Check alpha or beta, and return a number for each problem."""
    if not _is_list(value):
        return [number(name, value)] * count
    if len(value) != count:
        raise ShapeError(
            f"gemm_grouped: {name} has {len(value)} numbers for {count} problems; pass one "
            "number, or one for each problem."
        )
    return [number(f"{name}[{index}]", entry) for index, entry in enumerate(value)]


def _scales(name: str, value: Any, count: int) -> Sequence[Any]:
    """Scale of each problem, of a list or the same for all."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ShapeError(
            f"gemm_grouped: {name} has {len(value)} scales for {count} problems; pass one for all, "
            "or one for each problem."
        )
    return value


def _is_list(value: Any) -> bool:
    """True if alpha or beta has a number for each problem."""
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _member(
    operands: dict[str, Operand],
    alpha: float | complex,
    beta: float | complex,
    defined: _Defined,
    precision: str | None,
) -> _Member:
    """Define a problem like one before if it can, and allocate its result if the call has none."""
    key = (
        *(id(operand.layout) for operand in operands.values()),
        type(alpha),
        alpha,
        type(beta),
        beta,
    )
    found = defined.get(key)
    if found is None:
        layouts = {name: operand.layout for name, operand in operands.items()}
        for name, layout in layouts.items():
            if len(layout.shape) != 2:
                raise ShapeError(f"gemm: <{name}> is {layout.shape}; each array must be a matrix.")
        found = defined[key] = define(layouts, alpha, beta, is_listed=True, precision=precision)
    problem, shape = found
    if not {"c", "out"} & operands.keys():
        a = operands["a"]
        new = a.library.empty(shape, problem.out_dtype, a.array)
        operands["out"] = inspected("out", new, None)
    target = operands["out"] if "out" in operands else operands["c"]
    return _Member(problem, operands, target, alpha, beta)


def _check_alike(members: Sequence[_Member]) -> None:
    """Refuse problems of several dtypes or GPUs, which one launch cannot compute."""
    first = members[0]
    devices: dict[int, str] = {}
    for index, member in enumerate(members):
        if member.dtype != first.dtype:
            raise DtypeError(
                f"gemm_grouped: a[0] is {first.dtype}, a[{index}] is {member.dtype}; all problems "
                "must have one dtype."
            )
        if member.problem.out_dtype != first.problem.out_dtype:
            name = first.target.name
            raise DtypeError(
                f"gemm_grouped: {name}[0] is {first.problem.out_dtype}, {name}[{index}] is "
                f"{member.problem.out_dtype}; all results must have one dtype."
            )
        for name, operand in member.operands.items():
            if operand.layout.device != HOST:
                devices.setdefault(operand.layout.device, f"{name}[{index}]")
    if len(devices) > 1:
        listed = ", ".join(f"{label} on GPU {device}" for device, label in devices.items())
        raise DeviceMismatchError(
            f"gemm_grouped: operands are spread over GPUs: {listed}; move them to one."
        )


def _check_overlaps(members: Sequence[_Member]) -> None:
    """Refuse a result that shares elements with any other array of the call."""
    used = [
        (index, operand)
        for index, member in enumerate(members)
        if member.is_launched
        for operand in (member.target, *member.read)
    ]
    uses = [(x.pointer, x.layout, x is members[index].target) for index, x in used]
    found = find_overlap(uses)
    if found is None:
        return
    first, second = sorted(found, key=lambda place: (not uses[place][2], place))
    (index, result), (other_index, operand) = used[first], used[second]
    label, other_label = f"{result.name}[{index}]", f"{operand.name}[{other_index}]"
    use = "written too" if uses[second][2] else f"read while {label} is written"
    raise OverlapError(
        f"gemm_grouped: {label} shares memory with {other_label}, which is {use}; pass a copy "
        "of one of them."
    )
