"""Two commands at once: each ends well or with a sentence, and the result is one that they would leave alone."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest

from ..support.extent import ALL, sample, tally
from . import scenes
from .cases import APPLY, Command, ropeconv
from .harness import Server, tree

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Pair:
    """Two commands that run at once. scene: fills their folder. before: a command that runs first. apart: seconds."""

    scene: Callable[[Path], None]
    commands: tuple[Command, Command]
    before: tuple[Command, ...] = ()
    apart: float = 0.05


IN_PLACE = ropeconv("apply model.gguf --mixed 4 --in-place")
LARGE = partial(scenes.large_gguf, size=50 * MEGABYTE if ALL else 4 * MEGABYTE)
OTHER = "apply model -o out --linear 2"

PAIRS: dict[str, Pair] = {
    "apply and apply": Pair(scenes.checkpoint, (ropeconv(APPLY), ropeconv(APPLY))),
    "apply and another apply": Pair(scenes.checkpoint, (ropeconv(APPLY), ropeconv(OTHER))),
    "apply --force twice": Pair(
        scenes.checkpoint, (ropeconv(f"{APPLY} --force"), ropeconv(f"{APPLY} --force")), (ropeconv(OTHER),)
    ),
    "apply --force and another": Pair(
        scenes.checkpoint, (ropeconv(f"{APPLY} --force"), ropeconv(f"{OTHER} --force")), (ropeconv(f"{APPLY} --link"),)
    ),
    "apply to one GGUF file": Pair(
        scenes.gguf_file,
        (ropeconv("apply model.gguf -o out.gguf --mixed 4"), ropeconv("apply model.gguf -o out.gguf --yarn 4")),
    ),
    "--in-place and --in-place": Pair(LARGE, (IN_PLACE, IN_PLACE)),
    "--in-place and another": Pair(LARGE, (IN_PLACE, ropeconv("apply model.gguf --yarn 4 --in-place"))),
    "--in-place and apply": Pair(LARGE, (IN_PLACE, ropeconv("apply model.gguf -o out.gguf --yarn 4"))),
    "--in-place and restore": Pair(
        LARGE,
        (ropeconv("apply model.gguf --yarn 4 --in-place --replace"), ropeconv("restore model.gguf --in-place")),
        (IN_PLACE,),
    ),
}  # fmt: skip

RUNS = 20


@pytest.mark.parametrize("name", PAIRS)
def test_two_commands_at_once(server: Server, tmp_path: Path, name: str) -> None:
    pair = PAIRS[name]
    ready, folder = tmp_path / "ready", tmp_path / "run"
    ready.mkdir()
    pair.scene(ready)
    for command in pair.before:
        assert server.run(ready, command).code == 0

    def fresh() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ready, folder)

    allowed = []
    for count in (1, 2):
        for order in permutations(pair.commands, count):
            fresh()
            assert all(server.run(folder, command).said() for command in order)
            allowed.append(tree(folder))
    generator, wrong = random.Random(4), []
    delays = sample([(generator.uniform(0, pair.apart), generator.uniform(0, pair.apart)) for _ in range(RUNS)], 2)
    for both in delays:
        fresh()
        outcomes = server.together(folder, pair.commands, both)
        now = tree(folder)
        if now not in allowed or not all(outcome.said() for outcome in outcomes):
            same = [
                sorted(name for name in now.keys() | one.keys() if now.get(name) != one.get(name)) for one in allowed
            ]
            wrong.append((both, [(outcome.code, outcome.output[-400:]) for outcome in outcomes], same))
    tally("pair", name, len(delays), len(wrong))
    assert wrong == []
