"""What kernels reach on a GPU, as `dxgemm tune` measured it: a table by dtype, kernel and config.

One JSON file a GPU, named by it: {"gpu": name, "measured": date, "packages": {name: version},
"shapes": how many, "error": root mean square of ln(predicted / measured),
"speeds": {dtype: {"tuned 64x64x8 ...": {"efficiency": 0.67, ...}}}}. A file in the user's
configuration directory takes the place of the one in the package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs

from dxgemm._errors import SettingError

PACKAGED = Path(__file__).with_name("tables")


@dataclass(frozen=True)
class Speed:
    """What one config reaches on one GPU, for `dxgemm._model`.

    Attributes:
        efficiency: of a full multiprocessor, over its peak outside tensor cores.
        lone_share: of a block that has a multiprocessor for itself, over a full one.
        resident: blocks that share a multiprocessor.
        launch_us: of a launch, once.
        tile_us: of filling and draining a pipeline, for each round of resident blocks.
        memory_share: of the memory's peak, where that bounds it.
        misaligned: times that arithmetic takes where a row of a or b is no multiple of 16 bytes.
        cluster_block_us: of each further block of a cluster.
    """

    efficiency: float
    lone_share: float = 1.0
    resident: int = 1
    launch_us: float = 4.0
    tile_us: float = 0.0
    memory_share: float = 0.5
    misaligned: float = 1.0
    cluster_block_us: float = 0.0


Speeds = Mapping[tuple[str, str], Speed]  # by dtype, and implementation and config as one text


def table_file(gpu: str) -> Path:
    """Where the user's table for a GPU of that name is, or would be."""
    return Path(platformdirs.user_config_dir("dxgemm")) / "tables" / _file_name(gpu)


@cache
def load_speeds(gpu: str) -> Speeds:
    """The user's table for a GPU, or the package's; empty if there is none.

    Raises:
        SettingError: the user's file is not such a table.
    """
    for path in (table_file(gpu), PACKAGED / _file_name(gpu)):
        if path.exists():
            return read_speeds(path)
    return {}


def read_speeds(path: Path) -> Speeds:
    """The speeds in a file.

    Raises:
        SettingError: it is not such a table.
    """
    names = {field.name for field in fields(Speed)}
    try:
        table = json.loads(path.read_text())["speeds"]
        speeds = {
            (dtype, config): Speed(**speed)
            for dtype, configs in table.items()
            for config, speed in configs.items()
        }
        if not all(isinstance(v, int | float) for s in speeds.values() for v in asdict(s).values()):
            raise TypeError("a value is no number")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingError(
            f"{path} is no table of speeds ({type(error).__name__}: {error}); its entries have "
            f"{', '.join(sorted(names))}. Remove it, or write it anew with `dxgemm tune`."
        ) from error
    return speeds


def write_speeds(path: Path, gpu: str, speeds: Speeds, about: Mapping[str, Any]) -> None:
    """Write a table; the file is there whole or not at all."""
    table: dict[str, dict[str, Any]] = {}
    for (dtype, config), speed in sorted(speeds.items()):
        rounded = {name: _rounded(value) for name, value in asdict(speed).items()}
        table.setdefault(dtype, {})[config] = rounded
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"gpu": gpu, **about, "speeds": table}, indent=1) + "\n")
    unfinished.replace(path)


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.3g}")


def _file_name(gpu: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json"
