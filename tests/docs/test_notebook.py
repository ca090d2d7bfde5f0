"""docs/notebook.ipynb: its outputs are those of its cells."""

import base64
import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.pages.notebook import NOTEBOOK, differences, execute, run_notebook

STORED: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
CODE = [cell for cell in STORED["cells"] if cell["cell_type"] == "code"]
MOST_BYTES = 40_000
"""The size of a picture in it."""


def cells(*sources: str) -> dict[str, Any]:
    """A notebook without outputs."""
    made = [{"cell_type": "code", "source": [source], "outputs": []} for source in sources]
    return {"cells": made}


def outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """All outputs of a notebook."""
    return [output for cell in notebook["cells"] for output in cell.get("outputs", ())]


def pictures(notebook: dict[str, Any]) -> list[bytes]:
    """The PNG files in a notebook."""
    encoded = [output.get("data", {}).get("image/png") for output in outputs(notebook)]
    return [base64.b64decode(picture) for picture in encoded if picture]


def test_every_cell_was_run_in_its_order_and_shows_something() -> None:
    assert [cell["execution_count"] for cell in CODE] == [*range(1, len(CODE) + 1)]
    assert [cell["execution_count"] for cell in CODE if not cell["outputs"]] == []
    kinds = {output["output_type"] for output in outputs(STORED)}
    assert kinds == {"stream", "execute_result", "display_data"}  # and no error
    assert "stderr" not in {output.get("name") for output in outputs(STORED)}


def test_it_has_small_pictures_and_links_that_exist() -> None:
    found = pictures(STORED)
    assert len(found) == 2
    assert [len(picture) for picture in found if len(picture) > MOST_BYTES] == []
    texts = [part for cell in STORED["cells"] for part in cell["source"]]
    links = re.findall(r"\]\(([^)#]+)", "".join(texts))
    assert len(links) >= 3
    assert [link for link in links if not (NOTEBOOK.parent / link).is_file()] == []


def test_cells_are_run_as_jupyter_runs_them(tmp_path: Path) -> None:
    notebook = cells("x = 2\nprint(x)", "print(x + 1)\nx * 21", "y = x", "import os\nos.getcwd()")
    assert execute(notebook, tmp_path)["y"] == 2
    first, second, value, folder = outputs(notebook)
    assert (first["name"], first["text"]) == ("stdout", ["2\n"])
    assert second["text"] == ["3\n"]
    assert (value["data"], value["execution_count"]) == ({"text/plain": ["42"]}, 2)
    assert folder["data"]["text/plain"] == [repr(str(tmp_path))]
    assert [len(cell["outputs"]) for cell in notebook["cells"]] == [1, 2, 0, 1]

    with pytest.raises(ZeroDivisionError):
        execute(cells("1 / 0"), tmp_path)


def test_a_value_has_the_forms_that_jupyter_asks_for(tmp_path: Path) -> None:
    source = "import ropeconv\nropeconv.bound(1024)"
    notebook = cells(source)
    execute(notebook, tmp_path)
    (output,) = outputs(notebook)
    assert set(output["data"]) == {"text/plain", "text/html"}
    assert "<table>" in "".join(output["data"]["text/html"])


def test_a_figure_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nNone"
    notebook = cells(draw, "1")
    execute(notebook, tmp_path)
    figure, value = outputs(notebook)
    assert figure["output_type"] == "display_data"
    assert value["data"] == {"text/plain": ["1"]}
    (picture,) = pictures(notebook)
    assert picture.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("loss 2.50", "loss 2.61", 0),
        ("loss 2.50", "loss 4.50", 1),
        ("1,200 bytes", "1,210 bytes", 0),
        ("1,200 bytes", "2,200 bytes", 1),
        ("0.61* ±0.02", "0.62  ±0.02", 0),
        ("holds to 2T", "holds to 4T+", 0),
        ("holds to 2T", "holds to 2", 1),
        ("PASS: 3", "FAIL: 3", 1),
        ("step 1", "step 1, slowly", 1),
    ],
)
def test_other_words_and_far_numbers_are_differences(old: str, new: str, found: int) -> None:
    def notebook(text: str) -> dict[str, Any]:
        output = {"output_type": "stream", "name": "stdout", "text": [text]}
        return {"cells": [{"outputs": [output]}]}

    assert len(differences(notebook(old), notebook(new))) == found
    assert differences(notebook(old), notebook(old)) == []


def test_a_missing_picture_is_a_difference() -> None:
    without = copy.deepcopy(STORED)
    for output in outputs(without):
        output.get("data", {}).pop("image/png", None)
    assert len(differences(STORED, without)) == len(pictures(STORED))


@pytest.mark.nightly
def test_another_run_shows_the_same() -> None:
    stored, run, values = run_notebook()
    assert differences(stored, run) == []

    # what the text around the cells says
    losses: dict[str, dict[int, float]] = {}
    for cell in values["result"].cells:
        if cell.metric == "loss":
            losses.setdefault(cell.row, {})[cell.column] = cell.value
    at_length = {row: by_length[512] for row, by_length in losses.items()}
    assert min(at_length, key=lambda row: at_length[row]) == "yarn:4"
    assert losses["base"][512] - losses["base"][128] > 0.5
    assert (
        losses["linear:4"][128] - losses["base"][128] > losses["yarn:4"][128] - losses["base"][128]
    )
    assert values["proof"].agrees
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(values["same"])
