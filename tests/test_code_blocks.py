"""Every code block of README and the pages runs here, or says why it does not.

Blocks with prompts are doctests. Other Python is executed, a page's blocks after each other in one
namespace. It is empty for README, the first page and quickstart, whose blocks a newcomer pastes in
order. Where there is no GPU, a line whose comment ends in "needs a GPU" is left out, and so is a
block that begins with such a line. Excerpts of kernel files stand in those files. Lines that begin
with `dxgemm` are commands: all are parsed, those that are quick are run. `text` is no code.
"""

import doctest
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from oracle.libraries import LIBRARIES
from typer.testing import CliRunner

import dxgemm
from dxgemm import epilogues, reductions
from dxgemm.cli.app import app
from dxgemm.gpu.status import simulator_enabled

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "handwritten" / "README.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS_GPU = re.compile(r"#.*needs a GPU$")
PASTED_IN_ORDER = {"README.md", "docs/index.md", "docs/quickstart.md"}
# What these do cannot be tried here.
INSTALLERS = {"git", "make", "pip"}
QUICK_COMMANDS = {"explain", "implementations", "info", "cache"}


@dataclass(frozen=True)
class Block:
    """A fenced block; `before` is the line that introduces it."""

    page: str
    line: int
    language: str
    text: str
    before: str

    @property
    def kind(self) -> str:
        if ">>> " in self.text:
            return "doctest"
        if self.language == "python":
            return "excerpt" if re.fullmatch(r"\[.*\.py\]\(.*\.py\):", self.before) else "python"
        if self.language == "text":
            return "text"
        return "commands" if "dxgemm " in self.text else "other"

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        line = text.count("\n", 0, match.start()) + 1
        name = page.relative_to(REPOSITORY).as_posix()
        found.append(Block(name, line, match[1], match[2], before))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def blocks(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind]


def names_of_numpy(send: Callable[[np.ndarray], Any] = np.asarray) -> dict[str, Any]:
    """Names that the executed blocks use without defining them."""
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> Any:
        return send(rng.standard_normal(shape, dtype=np.float32))

    shapes = {"a": (3, 5), "b": (5, 4), "c": (3, 4), "d": (3, 4), "v": (4,), "vector": (4,)}
    shapes |= {"matrix": (3, 4), "x": (3, 2), "y": (2, 4), "norms": (4,)}
    names: dict[str, Any] = {name: matrix(*shape) for name, shape in shapes.items()}
    names |= {"list_a": [matrix(3, 5), matrix(2, 2)], "list_b": [matrix(5, 4), matrix(2, 6)]}
    names |= {"bias": epilogues.bias, "gelu": epilogues.gelu}
    return names | {"dxgemm": dxgemm, "reductions": reductions}


def names_of_home() -> dict[str, Any]:
    """Names for blocks that take operands on the GPU, if there is one."""
    return names_of_numpy(LIBRARIES["numpy" if simulator_enabled() else "cupy"].send)


def names_of_torch() -> dict[str, Any]:
    """Names for blocks that use torch."""
    torch = pytest.importorskip("torch")
    device = "cpu" if simulator_enabled() else "cuda"
    shapes = {"a": (3, 5), "b": (5, 4), "c": (3, 4), "x": (3, 5), "weight": (4, 5), "bias": (4,)}
    names = {n: torch.randn(s, device=device, requires_grad=True) for n, s in shapes.items()}
    names |= {"torch": torch, "dxgemm": dxgemm, "device": device}
    return names | {"model": torch.nn.Linear(5, 4, device=device)}


def names_of_jax() -> dict[str, Any]:
    """Names for blocks that use JAX."""
    jax = pytest.importorskip("jax")
    if not simulator_enabled() and jax.default_backend() != "gpu":
        pytest.skip("jax was installed without its GPU plugin")
    jnp = jax.numpy
    names = {"jax": jax, "jnp": jnp, "dxgemm": dxgemm}
    return names | {"x": jnp.ones((3, 5)), "weight": jnp.ones((4, 5)), "bias": jnp.ones(4)}


def no_names() -> dict[str, Any]:
    """Namespace for pages that define all that they use."""
    return {}


def no_names_but_torch() -> dict[str, Any]:
    """The same for their blocks that import torch, and put tensors on a GPU if there is one."""
    torch = pytest.importorskip("torch")
    if simulator_enabled() and torch.cuda.is_available():
        pytest.skip("the simulator takes tensors in host memory")
    return {}


def without_gpu_lines(text: str) -> str:
    lines = text.splitlines()
    if NEEDS_GPU.match(lines[0]):
        return ""
    return "\n".join(line for line in lines if not NEEDS_GPU.search(line))


@pytest.mark.parametrize("page", sorted({block.page for block in blocks("doctest")}))
def test_examples_are_true(page):
    failed, tried = doctest.testfile(str(REPOSITORY / page), module_relative=False)
    assert tried > 0
    assert failed == 0


def names_of(block: Block) -> Callable[[], dict[str, Any]]:
    """What a block takes for granted."""
    if block.page in PASTED_IN_ORDER:
        return no_names_but_torch if "import torch" in block.text else no_names
    found = {"prepare(": names_of_home, "jax": names_of_jax, "torch": names_of_torch}
    return next((names for text, names in found.items() if text in block.text), names_of_numpy)


def python_of_pages() -> list[Any]:
    """(blocks of a page, what they take for granted); those of JAX and torch are on their own."""
    pages: dict[tuple[str, Any], list[Block]] = {}
    for block in blocks("python"):
        pages.setdefault((block.page, names_of(block)), []).append(block)
    return [pytest.param(blocks, names, id=page) for (page, names), blocks in pages.items()]


@pytest.mark.parametrize(("of_page", "names"), python_of_pages())
def test_python_runs(of_page, names):
    namespace = names()
    for block in of_page:
        text = without_gpu_lines(block.text) if simulator_enabled() else block.text
        exec(compile(text, str(block), "exec"), namespace)


@pytest.mark.parametrize("block", blocks("excerpt"), ids=str)
def test_excerpts_stand_in_the_file_they_name(block):
    link = re.search(r"\]\((.*)\)", block.before)
    assert link is not None
    source = (REPOSITORY / block.page).parent / link[1]
    lines = [line.strip() for line in source.read_text().splitlines()]
    wanted = [line.strip() for line in block.text.splitlines()]
    starts = range(len(lines) - len(wanted) + 1)
    assert any(lines[start : start + len(wanted)] == wanted for start in starts)


def commands_of(block: Block) -> list[str]:
    """The lines that begin with dxgemm, without what is said of them."""
    lines = [line for line in block.text.splitlines() if line.startswith("dxgemm ")]
    return [re.split(r"\s{2,}", line)[0] for line in lines]


COMMANDS = [
    pytest.param(command, id=f"{block}-{command}")
    for block in blocks("commands")
    for command in commands_of(block)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command):
    _, name, *arguments = shlex.split(command)
    known = typer.main.get_command(app).commands[name]
    if re.search(r"\[|[A-Z]{4}|\.npy", command):  # a synopsis
        options = {option for parameter in known.params for option in parameter.opts}
        assert set(re.findall(r"-{1,2}[a-z]+", command)) <= options
        return
    known.make_context(name, list(arguments))
    if name in QUICK_COMMANDS and "--measure" not in arguments:
        result = CliRunner().invoke(app, [name, *arguments])
        assert result.exit_code == 0, result.stderr


def test_no_block_is_left_out_but_of_installers():
    left_out = [block for block in blocks("commands") if not block.text.startswith("dxgemm ")]
    for block in (*left_out, *blocks("other")):
        assert block.text.split()[0] in INSTALLERS, block


def test_the_five_tasks_of_quickstart_are_right():
    (text,) = (b.text for b in blocks("python") if "quickstart" in b.page and "rbf" in b.text)
    names: dict[str, Any] = {}
    exec(text, names)
    x, y, hidden = names["x"], names["y"], names["hidden"]
    distances = ((x[:, np.newaxis] - y) ** 2).sum(axis=2)
    close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(names["nearest"], distances.argmin(axis=1))
    close(hidden, epilogues.gelu.on_host(x @ names["w1"] + names["b1"])[0])
    close(names["z"], hidden @ names["w2"] + names["b2"] + x)
    close(names["power"], (abs(names["signals"] @ names["weights"]) ** 2).mean(axis=0))
    close(names["covariance"], np.cov(x.T))
    close(names["kernel"], np.exp(-distances / 2))
