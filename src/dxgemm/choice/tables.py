"""Tables of the measured speeds of a chip, written by `dxgemm tune`.

Each chip has a folder, in the user's configuration directory, which comes first, or in the package.
`chip.json` names the chip; `speeds.csv` has a row of `Speed` for each dtype, kernel and config;
`corrections.csv` has a row of weights for each candidate, with which `dxgemm.choice.residual`
corrects the predictions that the model makes from these speeds.

Speeds are fractions of the peaks of a chip, so that the table of one chip serves another, scaled by
its facts, until that one is measured.
"""

from __future__ import annotations

import csv
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from dxgemm.errors import SettingError
from dxgemm.gpu.facts import DeviceFacts

PACKAGED = Path(__file__).parents[1] / "tables"
VERSION = 3
SAME_CHIP = 0.1  # relative difference of bandwidths of one chip, as drivers report clocks
# Distance to another architecture; twice the SMs, or twice the bandwidth, counts as 1.
OTHER_ARCHITECTURE = 10.0

# Features that a correction has weights for: those of a problem, then of a candidate; "2" marks a
# square. "rounds" counts the tiles of the busiest SM.
PROBLEM_FEATURES = (
    "one", "m", "n", "k", "batch", "m2", "n2", "k2", "batch2",
    "moduli", "misaligned", "a_col", "b_col", "epilogue", "a_alignment", "b_alignment",
)  # fmt: skip
CANDIDATE_FEATURES = ("rounds", "tail", "wave_tail", "rounds2", "tail2", "wave_tail2")
FEATURES = PROBLEM_FEATURES + CANDIDATE_FEATURES


@dataclass(frozen=True)
class Speed:
    """Measured speed of one config on one chip.

    Attributes:
        efficiency: throughput of a fully occupied SM, over the peak of the unit that multiplies;
            above 1 where the model adds too much for times that overlap.
        lone_share: single-CTA efficiency: throughput of an SM with one block, over that of a fully
            occupied one.
        launch_us: fixed time of a launch, or of all launches of a series.
        fill_us: prologue latency; without a pipeline, latency of every step along k.
        tile_us: time of a fully occupied SM for each tile, however short k is: mostly the epilogue.
        misaligned: factor of the arithmetic's time if neither rows of a nor rows of b start at
            multiples of 16 bytes; its square root if those of one do not.
        a_col, b_col: factor of the arithmetic's time if a, or b, is column-major.
        read_share, write_share: bandwidth over the memory's peak, of a memory-bound problem.
        misaligned_writes: factor of the time of writing if rows of the result do not start at
            multiples of 16 bytes.
        cluster_block_us: time of each further block of a cluster.
        epilogue_ns: time of a function applied to an element, on a fully occupied SM.
    """

    efficiency: float
    lone_share: float = 0.75
    launch_us: float = 4.0
    fill_us: float = 1.0
    tile_us: float = 0.3
    misaligned: float = 1.1
    a_col: float = 1.0
    b_col: float = 1.0
    read_share: float = 0.6
    write_share: float = 0.6
    misaligned_writes: float = 2.0
    cluster_block_us: float = 0.3
    epilogue_ns: float = 0.2


SPEED_NAMES = tuple(field.name for field in fields(Speed))
CHIP_NAMES = ("gpu", "arch", "sm_count", "memory_gbytes_per_s")


@dataclass(frozen=True)
class Chip:
    """Facts of a chip, from which the distance between chips is computed.

    Attributes:
        gpu: name of one GPU with this chip.
        arch: architecture, such as "sm_90a".
        sm_count: number of SMs.
        memory_gbytes_per_s: peak bandwidth.
    """

    gpu: str
    arch: str
    sm_count: int
    memory_gbytes_per_s: float

    @classmethod
    def of(cls, device: DeviceFacts) -> Chip:
        bandwidth = round(device.memory_gbytes_per_s, 1)
        return cls(device.name, device.arch, device.sm_count, bandwidth)

    def distance(self, other: Chip) -> float:
        """Distance to another chip, by log2 of SMs and of bandwidth, and by architecture."""
        apart = abs(math.log2(self.sm_count / other.sm_count))
        apart += abs(math.log2(self.memory_gbytes_per_s / other.memory_gbytes_per_s))
        if self.arch != other.arch:
            own, others = (int(re.sub(r"\D", "", chip.arch) or 0) for chip in (self, other))
            apart += OTHER_ARCHITECTURE + abs(own - others)
        return apart


Key = tuple[str, str, str]  # dtype, kernel and config


@dataclass(frozen=True, eq=False)
class Table:
    """Measurements of a chip.

    Attributes:
        chip: the chip.
        speeds: speeds by dtype, kernel and config.
        corrections: weights of `dxgemm.choice.residual`, by dtype and candidate.
        workloads: number of problems that were measured.
    """

    chip: Chip
    speeds: Mapping[Key, Speed]
    corrections: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    workloads: int = 0


def own_folder(device: DeviceFacts) -> Path:
    """Folder of the user's table for a device, whether it exists or not.

    Raises:
        SettingError: the user has no home directory.
    """
    name = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    tables = _own_tables()
    if tables is None:
        raise SettingError("tune: this user has no home directory for a table; pass --out.")
    return tables / name


def _own_tables() -> Path | None:
    """Folder of the user's tables; None if the user has no home directory."""
    try:
        return Path(platformdirs.user_config_dir("dxgemm")).expanduser() / "tables"
    except RuntimeError:
        return None


def table_for(device: DeviceFacts) -> Table | None:
    """Table of the device's chip, or of the nearest one; None if there is no table at all."""
    return _nearest(Chip.of(device))


def table_of_another(device: DeviceFacts) -> Table | None:
    """The packaged table of the nearest chip but the device's own; None if there is none."""
    return _nearest(Chip.of(device), is_another=True)


@cache
def _nearest(chip: Chip, is_another: bool = False) -> Table | None:
    own = None if is_another else _own_tables()
    folders = [path.parent for tables in (own, PACKAGED) if tables is not None
               for path in sorted(tables.glob("*/chip.json"))]  # fmt: skip
    known = [(found, folder) for folder in folders if (found := _read_chip(folder)) is not None]
    if is_another:
        known = [entry for entry in known if chip.distance(entry[0]) >= SAME_CHIP]
    for _, folder in sorted(known, key=lambda entry: round(chip.distance(entry[0]), 1)):
        table = read_table(folder)
        if table is not None:
            return table
    return None


def forget_tables() -> None:
    """Forget the tables that were read, so that the next use reads them again."""
    _nearest.cache_clear()


def is_of_chip(table: Table, device: DeviceFacts) -> bool:
    """True if a table was measured on a chip of the device's kind."""
    return table.chip.distance(Chip.of(device)) < SAME_CHIP


def _read_chip(folder: Path) -> Chip | None:
    path = folder / "chip.json"
    try:
        return _chip_of(_header(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _warn(path, error)
        return None


def _header(path: Path) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(path.read_text())
    if header["version"] != VERSION:
        raise ValueError(f"it has version {header['version']}, this dxgemm reads {VERSION}")
    return header


def _chip_of(header: dict[str, Any]) -> Chip:
    chip = Chip(**{name: header[name] for name in CHIP_NAMES})
    if not (chip.sm_count > 0 and chip.memory_gbytes_per_s > 0 and isinstance(chip.arch, str)):
        raise ValueError("a chip has SMs and memory")
    return chip


def read_table(folder: Path) -> Table | None:
    """Read the table in a folder; None, with a warning, if it is damaged or of another version."""
    path = folder / "chip.json"
    try:
        header = _header(path)
        chip, workloads = _chip_of(header), int(header.get("workloads", 0))
        path = folder / "speeds.csv"
        speeds = {}
        for (dtype, kernel, config), numbers in _read_rows(path, 3, SPEED_NAMES):
            if min(numbers) <= 0:
                raise ValueError(f"a speed of {kernel} {config} is not positive")
            speeds[dtype, kernel, config] = Speed(*numbers)
        path = folder / "corrections.csv"
        corrections: dict[str, dict[str, np.ndarray]] = {}
        for (dtype, candidate), numbers in _read_rows(path, 2, FEATURES):
            corrections.setdefault(dtype, {})[candidate] = np.array(numbers)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _warn(path, error)
        return None
    return Table(chip, speeds, corrections, workloads)


def _read_rows(
    path: Path, key_width: int, names: tuple[str, ...]
) -> Iterator[tuple[list[str], list[float]]]:
    """Yield the key and the numbers of each row of a file, whose header names the numbers.

    Raises:
        ValueError: a number is missing, infinite or not a number.
    """
    with path.open(newline="") as file:
        rows = csv.reader(file)
        if tuple(next(rows, [])[key_width:-1]) != names:
            raise ValueError("its columns are others")
        for row in rows:
            numbers = list(map(float, row[key_width:-1]))
            if len(numbers) != len(names) or not all(map(math.isfinite, numbers)):
                raise ValueError(f"{row[:key_width]} lacks a number")
            yield row[:key_width], numbers


def write_table(
    folder: Path,
    chip: Chip,
    speeds: Mapping[Key, tuple[Speed, int]],
    corrections: Mapping[tuple[str, str], tuple[np.ndarray, int]],
    about: Mapping[str, Any],
) -> None:
    """Write a chip's table.

    Args:
        folder: folder of the chip.
        chip: the chip.
        speeds: speeds by dtype, kernel and config, each with its number of measurements.
        corrections: weights by dtype and candidate, each with its number of measurements.
        about: date and package versions of the measurements.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        ",".join([*key, *(f"{value:.3g}" for value in asdict(speed).values()), str(count)])
        for key, (speed, count) in sorted(speeds.items())
    ]
    header = ",".join(["dtype", "kernel", "config", *SPEED_NAMES, "measurements"])
    _write(folder / "speeds.csv", [header, *lines])
    write_corrections(folder, corrections)
    text = json.dumps({"version": VERSION, **asdict(chip), **about}, indent=1)
    _write(folder / "chip.json", [text])


def write_corrections(
    folder: Path, corrections: Mapping[tuple[str, str], tuple[np.ndarray, int]]
) -> None:
    """Write a table's corrections, which `write_table` takes, into its folder."""
    lines = [
        ",".join([*key, *(f"{weight:.4f}" for weight in weights), str(count)])
        for key, (weights, count) in sorted(corrections.items())
    ]
    header = ",".join(["dtype", "candidate", *FEATURES, "measurements"])
    _write(folder / "corrections.csv", [header, *lines])
    forget_tables()


def _write(path: Path, lines: Sequence[str]) -> None:
    """Write a file by renaming a complete one, so that no reader sees a part of it."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text("\n".join(lines) + "\n")
    unfinished.replace(path)


def _warn(path: Path, error: Exception) -> None:
    warnings.warn(
        f"{path} is no table of speeds ({type(error).__name__}: {error}); the choice goes without "
        "it. Remove it, or write it anew with `dxgemm tune`.",
        RuntimeWarning,
        stacklevel=2,
    )
