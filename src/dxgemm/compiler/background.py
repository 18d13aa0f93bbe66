"""Background builds: another process builds a slow kernel while other kernels answer the calls.

`DXGEMM_BUILD` decides on missing kernels that take long to build: `background`, the default, builds
them in another process; `block` waits for that build; `never` does not build them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from dxgemm.compiler.locks import building
from dxgemm.compiler.spec import KernelSpec
from dxgemm.errors import SettingError
from dxgemm.log import logger

BUILD_MODES = ("background", "block", "never")


def build_mode() -> str:
    """Mode that `DXGEMM_BUILD` selects.

    Raises:
        SettingError: the value is none of `BUILD_MODES`.
    """
    mode = os.environ.get("DXGEMM_BUILD") or BUILD_MODES[0]
    if mode not in BUILD_MODES:
        raise SettingError(f"DXGEMM_BUILD is {mode!r}; it can be {', '.join(BUILD_MODES)}.")
    return mode


class BackgroundBuild:
    """Build of one kernel, under way or failed.

    Attributes:
        ended: event that is set at the end of the build, successful or not.
        failure: reason why there is no kernel; None before the end, and after a success.
        is_reported: True if a caller has reported the failure; callers maintain it.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.failure: str | None = None
        self.is_reported = False


MOST_FAILURES = 256  # that are remembered
# Builds under way, and failed ones, which are not tried again.
_builds: dict[tuple[KernelSpec, str], BackgroundBuild] = {}
_lock = threading.Lock()
_turn = threading.Lock()  # one build at a time: each keeps two CPUs busy for half a minute


def build_behind(spec: KernelSpec, arch: str, when_done: Callable[[], object]) -> BackgroundBuild:
    """Begin the build of a kernel in another process, or find the one that was begun before.

    Args:
        spec, arch: the kernel and its architecture.
        when_done: called after the end of a newly begun build, by a thread of this process.
    """
    with building(), _lock:
        build = _builds.get((spec, arch))
        if build is None:
            ended = [key for key, other in _builds.items() if other.ended.is_set()]
            for key in ended[: -MOST_FAILURES + 1]:
                del _builds[key]
            build = _builds[spec, arch] = BackgroundBuild()
            # A daemon: the interpreter exits without waiting for it, and the worker goes on alone.
            thread = threading.Thread(
                target=_run, args=(build, spec, arch, when_done), name=f"build {spec}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # there are too many threads, or Python is exiting
                build.failure = str(error)
                build.ended.set()
    return build


def forget_failures() -> None:
    """Forget failed builds, so that they are tried again."""
    with building(), _lock:
        for key, build in list(_builds.items()):
            if build.ended.is_set():
                del _builds[key]


def _forget_parents_builds() -> None:
    """Forget all builds in a forked process, which has no thread to go on with them."""
    global _lock, _turn
    _lock, _turn = threading.Lock(), threading.Lock()
    _builds.clear()


os.register_at_fork(after_in_child=_forget_parents_builds)


def _run(
    build: BackgroundBuild, spec: KernelSpec, arch: str, when_done: Callable[[], object]
) -> None:
    from dxgemm.compiler.worker import Worker

    logger.info("%s for %s is being built behind the calls", spec, arch)
    with building():
        try:
            with _turn, Worker() as worker:
                worker.build(spec, arch)
        except Exception as error:
            build.failure = str(error)
        with _lock:
            build.ended.set()
            if build.failure is None:
                del _builds[spec, arch]
    when_done()
