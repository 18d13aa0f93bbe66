"""Write the committed results into README.md, docs/ and handwritten/README.md.

    python benchmarks/report.py            # rewrite them all
    python benchmarks/report.py --check    # exit 1 if one is out of date

README.md and docs/index.md get a chart and a small table between their `results` markers, other
pages the tables that concern them. `make docs` adds a page for each suite, which is not tracked.
The chart needs matplotlib, of the extra `bench`; without it, it is left as it is.
"""

from __future__ import annotations

import argparse
import sys

from markdown_pages import SPEED_CHART, front_chart, pages
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
    chart = None if arguments.check else front_chart(gpus)
    if chart:
        SPEED_CHART.write_text(chart)
    return int(arguments.check and outdated)


if __name__ == "__main__":
    sys.exit(main())
