"""Builds ahead of time, in parallel processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from typing import Any

from dxgemm.compiler.build import CompiledKernel, ptx_arch
from dxgemm.compiler.kernels import find_kernel, obtain_kernel
from dxgemm.compiler.spec import KernelSpec
from dxgemm.errors import SettingError, shown

Task = tuple[KernelSpec, str]  # a kernel and its architecture
Finished = Generator[tuple[Task, CompiledKernel], None, None]


def build_kernels(
    tasks: Sequence[Task],
    jobs: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[CompiledKernel]:
    """Look up kernels, and build those that are missing.

    Args:
        tasks: kernels with their architectures, without repetition.
        jobs: number of processes; None for one per CPU of this process. 1 starts no process.
        progress: called with (kernels done, kernels in all, name of a kernel being built).

    Returns:
        The kernels in the order of the tasks.

    Raises:
        SettingError: jobs is below 1.
        DxgemmError: the first build that fails; the other builds are ended.
    """
    if jobs is None:
        jobs = len(os.sched_getaffinity(0))
    if not isinstance(jobs, int) or jobs < 1:
        raise SettingError(f"build: jobs is {shown(jobs)}; pass a number of processes, from 1 on.")
    kernels = {task: kernel for task in tasks if (kernel := find_kernel(*task))}
    missing = _in_order([task for task in tasks if task not in kernels])
    jobs = min(jobs, len(missing))

    def report() -> None:
        if progress is not None:
            names = (str(spec) for spec, arch in missing if (spec, arch) not in kernels)
            progress(len(kernels), len(tasks), next(names, ""))

    report()
    with closing(_in_workers(missing, jobs) if jobs > 1 else _one_by_one(missing)) as finished:
        for task, kernel in finished:
            kernels[task] = kernel
            report()
    return [kernels[task] for task in tasks]


def _in_order(tasks: list[Task]) -> list[Task]:
    """Order the builds so that the longest begin early and few wait for each other.

    Kernels with device functions take long: the first kernel of each set of functions comes first.
    Other kernels with the same set come last, when the set is built.
    """
    long: list[Task] = []
    short: list[Task] = []
    with_known_functions: list[Task] = []
    seen = set()
    for spec, arch in tasks:
        if not spec.links_functions:
            short.append((spec, arch))
            continue
        functions = spec.declared.descriptor(spec.config, spec.dtype, *spec.variant, arch=arch)
        (with_known_functions if functions in seen else long).append((spec, arch))
        seen.add(functions)
    return long + short + with_known_functions


def _one_by_one(tasks: list[Task]) -> Finished:
    for together in _by_ptx(tasks):
        for task in together:
            yield task, obtain_kernel(*task)


def _in_workers(tasks: list[Task], jobs: int) -> Finished:
    """Yield each kernel as it is finished; ending this generator early ends the workers.

    A kernel for several architectures is built by one worker, which makes its PTX once.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed
    from queue import SimpleQueue

    from dxgemm.compiler.worker import Worker

    idle: SimpleQueue[Worker] = SimpleQueue()

    def build(tasks: list[Task]) -> list[tuple[Task, CompiledKernel]]:
        worker = idle.get()
        try:
            return [(task, worker.build(*task)) for task in tasks]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # before this thread takes another task
            raise
        finally:
            idle.put(worker)

    with ExitStack() as stack:
        workers = [stack.enter_context(Worker()) for _ in range(jobs)]
        for worker in workers:
            idle.put(worker)
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        futures = [pool.submit(build, together) for together in _by_ptx(tasks)]
        try:
            for future in as_completed(futures):
                yield from future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.kill()
            raise


def _by_ptx(tasks: list[Task]) -> list[list[Task]]:
    """Group the tasks whose kernels have the same PTX, in the order of the first of each group."""
    groups: dict[tuple[Any, str], list[Task]] = {}
    for spec, arch in tasks:
        shared = arch if spec.links_functions else ptx_arch(arch)
        groups.setdefault((spec, shared), []).append((spec, arch))
    return list(groups.values())
