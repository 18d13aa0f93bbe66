"""What was measured, line by line in a file, so that a search can be taken up where it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dxgemm.errors import SettingError
from dxgemm.tuning.workloads import Workload


@dataclass(frozen=True)
class Observation:
    """A workload with all that was timed on it, in turn.

    Attributes:
        workload: what was computed.
        us: median time of a call in microseconds, by the name of the candidate.
    """

    workload: Workload
    us: dict[str, float]


def append(path: Path, observation: Observation) -> None:
    line = {"workload": observation.workload, "us": observation.us}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> dict[Workload, Observation]:
    """All there is; a last line that was not finished does not count.

    Raises:
        SettingError: the file is of another kind.
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
