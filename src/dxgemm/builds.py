"""Public functions of kernels: which there are, builds ahead of time, and the cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dxgemm import compiler
from dxgemm.call.route import clear_routes
from dxgemm.choice import registry
from dxgemm.choice.implementation import Implementation
from dxgemm.errors import (
    BuildError,
    DtypeError,
    SettingError,
    UnknownImplementationError,
    named_in_errors,
    shown,
)
from dxgemm.problem.arguments import check_list, check_name
from dxgemm.problem.dtypes import COMPLEX_PARTS, RESULT_DTYPES


def implementations() -> tuple[Implementation, ...]:
    """Return every implementation, each with a `name` and a method `supports(problem)`.

    The method returns None, or the reason why the implementation cannot compute the problem.
    """
    return registry.IMPLEMENTATIONS


@named_in_errors("build")
def build(
    *,
    arch: str | Sequence[str] | None = None,
    dtypes: tuple[str, ...] = tuple(RESULT_DTYPES),
    implementations: tuple[str, ...] | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[compiler.KernelRecord]:
    """Build kernels ahead of time into the cache, in parallel processes.

    Args:
        arch: architecture such as "sm_90a", which needs no GPU, or several of them; None for the
            first GPU's.
        dtypes: dtypes of the operands; all by default.
        implementations: names; None for the candidates of the automatic choice that run on the
            architecture, and for the kernels of `gemm_grouped`.
        jobs: number of processes; None for one per CPU of this process. 1 starts no process.
        progress: called with (kernels done, kernels in all, name of a kernel being built).

    Returns:
        A record of each kernel.

    Raises:
        BuildError, MissingPackageError: error of the first kernel that fails; the other builds are
            ended.
        GpuUnavailableError, SettingError, DtypeError, UnknownImplementationError.
    """
    from dxgemm.runtime.device import device_facts

    if progress is not None and not callable(progress):
        raise SettingError(f"build: progress is {shown(progress)}; pass a function, or None.")
    if arch is None:
        names = [device_facts(0).arch]
    else:
        names = [arch] if isinstance(arch, str) else [*check_list("arch", arch, SettingError)]
        for name in names:
            if not isinstance(name, str) or not re.fullmatch(r"sm_\d+[af]?", name):
                raise SettingError(f"build: arch is {shown(name)}; pass one such as 'sm_90a'.")
    for name in check_list("dtypes", dtypes, DtypeError):
        check_name("dtypes", name, (*RESULT_DTYPES, *COMPLEX_PARTS), DtypeError)
    if implementations is not None:
        implementations = check_list("implementations", implementations, UnknownImplementationError)
    tasks = build_tasks(names, dtypes, implementations)
    return [kernel.record for kernel in compiler.build_kernels(tasks, jobs, progress)]


def build_tasks(
    names: Sequence[str], dtypes: tuple[str, ...], implementations: tuple[str, ...] | None
) -> list[compiler.Task]:
    """List the kernels that `build` builds, each with its architecture."""
    from dxgemm.lower import ahead, group_offsets, grouped

    tasks = []
    for name in dict.fromkeys(names):
        for wanted in implementations or ():
            kernel = registry.find_implementation(wanted)
            reason = kernel.runs_on(name) or kernel.build_fault(name)
            if reason is not None:
                raise BuildError(f"build: no {wanted} for {name}: {reason}.")
        specs = ahead.kernel_specs(dtypes, implementations, name)
        if implementations is None:
            specs += grouped.group_specs(dtypes, name)
            specs += group_offsets.offset_specs(dtypes, name)
            specs += ahead.complex_specs(dtypes)
        tasks += [(spec, name) for spec in specs]
    return tasks


def cache_info() -> compiler.CacheInfo:
    """Report the directory of the kernel cache, and the kernels in it."""
    return compiler.kernel_store().info()


def clear_cache() -> int:
    """Remove every built kernel from the cache and return the number of them."""
    from dxgemm.lower import group_offsets, grouped

    clear_routes()
    grouped.forget_launches()
    group_offsets.forget_launches()
    return compiler.clear_kernels()
