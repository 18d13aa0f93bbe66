"""Meetings of the ranks of a group in every call, so that an error of one is an error of all.

Each rank has a cell that the others read: the number of its call, and how far it has come. A call
begins once all ranks have come to it, with tokens that say what they agreed on before, and ends
once all have launched it. A rank that knows the call from before prepares it first, so that its
memory is there and its own products are under way when the ranks meet. Hosts meet, not GPUs.

A call that fails on one rank waits for that rank: if it repeats the call soon, with equal
operands, the call of the others goes on. Otherwise all ranks raise an error, and refuse each later
call: nobody can tell which of their calls belong together.

Nothing here needs torch or a GPU.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from dxgemm import errors

Description = dict[str, Any]

# Steps of a call. A rank that repeats it does not take again what it keeps, such as memory.
BEGUN, ARRIVED, MAPS_FLAGS, MAPPED_FLAGS, MAPS_ROWS, MAPPED_ROWS, COLLECTS, DONE = range(8)
# Whether a rank is in its call, may repeat it after a failure, or refuses all.
GOES_ON, FAILED, ENDED = range(3)
RETRY_S = 10.0  # in which a rank may repeat a call that failed on it
# A rank that has come to a call may be building kernels.
BUILD_S = 120.0
SPIN_S = 0.01  # before a wait begins to sleep
CHECK_S = 0.1  # between looks whether a rank's process lives


class State(NamedTuple):
    """Progress of a rank.

    Attributes:
        call: number of the call.
        step: step of the call to which the rank has come.
        status: GOES_ON, FAILED or ENDED.
        token: number of the call in which the ranks agreed on such a one; 0 if they did not.
        text: error of a call that failed.
    """

    call: int
    step: int
    token: int = 0
    status: int = GOES_ON
    text: str = ""


class Cells:
    """Memory of which each rank writes its own part, and reads all."""

    def write(self, state: State) -> None:
        """Write this rank's state."""
        self._put("state", pack(state))

    def read(self, rank: int) -> State | None:
        """Read a rank's state; None if it is being written."""
        packed = self._get("state", rank)
        return unpack(packed) if packed else None

    def write_note(self, note: bytes) -> None:
        """Write this rank's note, which is longer than a state."""
        self._put("note", note)

    def read_note(self, rank: int) -> bytes | None:
        """Read a rank's note; None if there is none, or it is being written."""
        return self._get("note", rank)

    def has_ended(self, rank: int) -> bool:
        """True if a rank's process is known to have ended."""
        return False

    def close(self) -> None:
        """Give back what the cells hold."""
        raise NotImplementedError

    def _put(self, kind: str, content: bytes) -> None:
        """Write this rank's "state" or "note"."""
        raise NotImplementedError

    def _get(self, kind: str, rank: int) -> bytes | None:
        """Read a rank's "state" or "note"."""
        raise NotImplementedError


class Meeting:
    """Meetings of one rank with the others.

    Attributes:
        number: number of the call, of all that the ranks made together.
        refusal: why each further call is refused; None while they are not.
    """

    def __init__(self, rank: int, size: int, cells: Cells) -> None:
        self._rank, self._size, self.cells = rank, size, cells
        self._others = [other for other in range(size) if other != rank]
        self.number = 0
        self.refusal: str | None = None
        self._completed = 0  # number of the last call that came to its end
        # Key, digest and error of a call that did not.
        self._failed: tuple[Any, Any, str] | None = None
        self._step, self._token = DONE, 0  # to which this rank has come, and of this call
        self._is_busy, self._is_repeatable = False, True
        self._told: BaseException | None = None  # error that all ranks raise by agreement
        self._name, self._timeout_s = "", 0.0

    @contextmanager
    def call(
        self, name: str, timeout_s: float, key: Any, digest: Callable[[], Any]
    ) -> Iterator[None]:
        """Begin a call, in which the ranks meet by `arrive`, and meet once it is launched.

        Args:
            name: name of the function, for errors.
            timeout_s: seconds to wait for the other ranks.
            key, digest: what a repeated call has in common with one that failed: its arguments,
                and a digest of its operands, made only if it failed; None if there is none.

        Raises:
            RankError: the call failed on another rank, or an earlier one did; a rank did not come
                in time, or has ended.
        """
        if self._is_busy:
            raise errors.RankError(
                f"{name}: a call of the same group is under way in this process, such as in "
                "another thread; make one call after the other."
            )
        self._is_busy = True
        try:
            self._name, self._timeout_s, self._told = name, timeout_s, None
            try:
                self._begin(key, digest)
                self._token, self._is_repeatable = 0, True
                yield
                self._sync(DONE, max(timeout_s, BUILD_S))
            except BaseException as error:
                if error is not self._told:
                    self._fail(error, key, digest)
                    raise
            self._completed = self.number
            self._failed = None
            if self._told is not None:
                raise self._told
        finally:
            self._is_busy = False

    def arrive(self, token: int, collects: bool = False) -> bool:
        """Meet the other ranks; True if all have the same token, and so agree already.

        Args:
            token: number of the call in which the ranks agreed on this one; 0 if they did not.
            collects: whether a rank that agrees is prepared for collectives, and begins them next.
        """
        self._token = token
        states = self._sync(ARRIVED, self._timeout_s, collects)
        is_agreed = token > 0 and all(state.token == token for state in states)
        self._is_repeatable = not (is_agreed and collects)
        return is_agreed

    def commit(self, step: int) -> None:
        """Begin a step that cannot be repeated, together: in it a failure is one of all ranks."""
        self._is_repeatable = False
        self._sync(step, max(self._timeout_s, BUILD_S))

    def settle(self, step: int) -> None:
        """Come to a step, together, from which on a call can be repeated again."""
        self.commit(step)
        self._is_repeatable = True

    def agree(
        self, description: Description, decide: Callable[[list[Description]], Description]
    ) -> Description:
        """Exchange descriptions of a call, and take over the first rank's decision.

        Args:
            description: what JSON holds. "error" has type and text of an error of this rank's
                arguments.
            decide: makes a decision of all descriptions, or raises; the first rank calls it.

        Raises:
            DxgemmError: the error that a rank described, or that `decide` raised; the same one on
                all ranks.
        """
        if self._rank:
            self._write_note(description)
            (decided,) = self._read_notes([0])
        else:
            own = json.loads(json.dumps(description))  # as the others' are
            decided = _decided([own, *self._read_notes(self._others)], decide)
            self._write_note(decided)
        if "error" in decided:
            name, text = decided["error"]
            self._told = getattr(errors, name)(text)
            raise self._told
        return decided

    def _begin(self, key: Any, digest: Callable[[], Any]) -> None:
        """Take the number of a new call, or that of the one which this call repeats."""
        is_new = self._failed is None
        if self.refusal is None and self._failed is not None:
            failed_key, failed_digest, text = self._failed
            if failed_digest is None or key != failed_key or digest() != failed_digest:
                self._end(f"{text} (and it was not repeated)")
        if self.refusal is not None:
            raise self._refused()
        # Taken for failed until it is done, because an interrupt may come at any time.
        self._failed = key, None, f"{self._name} was interrupted"
        self.number = self._completed + 1
        self._step = BEGUN if is_new else min(self._step, DONE - 1)

    def _refused(self) -> errors.RankError:
        return errors.RankError(
            f"{self._name}: the group's calls are refused, because one failed: {self.refusal}; "
            "go on with a new group, such as of torch.distributed.new_group."
        )

    def _fail(self, error: BaseException, key: Any, digest: Callable[[], Any]) -> None:
        """Tell the others that the call failed, unless they told this rank."""
        if self.refusal is not None:
            return
        text = f"{self._name} on rank {self._rank}: {type(error).__name__}: {error}"
        found = digest() if self._is_repeatable else None
        if found is None:
            self._end(text)
        else:
            self._failed = key, found, text
            self.cells.write(State(self.number, self._step, self._token, FAILED, text))

    def _end(self, text: str) -> None:
        """Refuse all further calls, on all ranks."""
        self.refusal = text
        self.cells.write(State(self.number, self._step, self._token, ENDED, text))

    def _sync(self, step: int, limit_s: float, collects: bool = False) -> list[State]:
        """Tell the others this rank's step, and wait until all have come to it."""
        self._step = max(self._step, step)
        self.cells.write(State(self.number, self._step, self._token))
        is_last = step == DONE or collects  # which a rank that failed later has not come to

        def come(rank: int) -> State | None:
            state = self.cells.read(rank)
            if state is None:
                return None
            if state.call > self.number:
                return state
            counts = state.status == GOES_ON or (state.status == FAILED and not is_last)
            has_come = state.call == self.number and state.step >= step and counts
            return state if has_come else None

        return self._wait(self._others, come, limit_s)

    def _write_note(self, content: Description) -> None:
        self.cells.write_note(json.dumps([self.number, content]).encode())

    def _read_notes(self, ranks: Sequence[int]) -> list[Description]:
        """Wait for notes of this call."""

        def find(rank: int) -> Description | None:
            note = self.cells.read_note(rank)
            number, content = json.loads(note) if note else (0, None)
            return content if number == self.number else None

        return self._wait(ranks, find, self._timeout_s)

    def _wait(self, ranks: Sequence[int], find: Callable[[int], Any], limit_s: float) -> list[Any]:
        """Wait until a function finds something of each rank, unless the call fails on one."""
        found: dict[int, Any] = {}
        grace: dict[int, float] = {}  # until when a rank may repeat the call that failed on it
        started = looked = time.monotonic()
        sleep_s = 0.0
        while True:
            for rank in ranks:
                if rank not in found and (value := find(rank)) is not None:
                    found[rank] = value
            if len(found) == len(ranks):
                return [found[rank] for rank in ranks]
            now = time.monotonic()
            late = [rank for rank in ranks if rank not in found]
            self._look_for_failures(late, now, grace)
            if now - looked > CHECK_S:
                looked = now
                self._look_for_ends([rank for rank in late if self.cells.has_ended(rank)])
            if now - started > limit_s and not any(rank in grace for rank in late):
                raise self._too_late(late, limit_s)
            if now - started < SPIN_S:
                os.sched_yield()  # a microsecond; sleep(0) lasts for the timer's slack, 50 and more
            else:
                sleep_s = min(sleep_s + 1e-5, 2e-3)
                time.sleep(sleep_s)

    def _look_for_failures(self, late: list[int], now: float, grace: dict[int, float]) -> None:
        """Raise if the call has failed on a rank that will not repeat it."""
        for rank in self._others:
            state = self.cells.read(rank)
            if state is None or state.call > self.number:
                continue
            is_of_call = state.call == self.number
            has_failed = rank in late and is_of_call and state.status == FAILED
            if has_failed and rank not in grace:
                grace[rank] = now + min(RETRY_S, self._timeout_s)
            elif not has_failed:
                grace.pop(rank, None)
            if state.status == ENDED or (rank in grace and now > grace[rank]):
                self._end(state.text)
                raise self._refused()

    def _look_for_ends(self, ended: list[int]) -> None:
        """Raise if processes have ended."""
        if ended:
            text = f"{_ranks(ended, self._size)} did not call it: the rank has ended"
            self._end(f"{self._name}: {text}")
            raise errors.RankError(f"{self._name}: {text}.")

    def _too_late(self, late: list[int], limit_s: float) -> errors.RankError:
        """Error of ranks that did not come in time."""
        if self._step <= ARRIVED:
            return _not_called(self._name, late, self._size, limit_s)
        who = _ranks(late, self._size)
        self._end(f"{self._name}: {who} did not launch it within {limit_s:g} s")
        return self._refused()


def _ranks(ranks: Sequence[int], size: int) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} of {size}"


def _not_called(name: str, late: Sequence[int], size: int, limit_s: float) -> errors.RankError:
    return errors.RankError(
        f"{name}: {_ranks(late, size)} did not call it within {limit_s:g} s; every rank of the "
        "group must, with equal arguments as often as the others."
    )


def _decided(found: list[Description], decide: Any) -> Description:
    """Decision as JSON holds it: what `decide` returns, or an error's type and text."""
    for rank, description in enumerate(found):
        if "error" in description:
            name, text = description["error"]
            return {"error": [name, f"rank {rank}: {text}"]}
    try:
        return dict(decide(found))
    except errors.DxgemmError as error:
        return {"error": describe_error(error)}


def describe_error(error: errors.DxgemmError) -> list[str]:
    """Type and text of an error, for a description."""
    return [type(error).__name__, str(error)]


_STATE = struct.Struct("<QIQI")
_HEADER = struct.Struct("<II")  # checksum and number of bytes


def pack(state: State) -> bytes:
    """Pack a state in at most STATE_BYTES."""
    text = state.text.encode(errors="replace")[: STATE_BYTES - _HEADER.size - _STATE.size]
    return _STATE.pack(state.call, state.step, state.token, state.status) + text


def unpack(packed: bytes) -> State:
    """Unpack a state."""
    call, step, token, status = _STATE.unpack_from(packed)
    return State(call, step, token, status, packed[_STATE.size :].decode(errors="replace"))


STATE_BYTES, NOTE_BYTES = 1024, 1 << 17


class SharedCells(Cells):
    """Cells in a file that the processes of one machine map.

    What is read while it is written has a wrong checksum. Each process locks a byte of the file,
    which is free again once it has ended, however that came about.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        """Map the file, which the first rank has made."""
        self._rank = rank
        self._file = path.open("r+b", buffering=0)
        self._file.truncate(size * (STATE_BYTES + NOTE_BYTES))
        self._memory = mmap.mmap(self._file.fileno(), size * (STATE_BYTES + NOTE_BYTES))
        # Offset of the first rank's cell of a kind, and the bytes of each.
        self._cells = {"state": (0, STATE_BYTES), "note": (size * STATE_BYTES, NOTE_BYTES)}
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, rank)
        self.write(State(0, DONE))

    def write_note(self, note: bytes) -> None:
        if len(note) > NOTE_BYTES - _HEADER.size:
            raise errors.RankError(f"a description of {len(note)} bytes is too long to exchange.")
        super().write_note(note)

    def has_ended(self, rank: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank)
        return True

    def close(self) -> None:
        self._memory.close()
        self._file.close()

    def _put(self, kind: str, content: bytes) -> None:
        first, size = self._cells[kind]
        offset = first + self._rank * size
        begin = offset + _HEADER.size
        self._memory[begin : begin + len(content)] = content
        self._memory[offset:begin] = _HEADER.pack(zlib.crc32(content), len(content))

    def _get(self, kind: str, rank: int) -> bytes | None:
        first, size = self._cells[kind]
        offset = first + rank * size
        begin = offset + _HEADER.size
        checksum, count = _HEADER.unpack(self._memory[offset:begin])
        content = self._memory[begin : begin + count]
        return content if content and zlib.crc32(content) == checksum else None


class StoreCells(Cells):
    """Cells in a group's store, for ranks on several machines. A process that ends is not seen."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank = store, rank
        self.write(State(0, DONE))

    def close(self) -> None:
        with suppress(Exception):  # the store may have gone before
            for kind in ("state", "note"):
                self._store.delete_key(f"{kind}/{self._rank}")

    def _put(self, kind: str, content: bytes) -> None:
        self._store.set(f"{kind}/{self._rank}", content)

    def _get(self, kind: str, rank: int) -> bytes | None:
        key = f"{kind}/{rank}"
        return bytes(self._store.get(key)) if self._store.check([key]) else None


class LocalStore(dict[str, bytes]):
    """Store of a group whose ranks are threads of one process, or of a single rank."""

    set = dict.__setitem__

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self for key in keys)

    def delete_key(self, key: str) -> None:
        self.pop(key, None)


def local_cells(size: int) -> list[StoreCells]:
    """Make the cells of all ranks, which are threads of this process."""
    store = LocalStore()
    return [StoreCells(store, rank, size) for rank in range(size)]


def shared_folder() -> str:
    """Folder in memory, if the system has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def introduce(
    call: str,
    store: Any,
    prefixed: Callable[[str], Any],
    rank: int,
    size: int,
    timeout_s: float,
) -> tuple[Cells, str | None]:
    """Find the cells of a group, by its store: in shared memory if all ranks can map it.

    A store may hold what an earlier group of the same name left there. So each rank says hello by
    a new random name, and takes only answers to that one.

    Args:
        call: name of the function, for errors.
        store: keys of this group and of earlier ones of its name.
        prefixed: makes a store of the keys with a prefix.
        rank, size: this rank, and the number of ranks.
        timeout_s: seconds to wait for the other ranks.

    Returns:
        The cells; and a path that files in shared memory may have as their prefix, None if the
        ranks share none.

    Raises:
        RankError: a rank did not come in time.
    """
    if size == 1:
        return local_cells(1)[0], None
    own = uuid.uuid4().hex
    deadline = time.monotonic() + timeout_s

    def get(kind: str, other: int) -> Any:
        """Read what a rank left, or was left."""
        key = f"{kind}/{other}"
        return json.loads(store.get(key)) if store.check([key]) else None

    def put(kind: str, other: int, content: Any) -> None:
        store.set(f"{kind}/{other}", json.dumps(content))

    def wait(late: Sequence[int]) -> None:
        if time.monotonic() > deadline:
            raise _not_called(call, late, size, timeout_s)
        time.sleep(1e-3)

    def join(path: Path) -> Cells | None:
        """Map the file of the first rank, if it is there."""
        with suppress(OSError):
            return SharedCells(path, rank, size)
        return None

    cells: Cells | None = None
    try:
        if rank == 0:
            path, first = Path(shared_folder()) / f"dxgemm-{own}", own
            path.touch(0o600)
            try:
                cells = join(path)
                others = range(1, size)
                while late := [r for r in others if (get("came", r) or [""])[0] != own]:
                    for other in late:
                        put("welcome", other, [get("hello", other), own, str(path)])
                    wait(late)
            finally:
                path.unlink()
            is_shared = cells is not None and all(get("came", other)[1] for other in others)
            for other in others:
                put("go", other, [own, is_shared])
                store.delete_key(f"hello/{other}")
                store.delete_key(f"came/{other}")
        else:
            put("hello", rank, own)
            while (welcome := get("welcome", rank) or [""])[0] != own:
                wait([0])
            first, path = welcome[1], Path(welcome[2])
            cells = join(path)
            put("came", rank, [first, cells is not None])
            while (go := get("go", rank) or [""])[0] != first:
                wait([0])
            is_shared = go[1]
            store.delete_key(f"welcome/{rank}")
            store.delete_key(f"go/{rank}")
    except BaseException:
        if cells is not None:
            cells.close()
        raise
    if is_shared and cells is not None:
        return cells, str(path)
    if cells is not None:
        cells.close()
    return StoreCells(prefixed(first), rank, size), None
