"""cuBLASDx's device functions in a store of their own, where builds are counted and not made."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dxgemm.compiler import kernel_store
from dxgemm.cublasdx import function_store
from dxgemm.cublasdx.mathdx import Descriptor, DeviceFunctions, Storage

ARCH = "sm_90a"
DESCRIPTOR = Descriptor(
    64, 64, 16, 128, 4, "float64", "float64", "row", "row", alignment=16, arch=ARCH
)
FUNCTIONS = DeviceFunctions(
    ltoir=b"code" * 1000, symbols={"execute": "cublasdx_execute_1"},
    device_pipeline=Storage(72, 8), tile_pipeline=Storage(152, 8), accumulator=Storage(288, 16),
    fragment=Storage(256, 16), buffer=Storage(65600, 16), fragment_size=32,
)  # fmt: skip


@contextmanager
def counted_builds(monkeypatch: Any, folder: Any, functions: Any) -> Iterator[list[Any]]:
    """The descriptors built so far, in an empty store; every build returns `functions`."""
    built: list[Any] = []

    def count(descriptor: Any) -> Any:
        built.append(descriptor)
        return functions

    monkeypatch.setenv("DXGEMM_CACHE_DIR", str(folder))
    monkeypatch.setattr(function_store, "build_functions", count)
    forget()
    yield built
    forget()


def forget() -> None:
    """Leave what is on disk only."""
    function_store.obtain_functions.cache_clear()
    kernel_store.cache_clear()
