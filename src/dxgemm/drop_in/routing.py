"""`patch`: the switch, what it routes, and the report of what fell through.

The hooks in CuPy and torch (`cupy_hooks`, `torch_hooks`) are installed while any patch is open, for
the whole process. The context of a call tells the patch that it goes through: the innermost one
that is open there, or else the one that was enabled last for the process. Without one the library
computes as before.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Any, Literal, NamedTuple

from dxgemm.call.prepare import prepare, run
from dxgemm.compiler.locks import Guard, lock_across_forks
from dxgemm.errors import (
    DtypeError,
    DxgemmError,
    LaunchError,
    PrecisionError,
    SettingError,
    named_in_errors,
    shown,
)
from dxgemm.gpu.status import simulator_enabled
from dxgemm.problem.arguments import Precision, check_list, check_name
from dxgemm.problem.define import check_precision
from dxgemm.problem.dtypes import COMPLEX_PARTS, RESULT_DTYPES, result_dtypes
from dxgemm.runtime.capture import is_captured
from dxgemm.runtime.device import call_driver

# Dtypes whose products have that dtype, as those of CuPy and torch do.
DTYPES = tuple(x for x in (*RESULT_DTYPES, *COMPLEX_PARTS) if result_dtypes(x)[0] == x)
LIBRARIES = ("cupy", "torch")  # each has a module of hooks here
SLOWER, CAPTURED = "the library is faster", "the stream is under capture, and it was not timed yet"
_MOST_LAYOUTS = 4096  # that are remembered
_MOST_REASONS = 100  # that are counted apart
# A trial: rounds of as many calls as take so long, at most.
ROUNDS, ROUND_S, MOST_CALLS = 5, 500e-6, 20


class Report(NamedTuple):
    """Calls that a patch has seen.

    Attributes:
        routed: number of calls that dxgemm computed, by function.
        fell_through: number of calls that the library computed, by function and reason.
    """

    routed: Mapping[str, int]
    fell_through: Mapping[tuple[str, str], int]

    def __str__(self) -> str:
        lines = [f"by dxgemm: {sum(self.routed.values())} calls"]
        lines += [f"  {count:>8}  {name}" for name, count in sorted(self.routed.items())]
        lines.append(f"fell through: {sum(self.fell_through.values())} calls")
        fallen = sorted(self.fell_through.items(), key=lambda entry: -entry[1])
        lines += [f"  {count:>8}  {name}: {reason}" for (name, reason), count in fallen]
        return "\n".join(lines)


class Hook(NamedTuple):
    """Function of a library that is hooked.

    Attributes:
        name: its name.
        own: computes a call by dxgemm; takes its arguments, and options of `gemm`.
        theirs: computes a call by the library.
        stream: finds the library's current stream, from the arguments.
        dtype: finds the name of the operands' dtype, from the arguments and the named ones.
        takes: True for keys of two arrays (`Library.inspect`) that `Patch.multiply` takes.
        elsewhere: computes a call of others.
    """

    name: str
    own: Callable[..., Any]
    theirs: Callable[..., Any]
    stream: Callable[..., int]
    dtype: Callable[[Any, Mapping[str, Any]], str]
    takes: Callable[..., bool] = lambda *_: False
    elsewhere: Callable[..., Any] = lambda *_: None


class _Decision:
    """Decision on the calls of a layout, and the number of those since they were last counted.

    Attributes:
        name: function that is called.
        own: computes a call by dxgemm; None to leave it to the library, for the reason.
        options: those of `prepare` for two operands alone.
        routed, fell_through: calls so far; no other thread runs within `+= 1`.
    """

    __slots__ = "fell_through", "name", "options", "own", "reason", "routed"

    def __init__(
        self, name: str, own: Callable[..., Any] | None, reason: str = "", precision: Any = None
    ) -> None:
        self.name, self.own, self.reason = name, own, reason
        self.options = None, None, None, precision, False, None, "", None, None
        self.routed = self.fell_through = 0


class Replaced:
    """Functions and methods that are replaced by hooks, and put back."""

    def __init__(self) -> None:
        self._kept: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Replace an attribute of a module or a class."""
        self._kept.append((owner, name, vars(owner).get(name)))
        is_class = isinstance(owner, type)
        function.__module__ = owner.__module__ if is_class else owner.__name__  # for pickle
        function.__qualname__ = f"{owner.__qualname__}.{name}" if is_class else name
        setattr(owner, name, function)

    def put_back(self) -> None:
        """Undo all; a method that was inherited is inherited again."""
        while self._kept:
            owner, name, function = self._kept.pop()
            if function is None:
                delattr(owner, name)
            else:
                setattr(owner, name, function)


class Patch:
    """Routing of products, as `patch` makes it; see there."""

    def __init__(self, dtypes: tuple[str, ...], precision: Any, only: str | None) -> None:
        """Take checked arguments."""
        self._options: dict[str, dict[str, Any]] = {dtype: {} for dtype in dtypes}
        for dtype, options in self._options.items():
            if precision is not None and _has_precision(precision, dtype):
                options["precision"] = precision
        self._only = only
        self._entered: list[None] = []  # one for each context that is entered and not left
        self._known: dict[Hashable, _Decision] = {}  # by layout
        self._lock = threading.Lock()
        self._routed: Counter[str] = Counter()  # without those of known layouts
        self._fell_through: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Patch:
        """Route products of this context, such as this thread or asyncio task."""
        install()
        self._entered.append(None)
        _of_context.set((*_of_context.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        if not self._entered:
            raise SettingError("patch: its context is not entered.")
        self._entered.pop()
        stack = _of_context.get()
        if self in stack:  # not where a generator is closed in another context
            place = len(stack) - 1 - stack[::-1].index(self)
            _of_context.set(stack[:place] + stack[place + 1 :])
        uninstall()

    def enable(self) -> Patch:
        """Route products of the whole process, in all its threads, until `disable`."""
        install()
        _of_process.append(self)
        return self

    def disable(self) -> None:
        """Undo `enable`.

        Raises:
            SettingError: it is not enabled.
        """
        if self not in _of_process:
            raise SettingError("patch: it is not enabled for the process; call enable() first.")
        _of_process.remove(self)
        uninstall()

    def report(self) -> Report:
        """Count the calls so far."""
        with self._lock:
            self._count(self._known.values())
            return Report(dict(self._routed), dict(self._fell_through))

    def _count(self, decisions: Iterable[_Decision]) -> None:
        """Move the calls of decisions to the counts of this patch."""
        for decision in decisions:
            name, reason = decision.name, decision.reason
            if decision.routed:
                self._routed[name] += decision.routed
            if decision.fell_through:
                is_full = len(self._fell_through) >= _MOST_REASONS
                is_new = (name, reason) not in self._fell_through
                key = name, "other reasons" if is_new and is_full else reason
                self._fell_through[key] += decision.fell_through
            decision.routed = decision.fell_through = 0

    def compute(
        self, hook: Hook, layout: Hashable, arguments: Any, named: Mapping[str, Any]
    ) -> Any:
        """Compute a call by dxgemm or by the library.

        Args:
            hook: function that is called.
            layout: tells the layouts of the operands, and the function.
            arguments, named: arguments of the call.
        """
        decision = self._known.get(layout) or self._decide(hook, layout, arguments, named)
        own = decision.own
        if own is not None:
            try:
                result = own(*arguments, **named)
            except DxgemmError as error:
                decision = self._refuse(hook, layout, error)
            else:
                decision.routed += 1
                return result
        decision.fell_through += 1
        return hook.theirs(*arguments, **named)

    def multiply(self, hook: Hook, library: Any, a: Any, b: Any) -> Any:
        """`compute` of two arrays of a `Library` alone: what `gemm` reads of them is the layout."""
        a_pointer, a_key = library.inspect(a)
        b_pointer, b_key = library.inspect(b)
        layout = hook.name, a_key, b_key
        decision = self._known.get(layout)
        if decision is None:
            if not hook.takes(a_key, b_key):
                return hook.elsewhere(a, b)
            decision = self._decide(hook, layout, (a, b), {})
        if decision.own is not None:
            keys = library, a_key, library, b_key, None, None, None, None
            found = a, b, None, None, a_pointer, b_pointer, 0, 0, keys, a, library
            try:
                result = run(prepare(a, b, None, 1.0, 0.0, None, decision.options, found=found))
            except DxgemmError as error:
                decision = self._refuse(hook, layout, error)
            else:
                decision.routed += 1
                return result
        decision.fell_through += 1
        return hook.theirs(a, b)

    def _refuse(self, hook: Hook, layout: Hashable, error: DxgemmError) -> _Decision:
        """Decision after an error; one of a launch need not come again."""
        return self._fall_through(hook, layout, _text(error), not isinstance(error, LaunchError))

    def _fall_through(
        self, hook: Hook, layout: Hashable, reason: str, lasts: bool = True
    ) -> _Decision:
        """Decision to leave a call to the library; kept for the layout if it lasts."""
        if not lasts:
            layout = hook.name, reason
            if layout in self._known:
                return self._known[layout]
        return self._keep(layout, _Decision(hook.name, None, reason))

    def _keep(self, layout: Hashable, decision: _Decision) -> _Decision:
        with self._lock:
            if len(self._known) >= _MOST_LAYOUTS:
                self._count(self._known.values())
                self._known.clear()
            elif layout in self._known:
                self._count([self._known[layout]])
            self._known[layout] = decision
        return decision

    def _decide(
        self, hook: Hook, layout: Hashable, arguments: Any, named: Mapping[str, Any]
    ) -> _Decision:
        """Decide on a layout that is new."""
        dtype = hook.dtype(arguments, named)
        options = self._options.get(dtype)
        if options is None:
            return self._fall_through(hook, layout, f"dtype {dtype}")
        if self._only is not None:  # without a trial `compute` finds out
            stream = hook.stream(*arguments)
            if not simulator_enabled() and is_captured(stream):
                return self._fall_through(hook, layout, CAPTURED, lasts=False)  # asked again
            try:
                reason = self._timed(hook, options, arguments, named, stream)
            except Exception as error:  # of memory, too: a trial has more results than one
                reason = _text(error)
            if reason:
                return self._fall_through(hook, layout, reason)
        own = partial(hook.own, **options) if options else hook.own
        return self._keep(layout, _Decision(hook.name, own, precision=options.get("precision")))

    def _timed(
        self, hook: Hook, options: Any, arguments: Any, named: Mapping[str, Any], stream: int
    ) -> str:
        """Time a call both ways, by the host's clock, so that the cost on the host counts too."""

        def seconds(way: Callable[..., Any], options: Mapping[str, Any], count: int) -> float:
            begin = perf_counter()
            for _ in range(count):
                way(*arguments, **named, **options)
            if not simulator_enabled():
                call_driver("cuStreamSynchronize", stream, failure="patch: a trial")
            return (perf_counter() - begin) / count

        stack = _of_context.get()
        _of_context.set((*stack, None))  # what the library's function calls is the library's too
        try:
            ways: list[tuple[Any, Any]] = [(hook.own, options), (hook.theirs, {})]
            for way in ways:  # kernels are built and loaded
                seconds(*way, 1)
            count = max(1, min(MOST_CALLS, int(ROUND_S / max(seconds(*way, 1) for way in ways))))
            rounds = [[seconds(*way, count) for way in ways] for _ in range(ROUNDS)]
        finally:
            _of_context.set(stack)
        own, theirs = map(min, zip(*rounds))
        return "" if own <= theirs else SLOWER


def current() -> Patch | None:
    """Patch that a call of this context goes through."""
    stack = _of_context.get()
    if stack:
        return stack[-1]
    return _of_process[-1] if _of_process else None


# Patches that are open, the innermost one last; None among them for the library's own.
_of_context: ContextVar[tuple[Patch | None, ...]] = ContextVar("open_patches", default=())
_of_process: list[Patch] = []


class Hooks:
    """Users of the hooks, and the modules that have installed theirs."""

    lock = lock_across_forks()
    changing = Guard(
        LaunchError,
        "patch: a signal handler or finalizer enters or leaves a context of patch or "
        "batch_invariant while its thread does so.",
    )
    users = 0
    installed: list[Any] = []  # noqa: RUF012


def install() -> None:
    """Hook CuPy and torch, as far as they are imported; each use is undone by `uninstall`."""
    with Hooks.lock, Hooks.changing:
        for library in LIBRARIES:
            if library in sys.modules:
                module = import_module(f"{__package__}.{library}_hooks")
                if module not in Hooks.installed:
                    module.install()
                    Hooks.installed.append(module)
        Hooks.users += 1


def uninstall() -> None:
    """Remove the hooks after their last use."""
    with Hooks.lock, Hooks.changing:
        Hooks.users -= 1
        while Hooks.installed and not Hooks.users:
            Hooks.installed.pop().uninstall()


def _has_precision(precision: Any, dtype: str) -> bool:
    try:
        check_precision(precision, dtype)
    except PrecisionError:
        return False
    return True


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@named_in_errors("patch")
def patch(
    *,
    dtypes: Iterable[str] | None = None,
    precision: Precision | None = None,
    only: Literal["faster"] | None = "faster",
) -> Patch:
    """Route products of CuPy and torch to dxgemm: `with patch():`, or `patch().enable()`.

    Of CuPy, `matmul`, `@`, `dot`, `tensordot`, `inner` and `einsum`, and what calls them; of torch
    on the GPU, `mm`, `bmm`, `addmm`, `baddbmm`, `mv` and `addmv`, and what computes by them:
    `matmul`, `@`, `einsum`, `torch.nn.functional.linear`, and the gradients.

    Args:
        dtypes: names of the dtypes that are routed; None for all whose products have that dtype:
            float16, bfloat16, float32, float64, complex64 and complex128.
        precision: as `gemm` takes it, for the dtypes that have it.
        only: "faster" for calls that are measured to be no slower than the library's: the first
            one of each layout is timed both ways. None for all that dxgemm can compute.

    Returns:
        A context manager, for the calls of its context: its thread, or asyncio task. `enable`
        switches it on for the process, and `disable` off. `report` counts the calls, and lists what
        fell through to the library.

    Raises:
        DtypeError, PrecisionError, SettingError: an argument is unknown.

    Notes:
        CuPy and torch are hooked if they are imported before. Contexts can be nested: the innermost
        one counts, then the one that was enabled last. A call that dxgemm refuses falls through to
        the library. The trial of a layout launches both ways a few times, and waits for the GPU;
        under CUDA-graph capture there is none, and a new layout falls through. Products of a
        backward pass run in threads of torch, which `enable` reaches alone.
    """
    chosen = DTYPES
    if dtypes is not None:
        chosen = tuple(check_list("dtypes", dtypes, DtypeError))
        for name in chosen:
            check_name("dtypes", name, DTYPES, DtypeError)
    if not (only is None or (isinstance(only, str) and only == "faster")):
        raise SettingError(f"patch: only is {shown(only)}; pass 'faster', or None for all calls.")
    if precision is not None and not any(_has_precision(precision, dtype) for dtype in chosen):
        check_precision(precision, chosen[0] if chosen else "float32")
    return Patch(chosen, precision, only)
