"""A plain `apply` notices what is wrong in what it has written: a mistake is planted between writing
and checking, and nothing gets its name. Without the mistake, the same command ends well.
"""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake import apply as baking
from ropeconv.bake.execution import Writer

from ..conftest import hashes
from ..support.extent import ALL, sample, tally
from ..support.in_process import Done, command
from .planted import SCENES, Mistake
from .planted_cases import CASES

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")

DISAGREES = 3
NOTICED = {
    "frequencies": r"other \w+ frequencies|attention factor [\d.]+ on|does not hold the schedule",
    "layers": r"another attention|result after layer",
    "weights": r"is not changed as|is not that of \S+ from which",
    "header": r"would not compute the schedule|declares [\d,]+ tokens",
    "plan": r"was planned",
    "files": r"is not as planned|does not load",
}
"""What a message says about the check that has failed."""

Place = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder with what a scene has for a family, made once."""
    folders: dict[tuple[str, str], Path] = {}

    def get(scene: str, family: str) -> Path:
        if (scene, family) not in folders:
            folder = tmp_path_factory.mktemp("planted")
            SCENES[scene].fill(folder, family)
            folders[scene, family] = folder
        return folders[scene, family]

    return get


def run(case: Mistake, folder: Path) -> Done:
    scene = SCENES[case.scene]
    words = scene.command.replace("OUT", scene.out.replace("-draft", "").replace("-adapter", ""))
    return command(folder, *words.split(), *case.words.split())


@contextmanager
def planted(case: Mistake) -> Iterator[list[Path]]:
    """Make the mistake in what is written, right before it is checked."""
    places = []
    name = SCENES[case.scene].out
    write = Writer.write
    change_by_phases = baking.change_by_phases

    def write_wrongly(writer: Writer, *given: Any) -> None:
        write(writer, *given)
        out = writer.root
        if not writer.plan.is_folder:
            out /= writer.plan.files[0].name
        if out.name == name:
            case.change(out)
            places.append(out)

    def change_wrongly(file: Any, *given: Any) -> Iterator[str]:
        phases = change_by_phases(file, *given)
        for phase in phases:
            if phase == "durable":
                case.change(file.path)
                places.append(file.path)
            try:
                yield phase
            except BaseException as problem:
                phases.throw(problem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "write", write_wrongly)
        patch.setattr(baking, "change_by_phases", change_wrongly)
        yield places


def which_check(message: str) -> str:
    """The check that a message names; empty for none."""
    names = [name for name, pattern in NOTICED.items() if re.search(pattern, message)]
    return names[0] if names else ""


def remove_outputs(folder: Path, before: set[str]) -> None:
    for path in folder.iterdir():
        if path.name in before:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


CHOSEN = CASES if ALL else sample(CASES, 8)
RIGHT: dict[tuple[str, str, str], Mistake] = {case.right: case for case in CHOSEN}


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_a_planted_mistake_is_noticed_and_nothing_gets_its_name(
    case: Mistake, place: Place
) -> None:
    folder = place(case.scene, case.family)
    names = {path.name for path in folder.iterdir()}
    before = hashes(folder)
    name = SCENES[case.scene].out
    with planted(case) as places:
        done = run(case, folder)
    assert places, f"nothing was planted: {done.stderr}"
    check = which_check(done.stderr)
    is_there = name not in names and (folder / name).exists()
    tally("planted mistake", f"{case.scene}, {check}", 1, int(done.returncode != DISAGREES))
    try:
        assert done.returncode == DISAGREES, done.stdout
        assert check, done.stderr
        assert not is_there
        assert before.items() <= hashes(folder).items()
    finally:
        remove_outputs(folder, names)


@pytest.mark.parametrize("case", RIGHT.values(), ids=lambda case: str(case.right))
def test_the_same_command_without_a_mistake_ends_well(
    case: Mistake, place: Place, tmp_path: Path
) -> None:
    source = place(case.scene, case.family)
    folder = tmp_path / "place"
    shutil.copytree(source, folder)
    done = run(case, folder)
    tally("without a mistake", case.scene, 1, int(done.returncode != 0))
    assert done.returncode == 0, done.stderr
    assert (folder / SCENES[case.scene].out).exists()


def test_there_are_enough_cases() -> None:
    scenes = Counter(case.scene for case in CASES)
    assert scenes.total() >= 200
    assert scenes.keys() == SCENES.keys()
    assert len({case.family for case in CASES}) >= 12
    assert len({str(case) for case in CASES}) == scenes.total()
