"""Processes that are the ranks of a process group, for tests: each runs a function when asked."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from dxgemm.gpu.status import simulator_enabled

DEVICE = "cpu" if simulator_enabled() else "cuda"
GROUP_TIMEOUT_S = 20
LONGEST_S = 120  # of a call, with the builds of its kernels


class Ranks:
    """Ranks of a group, over gloo on the simulator and over NCCL on GPUs.

    Their store lives in this process, so that it outlives each of them.
    """

    def __init__(self, size: int, sees_one: bool = False) -> None:
        """Start them; `sees_one` hides from each rank the GPUs of the others."""
        self.size = size
        self._hangs = ""
        self._store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        context = torch.multiprocessing.get_context("spawn")
        self._pipes, self.processes = [], []
        for rank in range(size):
            own, other = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, self._store.port, other), daemon=True
            )
            with _visible(rank) if sees_one else nullcontext():
                process.start()
            self._pipes.append(own)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any, on: Any = None) -> list[Any]:
        """Call function(rank, *arguments) on all ranks, or on some, to their results."""
        outcomes = self.outcomes(function, *arguments, on=on)
        for rank, (_, error) in enumerate(outcomes):
            assert error is None, f"rank {rank}: {error}"
        return [result for result, _ in outcomes]

    def outcomes(self, function: Callable[..., Any], *arguments: Any, on: Any = None) -> list[Any]:
        """Call as `run` does, to pairs: a result, and the type and text of an error."""
        asked = range(self.size) if on is None else on
        self.ask(function, *arguments, on=asked)
        outcomes = []
        for rank in asked:
            if not self._pipes[rank].poll(LONGEST_S):
                self._hangs = f"{function.__name__}{arguments} on rank {rank}"
                raise AssertionError(f"{self._hangs} hangs")
            outcomes.append(self._pipes[rank].recv())
        return outcomes

    def ask(self, function: Callable[..., Any], *arguments: Any, on: Any) -> None:
        """Begin a call on some ranks."""
        assert not self._hangs, f"an earlier call hangs: {self._hangs}"
        for rank in on:
            self._pipes[rank].send((function, arguments))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@contextmanager
def _visible(rank: int) -> Iterator[None]:
    """Show one GPU to the processes that are started meanwhile."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = before.split(",") if before else [str(gpu) for gpu in range(rank + 1)]
    os.environ["CUDA_VISIBLE_DEVICES"] = names[rank]
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def _serve(rank: int, size: int, port: int, pipe: Any) -> None:
    """Join the group, and run what comes through the pipe."""
    store = dist.TCPStore("127.0.0.1", port, None, False)
    options: dict[str, Any] = {"timeout": timedelta(seconds=GROUP_TIMEOUT_S)}
    if DEVICE == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        options["device_id"] = device
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, **options)
    torch.set_num_threads(1)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((function(rank, *arguments), None))
        except Exception as error:
            pipe.send((None, (type(error).__name__, str(error))))
