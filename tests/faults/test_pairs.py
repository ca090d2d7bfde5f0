"""Two commands at once: each ends well or with a sentence, and the result is one that they would leave alone."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest

from ..support.extent import ALL, few, tally
from . import scenes
from .cases import APPLY, ropeconv
from .harness import Outcome, Server, tree

IN_PLACE = "apply model.gguf --mixed 4 --in-place"
LARGE = partial(scenes.large_gguf, size=(50 if ALL else 4) << 20)
OTHER = "apply model -o out --linear 2"
TO_FILE = "apply model.gguf -o out.gguf --yarn 4"

PAIRS: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "apply and apply": (scenes.checkpoint, "", APPLY, APPLY),
    "apply and another apply": (scenes.checkpoint, "", APPLY, OTHER),
    "apply --force twice": (scenes.checkpoint, OTHER, f"{APPLY} --force", f"{APPLY} --force"),
    "apply --force and another": (scenes.checkpoint, f"{APPLY} --link", f"{APPLY} --force", f"{OTHER} --force"),
    "apply to one GGUF file": (scenes.gguf_file, "", "apply model.gguf -o out.gguf --mixed 4", TO_FILE),
    "--in-place and --in-place": (LARGE, "", IN_PLACE, IN_PLACE),
    "--in-place and another": (LARGE, "", IN_PLACE, "apply model.gguf --yarn 4 --in-place"),
    "--in-place and apply": (LARGE, "", IN_PLACE, TO_FILE),
    "--in-place and restore": (
        LARGE, IN_PLACE, "apply model.gguf --yarn 4 --in-place --replace", "restore model.gguf --in-place"
    ),
}  # fmt: skip
"""What fills the folder that they run in, a command that runs before, and the two."""
APART, RUNS = 0.05, 20


Trees = list[dict[str, str]]


def problem(outcomes: list[Outcome], now: dict[str, str], allowed: Trees) -> object:
    """What is wrong with two commands that have run at once; nothing where it is sound."""
    if now in allowed and all(outcome.said() for outcome in outcomes):
        return None
    said = [(outcome.code, outcome.output[-400:]) for outcome in outcomes]
    return said, [sorted(set(now.items()) ^ set(one.items())) for one in allowed]


@pytest.mark.parametrize("name", few(list(PAIRS), 2))
def test_two_commands_at_once(server: Server, tmp_path: Path, name: str) -> None:
    scene, before, *both = PAIRS[name]
    ready, folder, pair = tmp_path / "ready", tmp_path / "run", [ropeconv(text) for text in both]
    ready.mkdir()
    scene(ready)
    if before:
        assert server.run(ready, ropeconv(before)).code == 0

    def fresh() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ready, folder)

    allowed: Trees = []
    for order in [*permutations(pair, 1), *permutations(pair, 2)]:
        fresh()
        assert all(server.run(folder, command).said() for command in order)
        allowed.append(tree(folder))
    generator, wrong = random.Random(4), {}
    delays = few([(generator.uniform(0, APART), generator.uniform(0, APART)) for _ in range(RUNS)], 2)
    for apart in delays:
        fresh()
        if found := problem(server.together(folder, pair, apart), tree(folder), allowed):
            wrong[apart] = found
    tally("pair", name, len(delays), len(wrong))
    assert wrong == {}
