"""Runs the cells of docs/notebook.ipynb in an empty folder, and writes what they print and show.

    python -m scripts.pages notebook          runs the cells and writes the file
    python -m scripts.pages notebook CHECK    runs them and compares, and writes nothing

The cells themselves are edited in the file, in Jupyter or by hand. `execute` runs them as Jupyter
does: what is printed becomes a stream, the value of a last expression is shown as HTML, PNG and
text, and so are the figures of pyplot that a cell leaves open.
"""

import ast
import base64
import io
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]\d+)?")
MARKS = re.compile(r"[*\s]+")
"""Signs that change with a number: the width of its column, and the mark of significance."""
LENGTHS = re.compile(r"[\d/]+T\b\+?")
"""Lengths such as 1/2T and 4T+; that up to which a row holds may jump to the next one."""
MIME = {"_repr_html_": "text/html", "_repr_png_": "image/png"}
"""The methods by which Jupyter asks a value, and the type of what each returns."""

Output = dict[str, Any]


def execute(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run all code cells of a notebook, each after the ones before it.

    Args:
        notebook: The notebook, as JSON of nbformat 4; its outputs are replaced.
        folder: The current folder of the cells.

    Returns:
        The names that the cells have defined.

    Raises:
        Exception: That of a cell which fails.
    """
    values: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        with chdir(folder):
            cell["outputs"] = run_cell("".join(cell["source"]), values, count)
        cell["execution_count"] = count
    return values


def run_cell(source: str, values: dict[str, Any], count: int) -> list[Output]:
    """Run a cell, and return its outputs in the order of Jupyter: streams, figures, the value.

    Args:
        source: The code.
        values: The names of the cells before it, to which its own are added.
        count: Its number.
    """
    # the last statement is shown where it is an expression
    tree = ast.parse(source)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]

    printed = io.StringIO()
    complained = io.StringIO()
    value = None
    with redirect_stdout(printed), redirect_stderr(complained):
        exec(compile(tree, f"<cell {count}>", "exec"), values)
        if last is not None:
            value = eval(compile(last, f"<cell {count}>", "eval"), values)

    outputs: list[Output] = []
    for name, stream in (("stdout", printed), ("stderr", complained)):
        if stream.getvalue():
            text = as_lines(stream.getvalue())
            outputs.append({"output_type": "stream", "name": name, "text": text})
    outputs += open_figures()
    if value is not None:
        data = shown(value)
        result = {"output_type": "execute_result", "execution_count": count}
        outputs.append(result | {"data": data, "metadata": {}})
    return outputs


def shown(value: object) -> dict[str, Any]:
    """Return a value as Jupyter shows it, by the type of each form."""
    data: dict[str, Any] = {"text/plain": as_lines(repr(value))}
    for method, kind in MIME.items():
        ask = getattr(value, method, None)
        content = ask() if ask is not None else None
        if isinstance(content, bytes):
            data[kind] = encode(content)
        elif content is not None:
            data[kind] = as_lines(content)
    return dict(sorted(data.items()))


def open_figures() -> Iterator[Output]:
    """Yield the figures of pyplot that are open, and close them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        image = io.BytesIO()
        # no name of a program with its version, so that the same picture is the same file
        figure.savefig(image, format="png", bbox_inches="tight", metadata={"Software": None})
        data = {"image/png": encode(image.getvalue()), "text/plain": [repr(figure)]}
        pyplot.close(figure)
        yield {"output_type": "display_data", "data": data, "metadata": {}}


def encode(image: bytes) -> str:
    """Return a picture as text."""
    return base64.b64encode(image).decode()


def as_lines(text: str) -> list[str]:
    """Return a text as notebooks keep it: lines with their ends."""
    return text.splitlines(keepends=True)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return where the outputs of a notebook are not those of another run of it.

    Numbers may differ by a tenth or by half a unit, since a model that is trained on another
    processor is another one. All else must be equal.
    """
    found = []
    for number, (before, after) in enumerate(zip(old["cells"], new["cells"], strict=True), 1):
        texts = [LENGTHS.sub("T", readable(cell)) for cell in (before, after)]
        words = [MARKS.sub(" ", NUMBER.sub("#", text)).split() for text in texts]
        if words[0] != words[1]:
            found.append(f"cell {number} shows other words: {texts[1]}")
            continue
        for first, second in zip(*map(numbers, texts), strict=True):
            if abs(first - second) > 0.5 + 0.1 * abs(first):
                found.append(f"cell {number} shows {second:g} and not {first:g}")
    return found


def readable(cell: dict[str, Any]) -> str:
    """Return the texts of the outputs of a cell, and the kinds of those that are not text."""
    parts = []
    for output in cell.get("outputs", ()):
        parts.append(output["output_type"])
        parts += output.get("text", ())
        for kind, content in output.get("data", {}).items():
            parts.append(f"\n{kind}\n")
            if kind.startswith("text/"):
                parts += content
    return "".join(parts)


def numbers(text: str) -> list[float]:
    """Return the numbers in a text."""
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


def run_notebook() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the stored notebook, another run of it, and the names that this run defines."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    new = json.loads(text)
    os.environ["MPLBACKEND"] = "agg"
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # plt.show() shows nothing without a window; the figures are taken after the cell
        warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
        values = execute(new, Path(folder))
    return json.loads(text), new, values


def main(check: bool) -> None:
    """Write the outputs, or compare them.

    Args:
        check: Whether the file stays unchanged.

    Raises:
        SystemExit: The outputs differ.
    """
    old, new, _ = run_notebook()
    if not check:
        NOTEBOOK.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    found = differences(old, new)
    if found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main(check=len(sys.argv) > 1)
