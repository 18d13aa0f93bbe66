"""float8 in torch: groups with scales, torch's own signatures, and layers with their gradients."""

from __future__ import annotations

import inspect
from importlib import import_module

import numpy as np
import pytest
from test_float8 import E4M3, E5M2, powers, rounded, spread, whole

from dxgemm import errors
from dxgemm.gpu.status import simulator_enabled
from dxgemm.reductions import quantise_rows
from dxgemm.runtime.device import device_facts

torch = pytest.importorskip("torch", reason="the operators need torch: dxgemm[torch]")
dxt = import_module("dxgemm.torch")
functional = torch.nn.functional

DEVICE = "cpu" if simulator_enabled() else "cuda"
M, N, K = (5, 7, 130) if simulator_enabled() else (48, 80, 272)
if not simulator_enabled() and not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)


def send(array):
    """A NumPy array, of ml_dtypes' dtypes too, as a tensor of the same values."""
    if array.dtype in (E4M3, E5M2):
        return torch.tensor(array.astype(np.float32)).to(DEVICE, getattr(torch, str(array.dtype)))
    return torch.tensor(array).to(DEVICE)


def fetch(tensor):
    return tensor.detach().double().cpu().numpy()


@pytest.mark.parametrize("name", ["scaled_mm", "scaled_grouped_mm"])
def test_signatures_are_torch_s(name):
    own = inspect.signature(getattr(dxt, name))
    schema = getattr(torch.ops.aten, f"_{name}").default._schema
    names = [argument.name for argument in schema.arguments]
    names = [{"self": "input"}.get(argument, argument) for argument in names]
    assert [*own.parameters] == names


@pytest.mark.skipif(not hasattr(functional, "scaled_mm"), reason="this torch has no scaled_mm")
def test_the_signature_of_nn_functional():
    own = inspect.signature(dxt.functional.scaled_mm)
    other = inspect.signature(functional.scaled_mm)
    assert [*own.parameters] == [*other.parameters]
    for name, parameter in other.parameters.items():
        assert own.parameters[name].default == parameter.default, name


@pytest.mark.parametrize("out_dtype", [None, "bfloat16", "float32", "float8_e5m2"])
def test_scaled_mm(out_dtype):
    rng = np.random.default_rng(11)
    a, b, bias = whole(rng, (5, 130), E4M3), whole(rng, (130, 7), E5M2), powers(rng, 7)
    x, y, factor = powers(rng, 5, 1), powers(rng, 1, 7), send(np.float32([0.5]))
    is_byte = out_dtype is None or out_dtype.startswith("float8")
    given = send(a), send(b), send(x), send(y)
    result = dxt.scaled_mm(
        *given, send(bias), scale_result=factor if is_byte else None,
        out_dtype=out_dtype and getattr(torch, out_dtype), use_fast_accum=True,
    )  # fmt: skip
    wanted = (a.astype(float) * x) @ (b.astype(float) * y) + bias
    if is_byte:
        wanted = rounded(wanted / 2, E4M3 if out_dtype is None else E5M2)
    else:
        wanted = torch.tensor(wanted, dtype=result.dtype).double().numpy()
    np.testing.assert_array_equal(fetch(result), wanted)
    # opcheck's test of the schema multiplies the operands, and torch multiplies no float8.
    torch.library.opcheck(
        torch.ops.dxgemm.scaled_mm.default,
        ("scaled_mm", *given, None, None, None, torch.bfloat16, False),
        test_utils=("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"),
    )
    for operand, array in zip(given, (a, b, x, y)):  # which no call writes
        np.testing.assert_array_equal(fetch(operand), array.astype(float))
    for error, text, operands in (
        (errors.DtypeError, r"torch.scaled_mm: input is torch.float32", (send(x), *given[1:])),
        (errors.ShapeError, r"must be \(m, k\) and \(k, n\)", (given[0], given[1].T, *given[2:])),
        (errors.DtypeError, "scale_result is for results", (*given, None, factor, torch.float32)),
    ):
        with pytest.raises(error, match=text):
            dxt.scaled_mm(*operands)


def skip_without_kernel():
    if not simulator_enabled() and device_facts(0).arch != "sm_90a":
        pytest.skip("groups of float8 by offsets need Hopper")


@pytest.mark.parametrize("kind", ["rows", "columns", "batch"])
def test_groups(kind):
    skip_without_kernel()
    rng, ends, total = np.random.default_rng(0), [2, 2, M], M + 2
    a, b = whole(rng, (total, K), E4M3), whole(rng, (3, K, N), E4M3)
    x, y, bias = powers(rng, total), powers(rng, 3, N), powers(rng, N)
    left, right = a.astype(float) * x[:, None], b.astype(float) * y[:, None]
    wanted, offsets = np.zeros((total, N)), send(np.int32(ends))
    for group, (first, end) in enumerate(zip([0, *ends], ends)):
        wanted[first:end] = left[first:end] @ right[group] + bias * (kind == "rows")
    out_dtype = torch.float32
    if kind == "rows":
        operands = send(a), send(b), send(x), send(y), offsets, send(bias), None, out_dtype, True
    elif kind == "columns":
        operands = send(b).mT, send(a).T, send(y), send(x), offsets, None, None, out_dtype
        wanted = wanted.T
    else:
        many, of_many = np.stack([a, a, a]), np.stack([x, x, x])
        operands = send(many), send(b), send(of_many), send(y), None, None, None, out_dtype
        wanted = left @ right
    np.testing.assert_array_equal(fetch(dxt.scaled_grouped_mm(*operands)), wanted)
    with pytest.raises(errors.ShapeError, match=r"dxgemm\.torch\.scaled_grouped_mm: input is"):
        dxt.scaled_grouped_mm(send(a), send(b), send(x), send(y))
    with pytest.raises(errors.DtypeError, match=r"out_dtype is torch\.int8"):
        dxt.scaled_grouped_mm(send(a), send(b), send(x), send(y), offsets, out_dtype=torch.int8)


@pytest.mark.parametrize("kind", ["TensorWise", "RowWise", "BlockWise1x128", "BlockWise128x128"])
def test_recipes_of_nn_functional(kind):
    rng, blocks = np.random.default_rng(1), -(-K // 128)
    a, b = whole(rng, (M, K), E4M3), whole(rng, (K, N), E4M3, "col")
    shapes = {
        "TensorWise": ((1, 1), (1, 1)), "RowWise": ((M, 1), (1, N)),
        "BlockWise1x128": ((M, blocks), (blocks, N)),
        "BlockWise128x128": ((1, blocks), (blocks, 1)),
    }[kind]  # fmt: skip
    x, y = (powers(rng, *shape) for shape in shapes)
    of_a, of_b = (spread(x, M, K, 0), spread(y, N, K, 1)) if "Block" in kind else (x, y)
    wanted = (a.astype(float) * of_a) @ (b.astype(float) * of_b)
    scaling = getattr(functional, "ScalingType", None)
    given = getattr(scaling, kind) if scaling else kind
    found = dxt.functional.scaled_mm(
        send(a), send(b), send(x), [given], [send(y)], given, output_dtype=torch.float32
    )  # fmt: skip
    np.testing.assert_array_equal(fetch(found), wanted)
    with pytest.raises(errors.ShapeError, match=f"scale_a is .*; by {kind} it must be"):
        dxt.functional.scaled_mm(
            send(a), send(b), send(np.ones((2, 9), "f4")), given, send(y), given
        )
    with pytest.raises(errors.SettingError, match="scale_recipe_b is BlockWise1x16"):
        dxt.functional.scaled_mm(send(a), send(b), send(x), given, send(y), "BlockWise1x16")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["TensorWise", "RowWise"])
def test_results_are_those_of_torch(kind):
    if not hasattr(functional, "scaled_mm") or device_facts(0).arch != "sm_90a":
        pytest.skip("torch has scaled_mm from 2.10 on, for rows on Hopper")
    recipe, rng = getattr(functional.ScalingType, kind), np.random.default_rng(2)
    a, b = whole(rng, (64, 256), E4M3), whole(rng, (256, 96), E4M3, "col")
    shapes = ((1,), (1,)) if kind == "TensorWise" else ((64, 1), (1, 96))
    x, y = (send(powers(rng, *shape)) for shape in shapes)
    columns = send(np.ascontiguousarray(b.T)).T
    call = send(a), columns, x, recipe, y, recipe
    torch.testing.assert_close(
        dxt.functional.scaled_mm(*call), functional.scaled_mm(*call), rtol=0, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_quantised_as_a_product_s_rows_are(dtype):
    rng = np.random.default_rng(3)
    sizes = 2.0 ** rng.integers(-90, 90, (2, 3, 1))
    rows = (rng.standard_normal((2, 3, 40)) * sizes).astype(np.float32)
    rows[0, 0], rows[0, 1, 2] = 0, np.nan
    right = quantise_rows(str(dtype).removeprefix("torch.")).on_host(rows)
    for tensor in (torch.tensor(rows), torch.tensor(rows).to(DEVICE)):  # by torch, by the kernel
        values, scales = (x.cpu() for x in dxt.quantise_rows(tensor, dtype))
        np.testing.assert_array_equal(values.float().numpy(), right.values.astype(np.float32))
        np.testing.assert_array_equal(scales.numpy(), right.scales)
    values, scales = dxt.quantise_rows(torch.ones(4, 0, 7, device=DEVICE), dtype)
    assert values.shape == (4, 0, 7) and scales.shape == (4, 0, 1)
    with pytest.raises(errors.ShapeError, match="x is a number"):
        dxt.quantise_rows(torch.ones(()))
    with pytest.raises(errors.DtypeError, match=r"torch\.quantise_rows: x is torch\.float64"):
        dxt.quantise_rows(torch.tensor(rows).double())


@pytest.mark.parametrize("gradients", [torch.bfloat16, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_and_its_gradients(gradients, dtype):
    torch.manual_seed(0)
    m, n, k = (3, 5, 9) if simulator_enabled() else (96, 72, 200)
    layer = dxt.Float8Linear(k, n, device=DEVICE, dtype=dtype, gradients=gradients)
    x = torch.randn(2, m, k, device=DEVICE, dtype=dtype, requires_grad=True)
    coefficients = torch.randn(2, m, n, device=DEVICE, dtype=dtype)
    (layer(x) * coefficients).sum().backward()
    found = layer(x), x.grad, layer.weight.grad, layer.bias.grad
    with torch.no_grad():
        wide, weight, outer = x.double(), layer.weight.double(), coefficients.double()
        flat, rows = wide.reshape(-1, k), outer.reshape(-1, n)
        wanted = wide @ weight.T + layer.bias.double(), outer @ weight, rows.T @ flat, rows.sum(0)
        terms = wide.abs() @ weight.T.abs() + layer.bias.double().abs()
        sizes = terms, outer.abs() @ weight.abs(), rows.T.abs() @ flat.abs(), rows.abs().sum(0)
    # Of terms: e4m3 rounds by 2**-4, e5m2 by 2**-3, bfloat16 by 2**-9, of the largest of a row.
    unit = 2.0**-7 if gradients == torch.bfloat16 else 2.0**-2
    for one, right, size, bound in zip(found, wanted, sizes, (2.0**-3, unit, unit, 2.0**-7)):
        assert one.dtype == dtype and one.shape == right.shape
        error = (one.double() - right).abs().max()
        assert error <= bound * size.max(), (error, size.max())
    assert "gradients=" in repr(layer)


def test_a_layer_compiles_and_refuses_what_does_not_fit():
    x, weight = torch.ones(3, 8, device=DEVICE), torch.ones(4, 8, device=DEVICE)
    with pytest.raises(errors.SettingError, match=r"gradients is torch\.float32"):
        dxt.float8_linear(x, weight, gradients=torch.float32)
    with pytest.raises(errors.ShapeError, match=r"dxgemm\.torch\.float8_linear: x is"):
        dxt.float8_linear(x[:, :5], weight)
    with pytest.raises(errors.ArrayTypeError, match="weight is a ndarray"):
        dxt.float8_linear(x, np.ones((4, 8)))
    compiled = torch.compile(dxt.float8_linear, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), dxt.float8_linear(x, weight), rtol=0, atol=0)
