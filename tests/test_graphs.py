"""G14, as far as plans go: captured in a CUDA graph once, replayed on what the arrays then hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dxgemm
from dxgemm import reductions
from dxgemm.testing.cases import Case
from dxgemm.testing.check import assert_right
from dxgemm.testing.inputs import operands

pytestmark = pytest.mark.gpu

SHAPES = Case("float32", 129, 65, 33).shapes
FIRST, SECOND = (operands(data, *SHAPES, "float32") for data in ("random", "canary"))


@pytest.mark.parametrize(
    "implementation, kind",
    [(None, "float32"), ("pipeline", "float64"), ("pipeline_tma", "float16"), ("wgmma", "float16")],
)
def test_a_graph_of_cupy(implementation, kind):
    cupy = pytest.importorskip("cupy")
    shapes = Case(kind, 136, 264, 200).shapes
    first, second = (operands(data, *shapes, kind) for data in ("random", "canary"))
    arrays = [cupy.asarray(values) for values in first]
    plan = dxgemm.plan(*arrays, 0.7, 1.3, implementation=implementation)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        plan()
        graph = stream.end_capture()
        for values in (first, second):
            for array, new in zip(arrays, values):
                array.set(new)
            graph.launch(stream)
            stream.synchronize()
            assert_right(arrays[2].get(), *values, 0.7, 1.3)


def test_a_graph_of_torch():
    torch = pytest.importorskip("torch")
    a, b, c = (torch.from_numpy(np.array(values)).cuda() for values in FIRST)
    plan = dxgemm.plan(a, b, c, 0.7, 1.3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan()
    for values in (FIRST, SECOND):
        for tensor, new in zip((a, b, c), values):
            tensor.copy_(torch.from_numpy(np.array(new)))
        graph.replay()
        torch.cuda.synchronize()
        assert_right(c.cpu().numpy(), *values, 0.7, 1.3)


@pytest.mark.parametrize("fused", [True, False])
def test_a_graph_of_a_reduction(fused):
    cupy = pytest.importorskip("cupy")
    first, second = (operands(data, *SHAPES, "float32") for data in ("integers", "canary"))
    a, b, _ = map(cupy.asarray, first)
    reduction = replace(reductions.smallest(2, axis=1), fused=fused)
    plan = dxgemm.plan(a, b, epilogue=reduction, implementation="tuned")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        found = plan()
        graph = stream.end_capture()
        for values in (first, second):
            a.set(values[0])
            b.set(values[1])
            graph.launch(stream)
            stream.synchronize()
            expected = reduction.on_host(values[0] @ values[1])
            np.testing.assert_array_equal(found.values.get(), expected.values)
            np.testing.assert_array_equal(found.indices.get(), expected.indices)


def test_a_captured_reduction_takes_its_workspace_along():
    cupy = pytest.importorskip("cupy")
    first, second = (operands(data, *SHAPES, "float32") for data in ("integers", "canary"))
    a, b, _ = map(cupy.asarray, first)
    sums = cupy.zeros(a.shape[0], "float32")
    epilogue = reductions.sum(axis=1, out=sums)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        dxgemm.gemm(a, b, epilogue=epilogue, implementation="tuned")  # loads the kernels
        stream.begin_capture()
        dxgemm.gemm(a, b, epilogue=epilogue, implementation="tuned")
        graph = stream.end_capture()
        for values in (first, second):
            a.set(values[0])
            b.set(values[1])
            sums.fill(0)
            graph.launch(stream)
            stream.synchronize()
            np.testing.assert_allclose(
                sums.get(), epilogue.on_host(values[0] @ values[1]), rtol=1e-5
            )
