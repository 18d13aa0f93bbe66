"""The kernel cache survives damage, foreign files, missing directories and concurrent writers."""

import errno
import fcntl
import hashlib
import os
import pwd
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from counted_builds import made_up_kernel

import dxgemm
from dxgemm.choice import tables
from dxgemm.compiler import KernelStore, default_directory
from dxgemm.compiler.store import VerifiedFiles
from dxgemm.gpu.facts import SIMULATED_DEVICE

KEY = hashlib.sha256(b"key").hexdigest()
CUBIN = bytes(range(256)) * 4


@pytest.fixture
def kernel():
    return made_up_kernel(CUBIN, "thread_tile_2d", "64x64x16", "sm_90a")


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def entry(directory, kernel):
    """The file of one kernel in the cache."""
    KernelStore(directory).save(KEY, kernel)
    files = [path for path in directory.rglob("*") if path.is_file()]
    (path,) = (path for path in files if CUBIN in path.read_bytes())
    return path


def test_a_kernel_comes_back_in_another_process(directory, kernel, entry):
    assert KernelStore(directory).load(KEY) == kernel
    assert KernelStore(directory).load(KEY[::-1]) is None


def test_info_and_clear(directory, kernel, entry):
    store = KernelStore(directory)
    info = store.info()
    assert info.directory == directory and info.writable
    assert info.kernels == (kernel.record,) and info.total_bytes == len(CUBIN)
    assert store.clear() == 1
    assert store.info().kernels == () and store.load(KEY) is None


def test_locks_are_no_entries_and_go_with_clear_unless_held(directory, kernel, entry):
    store = KernelStore(directory)
    with store.lock(KEY):
        pass
    with store.lock("beef"):
        assert store.info().kernels == (kernel.record,)
        assert store.clear() == 1
        assert [path.name for path in (directory / "locks").iterdir()] == ["beef"]
    assert store.clear() == 0
    assert not list((directory / "locks").iterdir())


def test_a_lock_that_cannot_be_made_is_no_obstacle(directory, kernel):
    directory.mkdir()
    (directory / "locks").write_text("in the way")
    store = KernelStore(directory)
    with pytest.warns(RuntimeWarning) as caught, store.lock(KEY), store.lock(KEY):
        store.save(KEY, kernel)
    assert store.load(KEY) == kernel
    assert len(caught) == 1


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_without_locks_costs_a_warning(directory, kernel, monkeypatch, code):
    def refuse(file, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    store = KernelStore(directory)
    with pytest.warns(RuntimeWarning, match="cannot lock its files") as caught:
        for _ in range(2):
            with store.lock(KEY):
                store.save(KEY, kernel)
    assert len(caught) == 1 and store.load(KEY) == kernel
    assert store.clear() == 1


def test_a_lock_that_was_removed_while_it_was_waited_for_is_taken_anew(directory, kernel):
    store, order = KernelStore(directory), []

    def wait():
        with store.lock(KEY):
            order.append(list((directory / "locks").iterdir()) != [])

    with ThreadPoolExecutor(1) as pool:
        with store.lock(KEY):
            waiting = pool.submit(wait)
            time.sleep(0.05)
            (directory / "locks" / KEY).unlink()
            assert not waiting.done()
        waiting.result(timeout=60)
    assert order == [True]


RELATIVE = """
import os
from dxgemm.compiler.kernels import kernel_store
from dxgemm.compiler.store import default_directory
found = kernel_store().directory
os.chdir("/")
assert kernel_store().directory == found
print(found)
"""


def test_a_relative_directory_is_that_of_the_first_use(run_python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for chosen, expected in (
        ("kernels", tmp_path / "kernels"),
        ("~/kernels", tmp_path / "home" / "kernels"),
        ("", tmp_path / "home" / ".cache" / "dxgemm"),
    ):
        environment = {"DXGEMM_CACHE_DIR": chosen, "HOME": str(tmp_path / "home")}
        found = run_python(RELATIVE, **environment, XDG_CACHE_HOME="")
        assert found.strip() == str(expected)


def test_without_a_home_directory_there_is_a_warning_and_no_cache(kernel, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "DXGEMM_CACHE_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    unknown = {"getpwuid": lambda uid: {}[uid]}
    for name, function in unknown.items():
        monkeypatch.setattr(pwd, name, function)
    assert default_directory() is None and tables._own_tables() is None
    store = KernelStore(default_directory())
    with pytest.warns(RuntimeWarning, match="no home directory") as caught:
        for _ in range(2):
            assert store.load(KEY) is None
            with store.lock(KEY):
                store.save(KEY, kernel)
    assert len(caught) == 1 and store.clear() == 0
    info = store.info()
    assert info.directory is None and not info.writable and info.kernels == ()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(dxgemm.errors.SettingError, match="no home directory"):
        tables.own_folder(SIMULATED_DEVICE)


def test_a_truncated_entry_is_a_miss(directory, entry):
    content = entry.read_bytes()
    for length in (0, 1, 100, content.index(b"\n"), content.index(b"\n") + 1, len(content) - 1):
        entry.write_bytes(content[:length])
        assert KernelStore(directory).load(KEY) is None, length
        assert KernelStore(directory).info().kernels == (), length


def test_no_flipped_bit_goes_unnoticed(directory, entry):
    content = entry.read_bytes()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        entry.write_bytes(damaged)
        assert KernelStore(directory).load(KEY) is None, content[:position][-40:]


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"\x7fELF" + CUBIN, b"{}\n", b'{"entry": 1}\n' + CUBIN, b"\xff\xfe\n\xff"],
    ids=["empty", "blank", "another cubin", "no digest", "another record", "not text"],
)
def test_a_foreign_file_is_a_miss(directory, entry, content):
    entry.write_bytes(content)
    assert KernelStore(directory).load(KEY) is None
    assert KernelStore(directory).info().kernels == ()


def test_a_damaged_entry_is_replaced(directory, kernel, entry):
    entry.write_bytes(b"damaged")
    KernelStore(directory).save(KEY, kernel)
    assert KernelStore(directory).load(KEY) == kernel


@pytest.mark.parametrize("name", ["file/cache", "c" * 300])
def test_a_directory_that_cannot_be_made_costs_one_warning(tmp_path, kernel, name):
    (tmp_path / "file").write_text("in the way")
    store = KernelStore(tmp_path / name)
    with pytest.warns(RuntimeWarning, match="DXGEMM_CACHE_DIR") as caught:
        assert store.load(KEY) is None
        with store.lock(KEY), store.lock(KEY):
            store.save(KEY, kernel)
        assert store.load(KEY) is None
        assert store.clear() == 0
    assert len(caught) == 1
    assert not store.info().writable


def test_a_full_disk_costs_a_warning_and_leaves_nothing_behind(directory, kernel):
    store = KernelStore(directory)
    assert store.load(KEY) is None
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.warns(RuntimeWarning, match="cannot be used") as caught:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(CUBIN) // 2, limits[1]))
        try:
            store.save(KEY, kernel)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(caught) == 1
    assert store.load(KEY) is None
    assert not [path for path in directory.rglob("*") if path.is_file()]
    store.save(KEY, kernel)
    assert store.load(KEY) == kernel


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_takes_no_file_costs_a_warning(directory, kernel, entry, monkeypatch, code):
    def refuse(**arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    store = KernelStore(directory)
    with pytest.warns(RuntimeWarning, match=os.strerror(code)):
        store.save(KEY[::-1], kernel)
    assert store.load(KEY) == kernel


KILLED_WHILE_SAVING = """
import os, signal, sys
from pathlib import Path
from dxgemm.compiler.store import VerifiedFiles
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
VerifiedFiles(Path(sys.argv[1])).save("0123", {}, b"cubin")
"""


def test_a_process_killed_while_saving_leaves_a_miss_that_is_cleaned_up(run_python, directory):
    with pytest.raises(AssertionError):
        run_python(KILLED_WHILE_SAVING, str(directory))
    files = VerifiedFiles(directory)
    (left,) = (directory / "tmp").iterdir()
    assert files.load("0123") is None
    files.save("0123", {}, b"cubin")
    assert files.load("0123") == ({}, b"cubin")
    assert left.exists()  # it may be another process that is still writing
    os.utime(left, (0, 0))
    files.save("4567", {}, b"cubin")
    assert not left.exists()


def test_the_key_tells_kernels_apart_but_not_processes(run_python):
    program = """
from dxgemm.lower.ahead import kernel_specs
specs = kernel_specs(("float32", "float64"))
keys = [spec.key(arch) for spec in specs for arch in ("sm_80", "sm_90a")]
assert len(set(keys)) == len(keys)
print(*keys)
"""
    assert run_python(program) == run_python(program)


def test_public_calls_report_the_cache(monkeypatch, directory, kernel, entry):
    store = KernelStore(directory)  # not that of the other tests
    for name in ("dxgemm.compiler.kernel_store", "dxgemm.compiler.kernels.kernel_store"):
        monkeypatch.setattr(name, lambda: store)
    info = dxgemm.cache_info()
    assert info.writable and info.directory == directory and info.kernels == (kernel.record,)
    assert dxgemm.clear_cache() == 1
    assert dxgemm.cache_info().kernels == ()


BUILD_ONE = """
import hashlib
from dxgemm.lower.ahead import kernel_specs
from dxgemm.compiler import kernel_store, obtain_kernel
spec = kernel_specs(("float32",), ("coalesced",))[0]
kernel = obtain_kernel(spec, "sm_90a")
found = kernel_store().load(spec.key("sm_90a"))
assert (found.cubin, found.record) == (kernel.cubin, kernel.record)
print(kernel.record.entry, hashlib.sha256(kernel.cubin).hexdigest())
"""


def test_four_processes_share_one_cold_cache(run_python, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        runs = [
            pool.submit(run_python, BUILD_ONE, DXGEMM_CACHE_DIR=str(tmp_path)) for _ in range(4)
        ]
    assert len({run.result() for run in runs}) == 1
    (record,) = KernelStore(tmp_path).info().kernels
    assert runs[0].result().split()[0] == record.entry


def test_build_fills_the_cache_without_a_gpu(run_python, tmp_path):
    program = """
import dxgemm
steps = []
built = dxgemm.build(arch="sm_90a", dtypes=("float64",), implementations=("coalesced",),
                     progress=lambda *step: steps.append(step))
assert built and {(r.implementation, r.dtype) for r in built} == {("coalesced", "float64")}
assert [step[:2] for step in steps] == [(done, len(built)) for done in range(len(built) + 1)]
assert all(step[2].startswith("coalesced") for step in steps[:-1]) and steps[-1][2] == ""
assert set(dxgemm.cache_info().kernels) == set(built)
"""
    run_python(program, DXGEMM_CACHE_DIR=str(tmp_path))


@pytest.mark.gpu
def test_a_warm_cache_imports_no_compiler(run_python, tmp_path):
    pytest.importorskip("cupy")
    program = """
import sys, cupy, dxgemm
a = cupy.ones((64, 64), "float32")
dxgemm.gemm(a, a)
if sys.argv[1] == "warm":
    heavy = {"numba", "llvmlite", "nvmath"} & set(sys.modules)
    assert not heavy, heavy
    mapped = open("/proc/self/maps").read()
    assert "libnvvm" not in mapped and "libnvJitLink" not in mapped
"""
    for state in ("cold", "warm"):
        run_python(program, state, DXGEMM_CACHE_DIR=str(tmp_path))


def test_files_of_others_in_the_folder_stay(kernel, tmp_path):
    """The folder may be one that serves other programs, such as a home directory."""
    store = KernelStore(tmp_path)
    store.save(KEY, kernel)
    others = [tmp_path / "tmp" / "notes", tmp_path / "locks" / "notes"]
    others.append(tmp_path / "entries" / KEY[:2] / "notes")
    for path in others:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text("mine")
        os.utime(path, (0, 0))
    store.save(KEY, kernel)
    assert store.clear() == 1
    assert all(path.read_text() == "mine" for path in others)
