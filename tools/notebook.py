"""Execute a notebook and write it with its outputs: `python -m tools.notebook examples/compare.ipynb`.

Without Jupyter: a cell is Python, and its last line is shown if it is an expression. The notebook runs in a folder of
its own, so that it leaves nothing behind.
"""

import argparse
import ast
import base64
import json
import os
import tempfile
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]


def executed(notebook: Notebook) -> Notebook:
    """Return a notebook with the outputs of its code cells, run in the working directory. Raises what a cell raises."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            said = StringIO()
            with redirect_stdout(said):
                value = _run("".join(cell["source"]), names, f"cell {count}")
            cell = {**cell, "execution_count": count, "outputs": _outputs(said.getvalue(), value, count)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _run(source: str, names: dict[str, Any], where: str) -> Any:
    """Execute a cell. Return the value of its last line where that is an expression, else None."""
    tree = ast.parse(source, where)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, where, "exec"), names)
        return None
    tree.body.pop()
    exec(compile(tree, where, "exec"), names)
    return eval(compile(ast.Expression(last.value), where, "eval"), names)


def _outputs(said: str, value: Any, count: int) -> list[dict[str, Any]]:
    """Return what a cell has printed, and its value as Jupyter would show it."""
    found: list[dict[str, Any]] = []
    if said:
        found.append({"output_type": "stream", "name": "stdout", "text": said.splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_") and (page := value._repr_html_()):
            data["text/html"] = page.splitlines(keepends=True)
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
        found.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return found


def main() -> None:
    """Execute notebooks and write each where it lies."""
    parser = argparse.ArgumentParser(prog="python -m tools.notebook", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="NOTEBOOK")
    for file in parser.parse_args().files:
        place = file.absolute()
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            made = executed(json.loads(place.read_text()))
            text = json.dumps(made, indent=1, ensure_ascii=False).replace(os.path.realpath(folder), "/home/you")
            place.write_text(text + "\n")


if __name__ == "__main__":
    main()
