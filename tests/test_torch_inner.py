"""Inner functions in the operators of PyTorch, and their gradients."""

from __future__ import annotations

from importlib import import_module

import pytest

import dxgemm
from dxgemm import epilogues, errors, inners
from dxgemm.gpu.status import simulator_enabled

torch = pytest.importorskip("torch", reason="the operators need torch: dxgemm[torch]")
dxt = import_module("dxgemm.torch")

DEVICE = "cpu" if simulator_enabled() else "cuda"
if not simulator_enabled() and not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)
SHAPES = [((5, 4), (4, 3)), ((2, 5, 4), (4, 3)), ((5, 4), (2, 4, 3)), ((2, 5, 4), (1, 4, 3))]
if not simulator_enabled():
    SHAPES += [((130, 67), (67, 150))]


def l1(a, b):
    return (a.unsqueeze(-2) - b.mT.unsqueeze(-3)).abs().sum(-1)


def min_plus(a, b):
    return (a.unsqueeze(-2) + b.mT.unsqueeze(-3)).amin(-1)


def operands(shapes, dtype=torch.float64, high=None):
    """Values without ties, or small integers."""
    generator = torch.Generator().manual_seed(0)
    if high is None:
        made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    else:
        made = [torch.randint(-high, high + 1, shape, generator=generator) for shape in shapes]
    return [x.to(DEVICE, dtype).requires_grad_() for x in made]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["l1", "min_plus"])
def test_gradients(name, shapes):
    a, b = operands(shapes)
    plain = {"l1": l1, "min_plus": min_plus}[name]
    found, expected = dxt.gemm(a, b, inner=getattr(inners, name)), plain(a, b)
    torch.testing.assert_close(found, expected)
    weights = torch.arange(1.0, 1.0 + found.numel(), device=DEVICE, dtype=a.dtype).view_as(found)
    got = torch.autograd.grad(found, (a, b), weights)
    torch.testing.assert_close(got, torch.autograd.grad(expected, (a, b), weights))
    (only,) = torch.autograd.grad(dxt.gemm(a.detach(), b, inner=getattr(inners, name)), b, weights)
    torch.testing.assert_close(only, got[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_ties(dtype):
    """Equal numbers have no slope in L1; of equal sums the first has all of the gradient."""
    a, b = operands(((7, 6), (6, 5)), dtype, high=1)
    ones = torch.ones((7, 5), device=DEVICE, dtype=dtype)
    got = torch.autograd.grad(dxt.gemm(a, b, inner=inners.l1), (a, b), ones)
    signs = (a.unsqueeze(-2) - b.mT.unsqueeze(-3)).sign()  # (m, n, k)
    torch.testing.assert_close(got, (signs.sum(1).to(dtype), -signs.sum(0).mT.to(dtype)))
    grad_a, grad_b = torch.autograd.grad(dxt.gemm(a, b, inner=inners.min_plus), (a, b), ones)
    sums = (a.unsqueeze(-2) + b.mT.unsqueeze(-3)).detach().cpu()
    is_first = torch.zeros_like(sums)
    for place in torch.cartesian_prod(*map(torch.arange, sums.shape[:2])):
        row = sums[tuple(place)]
        is_first[(*place, (row == row.min()).nonzero()[0, 0])] = 1
    torch.testing.assert_close(grad_a.cpu(), is_first.sum(1))
    torch.testing.assert_close(grad_b.cpu(), is_first.sum(0).mT)


def test_functions_without_a_gradient():
    a, b = operands(((5, 4), (4, 3)))
    own = dxgemm.inner(lambda x, y: x * y * y)
    turned = a.to(torch.complex64), b.to(torch.complex64)
    for *given, inner in ((a, b, inners.chebyshev), (a, b, own), (*turned, inners.l1)):
        with pytest.raises(errors.UnsupportedProblemError, match=r"has no gradient of .* as l1"):
            dxt.gemm(*given, inner=inner)
    with torch.no_grad():
        torch.testing.assert_close(dxt.gemm(a, b, inner=own), a @ b**2)
        found = dxt.gemm(*turned, inner=inners.l1)
        torch.testing.assert_close(found, l1(*turned).to(torch.complex64))
    found = dxt.gemm(a, b, inner=inners.l1)
    (slope,) = torch.autograd.grad(found.sum(), a, retain_graph=True)
    assert not slope.requires_grad
    with pytest.raises(errors.UnsupportedProblemError, match="has no gradient"):
        torch.autograd.grad((found**2).sum(), a, create_graph=True)


def test_what_does_not_go_with_it():
    a, b = operands(((5, 4), (4, 3)))
    for options in ({"alpha": 2.0}, {"c": dxt.gemm(a, b)}, {"epilogue": epilogues.relu}):
        with pytest.raises(errors.SettingError, match="goes with a and b alone"):
            dxt.gemm(a, b, inner=inners.l1, **options)
    with pytest.raises(errors.EpilogueError, match=r"pass one of dxgemm\.inners"):
        dxt.gemm(a, b, inner="l1")
    with pytest.raises(errors.ShapeError, match=r"dxgemm.torch.gemm: .*\(5, 4\)"):
        dxt.gemm(a, a, inner=inners.l1)


def test_graphs():
    """`torch.compile` traces it, and the operator keeps torch's rules."""
    a, b = operands(((5, 4), (4, 3)))
    compiled = torch.compile(lambda a, b: dxt.gemm(a, b, inner=inners.l1).sum(),
                             backend="aot_eager", fullgraph=True)  # fmt: skip
    found = torch.autograd.grad(compiled(a, b), (a, b))
    torch.testing.assert_close(found, torch.autograd.grad(l1(a, b).sum(), (a, b)))
    for inner in (inners.l1, inners.min_plus):
        arguments = (a, b, None, inner.key, False)
        torch.library.opcheck(torch.ops.dxgemm.inner.default, arguments)


def test_no_inner_dimension():
    a, b = operands(((3, 0), (0, 2)))
    found = dxt.gemm(a, b, inner=inners.min_plus)
    assert (found == float("inf")).all()
    assert [x.shape for x in torch.autograd.grad(found.sum(), (a, b))] == [(3, 0), (0, 2)]
