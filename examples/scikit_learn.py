"""scikit-learn on the GPU through the array API, with its products by dxgemm: nothing is changed.

    python examples/scikit_learn.py            # wants scikit-learn and torch, with a GPU

scikit-learn computes with the arrays that it gets. So PCA, ridge regression and nearest neighbours
of patches of its two photographs run on the GPU, as torch's tensors, and `dxgemm.patch` routes
their products. Prints the times without and with it, and what was routed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["SCIPY_ARRAY_API"] = "1"  # scikit-learn asks for it

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_sample_images
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import cosine_similarity, rbf_kernel

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
    return {
        "PCA to 32 components": lambda: PCA(32, svd_solver="covariance_eigh").fit_transform(x),
        "randomized PCA": lambda: PCA(
            32, svd_solver="randomized", random_state=0, power_iteration_normalizer="QR"
        ).fit_transform(x),
        "ridge regression": lambda: Ridge(solver="svd").fit(others, target).predict(others),
        "cosine similarities": lambda: cosine_similarity(few, x),
        "RBF kernel": lambda: rbf_kernel(few, few),
    }


def timed(task: Callable[[], Any], wait: Callable[[], None]) -> tuple[float, Any]:
    """Shortest time of a task in seconds, and its result."""
    result, times = task(), []
    for _ in range(ROUNDS):
        wait()
        begin = time.perf_counter()
        task()
        wait()
        times.append(time.perf_counter() - begin)
    return min(times), result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=int, default=2, help="pixels from a patch to the next")
    parser.add_argument("--all", action="store_true", help="route all calls, not the faster ones")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("scikit_learn: it needs a GPU, and torch finds none.", file=sys.stderr)
        return 1
    wait = torch.cuda.synchronize
    x = torch.from_numpy(patches(arguments.step)).cuda()
    print(f"{len(x)} patches of {x.shape[1]} numbers, on {torch.cuda.get_device_name()}")
    is_right = True
    with sklearn.config_context(array_api_dispatch=True):
        for name, task in tasks(x).items():
            before, expected = timed(task, wait)
            with dxgemm.patch(only=None if arguments.all else "faster") as patch:
                after, found = timed(task, wait)
            error = float((found.abs() - expected.abs()).abs().max() / expected.abs().max())
            is_right &= error < TOLERANCE  # columns of a PCA have either sign
            routed = sum(patch.report().routed.values())
            print(
                f"{name:22} {1e3 * before:8.2f} ms, patched {1e3 * after:8.2f} ms, {routed} calls "
                f"by dxgemm, results within {error:.1g}"
            )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
