"""Write the committed results into README.md, docs/ and handwritten/README.md.

    python benchmarks/report.py                            # rewrite them all
    python benchmarks/report.py --html build/report.html   # and one page of charts and tables
    python benchmarks/report.py --check                    # exit 1 if one is out of date

README.md and docs/index.md get a chart and a small table between their `results` markers, other
pages the tables that concern them. `make docs` adds the page of all results, which is not tracked.
Charts need matplotlib, of the extra `bench`; without it they are left out, and those of README.md
and docs/choosing.md are left as they are.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from html_page import html_page
from markdown_pages import page_charts, pages
from result_files import REPOSITORY, load_results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if outdated")
    parser.add_argument("--html", type=Path, help="also write one page with charts here")
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
    if arguments.html:
        arguments.html.parent.mkdir(parents=True, exist_ok=True)
        arguments.html.write_text(html_page(gpus))
        print(arguments.html)
    return int(arguments.check and outdated)


if __name__ == "__main__":
    sys.exit(main())
