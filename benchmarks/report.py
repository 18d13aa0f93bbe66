"""Write the committed results into README.md, docs/ and handwritten/README.md.

    python benchmarks/report.py            # rewrite them all
    python benchmarks/report.py --check    # exit 1 if one is out of date

README.md and docs/index.md get a chart and a small table between their `results` markers, other
pages the tables that concern them. `make docs` adds a page for each suite, which is not tracked.
Charts need matplotlib, of the extra `bench`; without it, those that are committed are left as
they are.
"""

import ast
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib.util import find_spec
from pathlib import Path

import tables
from charts import share_chart, shares, speed_chart
from reliability_tables import behind_tables, reliability_tables
from result_files import REPOSITORY, Results, gpu_name, load_results, source
from tables import LADDER_SIZES, TABLES, Part, Table, kernel_path, ladder, markdown, rungs

DOCS, HANDWRITTEN = REPOSITORY / "docs", REPOSITORY / "handwritten"
SPEED_CHART, SHARE_CHART = DOCS / "speed.svg", DOCS / "shares.svg"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NO_RESULTS = "No results are committed yet; `python benchmarks/run.py` measures them on a GPU."
SPEED_TEXT = """\
Above 1 is faster than cuBLAS in the same dtype, timed in turn in one run. The sizes are square
row-major matrices, with the fastest candidate. cuBLAS is slow for row-major int8. *Random* is the
geometric mean of the automatic choice over random problems with all layouts, thin matrices, batches
and epilogues."""
# Suites whose tables a page of docs/ has.
PAGES = {
    "accuracy": ["accuracy", "fp8_accuracy"], "cache": ["build_time"], "cublasdx": ["gemm"],
    "device": ["device"], "distributed": ["distributed"], "drop-in": ["patch"],
    "epilogues": ["epilogue"], "fp8": ["fp8", "fp8_layers"], "gpus": ["sm80"], "inner": ["inner"],
    "integers": ["integers"], "precision": ["precision"],
}  # fmt: skip
BEFORE = {"precision": tables.precision_bits()}
GPUs = list[dict[str, Results]]


def pages(gpus: GPUs) -> dict[Path, str]:
    """Every generated page that is committed, with what it keeps of its present text."""
    parts = {
        REPOSITORY / "README.md": front_text(gpus, "docs/"),
        DOCS / "index.md": front_text(gpus, ""),
        DOCS / "benchmarking.md": markdown(behind_tables()),
        DOCS / "reliability.md": markdown(reliability_tables()),
        HANDWRITTEN / "README.md": handwritten_readme(gpus),
    }
    for page, suites in PAGES.items():
        texts = [suite_text(gpus, suite) for suite in suites]
        parts[DOCS / f"{page}.md"] = markdown([*BEFORE.get(page, []), *texts])
    return {path: replace_between_markers(path.read_text(), of) for path, of in parts.items()}


def front_text(gpus: GPUs, folder: str) -> str:
    """The chart and the table of README and of the site's first page."""
    speeds = tables.speed_table(gpus)
    if not speeds:
        return NO_RESULTS
    titled = [f"![{title}]({folder}speed.svg)\n\n*{title}.*" for title in speed_titles(gpus)]
    return "\n\n".join([*titled[:1], markdown(speeds), SPEED_TEXT])


def speed_titles(gpus: GPUs) -> dict[str, Results]:
    """The ladders of each GPU by the title of their chart, of which the first is shown."""
    of = f"Every rung of the ladder against cuBLAS, m = n = k = {LADDER_SIZES[0]}, "
    return {of + gpu_name(s["ladder"]): s["ladder"] for s in gpus if "ladder" in s}


def page_charts(gpus: GPUs) -> dict[Path, str | None]:
    """SVG of every chart that is committed, as far as its results are."""
    charts: dict[Path, str | None] = {}
    for title, results in list(speed_titles(gpus).items())[:1]:
        charts[SPEED_CHART] = speed_chart(title, results)
    found = shares(gpus)
    return charts | ({SHARE_CHART: share_chart(found)} if found else {})


def suite_text(gpus: GPUs, suite: str) -> str:
    """Tables of one suite, for each GPU that it was measured on."""
    texts = []
    for results in (suites[suite] for suites in gpus if suite in suites):
        parts = [part for each in TABLES[suite] for part in each(results)]
        if parts:
            texts.append(markdown([f"### {gpu_name(results)}", source(results), *parts]))
    return "\n\n".join(texts) or NO_RESULTS


def handwritten_readme(gpus: GPUs) -> str:
    """The text of handwritten/README.md: the kernel files, and their rates on each GPU."""
    paths = {rung: kernel_path(rung) for rung in rungs()}
    lines = [
        [str(rung.rung), f"[{rung.name}.py]({path})", first_sentence(path)]
        for rung, path in paths.items()
    ]
    others = [
        [f"[{path.stem}.py](kernels/{path.name})", first_sentence(f"kernels/{path.name}")]
        for path in sorted((HANDWRITTEN / "kernels").glob("[!_]*.py"))
        if path.stem not in {rung.name for rung in paths}
    ]
    parts: list[Part] = [
        Table("", ["rung", "file", "idea"], lines, text_columns=3),
        Table("## Beside the ladder", ["file of kernels/", "idea"], others, text_columns=2),
    ]
    for results in (suites["ladder"] for suites in gpus if "ladder" in suites):
        parts += [f"## {gpu_name(results)}", source(results), *ladder(results, folder="")]
    return markdown(parts)


def first_sentence(path: str) -> str:
    """The first line of a kernel file's docstring, which names the technique."""
    docstring = ast.get_docstring(ast.parse((HANDWRITTEN / path).read_text())) or ""
    return docstring.partition("\n\n")[0].replace("\n", " ")


def replace_between_markers(text: str, content: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the markers {BEGIN} and {END} are missing")
    return f"{before}{begin}\n{content}\n{end}{after}"


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if outdated")
    arguments = parser.parse_args()
    gpus = load_results()
    outdated = {path: text for path, text in pages(gpus).items() if path.read_text() != text}
    if arguments.check:
        for path in outdated:
            name = path.relative_to(REPOSITORY)
            print(f"{name} is out of date: run python benchmarks/report.py", file=sys.stderr)
        return int(bool(outdated))
    for path, text in outdated.items():
        path.write_text(text)
    if find_spec("matplotlib"):
        for path, chart in page_charts(gpus).items():
            path.write_text(chart or "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
