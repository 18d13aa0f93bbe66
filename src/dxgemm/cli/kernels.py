"""`dxgemm build` and `dxgemm cache`: the kernels kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal

import typer

import dxgemm
from dxgemm.cli.explain import Dtype
from dxgemm.cli.output import JsonOption, byte_text, print_json, print_table
from dxgemm.compiler import CacheInfo, KernelRecord
from dxgemm.gpu.status import probe
from dxgemm.log import progress_bar


def build(
    arch: Annotated[
        list[str] | None,
        typer.Option(help="Such as sm_90a, which needs no GPU. Repeatable; default: this GPU's."),
    ] = None,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="Repeatable; default: all.")] = None,
    implementation: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; default: those chosen automatically, and groups."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Parallel processes; default: the CPUs there are.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build kernels into the cache; those already there are kept."""
    if not arch and (problem := probe().problem):
        raise dxgemm.errors.GpuUnavailableError(
            f"{problem} Without one, name the architecture to build for: --arch sm_90a."
        )
    dtypes = tuple(chosen.value for chosen in dtype or Dtype)
    with progress_bar(is_shown=not as_json) as report:
        records = dxgemm.build(
            arch=arch,
            dtypes=dtypes,
            implementations=tuple(implementation) if implementation else None,
            jobs=jobs,
            progress=report,
        )
    if as_json:
        print_json([asdict(record) for record in records])
    else:
        _print_kernels(records)
        typer.echo(f"{len(records)} kernels are in {_where(dxgemm.cache_info())}")


def cache(
    action: Annotated[Literal["info", "clear"], typer.Argument()] = "info",
    as_json: JsonOption = False,
) -> None:
    """Show the cache of built kernels, or clear it."""
    if action == "clear":
        removed = dxgemm.clear_cache()
        if as_json:
            print_json({"removed": removed})
        else:
            typer.echo(f"removed {removed} kernels from {_where(dxgemm.cache_info())}")
        return
    cached = dxgemm.cache_info()
    if as_json:
        print_json(cache_dict(cached) | {"kernels": [asdict(record) for record in cached.kernels]})
    else:
        typer.echo(cache_text(cached))
        if cached.kernels:
            _print_kernels(cached.kernels)


def cache_text(cached: CacheInfo) -> str:
    """Describe the cache: `"8 kernels, 50.0 KiB, in /home/me/.cache/dxgemm"`."""
    state = "" if cached.writable else " (not writable)"
    size = byte_text(cached.total_bytes)
    return f"{len(cached.kernels)} kernels, {size}, in {_where(cached)}{state}"


def _where(cached: CacheInfo) -> str:
    return str(cached.directory or "the memory of this process")


def cache_dict(cached: CacheInfo) -> dict[str, object]:
    """Describe the cache as a dictionary, for JSON."""
    return {
        "directory": str(cached.directory) if cached.directory else None,
        "writable": cached.writable,
        "kernel_count": len(cached.kernels),
        "total_bytes": cached.total_bytes,
    }


def _print_kernels(records: Sequence[KernelRecord]) -> None:
    print_table(
        ("kernel", "config", "dtype", "arch", ">regs", ">stack", ">shared", ">cubin"),
        [
            (
                record.implementation,
                record.config,
                record.dtype,
                record.arch,
                record.registers,
                f"{record.stack_bytes} B",
                byte_text(record.smem_bytes),
                byte_text(record.cubin_bytes),
            )
            for record in sorted(records, key=lambda record: (record.arch, str(record)))
        ],
    )
