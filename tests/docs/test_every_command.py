"""Every command that stands in the repository is accepted by the real command line: nothing we
print or run is dead.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts import readme_commands

from ..support.commands import (
    ROOT,
    Found,
    every_command,
    of_module,
    of_page,
    of_shell,
    parse_problem,
    problem_of,
    script_problem,
    shell_files,
)

problem_of_text = cache(lambda text, mention: problem_of(Found(text, "", mention)))
"""Why a command is refused; the same one stands in many places."""


def refused(commands: list[Found]) -> list[str]:
    """The commands that would be refused, each with why."""
    problems = [(found, problem_of_text(found.text, found.mention)) for found in commands]
    return [f"{found}: {problem}" for found, problem in problems if problem]


@pytest.fixture(scope="module")
def commands() -> list[Found]:
    return every_command()


def test_every_command_of_the_repository_is_accepted(commands: list[Found]) -> None:
    assert refused(commands) == []


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (".github/workflows/ci.yml", "scripts/test fast"),
        (".github/workflows/release.yml", "scripts/check_wheel dist"),
        (".ci/run", "scripts/test"),
        ("scripts/demo", "ropeconv validate tiny-llama-yarn16 --against tiny-llama"),
        ("README.md", "ropeconv inspect Qwen/Qwen2.5-7B-Instruct"),
        (
            "docs/gguf.md",
            "scripts/bench gguf --converter PATH --quantiser PATH --model-type qwen3_moe --record",
        ),
        ("CONTRIBUTING.md", "-m scripts.mutants rope formats"),
        ("ropeconv/features/bound/command.py", "ropeconv bound 1M --head-dim 64 --json"),
        ("ropeconv/features/bound/command.py", "ropeconv bound 128k --windows"),
        ("ropeconv/views/advice.py", "ropeconv train-config X --for axolotl"),
        ("ropeconv/features/evaluation/tune/views.py", "ropeconv apply X --recipe X"),
        ("ropeconv/hub/repository.py", "ropeconv push OUTPUT X"),
        ("ropeconv/models/registry.py", "ropeconv list families"),
    ],
)
def test_commands_are_found_wherever_they_stand(
    commands: list[Found], place: str, text: str
) -> None:
    """Workflows, shell files, pages, examples of the help, sentences of the code, and
    `command_line`.
    """
    assert text in {found.text for found in commands if found.place == place}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ropeconv methods", "no command 'methods'"),
        ("ropeconv list method", "no command 'method'"),
        ("ropeconv apply x --yran 4", "--yran"),
        ("ropeconv apply x --yarn", "requires an argument"),
        ("ropeconv apply --yarn 4", "Missing argument"),
        ("ropeconv restore a b", "unexpected extra argument"),
        ("ropeconv train-config x --for nobody", "nobody"),
        ("ropeconv eval x --measure everything --chunk many", "--chunk"),
        ("ropeconv", "needs a command"),
    ],
)
def test_a_dead_command_would_be_found(text: str, reason: str) -> None:
    assert reason in parse_problem(text.split()[1:])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("scripts/nothing", "does not exist"),
        ("scripts/README.md", "cannot be executed"),
        ("-m scripts.nothing", "does not exist"),
        ("scripts/setup everything", "no extra everything"),
        ("scripts/setup test --machine", "no option --machine"),
        ("scripts/test slow", "does not know slow"),
        ("scripts/bench everything", "ropeconv tune"),
        ("scripts/bench gguf --convertor x", "--convertor"),
        ("-m scripts.mutants --many rope", "--many"),
        ("-m scripts.gpu_check everything", "everything"),
    ],
)
def test_a_dead_script_would_be_found(text: str, reason: str) -> None:
    assert reason in script_problem(text.split())


READERS: dict[str, Callable[[str, str], Iterator[Found]]] = {
    "a step": of_shell,
    "a page": of_page,
    "a module": of_module,
}


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        ("a step", "cd /tmp && /tmp/installed/bin/ropeconv methods"),
        ("a step", 'version=$(cd /tmp && "$bin/ropeconv" methods)'),
        ("a step", ".venv/bin/ropeconv methods | tee out  # all of them"),
        ("a page", "Run `ropeconv methods` first."),
        ("a page", "```sh\n$ ropeconv methods > all.txt\n```\n"),
        ("a page", "```\nropeconv \\\n  methods\n```\n"),
        ("a module", 'EXAMPLES = """\nropeconv methods\n"""'),
        ("a module", 'raise Error(f"{name}: see `ropeconv methods`")'),
        ("a module", "say(command_line('methods'))"),
    ],
)
def test_a_dead_command_is_found_in_each_kind_of_text(reader: str, text: str) -> None:
    (problem,) = refused(list(READERS[reader](text, "x")))
    assert "no command 'methods'" in problem


def test_every_shell_program_can_be_executed() -> None:
    assert shell_files()
    assert [path.name for path in shell_files() if not path.stat().st_mode & 0o100] == []


def test_a_file_without_a_program_is_not_one(tmp_path: Path) -> None:
    assert ROOT.joinpath("scripts", "constraints.txt") not in shell_files()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `readme_commands` runs this checkout as if it were installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(readme_commands, "program", lambda: [sys.executable, "-m", "ropeconv"])
    monkeypatch.setattr(readme_commands, "ALSO", ("--version",))
    return tmp_path


@pytest.mark.slow
def test_the_commands_of_the_readme_run_on_models_that_need_no_torch(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert readme_commands.main(ROOT / "README.md") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.partition(":")[0] for line in lines} == {"ran", "not run"}
    ran = " ".join(line for line in lines if line.startswith("ran:"))
    assert all(f"ropeconv {name} " in ran for name in ("apply", "inspect", "advise", "restore"))


@pytest.mark.slow
def test_a_dead_command_of_the_readme_fails(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = installed / "page.md"
    page.write_text(
        "```sh\nropeconv methods all\nropeconv list methods\n```\nand `ropeconv list method"
        " yarn`.\n"
    )
    assert readme_commands.main(page) == 2
    assert "ran: ropeconv list methods" in capsys.readouterr().out
