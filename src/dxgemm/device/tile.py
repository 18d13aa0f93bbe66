"""A tile of a product for kernels of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from dxgemm.device.kernel import UserKernel, kernel_of
from dxgemm.device.launch import bind_kernel, check_grid
from dxgemm.epilogues.reads import KeyedModule
from dxgemm.errors import DtypeError, SettingError, ShapeError, named_in_errors, shown
from dxgemm.gpu.status import simulator_enabled
from dxgemm.handwritten.parts.operands import HALVES
from dxgemm.problem.arguments import check_name, check_size

# Kernel files whose configs tiles have, by dtype; and dtypes of a stored result.
KERNELS = {
    "float32": "dxgemm.handwritten.kernels.tuned",
    "float64": "dxgemm.handwritten.kernels.tensor_core",
    "float16": "dxgemm.handwritten.kernels.tensor_tile",
    "bfloat16": "dxgemm.handwritten.kernels.tensor_tile",
}
RESULTS = {
    "float32": ("float32",),
    "float64": ("float64",),
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
}
LAYOUTS = ("row", "col")
_OF_KEPT = ("keep", "fetch_for_kept", "multiply_kept", "product_of_kept")
_FUNCTIONS = (
    "origin_of", "origin", "accumulator", "apply", "fetch", "multiply", "product", "position",
    "store", *_OF_KEPT,
)  # fmt: skip


class Tile(KeyedModule):
    """A block's tile of a product, as kernels and their launches use it: see `dxgemm.device.tile`.

    numba takes it for a module, and its device functions for functions of that.

    Attributes:
        dtype, out: dtype of the operands, and of what `store` writes.
        m, n: rows and columns of a block's tile.
        threads: threads per block.
        per_thread: elements of the tile per thread.
        kept: columns that `keep` has room for.
        smem_bytes: shared memory per block, in bytes.
        needs_hopper: True if it multiplies by `wgmma`.
        config: the config, as `dxgemm.gemm(implementation=("tuned", config))` takes it.
    """

    def __init__(
        self, config: Any, dtype: str, out: str, layouts: tuple[str, str], kept: int
    ) -> None:
        from dxgemm.handwritten.frames.block_tile import extents, kept_bytes, ring_bytes
        from dxgemm.handwritten.parts.configs import SMEM_BYTES_PER_BLOCK
        from dxgemm.handwritten.parts.line_wgmma import WarpgroupConfig

        text = f"{dtype} {config}, a {layouts[0]}, b {layouts[1]}, out {out}, kept {kept}"
        super().__init__(f"dxgemm.device.tile({text})")
        self.key = text
        self._made = config, dtype, out, layouts, kept
        self.config, self.dtype, self.out, self.kept = config, dtype, out, kept
        self.m, self.n = extents(config, layouts)
        self.threads = config.threads
        self.needs_hopper = isinstance(config, WarpgroupConfig)
        self.per_thread = self.m * self.n // self.threads
        self.smem_bytes = ring_bytes(config, dtype)
        self.smem_bytes += kept_bytes(config, dtype, layouts, kept)
        blocks = config.min_blocks(dtype), SMEM_BYTES_PER_BLOCK // self.smem_bytes
        self.min_blocks = max(1, min(blocks))

    def __repr__(self) -> str:
        return f"<tile {self.key}>"

    def __getattr__(self, name: str) -> Any:
        """Make the device functions when the first one is used."""
        if name not in _FUNCTIONS:
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        from dxgemm.handwritten.frames.block_tile import make_block_tile

        functions = make_block_tile(*self._made)._asdict()
        if not simulator_enabled():  # numba looks for new intrinsics when it begins to compile
            from numba.cuda.descriptor import cuda_target

            cuda_target.typing_context.refresh()
        if not self.kept:
            way_out = f"{self!r} keeps nothing; make it with kept="
            functions = {key: functions[key] for key in functions if key not in _OF_KEPT}
            if name not in functions:
                raise AttributeError(way_out)
        vars(self).update(functions)
        return functions[name]

    def anew(self) -> Tile:
        return Tile(*self._made)

    @named_in_errors("device.Tile.blocks")
    def blocks(self, m: int, n: int) -> int:
        """Blocks of a grid that covers a result of m x n, one per tile: see `origin`.

        Raises:
            ShapeError: m or n is no size.
        """
        rows, cols = (check_size(name, size) for name, size in (("m", m), ("n", n)))
        return -(-rows // self.m) * -(-cols // self.n)

    @named_in_errors("device.Tile.launch")
    def launch(self, kernel: Any, grid: Any, *arguments: Any, stream: Any = None) -> None:
        """Queue kernel[grid, threads, stream, shared memory](*arguments) and return at once.

        The kernel is compiled for the dtypes and dimensions of its arguments, not for their shapes
        and strides, and kept in dxgemm's cache, so that another process finds it there.

        Args:
            kernel: a function of `numba.cuda.jit`, or a plain one. It may read globals and closure
                variables that are numbers, tuples of these, tiles, and functions; their values,
                and all code that it calls, are part of its key.
            grid: blocks, or a tuple of up to three numbers of them.
            *arguments: arrays of CuPy, torch, JAX, numba or any library with
                `__cuda_array_interface__` or DLPack, on one GPU, and numbers: an int is an int64,
                a float a float64, NumPy's scalars have their own dtypes. Arrays in host memory are
                copied to the GPU and back, and the call waits for that.
            stream: a stream of any library; None for the current one of the first array's.

        Raises:
            ArrayTypeError: an argument is neither an array nor a number.
            BuildError: the kernel does not compile.
            DeviceMismatchError: the arrays are on different GPUs.
            DtypeError: an array that the kernel passes to a tile has another dtype than the tile,
                or the dtype of an argument is none that kernels take.
            EpilogueError: the kernel depends on something that could change while a compiled
                kernel stays the same.
            SettingError: grid is none, or the kernel has tiles with different numbers of threads.
            ShapeError: such an array is no matrix.
            UnsupportedProblemError: the GPU has less shared memory, or an older compute capability
                than the tile needs, or an array is too large for 32-bit indices.
        """
        self._bound(kernel, grid, arguments, stream)()

    @named_in_errors("device.Tile.plan")
    def plan(
        self, kernel: Any, grid: Any, *arguments: Any, stream: Any = None
    ) -> Callable[[], None]:
        """Check, build and pack a launch once; calls of what is returned queue it again.

        Args:
            kernel, grid, *arguments, stream: as `launch` takes them. Numbers keep their values, and
                arrays must keep their memory.

        Raises:
            DxgemmError: as `launch` does.
        """
        return self._bound(kernel, grid, arguments, stream)

    def _bound(
        self, kernel: Any, grid: Any, arguments: tuple[Any, ...], stream: Any
    ) -> Callable[[], None]:
        found: UserKernel = kernel_of(kernel)
        tiles = {self, *(tile for tile in found.modules if isinstance(tile, Tile))}
        if len(threads := {tile.threads for tile in tiles}) > 1:
            raise SettingError(
                f"gemm: {found.name} has tiles with {' and '.join(map(str, sorted(threads)))} "
                "threads; the blocks of a kernel have one number of threads: take tiles that agree."
            )
        return bind_kernel(found, self, tiles, check_grid(grid), arguments, stream)


def _configs(dtype: str, layouts: tuple[str, str], by_wgmma: bool) -> dict[tuple[int, int], Any]:
    """Configs of tiles of a dtype, by rows and columns."""
    from dxgemm.handwritten.frames.block_tile import extents
    from dxgemm.handwritten.parts.line_wgmma import WARPGROUP_CONFIGS

    declared = import_module(KERNELS[dtype]).KERNEL
    configs = WARPGROUP_CONFIGS if by_wgmma else declared.configs
    if simulator_enabled() and not by_wgmma:  # whose blocks have little shared memory
        configs = (*declared.simulator_configs, *declared.configs)
        configs = tuple(sorted(configs, key=lambda config: config.smem_bytes(dtype)))
    found: dict[tuple[int, int], Any] = {}
    for config in configs:
        plain = replace(config, split_k=1) if config.cluster > 1 else config
        size = extents(plain, layouts)
        elements = plain.tile_m * plain.tile_n // plain.threads
        # Elements of a thread are found by the bits of their index, and a tile that is kept has
        # all k of a stage.
        is_regular = elements & (elements - 1) == 0 and size[1] >= plain.tile_k
        if is_regular and plain.takes(dtype):
            found.setdefault(size, plain)
    return found


@named_in_errors("device.tile")
def tile(
    dtype: str, m: int = 128, n: int = 128, *,
    a: str = "row", b: str = "row", out: str | None = None, kept: int = 0,
    instruction: str | None = None,
) -> Tile:  # fmt: skip
    """Make a block's tile of a @ b for kernels of your own.

        tile = dxgemm.device.tile("float32", m=128, n=128)

        @cuda.jit
        def kernel(a, b, out):
            row, col = tile.origin(a.shape[0], b.shape[1])
            acc = tile.accumulator()
            tile.product(acc, a, b, row, col)
            for i in range(tile.per_thread):
                r, c = tile.position(i)          # acc[i] is element [row + r, col + c]
                acc[i] = math.tanh(acc[i])
            tile.store(acc, out, row, col)

        tile.launch(kernel, tile.blocks(m, n), a, b, out)

    All threads of a block call its functions together:

        origin(m, n): row and column of the block's tile, in the order of `blocks`, which shares
            what is in L2. Any other row and column may be used in its place.
        origin_of(index, m, n): those of another block.
        accumulator(): the thread's array of per_thread sums, float32 or float64.
        product(acc, a, b, row, col): acc = the tile of a @ b from row and col on. a (m, k) and
            b (k, n) have any shapes and strides; elements outside of them count as zero.
        fetch(a, b, row, col), multiply(acc, a, b, row, col): the same in two steps. Where TMA
            copies, the first stages are under way after the first one. The second one must follow,
            with the same arguments; `apply`, `keep` and `store` may come between them.
        apply(acc, function): acc[i] = function(acc[i]), by a device function of one number.
        position(i): row and column of acc[i] in the tile; they may be outside of the result.
        store(acc, out, row, col): write the elements that are inside of out.
        keep(acc, col, cols): keep the tile in shared memory, rounded to dtype, as columns col and
            on of a matrix of cols columns, of which there may be `kept`.
        product_of_kept(acc, b, col): acc = the tile of that matrix @ b from col on; b has cols
            rows. fetch_for_kept(b, col) and multiply_kept(acc, b, col) are its two steps.

    Args:
        dtype: "float32" by multiply-adds; "float64", "float16" and "bfloat16" by `mma.sync` on
            tensor cores, the latter two with sums of float32.
        m, n: rows and columns of the tile: those of a config of `tuned`, `tensor_core` or
            `tensor_tile`.
        a, b: layout of each operand for which copies are fast: "row" if the elements of a row are
            neighbours in memory, "col" if those of a column are. Others are right, but slower.
        out: dtype of what `store` writes; None for dtype. "float32" may follow "float16" and
            "bfloat16".
        kept: columns that `keep` has room for, which takes shared memory.
        instruction: "wgmma" for Hopper's own in half precision, where TMA copies arguments of the
            kernel that are in the tile's layouts; None for that which GPUs since Ampere have.

    Raises:
        DtypeError: no tile has this dtype, or `store` cannot write `out`; or numba's simulator
            lacks the instruction, or there is no such instruction for it.
        SettingError: a layout is unknown.
        ShapeError: there is no such tile, or kept is no size.
    """
    if not isinstance(dtype, str) or dtype not in KERNELS:
        raise DtypeError(f"gemm: tiles are of {', '.join(KERNELS)}, not {shown(dtype)}.")
    if out is not None and not (isinstance(out, str) and out in RESULTS[dtype]):
        raise DtypeError(
            f"gemm: out is {shown(out)}; a tile of {dtype} is stored as "
            f"{' or '.join(RESULTS[dtype])}."
        )
    layouts = (
        check_name("a", a, LAYOUTS, SettingError), check_name("b", b, LAYOUTS, SettingError)
    )  # fmt: skip
    by_wgmma = isinstance(instruction, str) and instruction == "wgmma"
    if instruction is not None and not (by_wgmma and dtype in HALVES):
        raise DtypeError(
            f"gemm: instruction is {shown(instruction)}; pass 'wgmma' for float16 or bfloat16, or "
            "leave it out."
        )
    if simulator_enabled() and not _is_simulated(dtype):
        raise DtypeError(
            f"gemm: numba's simulator lacks the instruction for tiles of {dtype}; use float32 or "
            "float64 there."
        )
    from dxgemm.handwritten.frames.block_tile import kept_bytes

    configs = _configs(dtype, layouts, by_wgmma)
    m, n = check_size("m", m), check_size("n", n)
    if (m, n) not in configs:
        known = ", ".join(f"{rows}x{cols}" for rows, cols in configs)
        raise ShapeError(f"gemm: no tile of {dtype} is {m}x{n}; these are: {known}.")
    room = check_size("kept", kept, most=2**20)
    config = configs[m, n]
    if by_wgmma:
        config = config.beside(kept_bytes(config, dtype, layouts, room))
    return Tile(config, dtype, out or dtype, layouts, room)


def _is_simulated(dtype: str) -> bool:
    """True if the simulator has the instructions of a dtype's tiles."""
    if dtype not in HALVES:
        return True
    try:
        import_module("dxgemm.handwritten.parts.line_intrinsics")
    except ImportError:
        return False
    return True
