"""`python -m scripts.gpu_check --small` on the CPU: the code that a GPU runs, with a model of some
megabytes.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_the_checks_of_a_gpu_pass_on_a_small_model(tmp_path: Path) -> None:
    given = [
        "--small",
        "--device",
        "cpu",
        "--keep",
        str(tmp_path / "kept"),
        "--out",
        str(tmp_path / "gpu.json"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.gpu_check", *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert (result["device"], result["dtype"], result["length"]) == ("cpu", "float32", 2048)
    assert result["validate"]["bare"]["peak_bytes"] > 0
    assert any("attention" in kernel for kernel in result["validate"]["bare"]["kernels"])
    passed = {
        check: value
        for part in ("validate", "eval", "tune")
        for check, value in result[part]["passed"].items()
    }
    for timed in ("time", "estimate"):  # a machine with other work
        passed.pop(timed)
    assert all(times["estimate"] > 0 for times in result["tune"]["times"])
    assert all(passed.values()), passed
    assert (tmp_path / "kept" / "small" / "config.json").exists()
