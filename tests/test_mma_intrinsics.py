"""The intrinsics of parts/mma.py one by one: their PTX anywhere, their results on a GPU."""

import json
import re

import numpy as np
import pytest

COMPILE = """
import json
import mma_kernels as k
for name, dtypes, capability in (
    ("mma_float64", ["float64"] * 4, (9, 0)),
    ("mma_float64", ["float64"] * 4, (8, 0)),
    ("mma_tf32", ["float32"] * 4, (9, 0)),
    ("turned", ["float64"] * 2, (9, 0)),
    ("divided", ["int32"] * 3, (9, 0)),
):
    print(json.dumps(k.compile_ptx(getattr(k, name), *dtypes, capability=capability)))
"""


@pytest.fixture(scope="module")
def ptx(run_python, once, request):
    """PTX of kernels of mma_kernels.py, by name."""
    compiled = once("mma.jsonl", lambda: run_python(COMPILE, PYTHONPATH=str(request.path.parent)))
    names = "float64", "float64_in_quarters", "tf32", "turned", "divided"
    return dict(zip(names, map(json.loads, compiled.splitlines()), strict=True))


@pytest.fixture
def run(cupy):
    """Runs one block: run(name, threads, arrays and the result's last)."""
    import mma_kernels

    def run(name, threads, *arrays, capability=(8, 0)):
        if int(cupy.cuda.Device().compute_capability) < 10 * capability[0] + capability[1]:
            pytest.skip(f"needs a GPU of compute capability {capability}")
        on_device = [cupy.asarray(array) for array in arrays]
        kernel, dtypes = getattr(mma_kernels, name), [array.dtype.name for array in arrays]
        text = mma_kernels.compile_ptx(kernel, *dtypes, capability=capability)
        (entry,) = re.findall(r"\.visible \.entry (\w+)\(", text)
        module = cupy.cuda.function.Module()
        module.load(text.encode() + b"\0")
        module.get_function(entry)((1,), (threads,), tuple(on_device))
        return on_device[-1].get()

    return run


def fragments(matrix: np.ndarray, rows: int, cols: int, side: str) -> np.ndarray:
    """Elements that each lane holds of 16x8 (left, acc) or 8x8 (right) blocks, in PTX's order."""
    lanes = []
    for lane in range(32):
        group, member = divmod(lane, 4)
        held = []
        for i in range(0, matrix.shape[0], rows):
            for j in range(0, matrix.shape[1], cols):
                block = matrix[i : i + rows, j : j + cols]
                if side == "left":
                    places = [(group + 8 * (e % 2), member + 4 * (e // 2)) for e in range(4)]
                elif side == "right":
                    places = [(member + 4 * e, group) for e in range(2)]
                else:
                    places = [(group + 8 * (e // 2), 2 * member + e % 2) for e in range(4)]
                held += [block[place] for place in places]
        lanes.append(held)
    return np.array(lanes, matrix.dtype)


def test_an_mma_tile_is_one_instruction_a_block(ptx):
    """16 x 16 sums are two of 16 x 8."""
    for name, kinds in (("float64", "f64.f64.f64.f64"), ("tf32", "f32.tf32.tf32.f32")):
        assert ptx[name].count(f"mma.sync.aligned.m16n8k8.row.col.{kinds}") == 2


def test_before_hopper_float64_takes_four_instructions_a_block(ptx):
    text = ptx["float64_in_quarters"]
    assert "m16n8k8" not in text
    quarters = re.findall(
        r"m8n8k4\.row\.col\.f64\.f64\.f64\.f64 \{(.*?)\}, \{(.*?)\}, \{(.*?)\}, \{(.*?)\}", text
    )
    assert len(quarters) == 8
    for block in (quarters[:4], quarters[4:]):
        (upper, a0, b0, _), (lower, a1, again, _), *second_half = block
        assert b0 == again and len({a0, a1, *(a for _, a, _, _ in second_half)}) == 4
        # The second half of k adds to the sums of the first.
        assert [(out, acc) for out, _, _, acc in second_half] == [(upper, upper), (lower, lower)]
        assert second_half[0][2] == second_half[1][2] != b0


def test_signs_and_quotients_take_instructions_of_32_bits(ptx) -> None:
    assert "xor.b32" in ptx["turned"] and "neg.f64" not in ptx["turned"]
    assert "div.u32" in ptx["divided"]
    assert not re.search(r"\b(div|rem)\.[su]64", ptx["divided"])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "dtype", "capability"),
    [
        ("mma_float64", "float64", (8, 0)),
        ("mma_float64", "float64", (9, 0)),
        ("mma_tf32", "float32", (8, 0)),
    ],
    ids=["float64-in-quarters", "float64", "tf32"],
)
def test_mma_tile_multiplies(run, name, dtype, capability):
    rng = np.random.default_rng(0)
    left, right, acc = (
        rng.integers(-8, 9, shape).astype(dtype) for shape in ((16, 8), (8, 16), (16, 16))
    )
    out = run(
        name, 32, fragments(acc, 16, 8, "acc"), fragments(left, 16, 8, "left"),
        fragments(right, 8, 8, "right"), np.zeros((32, 8), dtype), capability=capability,
    )  # fmt: skip
    np.testing.assert_array_equal(out, fragments(acc + left @ right, 16, 8, "acc"))


@pytest.mark.gpu
def test_a_changed_sign_is_that_of_python(run):
    values = np.random.default_rng(0).standard_normal(32)
    values[:4] = 0, -0.0, np.inf, -np.inf
    out = run("turned", 32, values, np.zeros(32), capability=(9, 0))
    np.testing.assert_array_equal(out.view("int64"), (-values).view("int64"))


@pytest.mark.gpu
def test_rounding_is_to_nearest_and_keeps_infinity_and_nan(run):
    step = np.float32(2**-10)  # of TF32 between 1 and 2
    values = np.ones(32, np.float32)
    values[:6] = 1 + step * np.float32([0, 0.25, 0.5, 0.75, 1.25, 1.5])
    values[6:12] = -values[:6]
    values[12:14] = np.inf, -np.inf
    values.view(np.uint32)[14:16] = 0x7FFFFFFF, 0xFFFFFFFF  # NaN whose payload would overflow
    out = run("rounded", 32, values, np.zeros(32, np.int32))
    result = (out.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    expected = 1 + step * np.float32([0, 0, 1, 1, 1, 2])
    np.testing.assert_array_equal(result[:6], expected)
    np.testing.assert_array_equal(result[6:12], -expected)
    np.testing.assert_array_equal(result[12:14], [np.inf, -np.inf])
    assert np.isnan(result[14:16]).all()


@pytest.mark.gpu
def test_division_is_that_of_python(run):
    dividends = (np.arange(32) * 67108863 % (2**31 - 1)).astype(np.int32)
    divisors = np.int32([1, 2, 3, 7, 132, 65536, 2**31 - 1, 999983] * 4)
    out = run("divided", 32, dividends, divisors, np.zeros(32, np.int32))
    np.testing.assert_array_equal(out, dividends // divisors)


@pytest.mark.gpu
def test_a_copy_in_part_fills_up_with_zeros(run):
    source = np.arange(1, 21, dtype=np.float32)
    out = run("copied_in_part", 5, source, np.full((5, 4), -1, np.float32))
    expected = source.reshape(5, 4).copy()
    expected[np.arange(4)[None, :] >= np.arange(5)[:, None]] = 0
    np.testing.assert_array_equal(out, expected)
