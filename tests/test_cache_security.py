"""Cache against other users: their files are never loaded, and its own files are private."""

import os
import re
import stat
import tempfile
from contextlib import contextmanager

import pytest
from conftest import SOURCES

from dxgemm.compiler import store
from dxgemm.compiler.store import VerifiedFiles

KEY, OTHER_KEY = "0123456789abcdef" * 4, "fedcba9876543210" * 4
HEADER, PAYLOAD = {"entry": "kernel"}, b"cubin"


@pytest.fixture
def files(tmp_path):
    """A store with one entry."""
    files = VerifiedFiles(tmp_path / "cache")
    files.save(KEY, HEADER, PAYLOAD)
    assert files.load(KEY) == (HEADER, PAYLOAD)
    return files


@pytest.fixture
def entry(files):
    """File of the entry."""
    (path,) = files.directory.glob("entries/*/*")
    return path


@pytest.fixture
def give_away(monkeypatch):
    """Makes a file another user's: in truth where the tests run as root."""

    def give_away(path):
        if os.geteuid() == 0:
            os.chown(path, 12345, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    return give_away


@contextmanager
def umask(mask):
    previous = os.umask(mask)
    try:
        yield
    finally:
        os.umask(previous)


def refused_and_replaced(files):
    """Assert that the entry is neither loaded nor listed; True if it can be saved again."""
    assert files.load(KEY) is None
    assert files.headers() == []
    files.save(KEY, HEADER, PAYLOAD)
    return files.load(KEY) == (HEADER, PAYLOAD)


def test_folders_and_files_are_for_their_user_alone(tmp_path):
    with umask(0):
        files = VerifiedFiles(tmp_path / "cache")
        files.save(KEY, HEADER, PAYLOAD)
        with files.lock(KEY):
            pass
    paths = [files.directory, *files.directory.rglob("*")]
    assert {path.name for path in paths} >= {"cache", "entries", "locks", "tmp", KEY}
    for path in paths:
        wanted = store.PRIVATE_FOLDER if path.is_dir() else store.PRIVATE_FILE
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_an_entry_of_another_user_is_a_miss(files, entry, give_away):
    give_away(entry)
    assert files.load(KEY) is None
    assert files.headers() == []


def test_an_entry_of_another_user_is_replaced(files, entry):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(entry, 12345, -1)
    assert refused_and_replaced(files)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_an_entry_that_others_may_write_is_a_miss(files, entry, mode):
    entry.chmod(mode)
    assert refused_and_replaced(files)


def test_a_symbolic_link_is_no_entry(files, entry, tmp_path):
    target = tmp_path / "planted"
    entry.rename(target)
    entry.symlink_to(target)
    content = target.read_bytes()
    assert refused_and_replaced(files)
    assert target.read_bytes() == content and not entry.is_symlink()


def test_a_pipe_is_no_entry_and_makes_nobody_wait(files, entry):
    entry.unlink()
    os.mkfifo(entry, 0o600)
    assert refused_and_replaced(files)


def test_the_entry_of_another_key_is_a_miss(files, entry):
    files.save(OTHER_KEY, {"entry": "another"}, b"another cubin")
    other = next(path for path in files.directory.glob("entries/*/*") if path != entry)
    entry.write_bytes(other.read_bytes())
    assert files.load(KEY) is None and files.load(OTHER_KEY) is not None


SPOILS = ("another user's", "open to all", "open to a group", "a link")
FOLDERS = (".", "entries", f"entries/{KEY[:2]}", "tmp", "locks")


def spoiled(folder, how, elsewhere, give_away):
    """Make a folder one that others may write, or a link."""
    if how == "another user's":
        give_away(folder)
    elif how == "a link":
        folder.rename(elsewhere)
        folder.symlink_to(elsewhere)
    else:
        folder.chmod(0o777 if how == "open to all" else 0o770)


@pytest.mark.parametrize("how", SPOILS)
@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("within", [(), ("device_functions",)])
def test_a_folder_that_others_may_write_is_not_used(tmp_path, give_away, within, name, how):
    files = VerifiedFiles(tmp_path / "cache", *within)
    with files.lock(KEY):
        files.save(KEY, HEADER, PAYLOAD)
    assert files.load(KEY) == (HEADER, PAYLOAD)
    # After the folder was found good: it is checked at each use.
    spoiled(files.directory / name, how, tmp_path / "elsewhere", give_away)
    before = sorted(tmp_path.rglob("*"))
    with pytest.warns(RuntimeWarning, match="others can write to it") as caught:
        if name not in ("tmp", "locks"):
            assert files.load(KEY) is None and files.headers() == []
        files.save(OTHER_KEY, HEADER, PAYLOAD)
        with files.lock(KEY):
            pass
        if name == ".":
            assert files.clear() == 0 and not files._is_usable
    assert len(caught) == 1
    if name == ".":
        assert sorted(tmp_path.rglob("*")) == before


def test_the_directory_of_the_cache_is_checked_for_all_that_it_holds(tmp_path):
    store.KernelStore(tmp_path / "cache").device_functions.save(KEY, HEADER, PAYLOAD)
    (tmp_path / "cache").chmod(0o777)
    files = VerifiedFiles(tmp_path / "cache", "device_functions")
    with pytest.warns(RuntimeWarning, match="others can write to it"):
        assert files.load(KEY) is None


def test_a_folder_that_is_closed_again_is_used_again(files):
    files.directory.chmod(0o777)
    with pytest.warns(RuntimeWarning):
        assert files.load(KEY) is None
    files.directory.chmod(0o700)
    assert files.load(KEY) == (HEADER, PAYLOAD)


def test_a_cache_of_root_that_none_may_write_is_read_without_a_warning(files, recwarn):
    for path in files.directory.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert files.load(KEY) == (HEADER, PAYLOAD) and files.load(OTHER_KEY) is None
    assert not recwarn.list


def test_a_sticky_folder_of_all_may_hold_the_cache(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    files = VerifiedFiles(tmp_path / "shared" / "cache")
    files.save(KEY, HEADER, PAYLOAD)
    assert files.load(KEY) == (HEADER, PAYLOAD)


def test_a_lock_writes_to_no_file_that_a_link_points_at(files, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    with files.lock(OTHER_KEY):
        pass
    lock = files.directory / "locks" / KEY
    lock.symlink_to(victim)
    with pytest.warns(RuntimeWarning, match="cannot lock"), files.lock(KEY):
        pass
    assert victim.read_text() == "precious"


def test_what_is_being_written_is_private_and_has_a_name_nobody_guesses(files, monkeypatch):
    made, mkstemp = [], tempfile.mkstemp

    def spy(**arguments):
        made.append(mkstemp(**arguments))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkstemp", spy)
    for _ in range(2):
        files.save(KEY, HEADER, PAYLOAD)
    assert made[0][1] != made[1][1]
    assert list((files.directory / "tmp").iterdir()) == []


# Where each is used, and on what: `worker` on pipes between a process and the one it started,
# `function` for functions on these pipes, `signature` on annotations of the caller's own functions.
ALLOWED = {
    r"\bpickle\.loads?\(": {"compiler/worker.py"},
    r"cloudpickle": {"epilogues/function.py"},
    r"(?<![.\w])eval\(": {"epilogues/signature.py"},
    r"shell=|os\.system|os\.popen|allow_pickle=True|np\.load\(|marshal|shelve|mktemp\(": set(),
}


@pytest.mark.parametrize("pattern", ALLOWED)
def test_what_can_run_foreign_code_is_used_where_it_is_known_only(pattern):
    folder = SOURCES / "dxgemm"
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(pattern, path.read_text())
    }
    assert found == ALLOWED[pattern]
