"""The arithmetic of `explain` against values worked out by hand, and what it prints of them."""

from dataclasses import dataclass, replace

import pytest

import dxgemm
from dxgemm.call import explain as _explain
from dxgemm.call.explanation import Grid, Prediction
from dxgemm.gpu.occupancy import occupancy, sm_limits
from dxgemm.gpu.roofline import (
    Roofline,
    bytes_in_flight_needed,
    count_waves,
    tail_efficiency,
    tile_intensity,
)


def test_the_slower_of_two_roofs_bounds_a_product() -> None:
    n = 1000
    roofline = Roofline(2 * n**3, 3 * n**2 * 4, peak_tflops=50.0, memory_gbytes_per_s=4000.0)
    assert roofline.compute_us == pytest.approx(40.0)  # 2e9 operations at 50e6 a microsecond
    assert roofline.memory_us == pytest.approx(3.0)  # 12e6 bytes at 4e6 a microsecond
    assert (roofline.time_us, roofline.bound) == (roofline.compute_us, "compute")
    assert roofline.intensity == pytest.approx(1000 / 6)
    assert roofline.ridge == pytest.approx(12.5)
    roofline = Roofline(2 * 1000**2, 4 * 1000**2, peak_tflops=50.0, memory_gbytes_per_s=4000.0)
    assert roofline.intensity == 0.5 < roofline.ridge
    assert (roofline.time_us, roofline.bound) == (pytest.approx(1.0), "memory")
    roofline = Roofline(12500, 1000, peak_tflops=50.0, memory_gbytes_per_s=4000.0)
    assert roofline.intensity == roofline.ridge
    assert roofline.compute_us == pytest.approx(roofline.memory_us)
    roofline = Roofline(0, 0, peak_tflops=50.0, memory_gbytes_per_s=4000.0)
    assert (roofline.time_us, roofline.intensity) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("rows", "cols", "item_bytes", "intensity"),
    [(1, 1, 4, 0.25), (8, 8, 4, 2.0), (128, 128, 4, 32.0), (128, 256, 2, 256 / 3)],
)
def test_intensity_of_tiles(rows, cols, item_bytes, intensity):
    assert tile_intensity(rows, cols, item_bytes) == pytest.approx(intensity)


def test_little_s_law():
    # 4000 GB/s over 100 SMs are 40 bytes a nanosecond each; 600 ns later the first one arrives.
    assert bytes_in_flight_needed(4000.0, 100, latency_ns=600.0) == 24000.0


@pytest.mark.parametrize(
    ("tiles", "blocks", "resident", "waves", "efficiency"),
    [
        (100, 100, 100, 1.0, 1.0),
        (101, 101, 100, 1.01, 0.505),
        (150, 150, 100, 1.5, 0.75),
        (25, 25, 100, 0.25, 0.25),
        (250, 100, 200, 2.5, 2.5 / 3),  # persistent blocks: as many as were launched
        (0, 0, 100, 0.0, 1.0),
    ],
)
def test_waves_and_their_tail(tiles, blocks, resident, waves, efficiency):
    assert count_waves(tiles, blocks, resident) == pytest.approx(waves)
    assert tail_efficiency(waves) == pytest.approx(efficiency)


@dataclass(frozen=True)
class Staged:
    """Config of a pipelined kernel, as far as `explain` reads it."""

    stages: int = 4

    def stage_bytes(self, dtype: str) -> int:
        return 1000 if dtype == "float32" else 2000


def test_all_stages_but_one_are_in_flight():
    assert _explain._bytes_in_flight(Staged(), "float32", 2) == 2 * 3 * 1000
    assert _explain._bytes_in_flight(Staged(), "float64", 1) == 3 * 2000
    assert _explain._bytes_in_flight(Staged(), "float32", 0) is None
    assert _explain._bytes_in_flight(object(), "float32", 1) is None


def test_every_pipeline_tells_the_size_of_its_stages():
    for implementation in dxgemm.implementations():
        kernel = getattr(implementation, "kernel", None)
        for config in kernel.configs if kernel else ():
            assert not hasattr(config, "stages") or hasattr(config, "stage_bytes"), config


BOUNDS = Roofline(137_438_953_472, 201_326_592, peak_tflops=66.9, memory_gbytes_per_s=4800.0)
SM = occupancy(sm_limits("sm_90"), 256, 209, 133120)
GRID = Grid(
    blocks=512, threads=256, tiles=512, split_k=1, tile_intensity=42.67, registers=209,
    smem_bytes=133120, per_sm=SM, waves=3.88, bytes_in_flight=37632,
    bytes_in_flight_needed=21818.2,
)  # fmt: skip


def explained(grid=GRID, is_simulated=False):
    """Explanation of a made-up launch."""
    known = dxgemm.explain_shape(5, 6, 7)
    sizes = {"sm_count": 132, "flops": BOUNDS.flops, "bytes_moved": BOUNDS.bytes_moved}
    candidates = (("tuned 128x256", 2639.0), ("coalesced 4x32", 20_000.0))
    return replace(
        known,
        work=replace(known.work, **sizes, is_simulated=is_simulated),
        choice=replace(known.choice, candidates=candidates),
        occupancy=grid,
        prediction=Prediction(2639.0, BOUNDS, "measured on a GPU"),
    )


def test_a_built_kernel_is_explained_line_by_line():
    text = explained().full()
    for line in (
        "work            137 GFLOP and at least 201 MB: 683 FLOP per byte; from 13.9 on",
        "at least 2054 us (compute bound)",
        "launch          512 blocks of 256 threads; 209 registers per thread, 133120 bytes",
        "tile            42.7 FLOP per byte",
        "occupancy       8 of 64 warps per SM, as 1 block; more would not fit its registers and",
        "waves           3.88: 512 tiles in 4 waves; the last one takes as long as a full one, so "
        "that 97% of the time is used",
        "in flight       37632 bytes on their way to an SM; full bandwidth over 600 ns of latency "
        "takes 21818",
        "predicted       2639 us, 78% of the roofline; measured on a GPU",
        " tuned 128x256         2639 us\n",
        " coalesced 4x32       2e+04 us\n",
    ):
        assert line in text, line
    assert "share the k" not in text


def test_the_text_has_fifteen_lines_and_a_page_all_of_it():
    explanation = explained()
    work = replace(explanation.work, computed_as="pieces", epilogue="relu", reduction="sum")
    choice = replace(explanation.choice, accuracy="rounded", fallback="another")
    steps = ("tuned 1: a, b", "merge 2: out")
    most = replace(explanation, work=work, choice=choice, steps=steps)
    assert len(str(explanation).splitlines()) < len(str(most).splitlines()) == 15
    for each in (explanation, most):
        page = each._repr_html_()
        assert all(name in page for name in each.choice.rejected) and "<details>" in page
    assert "tuned | merge" in str(most) and "merge 2: out" in most.full()


def test_the_simulator_has_no_roofline():
    text = explained(is_simulated=True).full()
    assert "roofline        none: the simulator is no GPU" in text
    assert "TFLOP/s" not in text and "from 13.9 on" not in text


def test_a_launch_of_less_than_a_wave_names_the_sms_it_uses():
    text = str(explained(replace(GRID, waves=0.16, tiles=128, blocks=128, split_k=4)))
    assert "0.16: all blocks run at once, on 128 of 132 SMs" in text
    assert "4 blocks share the k of a tile" in text


def test_a_kernel_that_is_not_built_has_no_occupancy():
    unknown = dict.fromkeys(("registers", "waves", "per_sm", "bytes_in_flight"))
    text = explained(replace(GRID, **unknown)).full()
    assert "not built yet" in text
    assert not any(word in text for word in ("occupancy", "waves", "in flight"))
