"""The matrix of faults is complete: every command that writes, and every option that changes what is
written, is struck or has a reason.
"""

import inspect
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import typer

from ropeconv.cli.app import all_commands, find
from ropeconv.cli.command import expand_options
from ropeconv.options import HUB, OUTPUT, Writes

from ..support.extent import few
from ..support.optional import of_features, skip_where_advised
from .cases import CASES, ELSEWHERE, NOT_STRUCK, READERS, READS, Case
from .harness import Fault, Mode, Server, tree

ACTIONS = ("ropeconv", "models", "run")
"""Of `server.ACTIONS` those that run a command line."""


def parameters(callback: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a command by their flags, arguments by their names."""
    by_flag = {}
    for parameter in inspect.signature(callback).parameters.values():
        long = [word for word in spellings(parameter) if word.startswith("--")]
        by_flag[long[0].partition("/")[0] if long else parameter.name] = parameter
    return by_flag


def spellings(parameter: inspect.Parameter) -> list[str]:
    """The ways to write an option, such as --out and -o."""
    words: list[str] = []
    for mark in marks(parameter):
        # in an annotation, Typer takes the first spelling for the default
        if hasattr(mark, "param_decls"):
            words += [
                word for word in (mark.default, *(mark.param_decls or ())) if isinstance(word, str)
            ]
    return words


def marks(parameter: inspect.Parameter) -> tuple[Any, ...]:
    """What stands in the annotation of a parameter beside its type."""
    return getattr(parameter.annotation, "__metadata__", ())


def writes(parameter: inspect.Parameter) -> bool:
    return any(isinstance(mark, Writes) for mark in marks(parameter))


def may_write(parameter: inspect.Parameter) -> bool:
    """Whether a parameter looks as if it changes what is written: a path, a file by its metavar, or
    an option in a panel about the output.
    """
    kind = (
        get_args(parameter.annotation)[0]
        if get_origin(parameter.annotation)
        else parameter.annotation
    )
    words = set[str | None]()
    for mark in marks(parameter):
        words |= {getattr(mark, "rich_help_panel", None), getattr(mark, "metavar", None)}
    return kind is Path or Path in get_args(kind) or bool(words & {OUTPUT, HUB, "FILE", "PATH"})


def choices(parameter: inspect.Parameter) -> list[str]:
    """The values of an option that has some; none for others."""
    about = next(mark for mark in marks(parameter) if hasattr(mark, "metavar"))
    parser = getattr(about, "parser", None)
    return [str(value) for value in parser.args[0]] if hasattr(parser, "args") else []


def callback(name: str) -> Any:
    return inspect.unwrap(
        find(name).callback, stop=lambda function: hasattr(function, "__signature__")
    )


def struck(command: str, cases: dict[str, Case]) -> list[list[str]]:
    """The words of the cases of a command, without those of the action and the command."""
    lines = [list(case.command[1:]) for case in cases.values() if case.command[0] in ACTIONS]
    name = command.split()  # "evidence add" has two words
    return [words[len(name) :] for words in lines if words[: len(name)] == name]


def forgotten(command: str, function: Any, cases: dict[str, Case]) -> list[str]:
    """The forms of a command that no case has and that have no reason."""
    lines = struck(command, cases)
    missing = []
    for flag, parameter in parameters(function).items():
        if not writes(parameter):
            if may_write(parameter) and (command, flag) not in READS and ("*", flag) not in READS:
                missing.append(f"{flag} has neither a mark nor a reason")
            continue
        forms = [f"{flag} {value}" for value in choices(parameter)] or [flag]
        for form in forms:
            words = {form, *(spellings(parameter) if form == flag else ())}
            done = any(words & {*line, *map(" ".join, pairwise(line))} for line in lines)
            known = {(command, form), (command, flag), ("*", flag)} & {*NOT_STRUCK, *ELSEWHERE}
            if not done and not known:
                missing.append(form)
    return missing


@pytest.mark.parametrize("name", all_commands())
def test_every_form_of_a_command_is_struck_or_has_a_reason(name: str) -> None:
    if name in READERS:
        assert struck(name, CASES) == []
        assert not [
            flag for flag, parameter in parameters(callback(name)).items() if writes(parameter)
        ]
        return
    assert struck(name, CASES) or (name, "") in ELSEWHERE, f"{name} has no case"
    assert forgotten(name, callback(name), CASES) == []


@of_features
def test_a_reason_is_for_something_that_exists() -> None:
    known = {(name, "") for name in all_commands()}
    paths = set[tuple[str, str]]()
    for name in all_commands():
        for flag, parameter in parameters(callback(name)).items():
            known |= {(name, flag), ("*", flag)}
            if writes(parameter):
                known |= {(name, f"{flag} {value}") for value in choices(parameter)}
            elif may_write(parameter):
                paths |= {(name, flag), ("*", flag)}
    assert {*NOT_STRUCK, *ELSEWHERE} <= known
    assert READS.keys() <= paths
    assert READERS.keys() <= all_commands().keys()


@of_features
@pytest.mark.parametrize("form", ELSEWHERE)
def test_a_test_that_strikes_elsewhere_is_there(form: tuple[str, str]) -> None:
    module, name = ELSEWHERE[form].split("::")
    assert f"def {name}(" in Path(__file__).parents[2].joinpath(module).read_text()


def test_the_page_writes_in_a_case() -> None:
    """The page has one task that writes files; publishing leaves none."""
    from ropeconv.features.ui.tasks import TASKS

    assert {"write", "publish"} == {name for name, task in TASKS.items() if is_writing(task)}
    assert any(case.command[0] == "page" for case in CASES.values())


def is_writing(task: Any) -> bool:
    return bool({"write_output", "publish_staged"} & set(task.__code__.co_names))


# A new command or option is missed where it has no case: the negative controls


def test_an_option_without_a_case_is_found() -> None:
    without = {name: case for name, case in CASES.items() if "--ollama" not in case.command}
    assert forgotten("apply", callback("apply"), without) == ["--ollama"]


def test_a_value_without_a_case_is_found() -> None:
    without = {name: case for name, case in CASES.items() if "ollama" not in case.command}
    assert forgotten("apply", callback("apply"), without) == ["--to ollama"]


def test_a_path_without_a_mark_is_found() -> None:
    @expand_options
    def new(out: Annotated[Path | None, typer.Option("--new-file", help="x")] = None) -> None: ...

    @expand_options
    def marked(
        out: Annotated[Path | None, typer.Option("--new-file", help="x"), Writes()] = None,
    ) -> None: ...

    assert forgotten("new", new, CASES) == ["--new-file has neither a mark nor a reason"]
    assert forgotten("new", marked, CASES) == ["--new-file"]


# Commands that write nothing


@pytest.mark.parametrize("name", few(list(READERS), 4, seed=5))
def test_a_command_without_a_case_writes_nothing(server: Server, tmp_path: Path, name: str) -> None:
    scene, words = READERS[name]
    scene(tmp_path)
    before = tree(tmp_path)
    outcome = server.run(tmp_path, ("reading", *words.split()), Fault(Mode.COUNT))
    skip_where_advised(outcome.output)
    assert outcome.code == 0, outcome.output

    # what ropeconv keeps for itself, such as the answers of runtimes that `probe` asks
    home = tmp_path / "home"
    calls = [call for call in outcome.calls() if not Path(call.path).is_relative_to(home)]
    assert calls == []
    after = {path: value for path, value in tree(tmp_path).items() if not path.startswith("home")}
    assert after == {path: value for path, value in before.items() if not path.startswith("home")}


def test_a_command_that_writes_is_no_reader(server: Server, tmp_path: Path) -> None:
    scene, words = READERS["advise"][0], "apply model --yarn 4 -o out"
    scene(tmp_path)
    assert server.run(tmp_path, ("reading", *words.split()), Fault(Mode.COUNT)).calls() != []
