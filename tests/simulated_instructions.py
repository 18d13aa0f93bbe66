"""Stand-ins for the instructions that numba's simulator lacks: of tensor cores, TMA, clusters.

They compute what the instructions do. TMA fills shared memory with an operand's box, in its
swizzle. wgmma multiplies the boxes that its descriptors point to. A cluster has one block, whose
partners' sums are its own.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
from sparse_operands import WARP, Block, bits_of, this_thread, values_of

import dxgemm.handwritten.parts as parts
from dxgemm.handwritten.parts import intrinsics
from dxgemm.handwritten.parts import simulated_memory as memory
from dxgemm.handwritten.parts.operands import FLOAT8_KINDS
from dxgemm.handwritten.parts.simulated_integers import Int32, low_word

CHUNK = 16  # bytes that a swizzle moves together
KINDS = {
    "f16": "float16", "bf16": "bfloat16", "tf32": "float32", "s8": "int8", "u8": "uint8",
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
}  # fmt: skip
_STORED = {
    "f16": np.uint16, "bf16": np.uint16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8,
    "e4m3": np.uint8, "e5m2": np.uint8,
}  # fmt: skip
FIRST_MAP = 2**61  # made-up addresses of tensor maps
maps: dict[int, tuple[Any, Any]] = {}  # operand and tensor map, by the map's made-up address
names: dict[str, int] = {}  # addresses of the maps that are parameters
ends: dict[tuple[int, int], int] = {}  # limits of maps: by address and index


def _nothing(*arguments: Any) -> None:
    """No effect that can be seen here."""


def _signed(words: Any) -> tuple[Any, ...]:
    return tuple(np.asarray(words, np.uint32).view(np.int32))


# --- Barriers ---


def init_barrier(barrier: Any, arrivals: Any) -> None:
    Block.now.phases[int(barrier)] = [0, 0, int(arrivals)]


def arrive(barrier: Any, *count: Any) -> None:
    state = Block.now.phases[int(barrier)]
    state[1] += 1
    if state[1] == state[2]:
        state[0], state[1] = state[0] + 1, 0


def wait_barrier(barrier: Any, parity: Any) -> None:
    while Block.now.phases[int(barrier)][0] % 2 == parity:
        this_thread().pass_turn()


def sync_warpgroup(number: Any) -> None:
    Block.now.meet(int(number), 4 * WARP)


def sync_threads(number: Any, count: Any) -> None:
    Block.now.meet(int(number), int(count))


# --- TMA ---


def tensor_map(name: str) -> int:
    return names[name]


def write_tensor_map(target: Any, source: Any) -> None:
    maps[target] = maps[source]


def limit_tensor_map(target: Any, index: int, size: Any) -> None:
    ends[target, index] = int(Int32(size))


def _box(address: Any, corner: tuple[int, ...]) -> np.ndarray:
    """Values of the elements of a box, rows of its innermost index; zeros outside."""
    operand, tensor = maps[address]
    item = operand.dtype.itemsize
    (items, rows, _), steps = tensor.box, (1, *(s // item for s in tensor.stride_bytes))
    sizes = [ends.get((address, i), size) for i, size in enumerate(tensor.sizes)]
    inner = corner[0] + np.arange(items, dtype=np.int64)[None, :]
    row = corner[1] + np.arange(rows, dtype=np.int64)[:, None]
    is_inside = (inner < sizes[0]) & (row < sizes[1]) & (corner[2] < sizes[2])
    index = inner * steps[0] + row * steps[1] + corner[2] * steps[2]
    if is_inside.any():
        for end in (index[is_inside].min(), index[is_inside].max()):
            operand[end]  # raises an error outside of the operand
    return np.where(is_inside, operand.values(index), 0)


def copy_box(target: Any, source: Any, barrier: Any, corner: Any) -> None:
    corner = tuple(int(Int32(place)) for place in corner)
    sizes = maps[source][1].sizes
    assert all(place >= 0 for place in corner) and corner[2] < sizes[2], (corner, sizes)
    data = bits_of(_box(source, corner), maps[source][0].name)
    rows = np.ascontiguousarray(data).view(np.uint8).reshape(len(data), -1)
    chunks = rows.shape[1] // CHUNK
    lines = np.arange(len(rows)) * rows.shape[1] // 128 % chunks
    shared = memory._shared[0][int(target) :][: rows.size].reshape(len(rows), chunks, CHUNK)
    for chunk in range(chunks):
        shared[np.arange(len(rows)), chunk ^ lines] = rows[:, chunk * CHUNK : (chunk + 1) * CHUNK]


def multicast_box(target: Any, source: Any, barrier: Any, corner: Any, blocks: int) -> None:
    """The block's box of a tile that two share, and the one that its partner would send."""
    rows = maps[source][1].box[1]
    other = rows if this_thread().blockIdx.x % 2 == 0 else -rows
    for moved in (0, other):
        inner, row, matrix = corner
        copy_box(target + 128 * moved, source, barrier, (inner, row + moved, matrix))


# --- wgmma ---


def descriptor_halves(leading: int, stride: int, row_bytes: int = 128) -> tuple[int, int]:
    swizzle = {16: 0, 128: 1, 64: 2, 32: 3}[row_bytes] << 30
    return leading // 16 << 16, swizzle | stride // 16


def _operand(descriptor: Any, high: int, lines: np.ndarray, kind: str, across: bool) -> np.ndarray:
    """Rows of a, or columns of b, of one step that a descriptor points to, as wgmma reads them."""
    address, leading = (int(descriptor) & 0x3FFF) * 16, (int(descriptor) >> 16 & 0x3FFF) * 16
    row_bytes = {1: 128, 2: 64, 3: 32}[high >> 30 & 3]
    item = np.dtype(_STORED[kind]).itemsize
    depth = 32 // item
    lines, k = lines[:, None], np.arange(depth)[None, :]
    if across:
        width = row_bytes // item
        places = address + lines // width * leading + k * row_bytes + lines % width * item
    else:
        places = address + lines * row_bytes + k * item
    places ^= (places >> 7 & (row_bytes // CHUNK - 1)) * CHUNK
    memory_bytes = memory._shared[0]
    assert places.max() < memory_bytes.size
    elements = memory_bytes[: memory_bytes.size // item * item].view(_STORED[kind])
    return values_of(elements[places // item], KINDS[kind]).astype(float)


def _own_lines(count: int) -> tuple[np.ndarray, np.ndarray]:
    """A thread's rows of 64, and its columns, as wgmma and mma.sync leave their sums."""
    warp, lane = divmod(this_thread().threadIdx.x % 128, WARP)
    columns = 8 * np.arange(count // 4)[:, None] + lane % 4 * 2 + np.arange(2)
    return 16 * warp + lane // 4 + np.array([0, 8]), columns.ravel()


def _sums(kind: str, acc: Any, left: np.ndarray, right: np.ndarray) -> tuple[Any, ...]:
    product = (left @ right.T).reshape(2, -1, 2).transpose(1, 0, 2).ravel()
    convert = low_word if kind.endswith("8") else np.float32
    return tuple(convert(float(x) + y) for x, y in zip(acc, product, strict=True))


def wgmma_of_two(
    kind: str, a_high: int, b_high: int, acc: Any, a: Any, b: Any, a_across: bool, b_across: bool
) -> Any:
    rows, columns = _own_lines(len(acc))
    a_kind, _, b_kind = kind.partition(".")
    left = _operand(a, a_high, rows, a_kind, a_across)
    return _sums(kind, acc, left, _operand(b, b_high, columns, b_kind or a_kind, b_across))


def wgmma(kind: str, high: int, acc: Any, a: Any, b: Any, a_across: bool, b_across: bool) -> Any:
    if not isinstance(a, tuple):
        return wgmma_of_two(kind, high, high, acc, a, b, a_across, b_across)
    lanes, _ = Block.now.exchange(a)
    first = this_thread().threadIdx.x % WARP // 4 * 4
    # The lanes of a thread's rows.
    quad = [memory._array(registers) for registers in lanes[first : first + 4]]
    words = [[one[2 * i + half] for i in range(2) for one in quad] for half in range(2)]
    a_kind, _, b_kind = kind.partition(".")
    left = values_of(np.array(words).view(_STORED[a_kind]), KINDS[a_kind]).astype(float)
    _, columns = _own_lines(len(acc))
    return _sums(kind, acc, left, _operand(b, high, columns, b_kind or a_kind, b_across))


def wgmma_anew(
    kind: str, high: int, count: int, a: Any, b: Any, a_across: bool, b_across: bool
) -> Any:
    return wgmma(kind, high, (0,) * count, a, b, a_across, b_across)


def wait_wgmma_of(pending: int, registers: Any) -> Any:
    return registers


def store_columns(address: Any, offset: int, words: Any) -> None:
    lanes, _ = Block.now.exchange((address, words))
    lane = this_thread().threadIdx.x % WARP
    matrix, column = divmod(lane, 8)
    # Column `column` of matrix `matrix`: of row r, lane 4 r + column // 2 holds it.
    held = [lanes[4 * row + column // 2][1][matrix] for row in range(8)]
    halves = np.array([(int(word) >> 16 * (column % 2)) & 0xFFFF for word in held], np.uint16)
    memory._shared_bytes(address + offset, 16)[:] = halves.view(np.uint8)


# --- mma.sync ---


def load_matrices(is_transposed: bool, address: Any, offset: int) -> tuple[Any, ...]:
    lanes, _ = Block.now.exchange(address)
    lane = this_thread().threadIdx.x % WARP
    row, member = divmod(lane, 4)
    words = []
    for matrix in range(4):
        if is_transposed:
            halves = [
                memory._shared_bytes(lanes[8 * matrix + 2 * member + e] + offset, 16)[2 * row :][:2]
                for e in range(2)
            ]
            words.append(np.concatenate(halves).view(np.int32)[0])
        else:
            line = memory._shared_bytes(lanes[8 * matrix + row] + offset, 16)
            words.append(line[4 * member :][:4].view(np.int32)[0])
    return tuple(words)


def _unpacked(kind: str, registers: Any) -> np.ndarray:
    """Elements of fragments, registers along the first index, a register's along the last."""
    if kind == "float64":
        return np.asarray(registers, float)[..., None]
    words = np.asarray(registers, np.int32)
    if kind == "tf32":
        return words.view(np.float32).astype(float)[..., None]
    stored = {"int8": np.int8, **dict.fromkeys(FLOAT8_KINDS, np.uint8)}.get(kind, np.uint16)
    raw = words[..., None].view(stored)
    return values_of(raw, kind).astype(float)


def mma_tile(kind: str, acc: Any, left: Any, right: Any) -> Any:
    lanes, record = Block.now.exchange((left, right))
    if "product" not in record:
        of_a, _, of_b = kind.partition(" ")
        a = _unpacked(of_a, [lane[0] for lane in lanes])  # lane, register, element
        b = _unpacked(of_b or of_a, [lane[1] for lane in lanes])
        width = a.shape[-1]
        rows, columns = len(left) // 4, len(right) // 2
        a = a.reshape(8, 4, rows, 2, 2, width)  # group, member, block, half of k, rows 8 on, e
        a = a.transpose(2, 4, 0, 3, 1, 5).reshape(16 * rows, 8 * width)
        b = b.reshape(8, 4, columns, 2, width).transpose(2, 0, 3, 1, 4)
        record["product"] = a @ b.reshape(8 * columns, 8 * width).T
    lane = this_thread().threadIdx.x % WARP
    group, member = divmod(lane, 4)
    columns = len(right) // 2
    sums = []
    for place, total in enumerate(acc):
        block, i = divmod(place, 4)
        row = 16 * (block // columns) + group + 8 * (i // 2)
        column = 8 * (block % columns) + 2 * member + i % 2
        sums.append(float(total) + record["product"][row, column])
    convert = {"float64": np.float64, "int8": low_word}.get(kind, np.float32)
    return tuple(map(convert, sums))


def round_to_tf32(values: Any) -> tuple[Any, ...]:
    return tuple(np.float32(value).view(np.int32) for value in values)


# --- Registers and memory ---


def pack_pair(kind: str, low: Any, high: Any) -> Any:
    if kind in ("e4m3", "e5m2"):
        return np.int32(int(pack_quad(kind, low, high, 0.0, 0.0)) & 0xFFFF)
    bits = bits_of([float(low), float(high)], KINDS[kind]).astype(np.uint32)
    return _signed([bits[0] | bits[1] << 16])[0]


def unpack_pair(kind: str, pair: Any) -> tuple[Any, ...]:
    halves = [int(pair) & 0xFFFF, int(pair) >> 16 & 0xFFFF]
    return tuple(map(np.float32, values_of(halves, KINDS[kind])))


def pack_quad(kind: str, *values: Any) -> Any:
    if kind != "s8":
        from dxgemm.handwritten.parts.widening import NARROW

        codes = [NARROW[KINDS[kind]](np.float32(value)) for value in values]
        return np.array(codes, np.uint8).view(np.int32)[0]
    rounded = np.clip(np.rint(np.asarray(values, float)), -128, 127).astype(np.int8)
    return rounded.view(np.int32)[0]


def store_byte(address: Any, word: Any) -> None:
    operand, _ = memory._elements(address, 1)
    memory.store_global(address, 0, (np.int32(word).astype(operand.dtype),))


def _found(address: Any) -> tuple[Any, int, int]:
    """Operand at an address, its element and the byte in that."""
    number = (int(address) + memory.SPAN // 2) // memory.SPAN
    operand = memory._operands[number]
    return operand, *divmod(int(address) - number * memory.SPAN, operand.dtype.itemsize)


def load_item(item_bytes: int, address: Any, is_inside: Any) -> Any:
    if not is_inside:
        return Int32(0)
    operand, index, byte = _found(address)
    last = index + -(-item_bytes // operand.dtype.itemsize)
    data = b"".join(operand[place].tobytes() for place in range(index, last))
    return low_word(int.from_bytes(data[byte : byte + item_bytes], "little"))


def copy_async_if(
    size: int, is_cached: bool, target: Any, offset: int, source: Any, count: Any, is_wanted: Any
) -> None:
    if is_wanted:
        memory.copy_async_part(size, target, offset, source, count)


def store_chunk_if(target: Any, offset: int, words: Any, is_wanted: Any) -> None:
    if is_wanted:
        memory.store_shared(target, offset, _signed([int(word) & 0xFFFFFFFF for word in words]))


def store_word_if(address: Any, offset: int, word: Any, is_wanted: Any) -> None:
    if is_wanted:
        memory.store_global(address, offset, (np.int32(word),))


def transpose_bytes(words: Any) -> tuple[Any, ...]:
    square = np.array([int(word) & 0xFFFFFFFF for word in words], np.uint32).view(np.uint8)
    return tuple(np.ascontiguousarray(square.reshape(4, 4).T).view(np.int32)[:, 0])


def permute_bytes(first: Any, second: Any, selector: Any) -> Any:
    data = np.array([int(word) & 0xFFFFFFFF for word in (first, second)], np.uint32).view(np.uint8)
    places = [int(selector) >> 4 * i & 7 for i in range(4)]
    return np.ascontiguousarray(data[places]).view(np.int32)[0]


def shift_words(words: Any, shift: Any) -> tuple[Any, ...]:
    data = np.array([int(word) & 0xFFFFFFFF for word in words], np.uint32).tobytes()
    return tuple(np.frombuffer(data[int(shift) :][:16], np.int32))


# --- Clusters, of one block ---


def cluster_sync() -> None:
    Block.now.meet("block", None)


def cluster_address(address: Any, rank: Any) -> Any:
    return address


def prefetch_line(address: Any) -> None:
    operand, index, _ = _found(address)
    operand[index]


_EMPTY = (
    "publish_barriers", "publish_shared", "prefetch_tensor_map", "publish_tensor_maps",
    "acquire_tensor_map", "end_barrier", "begin_wgmma", "commit_wgmma", "wait_wgmma",
    "limit_registers",
)  # fmt: skip
_HOPPER = {**dict.fromkeys(_EMPTY, _nothing), "expect_bytes": arrive, "arrive_at": arrive}
_HOPPER["meet_cluster"] = cluster_sync
_HOPPER |= {
    function.__name__: function
    for function in (
        init_barrier, arrive, wait_barrier, sync_warpgroup, sync_threads, tensor_map,
        write_tensor_map, limit_tensor_map, copy_box, multicast_box, descriptor_halves, wgmma,
        wgmma_of_two, wgmma_anew, wait_wgmma_of, store_columns, pack_pair, unpack_pair, pack_quad,
        store_byte,
    )
}  # fmt: skip
_LINES = (
    load_matrices, load_item, copy_async_if, store_chunk_if, store_word_if, transpose_bytes,
    shift_words, permute_bytes,
)  # fmt: skip
_MMA = {
    "mma_tile": mma_tile, "round_to_tf32": round_to_tf32,
    "as_is": lambda values: values, "negated": lambda value: -value,
}  # fmt: skip
_CLUSTER = {
    "cluster_sync": cluster_sync, "cluster_arrive": _nothing, "cluster_wait": _nothing,
    "cluster_address": cluster_address, "load_cluster": memory.load_shared,
    "store_cluster": memory.store_shared, "prefetch_line": prefetch_line,
}  # fmt: skip


def _module(name: str, functions: dict[str, Callable[..., Any]]) -> tuple[str, ModuleType]:
    module = ModuleType(f"dxgemm.handwritten.parts.{name}")
    vars(module).update(functions)
    return name, module


@contextmanager
def instructions() -> Iterator[None]:
    """Let the parts of kernels import the stand-ins."""
    modules = dict(
        (
            _module("hopper", _HOPPER),
            _module("line_intrinsics", {f.__name__: f for f in _LINES}),
            _module("mma", _MMA),
        )
    )
    with ExitStack() as stack:
        for name, module in modules.items():
            stack.enter_context(mock.patch.dict(sys.modules, {module.__name__: module}))
            stack.enter_context(mock.patch.object(parts, name, module, create=True))
        for name, function in _CLUSTER.items():
            stack.enter_context(mock.patch.object(intrinsics, name, function, create=True))
        yield
