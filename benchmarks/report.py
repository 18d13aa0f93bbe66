"""Write the committed results into README.md, docs/ and handwritten/README.md.

    python benchmarks/report.py            # rewrite them all
    python benchmarks/report.py --check    # exit 1 if one is out of date

README.md and docs/index.md get a chart and a small table between their `results` markers, other
pages the tables that concern them. `make docs` adds a page for each suite, which is not tracked.
Charts need matplotlib, of the extra `bench`; without it, those that are committed are
left as they are.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec

from markdown_pages import page_charts, pages
from result_files import REPOSITORY, load_results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if outdated")
    arguments = parser.parse_args()
    gpus = load_results()
    outdated = False
    for path, text in pages(gpus).items():
        if path.exists() and path.read_text() == text:
            continue
        outdated = True
        if arguments.check:
            name = path.relative_to(REPOSITORY)
            print(f"{name} is out of date: run python benchmarks/report.py", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if find_spec("matplotlib") and not arguments.check:
        for path, chart in page_charts(gpus).items():
            path.write_text(chart)
    return int(arguments.check and outdated)


if __name__ == "__main__":
    sys.exit(main())
