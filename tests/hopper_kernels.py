"""Kernels of one block, each around one intrinsic of parts/hopper.py, for test_hopper.py."""

from dataclasses import dataclass

from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel

TENSOR_MAPS = ("a_tensor_map", "b_tensor_map")
TILE = 64  # rows of a and columns of b
ROW_BYTES = 128


@dataclass(frozen=True)
class Config(BaseConfig):
    """A warpgroup with two tiles in shared memory, and a barrier behind them."""

    threads: int = 128

    dynamic_smem = True

    def smem_bytes(self, dtype):
        return 1024 + 2 * TILE * ROW_BYTES + 64

    def accumulator_bytes(self, dtype):
        return 128


def make_kernel(config, dtype, case, *options, epilogue=None):
    """The kernel of a case, by name."""
    return CASES[case](dtype, *options)


def _barrier(dtype):
    """out[i] = the number of the phase whose value thread i read after waiting for it, 8 phases."""
    from numba import cuda, float32, int32, uint8

    from dxgemm.handwritten.parts.hopper import arrive, init_barrier, publish_barriers, wait_barrier
    from dxgemm.handwritten.parts.intrinsics import load_shared, shared_address, store_shared

    def kernel(
        a_gmem, b_gmem, c_gmem, out_gmem, alpha, beta, m, n, k, batch,
        a_stride_batch, a_stride_m, a_stride_k, b_stride_batch, b_stride_k, b_stride_n,
        c_stride_batch, c_stride_m, c_stride_n, out_stride_batch, out_stride_m, out_stride_n,
        extra,
    ):  # fmt: skip
        value = int32(shared_address(cuda.shared.array(0, uint8)))
        full, empty = int32(value + 16), int32(value + 24)
        thread = int32(cuda.threadIdx.x)
        if thread == 0:
            init_barrier(full, int32(1))
            init_barrier(empty, int32(64))
            publish_barriers()
        cuda.syncthreads()
        for phase in range(8):
            parity = int32(phase & 1)
            if thread == 0:
                wait_barrier(empty, int32(parity ^ 1))  # at once, the first time
                store_shared(value, 0, (float32(phase + 1),))
                arrive(full)
            if thread >= 64:
                wait_barrier(full, parity)
                out_gmem[phase * 64 + thread - 64] = load_shared(float32, 1, value, 0)[0]
                arrive(empty)

    return kernel


def _copy(dtype, count):
    """out = the box of `count` coordinates at (m, n, batch) as it lies in shared memory."""
    from numba import cuda, float32, int32, uint8

    from dxgemm.handwritten.parts.hopper import (
        copy_box,
        expect_bytes,
        init_barrier,
        prefetch_tensor_map,
        publish_barriers,
        tensor_map,
        wait_barrier,
    )
    from dxgemm.handwritten.parts.intrinsics import load_shared, shared_address

    is_3d = count == "3"

    def kernel(
        a_gmem, b_gmem, c_gmem, out_gmem, alpha, beta, m, n, k, batch,
        a_stride_batch, a_stride_m, a_stride_k, b_stride_batch, b_stride_k, b_stride_n,
        c_stride_batch, c_stride_m, c_stride_n, out_stride_batch, out_stride_m, out_stride_n,
        extra,
    ):  # fmt: skip
        smem = int32((shared_address(cuda.shared.array(0, uint8)) + 1023) & -1024)
        barrier = int32(smem + TILE * ROW_BYTES)
        thread = int32(cuda.threadIdx.x)
        if thread == 0:
            init_barrier(barrier, int32(1))
            publish_barriers()
            source = tensor_map("a_tensor_map")
            prefetch_tensor_map(source)
            expect_bytes(barrier, int32(TILE * ROW_BYTES))
            if is_3d:
                copy_box(smem, source, barrier, (int32(m), int32(n), int32(batch)))
            else:
                copy_box(smem, source, barrier, (int32(m), int32(n)))
        cuda.syncthreads()
        wait_barrier(barrier, int32(0))
        for index in range(thread, TILE * ROW_BYTES // 4, 128):
            out_gmem[index] = load_shared(float32, 1, int32(smem + index * 4), 0)[0]

    return kernel


def _wgmma(dtype, a_innermost, b_innermost):
    """out (64, 64) = a @ b, over one stage of k, in float32; of int8 in int32."""
    from numba import cuda, float32, int32, uint8

    from dxgemm.handwritten.parts.hopper import (
        begin_wgmma,
        commit_wgmma,
        copy_box,
        descriptor_halves,
        expect_bytes,
        init_barrier,
        publish_barriers,
        tensor_map,
        wait_barrier,
        wait_wgmma_of,
        wgmma,
    )
    from dxgemm.handwritten.parts.intrinsics import (
        global_address,
        shared_address,
        store_global,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    kind = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32", "int8": "s8"}[dtype]
    scalar = int32 if kind == "s8" else float32
    a_across, b_across = a_innermost == "mn", b_innermost == "mn"
    from_registers = a_innermost == "registers"
    low, high = descriptor_halves(TILE * ROW_BYTES, 8 * ROW_BYTES)
    a_step, b_step = (2 * ROW_BYTES // 2 if across else 2 for across in (a_across, b_across))
    tile_bytes = TILE * ROW_BYTES

    @unroll
    def kernel(
        a_gmem, b_gmem, c_gmem, out_gmem, alpha, beta, m, n, k, batch,
        a_stride_batch, a_stride_m, a_stride_k, b_stride_batch, b_stride_k, b_stride_n,
        c_stride_batch, c_stride_m, c_stride_n, out_stride_batch, out_stride_m, out_stride_n,
        extra,
    ):  # fmt: skip
        smem = int32((shared_address(cuda.shared.array(0, uint8)) + 1023) & -1024)
        barrier = int32(smem + 2 * tile_bytes)
        thread = int32(cuda.threadIdx.x & 127)
        if thread == 0:
            init_barrier(barrier, int32(1))
            publish_barriers()
            zero = int32(0)
            if from_registers:
                expect_bytes(barrier, int32(tile_bytes))
            else:
                expect_bytes(barrier, int32(2 * tile_bytes))
                copy_box(smem, tensor_map("a_tensor_map"), barrier, (zero, zero, zero))
            b_smem = int32(smem + tile_bytes)
            copy_box(b_smem, tensor_map("b_tensor_map"), barrier, (zero, zero, zero))
        cuda.syncthreads()
        wait_barrier(barrier, int32(0))
        warp, lane = thread // 32, thread % 32
        row, member = 16 * warp + lane // 4, lane % 4
        acc = zeros(scalar, 32)
        for step in static_range(4):
            b_part = int32(low + (smem + tile_bytes) // 16 + step * b_step)
            if from_registers:
                place = row * a_stride_m + 8 * step + member
                below = place + 8 * a_stride_m
                a_frag = (a_gmem[place], a_gmem[below], a_gmem[place + 4], a_gmem[below + 4])
                begin_wgmma()
                acc = wgmma(kind, high, acc, a_frag, b_part, False, b_across)
                commit_wgmma()
                wait_wgmma_of(0, a_frag)
            else:
                begin_wgmma()
                a_part = int32(low + smem // 16 + step * a_step)
                acc = wgmma(kind, high, acc, a_part, b_part, a_across, b_across)
                commit_wgmma()
        acc = wait_wgmma_of(0, acc)
        out = global_address(out_gmem)  # the pointer has the dtype of a, the result is float32
        for j in static_range(8):
            for h in static_range(2):
                target = out + ((row + 8 * h) * 64 + 8 * j + 2 * member) * 4
                store_global(target, 0, (acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]))

    return kernel


def _pairs(dtype, kind):
    """out = a rounded to `kind`, two elements at a time."""
    from numba import cuda

    from dxgemm.handwritten.parts.hopper import pack_pair, unpack_pair

    def kernel(
        a_gmem, b_gmem, c_gmem, out_gmem, alpha, beta, m, n, k, batch,
        a_stride_batch, a_stride_m, a_stride_k, b_stride_batch, b_stride_k, b_stride_n,
        c_stride_batch, c_stride_m, c_stride_n, out_stride_batch, out_stride_m, out_stride_n,
        extra,
    ):  # fmt: skip
        index = 2 * cuda.threadIdx.x
        pair = unpack_pair(kind, pack_pair(kind, a_gmem[index], a_gmem[index + 1]))
        out_gmem[index], out_gmem[index + 1] = pair[0], pair[1]

    return kernel


def _divide(dtype):
    """out[i] = (i * i + n) // m."""
    from numba import cuda, float32, int32

    from dxgemm.handwritten.parts.intrinsics import divide

    def kernel(
        a_gmem, b_gmem, c_gmem, out_gmem, alpha, beta, m, n, k, batch,
        a_stride_batch, a_stride_m, a_stride_k, b_stride_batch, b_stride_k, b_stride_n,
        c_stride_batch, c_stride_m, c_stride_n, out_stride_batch, out_stride_m, out_stride_n,
        extra,
    ):  # fmt: skip
        index = cuda.threadIdx.x
        out_gmem[index] = float32(divide(int32(index * index + n), int32(m)))

    return kernel


CASES = {
    "barrier": _barrier,
    "copy": _copy,
    "wgmma": _wgmma,
    "pairs": _pairs,
    "divide": _divide,
}

KERNEL = Kernel(make_kernel, configs=(Config(),), only_arch=90, tensor_map_names=TENSOR_MAPS)
