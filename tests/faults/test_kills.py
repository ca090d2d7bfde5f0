"""A kill, lost power or a disk error at any writing call: sources stay, no half output takes its
name, errors are one sentence, and the same command completes it.
"""

import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from pathlib import Path
from zlib import crc32

import pytest

from ..conftest import hashes
from ..support.extent import ALL, DAY, EACH, few, tally
from ..support.hub_writing import WritingHub, serving_writes
from . import scenes
from .bench import Bench
from .cases import APPLY, CASES, Case, ropeconv
from .harness import ENDED, KILLED, Fault, Mode, Outcome, Server, not_durable, tree

Get = Callable[[str], Bench]
APART, RUNS = 0.05, 20
"""Seconds between the starts of two commands at most, and how often two are run."""


def kills(case: Bench) -> list[Fault]:
    """A kill before every writing call, and in the middle of every one that moves bytes."""
    calls = list(enumerate(case.expected[1], 1))
    halves = [Fault(Mode.KILL_HALF, number) for number, call in calls if call.moves]
    return [*(Fault(Mode.KILL, number) for number, _ in calls), *halves]


def errors(case: Bench) -> list[Fault]:
    """A device error at every writing call, and a full disk at every one that takes space: once,
    and from then on.
    """
    calls = [
        (number, call, mode)
        for number, call in enumerate(case.expected[1], 1)
        for mode in (FAIL_ONCE, FAIL_ON)
    ]
    full = [Fault(mode, number, errno.ENOSPC) for number, call, mode in calls if call.takes]
    return [*(Fault(mode, number, errno.EIO) for number, _, mode in calls), *full]


FAIL_ONCE, FAIL_ON = Mode.FAIL_ONCE, Mode.FAIL_ON
KINDS: dict[str, Callable[[Bench], list[tuple[Fault, bool | None]]]] = {
    "kill": lambda case: [(fault, None) for fault in kills(case)],
    "sigterm": lambda case: [
        (Fault(Mode.TERM, number), None) for number, _ in enumerate(case.expected[1], 1)
    ],
    "power": lambda case: [(fault, cut) for fault in kills(case) for cut in (True, False)],
    "disk error": lambda case: [(fault, None) for fault in errors(case)],
}
"""Lost power is as `power` models it: what no fsync has made durable is not on the disk."""


LIGHT = [name for name, case in CASES.items() if not case.torch]
HEAVY = [name for name, case in CASES.items() if case.torch]
"""Cases that run a model: each strike takes seconds, and the process for them half a minute."""


def cases_of_the_day(count: int, seed: int = 0) -> list[str]:
    """Cases without a model; one of those with a model every fifth day; all with `--all`."""
    if ALL or EACH:
        return list(CASES)
    cases = few(LIGHT, count, seed)
    if (DAY + seed) % 5 == 0:
        cases += few(HEAVY, 1, seed)
    return cases


@pytest.mark.parametrize("name", cases_of_the_day(2))
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_writing_call_loses_nothing(bench: Get, kind: str, name: str) -> None:
    case = bench(name)
    if kind == "power" and not case.case.fsync:
        pytest.skip("it does not wait for the disk")
    wrong = {}
    faults = few(KINDS[kind](case), EACH or 2, crc32(f"{kind} {name}".encode()))
    for fault, cut in faults:
        aftermath = case.strike(fault, cut)
        code = aftermath.outcome.code
        # the first kill left more, so fewer calls were made
        early = case.case.killed and code == 0
        expected = {"kill": {KILLED}, "power": {KILLED}, "sigterm": {ENDED, 0}}
        assert early or code in expected.get(kind, {0, 1, 2, 3}), f"{fault}: {aftermath.outcome}"
        if problem := case.wrong(aftermath):
            wrong[f"{fault} {cut}"] = problem
    tally(kind, name, len(faults), len(wrong))
    assert wrong == {}


@pytest.mark.parametrize("name", cases_of_the_day(2, seed=1))
def test_calls_that_do_half_of_the_bytes_give_the_same(bench: Get, name: str) -> None:
    """write(2) and copy_file_range(2) may write fewer bytes than they were asked to."""
    case = bench(name)
    folder = case.copy()
    outcome = case.server.run(folder, case.case.command, Fault(Mode.SHORT))
    assert outcome.code == 0, outcome.output
    assert case.tree(folder) == case.expected[0]
    tally("short write", name, 1)


DURABLE = [name for name in LIGHT if CASES[name].fsync]


@pytest.mark.parametrize("name", few([*DURABLE, *(HEAVY if ALL else ())], 6, seed=2))
def test_what_a_command_has_done_is_on_the_disk(bench: Get, name: str) -> None:
    """When it ends, lost power takes nothing away any more: files and the folders with their names
    are durable.
    """
    case = bench(name)
    folder = case.copy()
    outcome = case.server.run(folder, case.case.command, Fault(Mode.COUNT))
    assert outcome.code == 0
    assert not_durable(folder, outcome.report) == []
    tally("durable", name, 1)


@pytest.mark.parametrize("name", cases_of_the_day(2, seed=3))
def test_a_command_twice_at_once(bench: Get, name: str) -> None:
    """One of them may say that the other is writing; what is there is that of one, or of both."""
    case = bench(name)
    most = len(case.case.output) if case.case.apart else 1
    generator = random.Random(name)
    delays = few([(0.0, generator.uniform(0, 2 * APART)) for _ in range(RUNS)], 2)
    wrong = {}
    for apart in delays:
        folder = case.copy()
        outcomes = case.server.together(folder, [case.case.command] * 2, apart)
        is_sound = all(outcome.said(most) for outcome in outcomes)
        if not (is_sound and case.tree(folder) in (case.expected[0], case.twice)):
            wrong[apart] = (
                outcomes,
                sorted(set(case.tree(folder).items()) ^ set(case.expected[0].items())),
            )
    tally("twice at once", name, len(delays), len(wrong))
    assert wrong == {}


def test_a_full_disk_after_the_last_file_leaves_a_folder_that_is_named(bench: Get) -> None:
    case = bench("apply")
    journal = [
        number
        for number, call in enumerate(case.expected[1], 1)
        if call.path.endswith("partial/journal")
    ]
    aftermath = case.strike(Fault(FAIL_ONCE, journal[-2], errno.ENOSPC))
    assert ".out.ropeconv-partial" in aftermath.after
    message = (
        ".out.ropeconv-partial has the finished files: the same command continues; else remove it"
    )
    assert message in aftermath.outcome.output
    assert case.wrong(aftermath) == ""


CARELESS = Case(scenes.gguf_file, ("careless", "model.gguf", "out.gguf"), ("out.gguf",))


@pytest.fixture
def careless(server: Server, tmp_path: Path) -> Bench:
    return Bench(server, tmp_path, CARELESS)


FAULTS: dict[str, tuple[Fault, bool | None, str]] = {
    "a kill before the write": (Fault(Mode.KILL, 2), None, "left a part"),
    "a kill in the middle of it": (Fault(Mode.KILL_HALF, 2), None, "left a part"),
    "lost power, and the file is cut": (Fault(Mode.COUNT), True, "and left"),
    "lost power, and the file is zeros": (Fault(Mode.COUNT), False, "and left"),
    "a full disk": (Fault(Mode.FAIL_ONCE, 2, errno.ENOSPC), None, "Traceback"),
    "half of the bytes": (Fault(Mode.SHORT), None, "and left"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_does_to_it_is_found(careless: Bench, name: str) -> None:
    fault, cut, sentence = FAULTS[name]
    aftermath = careless.strike(fault, cut)
    assert sentence in careless.wrong(aftermath)
    assert (aftermath.outcome.code == KILLED) == ("kill" in name)


# Two commands at once: each ends well or with a sentence, and the result is one that they would
# leave alone


IN_PLACE = "apply model.gguf --mixed 4 --in-place"
LARGE = partial(scenes.large_gguf, size=(50 if ALL else 4) << 20)
OTHER = "apply model -o out --linear 2"
TO_FILE = "apply model.gguf -o out.gguf --yarn 4"

PAIRS: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "apply and apply": (scenes.checkpoint, "", APPLY, APPLY),
    "apply and another apply": (scenes.checkpoint, "", APPLY, OTHER),
    "apply --force twice": (scenes.checkpoint, OTHER, f"{APPLY} --force", f"{APPLY} --force"),
    "apply --force and another": (
        scenes.checkpoint,
        f"{APPLY} --link",
        f"{APPLY} --force",
        f"{OTHER} --force",
    ),
    "apply to one GGUF file": (
        scenes.gguf_file,
        "",
        "apply model.gguf -o out.gguf --mixed 4",
        TO_FILE,
    ),
    "--in-place and --in-place": (LARGE, "", IN_PLACE, IN_PLACE),
    "--in-place and another": (LARGE, "", IN_PLACE, "apply model.gguf --yarn 4 --in-place"),
    "--in-place and apply": (LARGE, "", IN_PLACE, TO_FILE),
    "--in-place and restore": (
        LARGE,
        IN_PLACE,
        "apply model.gguf --yarn 4 --in-place --replace",
        "restore model.gguf --in-place",
    ),
}
"""What fills the folder that they run in, a command that runs before, and the two."""


Trees = list[dict[str, str]]


def problem(outcomes: list[Outcome], now: dict[str, str], allowed: Trees) -> object:
    """What is wrong with two commands that have run at once; nothing where it is sound."""
    if now in allowed and all(outcome.said() for outcome in outcomes):
        return None
    reports = [(outcome.code, outcome.output[-400:]) for outcome in outcomes]
    return reports, [sorted(set(now.items()) ^ set(state.items())) for state in allowed]


@pytest.mark.parametrize("name", few(list(PAIRS), 2))
def test_two_commands_at_once(server: Server, tmp_path: Path, name: str) -> None:
    scene, before, *both = PAIRS[name]
    ready = tmp_path / "ready"
    folder = tmp_path / "run"
    pair = [ropeconv(text) for text in both]
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
    generator = random.Random(4)
    wrong = {}
    delays = few(
        [(generator.uniform(0, APART), generator.uniform(0, APART)) for _ in range(RUNS)], 2
    )
    for apart in delays:
        fresh()
        if finding := problem(server.together(folder, pair, apart), tree(folder), allowed):
            wrong[apart] = finding
    tally("pair", name, len(delays), len(wrong))
    assert wrong == {}


# `--push`, killed at each request that it makes: the same command completes it, and nothing stays
# behind


BAKE = ("apply", "base/tiny", "--yarn", "16")
COMMANDS = {
    "a config alone": BAKE,
    "changed weights": (*BAKE, "--encoding", "weights"),
    "a private repository": (*BAKE, "--private"),
}
PROGRAM = "import sys; sys.modules['torch'] = None; from ropeconv.cli import main; main()"
"""The command line without torch, whose import takes longer than everything else here."""


@pytest.fixture
def hub(llama: Path, tmp_path: Path) -> Iterator[WritingHub]:
    (llama / "README.md").write_text("---\nlicense: apache-2.0\n---\n# The base\n")
    (llama / "LICENSE").write_text("Terms")
    (tmp_path / "temporary").mkdir()
    with serving_writes(tmp_path / "hub") as running:
        running.repos["base/tiny"] = llama
        yield running


def start(hub: WritingHub, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command line, running, with temporary files in a folder of its own."""
    variables = {"HF_TOKEN": "hf_sesame", "TMPDIR": str(folder / "temporary")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        text=True,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **hub.environment(folder / "home"), **variables},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    errors = process.communicate(timeout=120)[1]
    return process.returncode, errors


def published(folder: Path) -> dict[str, str]:
    """The hashes of the files that are the same in every publication of one plan."""
    same = (".json", ".safetensors", "LICENSE", ".gitattributes")
    return {name: digest for name, digest in hashes(folder).items() if name.endswith(same)}


@pytest.mark.parametrize("name", list(COMMANDS) if ALL else ["a config alone"])
def test_a_killed_push_is_completed_by_the_same_command(
    name: str, hub: WritingHub, tmp_path: Path
) -> None:
    given = COMMANDS[name]
    assert ended(start(hub, tmp_path, *given, "--push", "me/reference"))[0] == 0
    expected = published(hub.repos["me/reference"])
    cases = [(number, late) for number in range(1, hub.requests + 1) for late in (False, True)]
    refused = []
    kills = 0
    for index, (number, late) in enumerate(few(cases, 2)):
        push = (*given, "--push", f"me/killed-{index}")
        hub.requests = 0
        hub.kill_at = number
        hub.kill_late = late
        process = start(hub, tmp_path, *push)
        hub.victim = process.pid
        kills += ended(process)[0] == KILLED
        hub.kill_at = 0
        code, problem = ended(start(hub, tmp_path, *push))
        if code != 0 or published(hub.repos[push[-1]]) != expected:
            refused.append((number, late, problem))
        assert list((tmp_path / "temporary").iterdir()) == [], (number, late)
        assert (push[-1] in hub.private) == ("--private" in given)
    tally("kill", f"push, {name}", kills, len(refused))
    assert refused == []
    assert kills, "the kills must have happened"
