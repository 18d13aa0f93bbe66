"""What a chip was measured to reach: small tables of numbers, written by `dxgemm tune`.

A folder a chip, in the package or in the user's configuration directory, which comes first:
`chip.json` says which chip; `speeds.csv` has a line of `Speed` for each dtype, kernel and config;
`float32.csv` and the like have a line for each problem that was measured, with the weights by which
it corrects predictions for problems like it (`dxgemm.choice.residual`).

Speeds are shares of what a chip's clocks, SMs and memory would give, so that those of one chip
serve another, scaled by its facts, until that one is measured.
"""

from __future__ import annotations

import csv
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from dxgemm.runtime.device import DeviceFacts

PACKAGED = Path(__file__).parents[1] / "tables"
VERSION = 1
SAME_CHIP = 0.1  # bandwidths may differ by this part of it, as drivers report clocks
# How much farther another architecture is than twice the SMs, or twice the bandwidth.
OTHER_ARCHITECTURE = 10.0
WEIGHT = 1e-3  # unit of weights in files

# What a line of a measured problem begins with: its numbers, as `dxgemm.choice.model.Asked` has
# them.
POINT = ("m", "n", "k", "batch", "moduli", "a_is_col", "b_is_col", "has_epilogue",
         "a_alignment", "b_alignment")  # fmt: skip


@dataclass(frozen=True)
class Speed:
    """What one config reaches on one chip.

    Attributes:
        efficiency: of a full SM, over the peak of the unit that multiplies.
        lone_share: of a block that has an SM to itself, over a full one.
        launch_us: of a launch, once; of all kernels of a series.
        fill_us: prologue latency; without a pipeline, of every step along k.
        tile_us: of a full SM for each tile, however short k is: its result, mostly.
        misaligned: times that arithmetic takes where rows of a or b are no multiple of 16 bytes.
        a_col, b_col: times that it takes where a, or b, is column-major.
        read_share, write_share: of the memory's peak, where that bounds it.
        misaligned_writes: times that writing takes where rows of the result are no multiple of 16
            bytes.
        cluster_block_us: of each further block of a cluster.
        epilogue_ns: of a function of an element, on a full SM.
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


@dataclass(frozen=True)
class Chip:
    """Facts of a chip, by which the nearest is found.

    Attributes:
        gpu: name of one GPU that has it.
        arch: such as "sm_90a".
        sm_count: streaming multiprocessors.
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
        """How unlike another chip is: powers of two of SMs and bandwidth, and its architecture."""
        apart = abs(math.log2(self.sm_count / other.sm_count))
        apart += abs(math.log2(self.memory_gbytes_per_s / other.memory_gbytes_per_s))
        if self.arch != other.arch:
            own, others = (int(re.sub(r"\D", "", chip.arch) or 0) for chip in (self, other))
            apart += OTHER_ARCHITECTURE + abs(own - others)
        return apart


@dataclass(frozen=True)
class Measured:
    """Problems of a dtype that were measured, and how they correct predictions.

    Attributes:
        points: a row a problem, its numbers by `POINT`.
        candidates: names of candidates, as `dxgemm.choice.model.Row` has them.
        weights: a row a problem, a column a candidate; 0 where it was not measured.
    """

    points: np.ndarray
    candidates: tuple[str, ...]
    weights: np.ndarray


Key = tuple[str, str, str]  # dtype, kernel and config


@dataclass(frozen=True, eq=False)
class Table:
    """What was measured of a chip.

    Attributes:
        chip: which.
        speeds: by dtype, kernel and config.
        folder: with its files; None for a table in memory.
        measured: problems by dtype, of a table in memory.
    """

    chip: Chip
    speeds: Mapping[Key, Speed]
    folder: Path | None = None
    measured: Mapping[str, Measured] = field(default_factory=dict)

    def measured_problems(self, dtype: str) -> Measured | None:
        """The problems of a dtype, read from the table's folder; None if there are none."""
        if self.folder is None:
            return self.measured.get(dtype)
        path = self.folder / f"{dtype}.csv"
        if not path.exists():
            return None
        try:
            return _read_measured(path)
        except (OSError, ValueError) as error:
            _warn(path, error)
            return None


def own_folder(device: DeviceFacts) -> Path:
    """Where the user's table for a device is, or would be."""
    name = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    return _own_tables() / name


def _own_tables() -> Path:
    return Path(platformdirs.user_config_dir("dxgemm")) / "tables"


def table_for(device: DeviceFacts) -> Table | None:
    """The table of the device's chip, or of the nearest; None if there is no table at all."""
    return _nearest(Chip.of(device))


@cache
def _nearest(chip: Chip) -> Table | None:
    folders = [path.parent for tables in (_own_tables(), PACKAGED)
               for path in sorted(tables.glob("*/chip.json"))]  # fmt: skip
    known = [(found, folder) for folder in folders if (found := _read_chip(folder)) is not None]
    for _, folder in sorted(known, key=lambda entry: round(chip.distance(entry[0]), 1)):
        table = read_table(folder)
        if table is not None:
            return table
    return None


def forget_tables() -> None:
    """Read tables again when they are needed next."""
    _nearest.cache_clear()


def is_of_chip(table: Table, device: DeviceFacts) -> bool:
    """Whether a table was measured on a device's own kind of chip."""
    return table.chip.distance(Chip.of(device)) < SAME_CHIP


def _read_chip(folder: Path) -> Chip | None:
    path = folder / "chip.json"
    try:
        header = json.loads(path.read_text())
        if header["version"] != VERSION:
            raise ValueError(f"it has version {header['version']}, this dxgemm reads {VERSION}")
        values = {name: header[name] for name in ("gpu", "arch", "sm_count", "memory_gbytes_per_s")}
        chip = Chip(**values)
        if not (chip.sm_count > 0 and chip.memory_gbytes_per_s > 0 and isinstance(chip.arch, str)):
            raise ValueError("a chip has SMs and memory")
        return chip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _warn(path, error)
        return None


def read_table(folder: Path) -> Table | None:
    """The table in a folder; None, with a warning, if it is damaged or of another version."""
    chip = _read_chip(folder)
    if chip is None:
        return None
    path = folder / "speeds.csv"
    try:
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
        speeds = {
            (line["dtype"], line["kernel"], line["config"]): Speed(
                **{name: _positive(line[name]) for name in SPEED_NAMES}
            )
            for line in lines
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        _warn(path, error)
        return None
    return Table(chip, speeds, folder)


def _positive(text: str) -> float:
    value = float(text)
    if not (0 < value < math.inf):
        raise ValueError(f"{text} is no speed")
    return value


def _read_measured(path: Path) -> Measured:
    header, _, body = path.read_text().partition("\n")
    names = tuple(header.split(","))
    if names[: len(POINT)] != POINT:
        raise ValueError("its columns are others")
    # As JSON, whose parser is twice as fast as NumPy's.
    numbers = np.array(json.loads("[[" + "],[".join(body.split()) + "]]"), float)
    if numbers.shape[1:] != (len(names),):
        raise ValueError("a number is missing")
    least = np.array([name.endswith("alignment") for name in POINT])
    if not (np.isfinite(numbers).all() and (numbers[:, : len(POINT)] >= least).all()):
        raise ValueError("a number is out of range")
    return Measured(
        numbers[:, : len(POINT)], names[len(POINT) :], WEIGHT * numbers[:, len(POINT) :]
    )


def write_table(
    folder: Path,
    chip: Chip,
    speeds: Mapping[Key, tuple[Speed, int]],
    measured: Mapping[str, Measured],
    about: Mapping[str, Any],
) -> None:
    """Write a chip's table.

    Args:
        folder: of the chip; what else it holds stays.
        chip: which.
        speeds: each with the number of measurements behind it.
        measured: by dtype.
        about: when and with what it was measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        ",".join([*key, *(f"{value:.3g}" for value in asdict(speed).values()), str(count)])
        for key, (speed, count) in sorted(speeds.items())
    ]
    header = ",".join(["dtype", "kernel", "config", *SPEED_NAMES, "measurements"])
    _write(folder / "speeds.csv", [header, *lines])
    for dtype, problems in measured.items():
        numbers = np.concatenate([problems.points, np.round(problems.weights / WEIGHT)], axis=1)
        lines = [",".join(map(str, row)) for row in numbers.astype(int).tolist()]
        _write(folder / f"{dtype}.csv", [",".join([*POINT, *problems.candidates]), *lines])
    text = json.dumps({"version": VERSION, **asdict(chip), **about}, indent=1)
    _write(folder / "chip.json", [text])
    forget_tables()


def _write(path: Path, lines: Sequence[str]) -> None:
    """The file is there whole or not at all."""
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
