"""Slow builds behind the calls that want them: another process builds while other kernels answer.

`DXGEMM_BUILD` says what becomes of a kernel that takes long to build and is not there yet:
`background`, the default, builds it behind the calls; `block` builds it at once; `never` does not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from dxgemm.compiler.spec import KernelSpec
from dxgemm.errors import SettingError

BUILD_MODES = ("background", "block", "never")


def build_mode() -> str:
    """What `DXGEMM_BUILD` chooses.

    Raises:
        SettingError: its value is none of `BUILD_MODES`.
    """
    mode = os.environ.get("DXGEMM_BUILD") or BUILD_MODES[0]
    if mode not in BUILD_MODES:
        raise SettingError(f"DXGEMM_BUILD is {mode!r}; it can be {', '.join(BUILD_MODES)}.")
    return mode


class BackgroundBuild:
    """One kernel that is being built, or could not be.

    Attributes:
        ended: set when it is over, be the kernel there or not.
        failure: why there is no kernel; None before the end, and if there is one.
        is_reported: whether a failure was told; for the use of callers.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.failure: str | None = None
        self.is_reported = False


# Under way, or failed, which is not tried again.
_builds: dict[tuple[KernelSpec, str], BackgroundBuild] = {}
_lock = threading.Lock()
_turn = threading.Lock()  # one build at a time: each keeps two CPUs busy for half a minute


def build_behind(spec: KernelSpec, arch: str, when_done: Callable[[], object]) -> BackgroundBuild:
    """The build of a kernel in another process, begun unless it has been before.

    Args:
        spec, arch: what to build.
        when_done: called by a thread of this process after the end of a build that it began.
    """
    with _lock:
        build = _builds.get((spec, arch))
        if build is None:
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
    """Have failed builds tried again."""
    with _lock:
        for key, build in list(_builds.items()):
            if build.ended.is_set():
                del _builds[key]


def _forget_parents_builds() -> None:
    """In a forked process, where nobody goes on with them."""
    global _lock, _turn
    _lock, _turn = threading.Lock(), threading.Lock()
    _builds.clear()


os.register_at_fork(after_in_child=_forget_parents_builds)


def _run(
    build: BackgroundBuild, spec: KernelSpec, arch: str, when_done: Callable[[], object]
) -> None:
    from dxgemm.compiler.worker import Worker

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
