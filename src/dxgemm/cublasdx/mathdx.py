"""Device functions of cuBLASDx as LTO-IR, from the description of a tile's multiplication.

libmathdx instantiates cuBLASDx's C++ templates with NVRTC; nvmath.bindings.mathdx wraps it function
by function. Here one run of NVRTC gives every device function of a pipeline. Shapes and strides are
arguments at run time, so that one build serves every problem of its dtypes and layouts. The public
interface, `nvmath.device.Matmul.suggest_device_pipeline`, compiles in the shapes and strides of
arrays on a GPU, runs NVRTC once for each function, and has neither bfloat16 nor TF32 nor CUDA 12.
Source: documentation of nvmath.bindings.mathdx and of libmathdx 0.3; the names below are theirs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from dxgemm.cublasdx.library import library, tell_failures

RUNTIME = -(2**63)  # LIBMATHDX_RUNTIME: a shape or stride that is known at run time only

# Precision and value type of the library, and bytes of an element, by dtype.
_TYPES = {
    "bfloat16": ("BF16", "R_16BF", 2),
    "float16": ("F16", "R_16F", 2),
    "tf32": ("TF32", "R_32TF", 4),
    "float32": ("F32", "R_32F", 4),
    "float64": ("F64", "R_64F", 8),
    "int8": ("I8", "R_8I", 1),
    "int32": ("I32", "R_32I", 4),
}
ITEM_BYTES = {dtype: size for dtype, (_, _, size) in _TYPES.items()}


@dataclass(frozen=True)
class Descriptor:
    """Descriptor of a block's tile of a GEMM and its pipeline.

    Attributes:
        tile_m, tile_n, tile_k: extents of the block's tile.
        threads: threads per block.
        stages: k tiles of a and b in shared memory.
        dtype: dtype of a and b; "tf32" for float32 multiplied as TF32.
        accumulator: dtype of the sums.
        a_arrangement, b_arrangement: "row" for row-major, "col" for column-major.
        alignment: bytes that divide the addresses of a and b and the strides of their rows or
            columns; accesses to global memory are no wider.
        arch: real architecture, such as "sm_90a".
        batched: True if a and b have a third index, that of the matrix.
        streaming: True if elements may go from memory to the tensor cores without passing through
            registers, which wgmma needs; otherwise cuBLASDx uses mma.sync for 16-bit types too.
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


@dataclass(frozen=True)
class Storage:
    """Memory of an opaque object: size and alignment in bytes."""

    size: int
    alignment: int


@dataclass(frozen=True)
class DeviceFunctions:
    """Result of a build: LTO-IR to link with a kernel, and the facts that its calls need.

    Attributes:
        ltoir: LTO-IR of all functions.
        symbols: symbols by name of the functions, which libcublasdx.h describes:
            create_device_pipeline(device, a, b), create_tile_pipeline(device, tile, shared memory,
            row, column), create_accumulator(sums), execute(tile, sums), copy(sums, fragment),
            destroy(tile) and coordinates(index, row, column).
        device_pipeline, tile_pipeline, accumulator, fragment: storage that the kernel provides.
        buffer: shared memory of the pipeline.
        fragment_size: elements of the accumulator per thread.
    """

    ltoir: bytes
    symbols: dict[str, str]
    device_pipeline: Storage
    tile_pipeline: Storage
    accumulator: Storage
    fragment: Storage
    buffer: Storage
    fragment_size: int


def build_functions(descriptor: Descriptor) -> DeviceFunctions:
    """Compile the device functions of a descriptor: about half a minute, and no GPU is needed.

    Sizes and code take a run of NVRTC each; the sizes are read in another process, in parallel.

    Raises:
        MissingPackageError: nvmath-python, libmathdx or NVRTC is not installed.
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
    # If the other process failed, this one repeats its work and raises the error.
    sizes = json.loads(printed) if beside.returncode == 0 else read_sizes(descriptor)
    storage = {name: Storage(*size) for name, size in sizes.items() if isinstance(size, list)}
    return DeviceFunctions(ltoir, symbols, **storage, fragment_size=sizes["fragment_size"])


def print_sizes() -> None:
    """Print the sizes of the descriptor on the command line, as JSON."""
    print(json.dumps(read_sizes(Descriptor(**json.loads(sys.argv[1])))))


@tell_failures()
def read_sizes(descriptor: Descriptor) -> dict[str, Any]:
    """Read the numbers of a `DeviceFunctions`; [bytes, alignment] for each storage."""
    lib = library()
    objects = _create_objects(lib, descriptor)
    tensors = [objects.a, objects.b, objects.accumulator, objects.fragment]
    lib.cublasdx_finalize(len(tensors), tensors, 2, [objects.device, objects.tile])
    trait = lib.CublasdxPipelineTrait

    def of_pipeline(pipeline: int, *traits: int) -> list[int]:
        return [lib.cublasdx_get_pipeline_trait_int64(pipeline, trait) for trait in traits]

    storage = trait.STORAGE_BYTES, trait.STORAGE_ALIGNMENT_BYTES
    buffer = trait.BUFFER_SIZE, trait.BUFFER_ALIGNMENT_BYTES
    return {
        "device_pipeline": of_pipeline(objects.device, *storage),
        "tile_pipeline": of_pipeline(objects.tile, *storage),
        "accumulator": _tensor_traits(lib, objects.accumulator)[:2],
        "fragment": _tensor_traits(lib, objects.fragment)[:2],
        "buffer": of_pipeline(objects.device, *buffer),
        "fragment_size": _tensor_traits(lib, objects.fragment)[2],
    }


@tell_failures()
def _compile(descriptor: Descriptor) -> tuple[dict[str, str], bytes]:
    """Compile all device functions; return their symbols and LTO-IR."""
    lib = library()
    objects, kind = _create_objects(lib, descriptor), lib.CublasdxDeviceFunctionType
    accumulator, fragment = objects.accumulator, objects.fragment
    functions = {
        "create_device_pipeline": (kind.CREATE, [], [objects.device]),
        "create_tile_pipeline": (kind.CREATE, [], [objects.tile]),
        "create_accumulator": (kind.CREATE, [accumulator], []),
        "execute": (kind.EXECUTE, [accumulator], [objects.tile]),
        "copy": (kind.COPY, [accumulator, fragment], []),
        "destroy": (kind.DESTROY, [], [objects.tile]),
        "coordinates": (kind.MAP_IDX2CRD_PARTITIONER, [fragment], []),
    }
    handles = {
        name: lib.cublasdx_create_device_function_with_pipelines(
            objects.handle, kind, len(tensors), tensors, len(pipelines), pipelines
        )
        for name, (kind, tensors, pipelines) in functions.items()
    }
    return _finish(lib, handles, descriptor.arch)


def _tensor_traits(lib: Any, tensor: int) -> list[int]:
    """Size in bytes, alignment in bytes, and number of elements of a tensor."""
    trait = lib.CublasdxTensorTrait
    traits = trait.STORAGE_BYTES, trait.ALIGNMENT_BYTES, trait.LOGICAL_SIZE
    return [lib.cublasdx_get_tensor_trait_int64(tensor, trait) for trait in traits]


def _finish(lib: Any, functions: dict[str, int], arch: str) -> tuple[dict[str, str], bytes]:
    """Compile device functions; return their symbols and LTO-IR."""
    code, option = lib.commondx_create_code(), lib.CommondxOption
    lib.commondx_set_code_option_int64s(code, option.TARGET_SM, 2, _target(lib, arch))
    lib.commondx_set_code_option_str(code, option.EXTRA_NVRTC_ARGS, "-gen-opt-lto")
    lib.cublasdx_finalize_device_functions(code, len(functions), list(functions.values()))
    ltoir = bytearray(lib.commondx_get_code_ltoir_size(code))
    lib.commondx_get_code_ltoir(code, len(ltoir), ltoir)
    return {name: _symbol(lib, function) for name, function in functions.items()}, bytes(ltoir)


def _symbol(lib: Any, function: int) -> str:
    trait = lib.CublasdxDeviceFunctionTrait.SYMBOL
    name = bytearray(lib.cublasdx_get_device_function_trait_str_size(function, trait))
    lib.cublasdx_get_device_function_trait_str(function, trait, len(name), name)
    return name.rstrip(b"\0").decode()


class _Objects(NamedTuple):
    """Handles of the library's objects for a descriptor."""

    handle: int
    a: int
    b: int
    device: int
    tile: int
    accumulator: int
    fragment: int


def _create_objects(lib: Any, descriptor: Descriptor) -> _Objects:
    layouts = descriptor.a_arrangement, descriptor.b_arrangement
    operators = _operators(lib, descriptor)
    operators["WITH_PIPELINE"] = [1]
    if descriptor.streaming:
        operators["ENABLE_INPUT_STREAMING"] = [1]
    handle = _describe(lib, operators)
    a, b = (_global_tensor(lib, descriptor, layout) for layout in layouts)
    device = lib.cublasdx_create_device_pipeline(
        handle,
        lib.CublasdxDevicePipelineType.SUGGESTED,
        descriptor.stages,
        lib.CublasdxBlockSizeStrategy.FIXED,
        a,
        b,
    )
    tile_kind = lib.CublasdxTilePipelineType.PIPELINE_DEFAULT
    tile = lib.cublasdx_create_tile_pipeline(handle, tile_kind, device)
    tensor = lib.CublasdxTensorType
    accumulator = lib.cublasdx_create_tensor(handle, tensor.SUGGESTED_ACCUMULATOR_C)
    fragment = lib.cublasdx_create_tensor(handle, tensor.SUGGESTED_RMEM_C)
    return _Objects(handle, a, b, device, tile, accumulator, fragment)


def _operators(lib: Any, descriptor: Descriptor) -> dict[str, list[int]]:
    """Operators that describe a tile's multiplication, by name; its sums are row-major."""
    precision = (descriptor.dtype, descriptor.dtype, descriptor.accumulator)
    arrangements = descriptor.a_arrangement, descriptor.b_arrangement, "row"
    directions = {
        "row": lib.CublasdxArrangement.ROW_MAJOR,
        "col": lib.CublasdxArrangement.COL_MAJOR,
    }
    return {
        "API": [lib.CublasdxApi.TENSORS],
        "SIZE": [descriptor.tile_m, descriptor.tile_n, descriptor.tile_k],
        "PRECISION": [lib.CommondxPrecision[_TYPES[dtype][0]] for dtype in precision],
        "FUNCTION": [lib.CublasdxFunction.MM],
        "EXECUTION": [lib.CommondxExecution.BLOCK],
        "TYPE": [lib.CublasdxType.REAL],
        "SM": _target(lib, descriptor.arch),
        "BLOCK_DIM": [descriptor.threads, 1, 1],
        "STATIC_BLOCK_DIM": [1],
        "ARRANGEMENT": [directions[direction] for direction in arrangements],
        "ALIGNMENT": [descriptor.alignment] * 2 + [16],
    }


def _describe(lib: Any, operators: dict[str, list[int]]) -> int:
    """Create the library's descriptor for operators, and return its handle."""
    handle = lib.cublasdx_create_descriptor()
    for name, values in operators.items():
        operator = lib.CublasdxOperatorType[name]
        if len(values) == 1:
            lib.cublasdx_set_operator_int64(handle, operator, values[0])
        else:
            lib.cublasdx_set_operator_int64s(handle, operator, len(values), values)
    return int(handle)


def _global_tensor(lib: Any, descriptor: Descriptor, layout: str) -> int:
    """Create a matrix, or a batch, in global memory, of any shape and leading dimension."""
    strides = [RUNTIME, 1] if layout == "row" else [1, RUNTIME]
    if descriptor.batched:
        strides.append(RUNTIME)
    value_type = lib.CommondxValueType[_TYPES[descriptor.dtype][1]]
    rank, shape, gmem = len(strides), [RUNTIME] * len(strides), lib.CublasdxMemorySpace.GMEM
    return int(lib.cublasdx_create_tensor_strided(gmem, value_type, 0, rank, shape, strides))


def _target(lib: Any, arch: str) -> list[int]:
    """Target as compute capability times 100 and architecture-specific features: [900, 1]."""
    number, modifier = re.fullmatch(r"sm_(\d+)([af]?)", arch).groups()  # type: ignore[union-attr]
    features = lib.CommondxArchModifier
    kinds = {"": features.GENERIC, "a": features.ARCH_SPECIFIC, "f": features.FAMILY_SPECIFIC}
    return [int(number) * 10, kinds[modifier]]
