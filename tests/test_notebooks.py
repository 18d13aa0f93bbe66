"""The notebooks of examples/ run from the first cell to the last."""

import json
from pathlib import Path

import pytest
import run_notebooks

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    notebook = json.loads(path.read_text())
    run_notebooks.run_notebook(notebook)
    assert "False" not in run_notebooks.output_text(notebook).splitlines()


def test_outputs_are_kept_as_notebooks_have_them(tmp_path, monkeypatch, capsys):
    path = tmp_path / "own.ipynb"
    cells = [
        {"cell_type": "markdown", "source": ["# A title"], "metadata": {}, "id": "a"},
        {"cell_type": "code", "source": ["x = 2\n", "print(x)\n", "x + 1"], "id": "b"},
        {"cell_type": "code", "source": ["x = 5"], "id": "c"},
    ]
    path.write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr("sys.argv", ["run_notebooks.py", "--keep", str(path)])
    run_notebooks.main()
    assert capsys.readouterr().out == "2\n3\n"
    _, first, second = json.loads(path.read_text())["cells"]
    assert (first["execution_count"], second["execution_count"]) == (1, 2)
    printed, value = first["outputs"]
    assert printed == {"name": "stdout", "output_type": "stream", "text": ["2\n"]}
    assert value["output_type"] == "execute_result" and value["data"] == {"text/plain": ["3"]}
    assert second["outputs"] == []


def test_an_error_in_a_cell_ends_the_run():
    with pytest.raises(ZeroDivisionError):
        run_notebooks.run_cell("1 / 0", 1, {})
