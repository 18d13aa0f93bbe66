"""Observations: measured times, line by line in a file, so that a search can be continued."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dxgemm.errors import SettingError
from dxgemm.tuning.workloads import Workload


@dataclass(frozen=True)
class Observation:
    """Workload with the times of its candidates.

    Attributes:
        workload: the workload.
        us: median time of a call in microseconds, by the name of the candidate.
    """

    workload: Workload
    us: dict[str, float]


def append(path: Path, observation: Observation) -> None:
    line = {"workload": observation.workload, "us": observation.us}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> dict[Workload, Observation]:
    """Read all observations of a file; an unfinished last line does not count.

    Raises:
        SettingError: the file has another format.
    """
    if not path.exists():
        return {}
    found = {}
    try:
        for line in path.read_text().split("\n")[:-1]:
            values = json.loads(line)
            workload = Workload(*values["workload"])
            found[workload] = Observation(workload, dict(values["us"]))
    except (ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{path} holds no measurements ({error}); remove it.") from error
    return found
