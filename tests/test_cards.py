"""Cards whose facts are known without one: names, figures, and the choice of kernels for them."""

import math
from dataclasses import replace

import pytest
from known_devices import T4, V100

import dxgemm
from dxgemm import errors
from dxgemm.choice.batch_invariant import rank_for_any_rows
from dxgemm.choice.columns import resident_blocks
from dxgemm.choice.emulation import native_config
from dxgemm.choice.implementation import misfit
from dxgemm.choice.legality import exclusion, fitting_configs, legal_kernels, refusal
from dxgemm.choice.registry import find_implementation
from dxgemm.choice.selection import all_rows, choose, rank
from dxgemm.gpu.cards import CARDS, find_card
from dxgemm.gpu.occupancy import sm_limits
from dxgemm.lower.ahead import kernel_specs
from dxgemm.lower.grouped import group_specs
from dxgemm.problem.define import contiguous_problem
from dxgemm.problem.dtypes import RESULT_DTYPES
from dxgemm.runtime.device import device_facts

KIB = 1024
FACTS = {short: card.facts for short, card in CARDS.items()}
SMALL_SMEM = [short for short in FACTS if not short.startswith(("A100", "H100", "H200", "G", "B"))]
# A card of each architecture; the rest differ in figures alone.
FIRST = {facts.arch: facts for facts in reversed(FACTS.values())}
every_card = pytest.mark.parametrize("device", FIRST.values(), ids=FIRST)
every_dtype = pytest.mark.parametrize("dtype", RESULT_DTYPES)

# Rates in NVIDIA's datasheets and whitepapers, dense, in TFLOP/s or TOP/s, at the clock that each
# is given for: float32 and float64 outside tensor cores; then tensor cores, summed in float32.
RATED = {
    "RTX 3080": ({"float32": 29.8}, {"float16": 59.5, "tf32": 29.8, "int8": 238}),
    "RTX 3090": ({"float32": 35.6}, {"float16": 71, "tf32": 35.6, "int8": 284}),
    "RTX A6000": ({"float32": 38.7}, {"float16": 154.8, "tf32": 77.4, "int8": 309.7}),
    "A10": ({"float32": 31.2}, {"float16": 125, "tf32": 62.5, "int8": 250}),
    "RTX 4060": ({"float32": 15.1}, {}),
    "RTX 4060 Ti": ({"float32": 22.1}, {}),
    "RTX 4090": ({"float32": 82.6}, {"float16": 165.2, "tf32": 82.6, "int8": 660.6}),
    "RTX 5090": ({"float32": 104.8}, {"float16": 209.5, "tf32": 104.8, "int8": 838}),
    "RTX 5080": ({"float32": 56.3}, {"float16": 112.6, "tf32": 56.3, "int8": 450.2}),
    "RTX PRO 6000": ({"float32": 125}, {}),
    "RTX 6000 Ada": ({"float32": 91.1}, {"float16": 364.2, "tf32": 182.1, "int8": 728.5}),
    "L4": ({"float32": 30.3}, {"float16": 121, "tf32": 60, "int8": 242.5}),
    "L20": ({"float32": 59.8}, {"float16": 119.5, "tf32": 59.8, "int8": 239}),
    "L40S": ({"float32": 91.6}, {"float16": 362.05, "tf32": 183, "int8": 733}),
    "A100 SXM 80GB": (
        {"float32": 19.5, "float64": 9.7},
        {"float16": 312, "tf32": 156, "int8": 624, "float64": 19.5},
    ),
    "H100 SXM": (
        {"float32": 67, "float64": 34},
        {"float16": 989.4, "tf32": 494.7, "int8": 1978.9, "float64": 67},
    ),
    "H100 PCIe": (
        {"float32": 51.2, "float64": 25.6},
        {"float16": 756, "tf32": 378, "int8": 1513, "float64": 51.2},
    ),
    "B200": ({"float32": 75, "float64": 37}, {"float16": 2250, "tf32": 1125, "int8": 4500}),
}


@pytest.mark.parametrize(
    "name, expected",
    [
        ("rtx 4090", "RTX 4090"),
        ("RTX4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("geforce 3080", "RTX 3080"),
        ("h100", "H100 SXM"),
        ("H100 SXM5", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("A100", "A100 SXM 80GB"),
        ("A100 (SXM4, 80 GB)", "A100 SXM 80GB"),
        ("h200", "H200 SXM"),
        ("6000", "RTX 6000 Ada"),
        ("rtx pro 6000", "RTX PRO 6000"),
        *((short, short) for short in CARDS),
        *((card.name, short) for short, card in CARDS.items()),
    ],
)
def test_a_card_has_several_names(name, expected):
    assert find_card(name) is CARDS[expected]


@pytest.mark.parametrize(
    "name", ["", "NVIDIA", "RTX", "100", "RTX 9999", "RTX 3080 Ti", "H100 NVL", "A100 40GB", "K80"]
)
def test_an_unknown_card_is_refused_with_the_known_ones(name):
    with pytest.raises(errors.UnknownGpuError) as refused:
        find_card(name)
    assert repr(name) in str(refused.value)
    assert all(short in str(refused.value) for short in CARDS)


@pytest.mark.parametrize("short", RATED)
def test_peaks_are_those_of_the_datasheet(short):
    plain, tensor = RATED[short]
    found = {name: FACTS[short].peak_tflops[name] for name in plain}
    assert found == pytest.approx(plain, rel=0.02)
    found = {name: FACTS[short].tensor_tflops[name] for name in tensor}
    assert found == pytest.approx(tensor, rel=0.09)  # of the H100 at the clock of tensor cores


def test_shared_memory_follows_from_the_architecture():
    kib = {short: facts.smem_bytes_per_block // KIB for short, facts in FACTS.items()}
    large = {short: 163 if short.startswith("A100") else 227 for short in FACTS}
    assert kib == large | dict.fromkeys(SMALL_SMEM, 99)


@pytest.mark.gpu
def test_a_card_at_hand_has_the_facts_that_its_driver_gives():
    found = device_facts(0)
    if found.name not in {card.name for card in CARDS.values()}:
        pytest.skip(f"{found.name} is not in the table")
    known = find_card(found.name).facts
    assert (known.arch, known.sm_count) == (found.arch, found.sm_count)
    assert known.smem_bytes_per_block == found.smem_bytes_per_block
    assert known.peak_tflops == pytest.approx(found.peak_tflops, rel=0.05)
    assert known.memory_gbytes_per_s == pytest.approx(found.memory_gbytes_per_s, rel=0.05)


@every_card
@every_dtype
def test_every_card_has_a_legal_choice(device, dtype):
    precisions = {"float32": ("tf32", "emulated"), "float64": ("emulated",)}.get(dtype, ())
    asked = [
        contiguous_problem(dtype, *shape, out_dtype=out_dtype, precision=precision)
        for shape in ((512, 512, 512), (4096, 4096, 4096), (64, 64, 64, 300))
        for out_dtype in RESULT_DTYPES[dtype]
        for precision in (None, *precisions)
    ]
    for problem in asked:
        best = choose(problem, device)
        assert exclusion(best.implementation, problem, device) is None
        assert best.config in fitting_configs(best.implementation, dtype, device)
        assert best.us > 0 and math.isfinite(best.us)
        assert rank(problem, device).candidates[0] == best


@every_card
@every_dtype
def test_clusters_are_for_hopper_and_later(device, dtype):
    has_clusters = any(row.config.cluster > 1 for row in all_rows(dtype, device))
    assert not has_clusters or device.arch in ("sm_90a", "sm_100", "sm_120")


@every_card
@every_dtype
def test_resident_blocks_fit_an_sm(device, dtype):
    if device.arch == "sm_90a":
        pytest.skip("its blocks are counted by registers that the launch bounds give")
    limits = sm_limits(device.arch)
    for row in all_rows(dtype, device):
        blocks = resident_blocks(row.config, dtype, device)
        smem_bytes = row.config.smem_bytes(dtype)
        assert blocks * row.config.threads <= limits.threads, row.name
        assert blocks * (smem_bytes + limits.reserved_smem_bytes) <= limits.smem_bytes, row.name


def test_float64_takes_the_tensor_cores_where_they_are_faster():
    problem = contiguous_problem("float64", 4096, 4096, 4096)
    assert choose(problem, FACTS["A100 SXM 80GB"]).implementation.name == "tensor_core"
    for short, device in FACTS.items():
        implementation = find_implementation("tensor_core")
        assert refusal(implementation, problem, device) is None
        gain = implementation.peak_tflops("float64", device) / device.peak_tflops["float64"]
        is_faster = short.startswith(("A100", "H100", "H200", "GH200"))
        assert gain == (2 if is_faster else 1), short


@pytest.mark.parametrize("device", [T4, V100], ids=["T4", "V100"])
@every_dtype
def test_a_card_before_ampere_takes_the_kernels_that_run_there(device, dtype):
    small, large = (contiguous_problem(dtype, size, size, size) for size in (1, 4096))
    able = {i.name for i in legal_kernels(large, device)}
    plain = {"naive", "coalesced", "double_buffer"}
    assert able == (plain if dtype in ("float32", "float64") else {"widening_tile"})
    assert choose(small, device).implementation.name in able
    assert choose(large, device).implementation.name in able - {"naive", "coalesced"}
    assert {spec.implementation for spec in kernel_specs((dtype,), arch=device.arch)} == able
    assert rank_for_any_rows(large, device, None).candidates[0].implementation.name in able
    assert not group_specs((dtype,), device.arch)


def test_a_kernel_that_a_card_lacks_instructions_for_is_refused_with_those_that_it_has():
    problem = contiguous_problem("float32", 64, 64, 64)
    expected = (
        r"'tuned' cannot compute this: it needs compute capability 8.0 or later, not 7.5. "
        r"Tesla T4 computes it with naive, coalesced, .*double_buffer\.$"
    )
    with pytest.raises(errors.UnsupportedProblemError, match=expected):
        choose(problem, T4, "tuned")
    half = contiguous_problem("float16", 64, 64, 64)
    with pytest.raises(errors.UnsupportedProblemError, match=r"9.0, not 8.9. .*with tensor_tile"):
        choose(half, FACTS["RTX 4090"], "wgmma")
    assert choose(problem, T4, "warp_tile").implementation.name == "warp_tile"


@every_dtype
def test_no_candidate_needs_more_shared_memory_than_a_block_can_have(dtype):
    rows = all_rows(dtype, FACTS[SMALL_SMEM[0]])
    assert rows and max(row.config.smem_bytes(dtype) for row in rows) <= 99 * KIB


def test_a_config_that_does_not_fit_is_refused_by_name():
    device, problem = FACTS["RTX 4090"], contiguous_problem("float32", 4096, 4096, 4096)
    tuned = find_implementation("tuned")
    config = max(
        tuned.configs("float32", device.arch), key=lambda config: config.smem_bytes("float32")
    )
    assert choose(problem, FACTS["H100 SXM"], ("tuned", config)).config is config
    with pytest.raises(errors.UnsupportedProblemError, match=r"shared memory.*101376.*sm_89"):
        choose(problem, device, ("tuned", config))
    configs = tuned.configs("float32", device.arch)
    cluster = next(config for config in configs if config.cluster > 1)
    with pytest.raises(errors.UnsupportedProblemError, match=r"thread-block clusters.*sm_89"):
        choose(problem, device, ("tuned", cluster))
    tiny = replace(device, smem_bytes_per_block=2 * KIB)
    assert "shared memory" in refusal(tuned, problem, tiny)
    assert tuned not in legal_kernels(problem, tiny)
    assert choose(problem, tiny).config.smem_bytes("float32") <= 2 * KIB


@every_card
def test_an_explanation_for_a_card_is_a_prediction(device):
    explained = dxgemm.explain_shape(300, 200, 1000, "float64", batch=3, gpu=device.name)
    best = choose(contiguous_problem("float64", 300, 200, 1000, 3), device)
    assert explained.work.is_named_gpu and not explained.work.is_simulated
    assert (explained.work.device, explained.work.sm_count) == (device.name, device.sm_count)
    assert (explained.implementation, explained.config) == (
        best.implementation.name,
        str(best.config),
    )
    assert explained.prediction.us == best.us
    assert (
        "all times are predicted" in str(explained)
        and explained.prediction.speeds in explained.full()
    )


def test_an_explanation_of_the_gpu_at_hand_names_no_datasheet():
    explained = dxgemm.explain_shape(5, 6, 7)
    assert not explained.work.is_named_gpu and "datasheet" not in str(explained)


def test_a_card_is_explained_without_gpu_and_simulator(run_python):
    program = """
import sys, dxgemm
explained = dxgemm.explain_shape(4096, 4096, 4096, gpu="RTX 4090")
assert explained.prediction.us > explained.prediction.roofline.time_us
assert not {"numba", "cuda", "cupy"} & set(sys.modules)
"""
    run_python(program)


@every_card
def test_every_card_emulates_float64_and_falls_back_to_what_it_can_launch(device):
    problem = contiguous_problem("float64", 4096, 4096, 4096, precision="emulated")
    tile = find_implementation("emulated_float64_tile")
    assert tile in legal_kernels(problem, device)
    for size in (64, 512, 4096):
        asked = contiguous_problem("float64", size, size, size, precision="emulated")
        config = native_config(asked)
        smem_bytes = device.smem_bytes_per_block
        assert misfit(config, "float64", device.arch, smem_bytes) is None
