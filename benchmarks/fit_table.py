"""Fit a chip's table to what was measured of it, as `dxgemm tune` does; no GPU is needed.

    python benchmarks/fit_table.py nvidia-h200

The fit begins from the chip's table, which it replaces: after a change of the model, or with
observations added.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from pathlib import Path

from provenance import gpu_slug

from dxgemm.choice.tables import PACKAGED, read_table
from dxgemm.gpu.cards import CARDS
from dxgemm.tuning.fit import fit_table
from dxgemm.tuning.observations import read

RESULTS = Path(__file__).resolve().parent / "results"
ABOUT = ("measured", "packages")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    devices = {gpu_slug(card.name): card.facts for card in CARDS.values()}
    parser.add_argument("gpu", choices=devices)
    parser.add_argument("--observations", type=Path, help="as `dxgemm tune` keeps them, in gzip")
    parser.add_argument("--table", type=Path, help="its folder; default: that in the package")
    parser.add_argument("--dtype", action="append", help="repeatable; default: all")
    given = parser.parse_args()
    device, folder = devices[given.gpu], given.table or PACKAGED / given.gpu
    packed = given.observations or RESULTS / given.gpu / "tuning.jsonl.gz"
    with tempfile.NamedTemporaryFile() as unpacked:
        unpacked.write(gzip.decompress(packed.read_bytes()))
        unpacked.flush()
        known_times = read(Path(unpacked.name))
    dtypes = given.dtype or {workload.dtype for workload in known_times}
    observations = [one for one in known_times.values() if one.workload.dtype in dtypes]
    header_file = folder / "chip.json"
    known = read_table(folder) if header_file.exists() else None
    header = json.loads(header_file.read_text()) if known else {}
    about = {name: header[name] for name in ABOUT if name in header}
    about["workloads"] = len(known_times)
    for dtype, fit in fit_table(folder, observations, device, known, about).items():
        print(f"{dtype}: {fit.workloads} workloads, error {fit.error:.1%} of the model")


if __name__ == "__main__":
    main()
