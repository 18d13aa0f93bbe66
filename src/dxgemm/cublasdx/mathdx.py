"""cuBLASDx from Python: describe a tile's multiplication, get its device functions as LTO-IR.

libmathdx instantiates cuBLASDx's C++ templates with NVRTC. Here one run of NVRTC gives every
device function of a pipeline, and none of them knows a shape or a stride: those arrive at run time,
so that what is built once serves every problem of its dtypes and arrangements.

Why not nvmath.device: `Matmul.suggest_device_pipeline` compiles the shapes and strides in, runs
NVRTC once for each of ten functions, knows neither bfloat16 nor TF32 and refuses CUDA 12. Why not
nvmath.bindings.mathdx, which wraps the same library function by function: it loads libmathdx only
beside an NVIDIA driver, and kernels shall be built on machines that have none. The library itself
needs NVRTC alone, and its handles and enumerations are plain integers.
Source: libcublasdx.h and libcommondx.h of libmathdx 0.3; the names below are theirs.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple

from dxgemm.errors import BuildError, MissingPackageError

MOST_ERROR_LINES = 3
RUNTIME = -(2**63)  # LIBMATHDX_RUNTIME: a shape or stride that is not known before the call

ROW_ALIGNMENT = 16  # bytes, of the operands of a block's product

# Oldest and first unsupported version of libmathdx: the argument lists were checked for these.
OLDEST_LIBRARY, NEXT_LIBRARY = (0, 3, 1), (0, 4, 0)

# Precision and value type of the library, and bytes of an element, by dtype.
_PRECISIONS = {
    "bfloat16": 2, "float16": 3, "tf32": 4, "float32": 5, "float64": 6, "int8": 7, "int32": 9,
}  # fmt: skip
_VALUE_TYPES = {
    "bfloat16": 4, "float16": 7, "tf32": 10, "float32": 12, "float64": 14, "int8": 16, "int32": 20,
}  # fmt: skip
ITEM_BYTES = {
    "bfloat16": 2, "float16": 2, "tf32": 4, "float32": 4, "float64": 8, "int8": 1, "int32": 4,
}  # fmt: skip
_ARRANGEMENTS = {"col": 0, "row": 1}
_STATUS = {1: "invalid value", 2: "internal error", 3: "NVRTC failed", 4: "cuFFT failed"}

# enum values: operators of a descriptor,
_FUNCTION, _SIZE, _TYPE, _PRECISION, _SM, _EXECUTION, _BLOCK_DIM = range(7)
_API, _ARRANGEMENT, _ALIGNMENT, _STATIC_BLOCK_DIM = 9, 10, 11, 12
_INPUT_STREAMING, _WITH_PIPELINE = 13, 14
_MATRIX_MULTIPLY, _REAL, _BLOCK, _TENSORS = 0, 0, 1, 2
_GLOBAL_MEMORY, _SUGGESTED, _FIXED_BLOCK_SIZE = 2, 0, 1
# tensors and their traits, traits of pipelines,
_A_IN_SHARED, _B_IN_SHARED, _REGISTERS, _A_IN_GLOBAL, _B_IN_GLOBAL, _ACCUMULATOR = 3, 4, 6, 7, 8, 10
_TENSOR_BYTES, _TENSOR_ALIGNMENT, _TENSOR_SIZE = 0, 1, 5
_STORAGE_BYTES, _STORAGE_ALIGNMENT, _BUFFER_BYTES, _BUFFER_ALIGNMENT, _PIPELINE_THREADS = (
    0, 1, 2, 3, 5,
)  # fmt: skip
# device functions, their symbol and their option, options of the code.
_EXECUTE, _COPY, _WAIT, _COORDINATES, _CREATE, _DESTROY = 0, 1, 2, 6, 11, 12
_SYMBOL, _COPY_ALIGNMENT = 1, 1
_TARGET_SM, _NVRTC_ARGUMENTS = 1, 4
_ARCHITECTURE_SPECIFIC = 1


@dataclass(frozen=True)
class Descriptor:
    """A block's share of a GEMM, and how it is pipelined.

    Attributes:
        tile_m, tile_n, tile_k: extents of the block's tile.
        threads: of a block.
        stages: k tiles of a and b in shared memory.
        dtype: of a and b; "tf32" for float32 multiplied as TF32.
        accumulator: dtype of the sums.
        a_arrangement, b_arrangement: "row" or "col": along what the elements of a and b lie.
        alignment: bytes that divide the addresses of a and b and the strides of their rows or
            columns; accesses to global memory are no wider.
        arch: real architecture, such as "sm_90a".
        batched: whether a and b have a third index, that of the matrix.
        streaming: whether elements may go from memory to the tensor cores unseen by threads, which
            wgmma needs: without it cuBLASDx uses mma.sync for 16-bit types too.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    threads: int
    stages: int
    dtype: str
    accumulator: str
    a_arrangement: str
    b_arrangement: str
    alignment: int
    arch: str
    batched: bool = False
    streaming: bool = False

    def __post_init__(self) -> None:
        for name in (self.dtype, self.accumulator):
            if name not in _PRECISIONS:
                raise ValueError(f"{self}: cuBLASDx has no {name}")
        if min(self.tile_m, self.tile_n, self.tile_k, self.stages) < 1:
            raise ValueError(f"{self}: extents and stages must be positive")
        if self.threads % 32 or not 32 <= self.threads <= 1024:
            raise ValueError(f"{self}: a block has 32 to 1024 threads in whole warps")
        if self.alignment not in (1, 2, 4, 8, 16) or self.alignment < ITEM_BYTES[self.dtype]:
            raise ValueError(f"{self}: alignment is {ITEM_BYTES[self.dtype]} to 16 bytes")


@dataclass(frozen=True)
class BlockDescriptor:
    """A product of small matrices, which a block computes at once.

    Elements of a, b and the sums lie along their rows; rows of a and b begin at multiples of
    `ROW_ALIGNMENT` bytes.

    Attributes:
        tile_m, tile_n, tile_k: extents of the matrices.
        threads: of a block.
        dtype: of a, b and the sums.
        arch: real architecture, such as "sm_90a".
    """

    tile_m: int
    tile_n: int
    tile_k: int
    threads: int
    dtype: str
    arch: str

    def __post_init__(self) -> None:
        if self.dtype not in _PRECISIONS:
            raise ValueError(f"{self}: cuBLASDx has no {self.dtype}")
        if min(self.tile_m, self.tile_n, self.tile_k) < 1:
            raise ValueError(f"{self}: extents must be positive")
        if self.threads % 32 or not 32 <= self.threads <= 1024:
            raise ValueError(f"{self}: a block has 32 to 1024 threads in whole warps")


@dataclass(frozen=True)
class Storage:
    """Memory of an opaque object: bytes, and what they are aligned to."""

    size: int
    alignment: int


@dataclass(frozen=True)
class DeviceFunctions:
    """What a build yields: LTO-IR to link with a kernel, and how the kernel calls it.

    Attributes:
        ltoir: all functions.
        symbols: their names: create_device_pipeline(device, a, b), create_tile_pipeline(device,
            tile, shared memory, row, column), create_accumulator(sums), execute(tile, sums),
            copy(sums, fragment), destroy(tile), coordinates(index, row, column), as libcublasdx.h
            describes each.
        device_pipeline, tile_pipeline, accumulator, fragment: storage that the kernel provides.
        buffer: shared memory of the pipeline.
        fragment_size: elements of the accumulator that a thread has.
        threads: of a block.
    """

    ltoir: bytes
    symbols: dict[str, str]
    device_pipeline: Storage
    tile_pipeline: Storage
    accumulator: Storage
    fragment: Storage
    buffer: Storage
    fragment_size: int
    threads: int


@dataclass(frozen=True)
class BlockFunctions:
    """What a build of a block's product yields.

    Attributes:
        ltoir: all functions.
        symbols: their names: copy_a(from global to shared memory), copy_b, wait() for the thread's
            copies and for the block, execute(a, b, fragment), which adds to the fragment, and
            coordinates(index, row, column), as libcublasdx.h describes each.
        a_smem, b_smem: shared memory of a and of b.
        fragment: storage of the thread's sums, which the kernel provides.
        fragment_size: sums that a thread has.
    """

    ltoir: bytes
    symbols: dict[str, str]
    a_smem: Storage
    b_smem: Storage
    fragment: Storage
    fragment_size: int


class Library:
    """libmathdx, with each failure raised as a `BuildError`.

    Objects it creates live as long as the process: a build needs a dozen handles.
    """

    def __init__(self) -> None:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

        try:
            load_nvidia_dynamic_lib("nvrtc")  # libmathdx looks for it by name only
            path = load_nvidia_dynamic_lib("mathdx").abs_path
        except DynamicLibNotFoundError as error:
            raise MissingPackageError(
                "cuBLASDx pipelines are built with libmathdx and NVRTC "
                f"({str(error).partition(':')[0]}); pip install 'dxgemm[cu13]', or 'dxgemm[cu12]' "
                "for NVIDIA drivers before 580."
            ) from error
        self._library = ctypes.CDLL(str(path))
        numbers = [ctypes.c_int() for _ in range(3)]
        self.call("mathdxGetVersionEx", *map(ctypes.byref, numbers))
        self.version = tuple(number.value for number in numbers)
        if not OLDEST_LIBRARY <= self.version < NEXT_LIBRARY:
            raise BuildError(
                f"libmathdx {_dotted(self.version)} is installed; cuBLASDx pipelines need "
                f"{_dotted(OLDEST_LIBRARY)} or later, before {_dotted(NEXT_LIBRARY)}."
            )

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status.

        Raises:
            BuildError: the status is an error; with what the library says of it.
        """
        status = getattr(self._library, name)(*arguments)
        if status:
            reason = _STATUS.get(status, f"status {status}")
            raise BuildError(f"libmathdx: {name} failed: {reason}. {self._last_error()}".rstrip())

    def create(self, name: str, *arguments: Any) -> int:
        """Call a function whose last argument receives the handle of a new object."""
        return self._received(ctypes.c_longlong, name, *arguments)

    def trait(self, name: str, handle: int, trait: int) -> int:
        """A number that the library knows of an object."""
        return self._received(ctypes.c_longlong, name, _int64(handle), trait)

    def traits(self, name: str, handle: int, trait: int, count: int) -> tuple[int, ...]:
        """Several of them."""
        values = (ctypes.c_longlong * count)()
        self.call(name, _int64(handle), trait, ctypes.c_size_t(count), values)
        return tuple(values)

    def text(self, name: str, handle: int, trait: int) -> str:
        """A name that the library gave to an object."""
        size = self._received(ctypes.c_size_t, f"{name}Size", _int64(handle), trait)
        text = ctypes.create_string_buffer(size)
        self.call(name, _int64(handle), trait, ctypes.c_size_t(size), text)
        return text.value.decode()

    def ltoir(self, code: int) -> bytes:
        """What was compiled."""
        size = self._received(ctypes.c_size_t, "commondxGetCodeLTOIRSize", _int64(code))
        content = ctypes.create_string_buffer(size)
        self.call("commondxGetCodeLTOIR", _int64(code), ctypes.c_size_t(size), content)
        return content.raw

    def _received(self, kind: Any, name: str, *arguments: Any) -> int:
        result = kind()
        self.call(name, *arguments, ctypes.byref(result))
        return int(result.value)

    def _last_error(self) -> str:
        size, code = ctypes.c_size_t(), ctypes.c_int()
        if self._library.commondxGetLastErrorStrSize(ctypes.byref(size)) or not size.value:
            return ""
        text = ctypes.create_string_buffer(size.value)
        self._library.commondxGetLastErrorStr(ctypes.byref(code), size, text)
        lines = text.value.decode(errors="replace").strip().splitlines()
        return "\n".join(lines[:MOST_ERROR_LINES])  # what follows names instantiated templates


@cache
def library() -> Library:
    """The library of this process.

    Raises:
        MissingPackageError: libmathdx or NVRTC is not installed.
        BuildError: it is another version than those this file was written for.
    """
    return Library()


def build_functions(descriptor: Descriptor) -> DeviceFunctions:
    """Compile the device functions of a descriptor: about half a minute, and no GPU is needed.

    Sizes and code are runs of NVRTC that need not wait for each other, but would in one process.

    Raises:
        MissingPackageError: libmathdx or NVRTC is not installed.
        BuildError: cuBLASDx does not offer this pipeline, or NVRTC failed.
    """
    library()
    program = "from dxgemm.cublasdx import mathdx; mathdx.print_sizes()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(asdict(descriptor))],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as beside:
        try:
            symbols, ltoir = _compile(descriptor)
        except BaseException:
            beside.kill()
            raise
        printed, _ = beside.communicate()
    # Whatever kept the other process from it, this one tells.
    sizes = json.loads(printed) if beside.returncode == 0 else read_sizes(descriptor)
    storage = {name: Storage(*size) for name, size in sizes.items() if isinstance(size, list)}
    return DeviceFunctions(
        ltoir=ltoir,
        symbols=symbols,
        **storage,
        fragment_size=sizes["fragment_size"],
        threads=sizes["threads"],
    )


def print_sizes() -> None:
    """Print the sizes of the descriptor on the command line, as JSON."""
    print(json.dumps(read_sizes(Descriptor(**json.loads(sys.argv[1])))))


def read_sizes(descriptor: Descriptor) -> dict[str, Any]:
    """The numbers of a `DeviceFunctions`; [bytes, alignment] for each storage."""
    lib = library()
    objects = _create_objects(lib, descriptor)
    lib.call(
        "cublasdxFinalize",
        *_counted((objects.a, objects.b, objects.accumulator, objects.fragment)),
        *_counted((objects.device, objects.tile)),
    )

    def of_pipeline(pipeline: int, *traits: int) -> list[int]:
        return [lib.trait("cublasdxGetPipelineTraitInt64", pipeline, trait) for trait in traits]

    def of_tensor(tensor: int, *traits: int) -> list[int]:
        return [lib.trait("cublasdxGetTensorTraitInt64", tensor, trait) for trait in traits]

    block = lib.traits("cublasdxGetPipelineTraitInt64s", objects.device, _PIPELINE_THREADS, 3)
    return {
        "device_pipeline": of_pipeline(objects.device, _STORAGE_BYTES, _STORAGE_ALIGNMENT),
        "tile_pipeline": of_pipeline(objects.tile, _STORAGE_BYTES, _STORAGE_ALIGNMENT),
        "accumulator": of_tensor(objects.accumulator, _TENSOR_BYTES, _TENSOR_ALIGNMENT),
        "fragment": of_tensor(objects.fragment, _TENSOR_BYTES, _TENSOR_ALIGNMENT),
        "buffer": of_pipeline(objects.device, _BUFFER_BYTES, _BUFFER_ALIGNMENT),
        "fragment_size": of_tensor(objects.fragment, _TENSOR_SIZE)[0],
        "threads": block[0] * block[1] * block[2],
    }


def _compile(descriptor: Descriptor) -> tuple[dict[str, str], bytes]:
    """Symbols and LTO-IR of all device functions."""
    lib = library()
    objects = _create_objects(lib, descriptor)
    accumulator, fragment = (objects.accumulator,), (objects.fragment,)
    functions = {
        "create_device_pipeline": (_CREATE, (), (objects.device,)),
        "create_tile_pipeline": (_CREATE, (), (objects.tile,)),
        "create_accumulator": (_CREATE, accumulator, ()),
        "execute": (_EXECUTE, accumulator, (objects.tile,)),
        "copy": (_COPY, (*accumulator, *fragment), ()),
        "destroy": (_DESTROY, (), (objects.tile,)),
        "coordinates": (_COORDINATES, fragment, ()),
    }
    handles = {
        name: lib.create(
            "cublasdxCreateDeviceFunctionWithPipelines",
            *(_int64(objects.handle), kind, *_counted(tensors), *_counted(pipelines)),
        )
        for name, (kind, tensors, pipelines) in functions.items()
    }
    return _finish(lib, handles, descriptor.arch)


def build_block_functions(descriptor: BlockDescriptor) -> BlockFunctions:
    """Compile the device functions of a block's product: some 20 seconds, and no GPU is needed.

    Raises:
        MissingPackageError: libmathdx or NVRTC is not installed.
        BuildError: cuBLASDx does not offer this product, or NVRTC failed.
    """
    lib = library()
    operators = _operators(descriptor, descriptor.dtype, ("row", "row"), ROW_ALIGNMENT)
    handle = _describe(lib, operators)

    def tensor(kind: int) -> int:
        return lib.create("cublasdxCreateTensor", _int64(handle), kind)

    a_gmem, b_gmem = tensor(_A_IN_GLOBAL), tensor(_B_IN_GLOBAL)
    a_smem, b_smem, fragment = tensor(_A_IN_SHARED), tensor(_B_IN_SHARED), tensor(_REGISTERS)
    lib.call("cublasdxFinalizeTensors", *_counted((a_smem, b_smem, fragment)))
    functions = {
        "copy_a": (_COPY, (a_gmem, a_smem)),
        "copy_b": (_COPY, (b_gmem, b_smem)),
        "wait": (_WAIT, ()),
        "execute": (_EXECUTE, (a_smem, b_smem, fragment)),
        "coordinates": (_COORDINATES, (fragment,)),
    }
    handles = {
        name: lib.create("cublasdxCreateDeviceFunction", _int64(handle), kind, *_counted(tensors))
        for name, (kind, tensors) in functions.items()
    }
    # Without it they copy element by element, whatever the descriptor says.
    for name in ("copy_a", "copy_b"):
        lib.call(
            "cublasdxSetDeviceFunctionOptionInt64",
            *(_int64(handles[name]), _COPY_ALIGNMENT, ctypes.c_longlong(ROW_ALIGNMENT)),
        )

    def trait(tensor: int, number: int) -> int:
        return lib.trait("cublasdxGetTensorTraitInt64", tensor, number)

    def storage(tensor: int) -> Storage:
        return Storage(trait(tensor, _TENSOR_BYTES), trait(tensor, _TENSOR_ALIGNMENT))

    symbols, ltoir = _finish(lib, handles, descriptor.arch)
    return BlockFunctions(
        ltoir=ltoir,
        symbols=symbols,
        a_smem=storage(a_smem),
        b_smem=storage(b_smem),
        fragment=storage(fragment),
        fragment_size=trait(fragment, _TENSOR_SIZE),
    )


def _finish(lib: Library, functions: dict[str, int], arch: str) -> tuple[dict[str, str], bytes]:
    """Symbols and LTO-IR of device functions, which are compiled here."""
    code = lib.create("commondxCreateCode")
    target = _target(arch)
    lib.call("commondxSetCodeOptionInt64s", _int64(code), _TARGET_SM, *_counted(target))
    lib.call("commondxSetCodeOptionStr", _int64(code), _NVRTC_ARGUMENTS, b"-gen-opt-lto")
    lib.call("cublasdxFinalizeDeviceFunctions", _int64(code), *_counted(tuple(functions.values())))
    symbols = {
        name: lib.text("cublasdxGetDeviceFunctionTraitStr", function, _SYMBOL)
        for name, function in functions.items()
    }
    return symbols, lib.ltoir(code)


class _Objects(NamedTuple):
    """The library's handles of what a descriptor implies."""

    handle: int
    a: int
    b: int
    device: int
    tile: int
    accumulator: int
    fragment: int


def _create_objects(lib: Library, descriptor: Descriptor) -> _Objects:
    arrangement = descriptor.a_arrangement, descriptor.b_arrangement
    operators = _operators(descriptor, descriptor.accumulator, arrangement, descriptor.alignment)
    operators[_WITH_PIPELINE] = (1,)
    if descriptor.streaming:
        operators[_INPUT_STREAMING] = (1,)
    handle = _describe(lib, operators)
    a = _global_tensor(lib, descriptor, descriptor.a_arrangement)
    b = _global_tensor(lib, descriptor, descriptor.b_arrangement)
    device = lib.create(
        "cublasdxCreateDevicePipeline",
        *(_int64(handle), _SUGGESTED, _int64(descriptor.stages), _FIXED_BLOCK_SIZE),
        *(_int64(a), _int64(b)),
    )
    tile = lib.create("cublasdxCreateTilePipeline", _int64(handle), 0, _int64(device))
    accumulator = lib.create("cublasdxCreateTensor", _int64(handle), _ACCUMULATOR)
    fragment = lib.create("cublasdxCreateTensor", _int64(handle), _REGISTERS)
    return _Objects(handle, a, b, device, tile, accumulator, fragment)


def _operators(
    descriptor: Descriptor | BlockDescriptor,
    accumulator: str,
    arrangement: tuple[str, str],
    alignment: int,
) -> dict[int, tuple[int, ...]]:
    """What describes a block's product to the library.

    Args:
        descriptor: the product.
        accumulator: dtype of the sums.
        arrangement: of a and b; the sums lie along rows.
        alignment: of a and b in bytes.
    """
    precision = (descriptor.dtype, descriptor.dtype, accumulator)
    return {
        _API: (_TENSORS,),
        _SIZE: (descriptor.tile_m, descriptor.tile_n, descriptor.tile_k),
        _PRECISION: tuple(_PRECISIONS[dtype] for dtype in precision),
        _FUNCTION: (_MATRIX_MULTIPLY,),
        _EXECUTION: (_BLOCK,),
        _TYPE: (_REAL,),
        _SM: _target(descriptor.arch),
        _BLOCK_DIM: (descriptor.threads, 1, 1),
        _STATIC_BLOCK_DIM: (1,),
        _ARRANGEMENT: tuple(_ARRANGEMENTS[direction] for direction in (*arrangement, "row")),
        _ALIGNMENT: (max(alignment, ITEM_BYTES[descriptor.dtype]),) * 2 + (16,),
    }


def _describe(lib: Library, operators: dict[int, tuple[int, ...]]) -> int:
    """The library's handle of what operators describe."""
    handle = lib.create("cublasdxCreateDescriptor")
    for operator, values in operators.items():
        if len(values) == 1:
            lib.call(
                "cublasdxSetOperatorInt64", _int64(handle), operator, ctypes.c_longlong(values[0])
            )
        else:
            lib.call("cublasdxSetOperatorInt64s", _int64(handle), operator, *_counted(values))
    return handle


def _global_tensor(lib: Library, descriptor: Descriptor, arrangement: str) -> int:
    """A matrix of any shape, whose rows or columns are any distance apart; or several."""
    strides: tuple[int, ...] = (RUNTIME, 1) if arrangement == "row" else (1, RUNTIME)
    if descriptor.batched:
        strides = (*strides, RUNTIME)
    shape = (RUNTIME,) * len(strides)
    return lib.create(
        "cublasdxCreateTensorStrided",
        *(_GLOBAL_MEMORY, _VALUE_TYPES[descriptor.dtype], None, ctypes.c_longlong(len(shape))),
        *(_int64s(shape), _int64s(strides)),
    )


def _target(arch: str) -> tuple[int, ...]:
    """Compute capability times 100, and whether its own features may be used: (900, 1)."""
    number, modifier = re.fullmatch(r"sm_(\d+)(a?)", arch).groups()  # type: ignore[union-attr]
    return int(number) * 10, _ARCHITECTURE_SPECIFIC if modifier else 0


def _int64(value: int) -> ctypes.c_longlong:
    return ctypes.c_longlong(value)


def _int64s(values: tuple[int, ...]) -> Any:
    return (ctypes.c_longlong * len(values))(*values)


def _counted(values: tuple[int, ...]) -> tuple[Any, Any]:
    """As functions take several numbers: how many, and where."""
    return ctypes.c_size_t(len(values)), _int64s(values)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
