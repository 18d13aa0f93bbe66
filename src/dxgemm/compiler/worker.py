"""Builds in another process: a worker reads kernels from its stdin and answers on its stdout.

`multiprocessing` is no choice: its spawned processes run the caller's script again, which need not
expect it. A worker is in a session of its own, where the terminal's Ctrl-C does not reach it. If
its parent ends, it finishes its current build, keeps the kernel on disk and ends as well.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress

from dxgemm.compiler.build import CompiledKernel
from dxgemm.compiler.kernels import keep_kernel, kernel_store, obtain_kernel
from dxgemm.compiler.spec import KernelSpec
from dxgemm.errors import BuildError, DxgemmError

_PROGRAM = "from dxgemm.compiler import worker; worker.answer_requests()"


class Worker:
    """Process that builds one kernel after another; leaving its context waits for its end."""

    def __init__(self) -> None:
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115  # closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
                "DXGEMM_CACHE_DIR": str(kernel_store().directory or ""),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            start_new_session=True,
        )

    def build(self, spec: KernelSpec, arch: str) -> CompiledKernel:
        """Build a kernel, and keep it in this process's memory too.

        Raises:
            DxgemmError: the error of the build, or a `BuildError` if the worker ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((spec, arch, spec.key(arch)), self._process.stdin)
            self._process.stdin.flush()
            answer, warned = pickle.load(self._process.stdout)
        except (EOFError, OSError):
            status = self._process.wait()
            text = f"{spec} for {arch}: the process that built it ended with status {status}"
            raise BuildError(f"{text}. {self._last_message()}".rstrip()) from None
        if isinstance(answer, DxgemmError):
            raise answer
        kernel = keep_kernel(spec, arch, answer)
        for message in warned:
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return kernel

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()
        self._messages.close()

    def kill(self) -> None:
        """Kill the process, and those that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _last_message(self) -> str:
        self._messages.seek(0)
        lines = self._messages.read().decode(errors="replace").split("\n")
        return next(filter(None, reversed(lines)), "")


def answer_requests() -> None:
    """Build the kernels that arrive on stdin until it ends: the main function of a worker."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints must not mix with answers
    while True:
        try:
            spec, arch, key = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        with warnings.catch_warnings(record=True) as caught:
            answer = _build(spec, arch, key)
        warned = [str(w.message) for w in caught if w.category is RuntimeWarning]
        pickle.dump((answer, warned), answers)
        answers.flush()


def _build(spec: KernelSpec, arch: str, key: str) -> CompiledKernel | DxgemmError:
    """Build the kernel of a key, or return an error that names it."""
    try:
        if spec.key(arch) != key:
            raise BuildError(
                "its source files are not those of the process that asks for it; restart Python"
            )
        return obtain_kernel(spec, arch)
    except DxgemmError as error:
        named = str(error) if str(spec) in str(error) else f"{spec} for {arch}: {error}"
        return type(error)(named)
    except Exception as error:
        return BuildError(f"{spec} for {arch}: {type(error).__name__}: {error}")
