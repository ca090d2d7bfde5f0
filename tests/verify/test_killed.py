"""A comparison that is killed leaves nothing for long: the next run removes what it had made."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ropeconv
from ropeconv.bake.planned import PlannedFile
from ropeconv.formats import scratch
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.verify import verify_output
from ropeconv.verify.gguf import _first_shard

from ..support.baking import apply, make_plan
from ..support.models import make


def die(*given: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def of_folder(folder: Path) -> None:
    verify_output(ropeconv.Comparison.open(folder / "out", str(folder / "model")), advance=die)


def of_quantised_gguf(folder: Path) -> None:
    """The conversion is made again before anything of it is compared."""
    file = PlannedFile("convert", "out.gguf", 9, make=lambda target, _: die(target.write_bytes(b"gigabytes")))
    plan: Any = SimpleNamespace(exported=SimpleNamespace(quantised="Q4_K_M"), files=(file,), out=Path("out.gguf"))
    with _first_shard(plan):
        pass


@pytest.mark.parametrize("compare", [of_folder, of_quantised_gguf])
def test_what_a_killed_comparison_made_is_removed_by_the_next_run(
    tmp_path: Path, compare: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(make_plan(make("llama", tmp_path / "model"), Recipe(REGISTRY["yarn"](4.0)), tmp_path / "out"))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    process = os.fork()
    if process == 0:
        try:
            compare(tmp_path)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
    assert len(list(temporary.iterdir())) == 1
    scratch.clear()
    assert list(temporary.iterdir()) == []
