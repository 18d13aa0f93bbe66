"""Several GPUs: the operands' GPU is used whichever is current, and mixing GPUs is refused."""

import threading
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from contract import inability
from oracle.abilities import fitting_layouts
from oracle.cases import Case
from oracle.inputs import operands
from oracle.kinds import KINDS
from oracle.layouts import LAYOUTS

import dxgemm
from dxgemm import errors
from dxgemm.gpu.facts import _cores_per_sm, _tensor_multiply_adds, facts_of
from dxgemm.gpu.status import probe
from dxgemm.problem.define import define_problem
from dxgemm.problem.layout import Layout
from dxgemm.runtime.device import device_facts

several_gpus = pytest.mark.skipif(probe().device_count < 2, reason="needs two GPUs")


def layout(shape: tuple[int, int], device: int) -> Layout:
    return Layout(shape, (4 * shape[1], 4), "float32", device, read_only=False)


def test_operands_on_two_gpus_are_refused_by_name() -> None:
    with pytest.raises(errors.DeviceMismatchError, match=r"a on GPU 0, b on GPU 1"):
        define_problem(
            layout((2, 3), 0), layout((3, 4), 1), None, None, alpha_is_zero=False, beta_is_zero=True
        )


def test_a_host_operand_goes_where_the_others_are() -> None:
    problem, shape = define_problem(
        layout((2, 3), 1), layout((3, 4), -1), None, None, alpha_is_zero=False, beta_is_zero=True
    )
    assert (problem.m, problem.n, shape) == (2, 4, (2, 4))


@pytest.mark.gpu
def test_facts_of_the_gpu_are_those_that_cuda_core_reads() -> None:
    from cuda.core import Device

    gpu = Device(0)
    properties = gpu.properties
    facts = facts_of(
        gpu.name,
        gpu.compute_capability,
        sm_count=properties.multiprocessor_count,
        clock_hz=properties.clock_rate * 1e3,
        memory_gbytes_per_s=properties.memory_clock_rate * properties.global_memory_bus_width / 4e6,
        smem_bytes_per_block=properties.max_shared_memory_per_block_optin,
    )
    assert asdict(device_facts(0)) == asdict(facts)


def test_peaks_of_hopper_are_those_of_its_whitepaper() -> None:
    sm_count, clock_ghz = 132, 1.83  # as the whitepaper rates the H100 SXM in half precision
    cores = _cores_per_sm(9, 0)
    rates = {**_tensor_multiply_adds(9, 0), "float32": cores["float32"], "int32": cores["int32"]}
    tflops = {name: 2e-3 * rate * sm_count * clock_ghz for name, rate in rates.items()}
    expected = {
        "int8": 1978.9, "float8": 1978.9, "float16": 989.4, "bfloat16": 989.4, "tf32": 494.7,
        "emulated": 989.4 / 3, "float32": 66.9, "int32": 33.5, "float64": 66.9,
    }  # fmt: skip
    assert tflops == pytest.approx(expected, rel=0.09)


def test_tensor_cores_compute_what_their_generation_does() -> None:
    assert _tensor_multiply_adds(6, 1) == {}
    assert set(_tensor_multiply_adds(7, 5)) == {"float16"}
    ampere = {"float16", "bfloat16", "tf32", "int8", "float64", "emulated"}
    assert set(_tensor_multiply_adds(8, 0)) == set(_tensor_multiply_adds(8, 6)) == ampere


@pytest.mark.parametrize("capability", [(8, 6), (8, 9), (10, 0), (10, 3), (12, 0)])
def test_float64_is_no_faster_on_most_tensor_cores(capability: tuple[int, int]) -> None:
    assert _tensor_multiply_adds(*capability)["float64"] == _cores_per_sm(*capability)["float64"]


def random_operands(library: str, ordinal: int) -> tuple[Any, Any, np.ndarray]:
    random = np.random.default_rng(ordinal)
    a, b = random.random((37, 21)), random.random((21, 45))
    if library == "torch":
        torch = pytest.importorskip("torch")
        sent = [torch.from_numpy(x).to(f"cuda:{ordinal}") for x in (a, b)]
    else:
        cupy = pytest.importorskip("cupy")
        with cupy.cuda.Device(ordinal):
            sent = [cupy.asarray(x) for x in (a, b)]
    return sent[0], sent[1], a @ b


@several_gpus
@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_the_gpu_of_the_operands_is_used_whichever_is_current(library: str) -> None:
    for ordinal in (1, 0, 1):
        a, b, expected = random_operands(library, ordinal)
        result = dxgemm.gemm(a, b)
        again = dxgemm.plan(a, b, result)()
        assert result.device == a.device
        found = again.get() if library == "cupy" else again.cpu().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-14)


@several_gpus
@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_all_gpus_give_the_same_bits(implementation: Any, kind: str, cupy: Any) -> None:
    wanted = KINDS[kind]
    if implementation.is_own and (reason := inability(implementation, kind)):
        pytest.skip(reason)
    shape = Case(kind, 264, 528, 1008).shapes
    layouts = fitting_layouts(implementation, kind)
    results = []
    for ordinal in range(probe().device_count):
        with cupy.cuda.Device(ordinal):
            a, b, c = map(cupy.asarray, operands("random", *shape, kind))
            if LAYOUTS[layouts[1]].order == "col":
                b = cupy.asfortranarray(b)
            try:
                dxgemm.gemm(a, b, c, implementation=implementation.name, precision=wanted.precision)
            except errors.UnsupportedProblemError as refusal:
                pytest.skip(str(refusal))
            results.append(c.get().tobytes())
    assert len(set(results)) == 1


@several_gpus
@pytest.mark.gpu
def test_arrays_of_two_gpus_are_refused() -> None:
    a, _, _ = random_operands("cupy", 0)
    _, b, _ = random_operands("cupy", 1)
    with pytest.raises(errors.DeviceMismatchError, match=r"a on GPU 0, b on GPU 1"):
        dxgemm.gemm(a, b)


@pytest.mark.gpu
def test_a_thread_that_never_used_cuda_can_launch() -> None:
    a, b, expected = random_operands("cupy", 0)
    c = dxgemm.gemm(a, b)
    c.fill(0)
    plan = dxgemm.plan(a, b, c, stream=0)
    errors_seen: list[BaseException] = []

    def launch() -> None:
        try:
            plan()
        except BaseException as error:
            errors_seen.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert not errors_seen
    np.testing.assert_allclose(c.get(), expected, rtol=1e-14)


def new_context(driver: Any) -> Any:
    """Make a context beside the primary one of GPU 0, and make it current."""
    _, device = driver.cuDeviceGet(0)
    try:
        error, context = driver.cuCtxCreate(None, 0, device)
    except TypeError:  # of CUDA 12
        error, context = driver.cuCtxCreate(0, device)
    assert not error
    return context


@pytest.mark.gpu
def test_a_foreign_context_is_refused_and_the_primary_one_works_afterwards(cupy: Any) -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    a, b, expected = random_operands("cupy", 0)
    c = cupy.zeros(expected.shape)
    plan = dxgemm.plan(a, b, c, implementation="coalesced")
    plan()
    cupy.cuda.Device().synchronize()
    _, before = driver.cuCtxGetCurrent()
    context = new_context(driver)
    try:
        for call in (
            plan,
            lambda: dxgemm.gemm(a, b, c, implementation="coalesced"),
            lambda: dxgemm.gemm(a, b, c, implementation="shared_tile"),  # not loaded yet
            lambda: dxgemm.plan(a, b, c, alpha=0.0, implementation="shared_tile"),
        ):
            with pytest.raises(errors.LaunchError, match="is not the primary one of GPU 0"):
                call()
        dxgemm.emulation_fallbacks()
    finally:
        driver.cuCtxSetCurrent(before)
        driver.cuCtxDestroy(context)
    for run in (plan, lambda: dxgemm.gemm(a, b, c, implementation="shared_tile")):
        c.fill(0)
        np.testing.assert_allclose(run().get(), expected, rtol=1e-14)
