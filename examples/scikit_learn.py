"""scikit-learn on the GPU through the array API, with its products by dxgemm: nothing is changed.

    python examples/scikit_learn.py            # wants scikit-learn and torch, with a GPU

scikit-learn computes with the arrays that it gets. So PCA, a Gaussian mixture, ridge regression,
also with kernels, and similarities of patches of its two photographs run on the GPU, as torch's
tensors, and `dxgemm.patch` routes their products. Prints the times without and with it, and what
was routed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ["SCIPY_ARRAY_API"] = "1"  # scikit-learn asks for it

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_sample_images
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import cosine_similarity, rbf_kernel
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline

import dxgemm

SIDE = 8  # pixels along a patch
ROUNDS = 5
TOLERANCE = 1e-2  # of the largest element; rounding moves the last components of a PCA


def patches(step: int) -> np.ndarray:
    """Patches of the photographs, `step` pixels apart: one row each, of numbers from 0 to 1."""
    found = []
    for image in load_sample_images().images:
        windows = np.lib.stride_tricks.sliding_window_view(image, (SIDE, SIDE, 3))
        found.append(windows[::step, ::step].reshape(-1, SIDE * SIDE * 3))
    return np.concatenate(found).astype("float32") / 255


def tasks(x: Any) -> dict[str, Callable[[], Any]]:
    """Computations of scikit-learn on an array of the array API."""
    few, target = x[:4096], x[:, 95]
    others = x[:, :95]
    mixture = GaussianMixture(
        8, covariance_type="diag", init_params="random_from_data", max_iter=10, random_state=0
    )
    kernel_ridge = make_pipeline(
        Nystroem(gamma=0.05, n_components=512, random_state=0), Ridge(solver="svd")
    )
    return {
        "PCA to 32 components": lambda: PCA(32, svd_solver="covariance_eigh").fit_transform(x),
        "randomized PCA": lambda: PCA(
            32, svd_solver="randomized", random_state=0, power_iteration_normalizer="QR"
        ).fit_transform(x),
        "Gaussian mixture": lambda: mixture.fit(x).means_,
        "ridge regression": lambda: Ridge(solver="svd").fit(others, target).predict(others),
        "kernel ridge regression": lambda: kernel_ridge.fit(others, target).predict(others),
        "cosine similarities": lambda: cosine_similarity(few, x),
        "RBF kernel": lambda: rbf_kernel(few, few),
    }


def timed(task: Callable[[], Any]) -> tuple[float, Any]:
    """Shortest time of a task in seconds, and its result."""
    wait, times = torch.cuda.synchronize, []
    result = task()
    for _ in range(ROUNDS):
        wait()
        begin = time.perf_counter()
        task()
        wait()
        times.append(time.perf_counter() - begin)
    return min(times), result


def measure(name: str, step: int = 2, only: Any = "faster") -> tuple[float, float, int]:
    """Time a task in seconds, without and with the patch; count the calls that it routes.

    Raises:
        AssertionError: the results differ by more than rounding.
    """
    x = torch.from_numpy(patches(step)).cuda()
    task = tasks(x)[name]
    with warnings.catch_warnings(), sklearn.config_context(array_api_dispatch=True):
        warnings.simplefilter("ignore", ConvergenceWarning)  # a few steps are enough to time
        before, expected = timed(task)
        with dxgemm.patch(only=only) as patch:
            after, found = timed(task)
    # Columns of a PCA have either sign.
    error = float((found.abs() - expected.abs()).abs().max() / expected.abs().max())
    assert error < TOLERANCE, f"{name}: results differ by {error:.1g}"
    return before, after, sum(patch.report().routed.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=int, default=2, help="pixels from a patch to the next")
    parser.add_argument("--all", action="store_true", help="route all calls, not the faster ones")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("scikit_learn: it needs a GPU, and torch finds none.", file=sys.stderr)
        return 1
    shape = patches(arguments.step).shape
    print(f"{shape[0]} patches of {shape[1]} numbers, on {torch.cuda.get_device_name()}")
    for name in tasks(torch.zeros((1, 192))):
        only = None if arguments.all else "faster"
        before, after, routed = measure(name, arguments.step, only)
        times = f"{1e3 * before:8.2f} ms, patched {1e3 * after:8.2f} ms"
        print(f"{name:24} {times}, {routed} calls by dxgemm")
    return 0


if __name__ == "__main__":
    sys.exit(main())
