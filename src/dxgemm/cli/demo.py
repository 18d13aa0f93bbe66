"""`dxgemm demo`: handwritten digits through gemm, checked against NumPy, every kernel timed.

The images of scikit-learn's digits are 64 pixels with values 0 to 16. All sums below are integers
under 2**24, exact in float32, so that results are compared for equality.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Annotated

import numpy as np
import typer

import dxgemm
from dxgemm.choice.implementation import KernelFile, Pipelined
from dxgemm.choice.selection import choose
from dxgemm.cli.device import enable_simulator_without_gpu
from dxgemm.cli.output import JsonOption, figure, note, print_json, print_table
from dxgemm.cli.timing import call_us, clock_name, fetch, send, time_text
from dxgemm.compiler import KernelSpec, build_kernels, find_kernel, kernel_wheel
from dxgemm.errors import MissingPackageError, UnsupportedProblemError
from dxgemm.gpu.status import simulator_enabled
from dxgemm.log import Report, progress_bar
from dxgemm.runtime.device import device_facts
from dxgemm.tuning.measure import candidate_specs
from dxgemm.tuning.workloads import Workload

DTYPES = ("float32", "float64")
# Numbers of images that take the simulator seconds; a GPU takes all images.
SIMULATED_GRAM_IMAGES, SIMULATED_IMAGES = 24, 120
PIXELS = 64


@dataclass(frozen=True)
class Timing:
    """Time of one implementation on the Gram matrix, or the `refusal` if there is none."""

    implementation: str
    dtype: str
    config: str | None = None
    time_us: float | None = None
    tflops: float | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class Classification:
    """Result of nearest neighbours: each test image has the label of the closest training image."""

    training_images: int
    test_images: int
    correct: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.test_images


def demo(
    every: Annotated[
        bool, typer.Option("--all", help="cuBLASDx's kernels too, which take minutes to build.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Classify and compare handwritten digits, with every implementation's time."""
    images, labels = _load_digits()
    enable_simulator_without_gpu()
    gram_images = images
    if simulator_enabled():
        note(
            f"Using {SIMULATED_IMAGES} of {len(images)} images, "
            f"{SIMULATED_GRAM_IMAGES} of them for the Gram matrix."
        )
        images, labels = images[:SIMULATED_IMAGES], labels[:SIMULATED_IMAGES]
        gram_images = images[:SIMULATED_GRAM_IMAGES]
    elif find_spec("numba") and not (
        dxgemm.cache_info().kernels or kernel_wheel(device_facts(0).arch)
    ):
        note("Building the kernel of the first product, which takes seconds; it is kept.")
    steps = [
        (implementation.name, dtype)
        for implementation in dxgemm.implementations()
        for dtype in DTYPES
        if not isinstance(implementation, KernelFile) or dtype in implementation.dtypes
        if every or simulator_enabled() or not isinstance(implementation, Pipelined)
    ]
    timings = []
    with progress_bar(is_shown=not as_json) as report:
        report(0, len(steps) + 1, "nearest neighbours")
        classification = _classify(images, labels)
        if not as_json:
            _print_classification(classification)
        if not simulator_enabled():
            _build(steps, len(gram_images), report)
        for done, (name, dtype) in enumerate(steps, 1):
            report(done, len(steps) + 1, f"Gram matrix, {name}, {dtype}")
            timings.append(_gram_matrix(gram_images.astype(dtype), name))

    if as_json:
        print_json(
            {
                "device": dxgemm.explain_shape(1, 1, 1).work.device,
                "clock": clock_name(),
                "gram_matrix": {
                    "images": len(gram_images),
                    "timings": [asdict(timing) for timing in timings],
                },
                "classification": asdict(classification) | {"accuracy": classification.accuracy},
            }
        )
    else:
        _print_timings(timings, len(gram_images))


def _build(steps: Sequence[tuple[str, str]], count: int, report: Report) -> None:
    """Build the kernels of the Gram matrix, in one process per CPU.

    Args:
        steps: names of implementations, each with a dtype.
        count: number of images.
        report: told of the progress.
    """
    device = device_facts(0)
    specs: dict[KernelSpec, None] = {}
    for name, dtype in steps:
        problem = Workload(dtype, count, count, PIXELS, layout="row_col").problem()
        with suppress(UnsupportedProblemError, MissingPackageError):
            specs |= dict.fromkeys(candidate_specs(problem, choose(problem, device, name)))
    tasks = [(spec, device.arch) for spec in specs]
    missing = sum(find_kernel(*task) is None for task in tasks)
    if missing and find_spec("numba"):
        note(f"Building {missing} kernels, in one process per CPU; they are kept.")
    try:
        build_kernels(tasks, progress=report)
    except MissingPackageError:
        note("No compiler is installed: the kernels of wheels are timed, and no others.")


def _print_classification(classification: Classification) -> None:
    typer.echo(
        f"Nearest neighbour among {classification.training_images} digits: "
        f"{classification.correct} of {classification.test_images} test digits right "
        f"({classification.accuracy:.1%}), the same labels as NumPy's."
    )


def _print_timings(timings: list[Timing], count: int) -> None:
    device = dxgemm.explain_shape(1, 1, 1).work.device
    typer.echo(f"Gram matrix of {count} digits, {count} x {count} x 64, on {device}")
    print_table(
        ("implementation", "config", "dtype", ">time", ">TFLOP/s"),
        [
            (t.implementation, t.config, t.dtype, time_text(t.time_us), figure(t.tflops, ".3g"))
            for t in timings
            if t.refusal is None
        ],
    )
    refusals: dict[str, list[str]] = {}
    for t in timings:
        if t.refusal is not None:
            # Without the kernel's name, which is another one in each.
            reason = re.sub("^.*? cannot compute this: |^building .*? (?=needs )", "", t.refusal)
            refusals.setdefault(reason, []).append(t.implementation)
    for reason, names in refusals.items():
        typer.echo(f"Not timed: {', '.join(dict.fromkeys(names))}: {reason}")
    typer.echo(f"Times: {clock_name()}. Every result equals NumPy's in every element.")


def _load_digits() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise dxgemm.errors.MissingPackageError(
            "the digits come with scikit-learn, which is not installed; pip install 'dxgemm[demo]'."
        ) from None
    images, labels = load_digits(return_X_y=True)
    return images.astype(np.float32), labels


def _gram_matrix(images: np.ndarray, implementation: str) -> Timing:
    """Compute and time the inner products of all pairs of images: images @ images.T."""
    sent = send(images)
    dtype = images.dtype.name
    try:
        plan = dxgemm.plan(sent, sent.T, implementation=implementation)
        start = time.perf_counter()
        result = fetch(plan())
        first_us = (time.perf_counter() - start) * 1e6
    except (UnsupportedProblemError, MissingPackageError) as error:
        return Timing(implementation, dtype, refusal=str(error))
    _require_equal(result, images @ images.T, f"the Gram matrix by {implementation} in {dtype}")
    config = plan.explain().config
    if simulator_enabled():
        return Timing(implementation, dtype, config, first_us)
    time_us = call_us(plan)
    count, pixels = images.shape
    tflops = 2 * count * count * pixels / time_us / 1e6
    return Timing(implementation, dtype, config, time_us, tflops)


def _classify(images: np.ndarray, labels: np.ndarray) -> Classification:
    """Classify every third image by squared distances |x|**2 + |y|**2 - 2 x.y, from one gemm."""
    is_test = np.arange(len(images)) % 3 == 0
    test, training = images[is_test], images[~is_test]
    norms = (test**2).sum(axis=1)[:, None] + (training**2).sum(axis=1)
    expected = norms - 2 * (test @ training.T)
    distances = send(norms)
    dxgemm.gemm(send(test), send(training).T, distances, alpha=-2.0, beta=1.0)
    result = fetch(distances)
    _require_equal(result, expected, "the matrix of distances")
    predicted = labels[~is_test][result.argmin(axis=1)]
    return Classification(
        len(training), len(test), correct=int((predicted == labels[is_test]).sum())
    )


def _require_equal(result: np.ndarray, expected: np.ndarray, name: str) -> None:
    wrong = int((result != expected).sum())
    if wrong:
        raise dxgemm.errors.WrongResultError(
            f"{name} differs from NumPy's in {wrong} of {result.size} elements."
        )
