"""Fit a chip's table to what was measured of it, as `dxgemm tune` does; no GPU is needed.

    python benchmarks/fit_table.py nvidia-h200
    python benchmarks/fit_table.py nvidia-h200 --amend

The fit begins from the chip's table, which it replaces: after a change of the model, or with
observations added. `--amend` then takes times of the table's choices, as the suites measured them
beside other candidates, and changes the corrections only.
"""

import gzip
import json
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from result_files import RESULTS, gpu_slug

from dxgemm.choice.tables import PACKAGED, read_table
from dxgemm.gpu.cards import CARDS
from dxgemm.tuning.amend import amend_table
from dxgemm.tuning.fit import fit_table
from dxgemm.tuning.observations import read

ABOUT = ("measured", "packages")


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    devices = {gpu_slug(card.name): card.facts for card in CARDS.values()}
    parser.add_argument("gpu", choices=devices)
    parser.add_argument("--observations", type=Path, help="as `dxgemm tune` keeps them, in gzip")
    parser.add_argument("--table", type=Path, help="its folder; default: that in the package")
    parser.add_argument("--dtype", action="append", help="repeatable; default: all")
    parser.add_argument("--amend", action="store_true", help="by times of choices")
    given = parser.parse_args()
    folder = given.table or PACKAGED / given.gpu
    packed = given.observations or RESULTS / given.gpu / (
        "choices.jsonl.gz" if given.amend else "tuning.jsonl.gz"
    )
    with tempfile.NamedTemporaryFile() as unpacked:
        unpacked.write(gzip.decompress(packed.read_bytes()))
        unpacked.flush()
        observed = read(Path(unpacked.name))
    wanted = [o for o in observed.values() if not given.dtype or o.workload.dtype in given.dtype]
    known = read_table(folder) if (folder / "chip.json").exists() else None
    header = json.loads((folder / "chip.json").read_text()) if known else {}
    if given.amend:
        return amend_table(folder, wanted, devices[given.gpu])
    about = {name: header[name] for name in ABOUT if name in header} | {"workloads": len(observed)}
    for dtype, fit in fit_table(folder, wanted, devices[given.gpu], known, about).items():
        print(f"{dtype}: {fit.workloads} workloads, error {fit.error:.1%} of the model")


if __name__ == "__main__":
    main()
