"""torch's own samples of its products (OpInfo), computed on dxgemm's kernels by `patch`.

Each sample is compared with the same operator on the CPU, in float64 or complex128, and so is its
gradient. What torch's own kernels do not compute as accurately counts as skipped.
"""

from __future__ import annotations

import itertools
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

import dxgemm
from dxgemm.gpu.status import simulator_enabled

DEVICE = "cpu" if simulator_enabled() else "cuda"
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
OPERATORS = (
    "mm", "bmm", "matmul", "__rmatmul__", "addmm", "addbmm", "baddbmm", "addmv", "addr", "mv",
    "dot", "vdot", "inner", "einsum", "tensordot", "linalg.multi_dot", "linalg.matrix_power",
    "linalg.vecdot", "nn.functional.linear", "nn.functional.bilinear", "cov", "corrcoef",
    "nn.functional.scaled_dot_product_attention",
)  # fmt: skip
MOST_SAMPLES = 20  # of an operator in a dtype
# Bound on the error, in units of eps of the dtype and of the largest element.
MOST_EPS = 64


@cache
def records() -> list[Any]:
    """torch's records of the operators."""
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:  # which torch's module takes one class from
            stub = types.ModuleType("expecttest")
            stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
            sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.name in OPERATORS and "triton" not in op.variant_test_name]


def run(name: str, dtype: str) -> dict[str, Any]:
    """Compute all samples of an operator in a dtype; returns counts, and what failed."""
    kind, patch = getattr(torch, dtype), dxgemm.patch(only=None)
    counts: dict[str, Any] = {"passed": 0, "skipped": {}, "failed": []}
    for op in records():
        if op.name == name and kind in op.supported_dtypes(DEVICE):
            _run_samples(op, dtype, patch, counts)
    report = patch.report()
    counts["routed"] = sum(report.routed.values())
    counts["fell_through"] = {f"{name}: {why}": n for (name, why), n in report.fell_through.items()}
    return counts


def _run_samples(op: Any, dtype: str, patch: Any, counts: dict[str, Any]) -> None:
    name, kind = f"{op.name} {op.variant_test_name}".strip(), getattr(torch, dtype)
    takes_gradients = op.supports_autograd and not simulator_enabled()
    samples = op.sample_inputs(DEVICE, kind, requires_grad=takes_gradients)
    for number, sample in enumerate(itertools.islice(samples, MOST_SAMPLES)):
        wide = sample.transform(_widened)
        expected = _results(op, wide)
        if isinstance(expected, str):
            _count(counts["skipped"], f"torch on the CPU: {expected}")
            continue
        fault = _fault(_results(op, sample), expected, kind)
        if fault:
            _count(counts["skipped"], f"torch's own kernels: {fault}")
            continue
        with _enabled(patch):
            found = _results(op, sample)
        fault = _fault(found, expected, kind)
        if fault:
            counts["failed"].append(f"{name} {dtype}, sample {number}: {fault}")
        else:
            counts["passed"] += 1
    if op.error_inputs_func is not None and dtype == "float32":
        _run_errors(name, op, patch, counts)


def _run_errors(name: str, op: Any, patch: Any, counts: dict[str, Any]) -> None:
    """Compute what torch refuses: the error is torch's."""
    for number, case in enumerate(op.error_inputs(DEVICE)):
        with _enabled(patch):
            sample = case.sample_input
            try:
                op(sample.input, *sample.args, **sample.kwargs)
            except case.error_type as error:
                if case.error_regex and not re.search(case.error_regex, str(error)):
                    counts["failed"].append(f"{name}, wrong input {number}: {error}")
                else:
                    counts["passed"] += 1
            else:
                counts["failed"].append(f"{name}, wrong input {number}: no error")


@contextmanager
def _enabled(patch: Any) -> Iterator[None]:
    """Route products of all threads, those of backward passes too."""
    patch.enable()
    try:
        yield
    finally:
        patch.disable()


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1


def _widened(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    wide = value.detach().cpu()
    if wide.is_complex():
        wide = wide.to(torch.complex128)
    elif wide.is_floating_point():
        wide = wide.to(torch.float64)
    return wide.requires_grad_(value.requires_grad)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _results(op: Callable[..., Any], sample: Any) -> list[torch.Tensor] | str:
    """Results of a sample and gradients of what needs them; or the error, as text."""
    try:
        results = [*_tensors(op(sample.input, *sample.args, **sample.kwargs))]
        inputs = [*_tensors((sample.input, sample.args, sample.kwargs))]
        inputs = [x for x in inputs if x.requires_grad]
        outputs = [x for x in results if x.requires_grad]
        if inputs and outputs:
            weights = [torch.ones_like(x) for x in outputs]
            grads = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
            results += [grad for grad in grads if grad is not None]
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    return [x.detach() for x in results]


def _fault(found: list[torch.Tensor] | str, expected: Any, dtype: torch.dtype) -> str:
    """What is wrong with results; "" if nothing is."""
    if isinstance(found, str):
        return found
    if [x.shape for x in found] != [x.shape for x in expected]:
        return f"shapes {[tuple(x.shape) for x in found]}"
    for result, exact in zip(found, expected, strict=True):
        if not exact.numel() or not (exact.is_floating_point() or exact.is_complex()):
            continue
        wide = result.cpu().to(exact.dtype)
        if not torch.equal(wide.isfinite(), exact.isfinite()):
            return "infinities or NaN"
        kept = exact.isfinite()
        error = (wide - exact).abs()[kept]
        size = exact.abs()[kept]
        if not size.numel():
            continue
        bound = MOST_EPS * torch.finfo(dtype).eps * max(size.max().item(), 1)
        if error.max() > bound:
            return f"an error of {error.max().item():.2g}, more than {bound:.2g}"
    return ""
