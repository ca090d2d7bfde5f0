"""An encoding is one file: a new one below `encodings/` plans, writes, is checked, and is validated."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ropeconv
from ropeconv.convert import encodings as folder
from ropeconv.convert.encoding import ENCODINGS
from ropeconv.convert.gguf_encoding import GGUF_ENCODINGS
from ropeconv.options import encoding_names

from ..support.baking import LINEAR, make_plan, validate

FILE = '''
"""Encoding `flat`: linear interpolation, and the attention factor nowhere."""

from ropeconv.convert.encoding import config_encoding
from ropeconv.convert.config_edit import RopeSetting


@config_encoding("flat", order=9, max_ulp=7)
def flat(schedule, spec, family):
    return RopeSetting({"rope_type": "linear", "factor": schedule.form.factor}, spec.rope_theta, schedule.context)
'''


@pytest.fixture
def flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package with one file more in its folder of encodings."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "flat.py").write_text(FILE)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path / "more")])
    importlib.import_module(f"{folder.__name__}.flat")
    yield
    del ENCODINGS.declared["flat"], sys.modules[f"{folder.__name__}.flat"]


@pytest.mark.usefixtures("flat")
def test_one_file_is_enough(llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert "flat" in ENCODINGS
    done = ropeconv.apply(make_plan(llama, LINEAR, tmp_path / "out", encoding="flat"))
    assert done.check is not None
    assert done.check.max_ulp <= 7
    assert ropeconv.Comparison.open(done.path, str(llama)).receipt.encoding == "flat"
    assert validate(done.path, llama, tokens=64).agrees
    considered = {one.encoding: one.selected for one in make_plan(llama, LINEAR).result.considered}
    assert (considered["native"], considered["flat"]) == (True, False)


def test_the_command_line_lists_every_encoding_by_the_names_of_files() -> None:
    """`--help` does not import them."""
    assert set(encoding_names()) == {"auto", *ENCODINGS, *GGUF_ENCODINGS, "carrier"}
