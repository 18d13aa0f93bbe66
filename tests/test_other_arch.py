"""Kernels of an earlier architecture, linked for a later GPU: what DXGEMM_TEST_ARCH tests."""

import pytest

LINKED_FOR_HOPPER = """
from io import BytesIO
import other_arch
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.ahead import common_specs
from dxgemm.compiler import compile_kernel
from elftools.elf.elffile import ELFFile

def flags(kernel):
    return ELFFile(BytesIO(kernel.cubin))["e_flags"]

spec = common_specs(find_implementation("tensor_batch"), ("float64",))[-1]
key, ampere = spec.key("sm_80"), compile_kernel(spec, "sm_80")
other_arch.link_for("sm_80", "sm_90a")
linked, hopper = (compile_kernel(spec, arch) for arch in ("sm_80", "sm_90a"))
assert ".target sm_80" in linked.ptx and "m8n8k4" in linked.ptx
assert flags(linked) == flags(hopper) != flags(ampere)
assert "m16n8k8" in hopper.ptx and linked.record.arch == "sm_80"
assert spec.key("sm_80") != key
"""


@pytest.mark.long_build
def test_the_ptx_is_that_of_the_architecture_and_the_cubin_that_of_the_gpu(run_python, request):
    run_python(LINKED_FOR_HOPPER, PYTHONPATH=str(request.path.parent))


BUILT_BY_ANOTHER_PROCESS = """
import other_arch
from dxgemm.choice.registry import find_implementation
from dxgemm.lower.ahead import common_specs
from dxgemm.compiler.worker import Worker

spec = common_specs(find_implementation("coalesced"), ("float32",))[0]
other_arch.link_for("sm_80", "sm_90a")
with Worker() as worker:
    kernel = worker.build(spec, "sm_80")
print(kernel.record.arch, spec.key("sm_80"))
"""


def test_other_processes_build_the_same(run_python, request, tmp_path):
    environment = {"PYTHONPATH": str(request.path.parent), "DXGEMM_CACHE_DIR": str(tmp_path)}
    arch, key = run_python(BUILT_BY_ANOTHER_PROCESS, **environment).split()
    assert arch == "sm_80" and (tmp_path / "entries" / key[:2] / key[2:]).exists()
