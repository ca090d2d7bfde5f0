"""Nothing that numpy or Python warns about reaches a user: every warning is an error here."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from ..conftest import CONFIGS, Run

SCOUT = "meta-llama--Llama-4-Scout-17B-16E-Instruct.first"
SECOND = {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}


@pytest.mark.parametrize(
    "command",
    [
        ("inspect",),
        ("bound", "--up-to", "1M"),
        ("apply", "--as-is", "--dry-run"),
        pytest.param(("advise", "--context", "20M"), marks=pytest.mark.nightly),
        pytest.param(("plot", "-o", "picture.svg"), marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("revision", ["first", "second"])
def test_both_revisions_of_llama_4_scout(run: Run, tmp_path: Path, revision: str, command: tuple[str, ...]) -> None:
    config = json.loads((CONFIGS / f"{SCOUT}.json").read_text())
    if revision == "second":
        config["text_config"]["rope_scaling"].update(SECOND)
    (tmp_path / "scout.json").write_text(json.dumps(config))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = run(command[0], "scout.json", *command[1:])
    assert done.returncode == 0, done.stderr
