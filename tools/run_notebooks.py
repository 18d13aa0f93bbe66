"""Runner of notebooks, without Jupyter: each cell in turn, all in one namespace.

    python tools/run_notebooks.py examples/quickstart.ipynb      # prints what the cells print
    python tools/run_notebooks.py --keep examples/*.ipynb        # and keeps it in the files

The first error of a cell ends the run. Without a GPU, kernels run on numba's simulator.
"""

from __future__ import annotations

import argparse
import ast
import json
import linecache
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any


def run_notebook(notebook: dict[str, Any]) -> None:
    """Run the code cells of a notebook, and put their outputs in it."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        cell["execution_count"] = number
        cell["outputs"] = run_cell("".join(cell["source"]), number, namespace)


def run_cell(text: str, number: int, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; return what it prints, and the value of an expression at its end."""
    name = f"<cell {number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = ast.parse(text, name)
    last = module.body.pop() if module.body and isinstance(module.body[-1], ast.Expr) else None
    value = None
    with redirect_stdout(StringIO()) as printed:
        exec(compile(module, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        result = {"data": {"text/plain": repr(value).splitlines(keepends=True)}, "metadata": {}}
        kind = {"execution_count": number, "output_type": "execute_result"}
        outputs.append(result | kind)
    return outputs


def output_text(notebook: dict[str, Any]) -> str:
    """Everything that the cells of a notebook put out."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    lines = (output.get("text") or output["data"]["text/plain"] for output in outputs)
    return "\n".join("".join(some).rstrip("\n") for some in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--keep", action="store_true", help="write the outputs into the files")
    given = parser.parse_args()
    for path in given.notebooks:
        notebook = json.loads(path.read_text())
        run_notebook(notebook)
        print(output_text(notebook))
        if given.keep:
            path.write_text(json.dumps(notebook, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
