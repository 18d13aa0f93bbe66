"""What was measured, line by line in a file, so that a search can be taken up where it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dxgemm._errors import SettingError
from dxgemm.tuning.shapes import Shape


@dataclass(frozen=True)
class Observation:
    """One config on one problem.

    Attributes:
        implementation, config: names.
        slices: that k was cut into.
        us: median of the time of a call, in microseconds.
    """

    implementation: str
    config: str
    slices: int
    us: float


@dataclass(frozen=True)
class Measured:
    """A problem with all that was timed on it, in turn."""

    shape: Shape
    observations: tuple[Observation, ...]


def append(path: Path, measured: Measured) -> None:
    line = {
        "shape": measured.shape,
        "us": [[o.implementation, o.config, o.slices, o.us] for o in measured.observations],
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[Measured]:
    """All there is; a last line that was not finished does not count.

    Raises:
        SettingError: the file is of another kind.
    """
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    try:
        return [_measured(line) for line in lines[:-1]]
    except (ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{path} holds no measurements ({error}); remove it.") from error


def by_shape(measured: Iterable[Measured]) -> dict[Shape, Measured]:
    return {m.shape: m for m in measured}


def _measured(line: str) -> Measured:
    values = json.loads(line)
    return Measured(Shape(*values["shape"]), tuple(Observation(*us) for us in values["us"]))
