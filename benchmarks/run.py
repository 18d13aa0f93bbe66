"""Run benchmark suites and file their JSON under `results/<gpu>/`.

    python benchmarks/run.py                    # every suite, on the GPU
    python benchmarks/run.py --suite gemm
    python benchmarks/run.py --smoke            # tiny, in the simulator, writes nothing

Then `python benchmarks/report.py` rewrites the tables of README.md and docs/.
"""

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from result_files import RESULTS, SUITES, save

BENCHMARKS = RESULTS.parent


def run_suites(suites: Sequence[str], json_path: str | Path) -> int:
    """Run suites in one process and return pytest's exit status."""
    command = [sys.executable, "-m", "pytest", "-c", str(BENCHMARKS / "pytest.ini")]
    command += [f"--benchmark-json={json_path}"]
    command += [str(BENCHMARKS / f"bench_{suite}.py") for suite in suites]
    return subprocess.run(command).returncode


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--suite", action="append", choices=SUITES, help="default: all")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes in the simulator")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", help="measured commit, where there is no git checkout")
    arguments = parser.parse_args()
    if arguments.commit:
        os.environ["DXGEMM_COMMIT"] = arguments.commit
    suites, failed = arguments.suite or SUITES, []
    if arguments.smoke:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
        return run_suites(suites, os.devnull)
    for suite in suites:
        with tempfile.TemporaryDirectory() as folder:
            json_path = Path(folder, "results.json")
            if run_suites([suite], json_path) != 0:
                failed.append(suite)
            if json_path.exists():
                print(save(suite, json.loads(json_path.read_text()), arguments.out))
    if failed:
        print(f"run.py: benchmarks failed in {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
