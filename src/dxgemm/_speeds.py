"""What kernels reach on a GPU, as `dxgemm tune` measured it: a table by dtype, kernel and config.

One JSON file a GPU, named by it: {"gpu": name, "arch": "sm_90a", "measured": date, "packages":
{name: version}, "shapes": how many, "speeds": {dtype: {"tuned 64x64x8 ...": {"efficiency": 0.67,
...}, "tuned 64x64x8 ... in batches": {...}, "tuned 64x64x8 ... of thin products": {...}}}}. What a
correction goes by are float16 numbers, compressed by zlib, as text in base 64. {"trees":
{"float32": [{"ways": [...], "nodes": text}, {...}], "float32 split": [...]}} is what the automatic
choice looks up. A file in the user's configuration directory takes the place of the one in the
package.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs

from dxgemm._correction import FEATURES, Correction
from dxgemm._decision_tree import TreePair, Trees, read_tree, tree_entry
from dxgemm._errors import SettingError
from dxgemm._problem import Problem

PACKAGED = Path(__file__).with_name("tables")


@dataclass(frozen=True)
class Speed:
    """What one config reaches on one GPU, for `dxgemm._model`.

    Attributes:
        efficiency: of a full multiprocessor, over its peak outside tensor cores.
        lone_share: of a block that has a multiprocessor for itself, over a full one.
        resident: blocks that share a multiprocessor.
        launch_us: of a launch, once.
        fill_us: of filling and draining a block's pipeline; without one, of every step along k.
        tile_us: of a full multiprocessor for each tile, however short k is: its result, mostly.
        misaligned_tile_us: ... and that much more where rows of b are no multiple of 16 bytes.
        misaligned: times that arithmetic takes where rows of a or b are no multiple of 16 bytes.
        guarded: times that arithmetic takes where a tile is at an edge, its copies guarded.
        read_share: of the memory's peak, where reading bounds it.
        write_share: ... where writing does.
        misaligned_writes: times that writing takes where rows of the result are no multiple of 16
            bytes.
        cluster_block_us: of each further block of a cluster.
        sharpness: p in (x**p + y**p)**(1/p), what two times take together that overlap; infinite,
            the longer of the two.
        correction: of what all this leaves over; None of what is not measured.
    """

    efficiency: float
    lone_share: float = 1.0
    resident: int = 1
    launch_us: float = 4.0
    fill_us: float = 0.0
    tile_us: float = 0.0
    misaligned_tile_us: float = 0.0
    misaligned: float = 1.0
    guarded: float = 1.0
    read_share: float = 0.5
    write_share: float = 0.5
    misaligned_writes: float = 1.0
    cluster_block_us: float = 0.0
    sharpness: float = math.inf
    correction: Correction | None = None


Speeds = Mapping[tuple[str, str], Speed]  # by dtype, and `name_of` of a config


@dataclass(frozen=True)
class Table:
    """Of one GPU."""

    speeds: Speeds = field(default_factory=dict)
    trees: Trees = field(default_factory=dict)


# A config has a speed of its own in each of these groups of problems. Matrices of batches are
# small, and the blocks of one run beside those of others; a thin product, of m, n or k below THIN,
# leaves tiles or steps along k mostly empty.
USUAL, IN_BATCHES, OF_THIN = "", " in batches", " of thin products"
THIN = 16


def group_of(problem: Problem) -> str:
    """The group whose speeds a problem goes by."""
    if problem.batch > 1:
        return IN_BATCHES
    return OF_THIN if min(problem.m, problem.n, problem.k) < THIN else USUAL


def name_of(implementation: Any, config: Any, group: str) -> str:
    """A config's name in tables, for problems of a group."""
    return f"{implementation.name} {config}{group}"


def without_group(name: str) -> str:
    """A name in tables, as it is for problems of the usual group."""
    return name.removesuffix(IN_BATCHES).removesuffix(OF_THIN)


def table_file(gpu: str) -> Path:
    """Where the user's table for a GPU of that name is, or would be."""
    return _own_tables() / _file_name(gpu)


def _own_tables() -> Path:
    return Path(platformdirs.user_config_dir("dxgemm")) / "tables"


@cache
def load_table(gpu: str) -> Table:
    """The user's table for a GPU, or the package's; empty if there is none.

    Raises:
        SettingError: the user's file is not such a table.
    """
    for path in (table_file(gpu), PACKAGED / _file_name(gpu)):
        if path.exists():
            return read_table(path)
    return Table()


def read_table(path: Path) -> Table:
    """The table in a file.

    Raises:
        SettingError: it is not such a table.
    """
    names = {field.name for field in fields(Speed)}
    try:
        table = json.loads(path.read_text())
        return Table(
            {
                (dtype, config): _read(speed)
                for dtype, configs in table["speeds"].items()
                for config, speed in configs.items()
            },
            {
                of: TreePair(*(read_tree(entry) for entry in entries))
                for of, entries in table.get("trees", {}).items()
            },
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise SettingError(
            f"{path} is no table of speeds ({type(error).__name__}: {error}); its entries have "
            f"{', '.join(sorted(names))}. Remove it, or write it anew with `dxgemm tune`."
        ) from error


def tabled(arch: str) -> frozenset[tuple[str, str]]:
    """dtype and `without_group` of what the tables of that architecture's GPUs have."""
    found: set[tuple[str, str]] = set()
    for folder in (PACKAGED, _own_tables()):
        for path in sorted(folder.glob("*.json")):
            if json.loads(path.read_text()).get("arch") == arch:
                found |= {(d, without_group(name)) for d, name in read_table(path).speeds}
    return frozenset(found)


def write_table(path: Path, gpu: str, arch: str, table: Table, about: Mapping[str, Any]) -> None:
    """Write a table; the file is there whole or not at all."""
    speeds: dict[str, dict[str, Any]] = {}
    for (dtype, config), speed in sorted(table.speeds.items()):
        speeds.setdefault(dtype, {})[config] = _entry(speed)
    trees = {of: [tree_entry(tree) for tree in pair] for of, pair in sorted(table.trees.items())}
    written = {"gpu": gpu, "arch": arch, **about, "speeds": speeds, "trees": trees}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(_text(written))
    unfinished.replace(path)


def _text(table: dict[str, Any]) -> str:
    """JSON with a line for each value, and for each list of numbers."""
    text = json.dumps(table, indent=1)
    return re.sub(r"\[[^][]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


def _entry(speed: Speed) -> dict[str, Any]:
    entry = {name: _rounded(value) for name, value in vars(speed).items() if name != "correction"}
    if speed.correction is not None:
        entry["slopes"] = _rounded(speed.correction.slopes)
        packed = zlib.compress(speed.correction.neighbours, 9)
        entry["neighbours"] = base64.b64encode(packed).decode("ascii")
    return entry


def _read(entry: dict[str, Any]) -> Speed:
    values = dict(entry)
    slopes = tuple(values.pop("slopes", ()))
    packed = base64.b64decode(values.pop("neighbours", ""), validate=True)
    if not all(isinstance(value, int | float) for value in (*values.values(), *slopes)):
        raise TypeError("a value is no number")
    if not slopes:
        return Speed(**values)
    neighbours = zlib.decompress(packed) if packed else b""
    if len(slopes) != 1 + FEATURES or len(neighbours) % (2 * len(slopes)):
        raise ValueError("a correction of other features")
    return Speed(**values, correction=Correction(slopes, neighbours))


def _rounded(value: Any) -> Any:
    """With three digits."""
    if isinstance(value, tuple):
        return [_rounded(of) for of in value]
    return value if isinstance(value, int) else float(f"{value:.3g}")


def _file_name(gpu: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json"
