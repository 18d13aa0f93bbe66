"""Records of runs of the sanitizer and the soak test, for docs/reliability.md."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dxgemm.gpu.status import simulator_enabled

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import provenance


def run_info() -> dict[str, Any]:
    """Machine, commit and date of a run."""
    return {
        "machine_info": {
            "gpu": {} if simulator_enabled() else provenance.gpu_info(),
            "packages": provenance.package_versions(),
            "python_version": sys.version.split()[0],
        },
        "commit_info": provenance.commit_info(),
        "date": datetime.date.today().isoformat(),
    }


def write_run(path: Path, figures: Mapping[str, Any]) -> None:
    """Write the figures of a run, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
