"""Follow the messages of commands: run every command and option that they name.

`follow` is the function to read first. A refusal that names a fix has to name one that works, after
at most three steps, or a step that ends in a refusal without any further fix.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.main import get_command

from ropeconv.cli.app import complete_app
from ropeconv.rope.methods.method import REGISTRY

from .in_process import Done, command
from .printed import printed_commands

MOST_STEPS = 3
"""Steps after the first command, of which the last must succeed or end."""
OPTION = re.compile(r"(?<![\w`-])--[a-z][\w-]*(?:[= ](?![-;,.)])[^\s;,)`]+)?")
"""An option in a sentence, with the word behind it."""
COMPLETED = re.compile(r"`ropeconv (\w+)` with ([^`;]*)")
"""A command whose options stand outside its quotes: `ropeconv apply` with --linear 2 ..."""
PLACE = re.compile(r"[A-Z]{1,2}|[A-Z_]{3,}")
"""Words for which people put in their own values."""

FOLLOWED = ("apply", "advise", "inspect", "family")
"""Commands that are run where a message names them; they need no weights."""

Words = tuple[str, ...]
Options = tuple[tuple[str, str], ...]


@dataclass
class Followed:
    """The outcome of a command and of all steps that its messages name."""

    failures: list[str] = field(default_factory=list)
    """Steps that lead nowhere, each with the way to it."""

    successes: int = 0
    """Ways that end in a plan."""

    ends: set[str] = field(default_factory=set)
    """The refusals that name nothing to do with ropeconv."""


class Follower:
    """Runs commands for one model, and the steps that their messages name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: dict[Words, Done] = {}
        self.result = Followed()

    def follow(self, words: Words, way: tuple[Words, ...] = ()) -> None:
        """Run a command, and then every step that it names.

        Args:
            words: The command without `ropeconv`.
            way: The commands before it.
        """
        done = self.run(words)
        path = (*way, words)
        succeeded = done.returncode == 0
        said_before = any(self.run(earlier) == done for earlier in way)
        if said_before and not succeeded:
            self.fail(path, "the message comes again", done)
            return
        # a plan is the end of a way, and so is advice; but what advise prints is followed where it
        # is the first command
        ends_way = words[0] == "apply" or (words[0] == "advise" and bool(way))
        if succeeded and ends_way:
            self.result.successes += 1
            return

        steps = list(dict.fromkeys(next_steps(words, done)))
        if not steps and succeeded:
            self.result.successes += 1
            return
        if not steps:
            self.result.ends.add(done.stderr.strip())
            return
        if len(way) >= MOST_STEPS:
            self.fail(path, "there is no end after three steps", done)
            return
        for step in steps:
            self.follow(step, path)

    def run(self, words: Words) -> Done:
        """The result of a command, which is run once. Plans write nothing."""
        if words not in self.done:
            dry = ("--dry-run",) if words[0] == "apply" and "--dry-run" not in words else ()
            self.done[words] = command(self.folder, *words, *dry)
        return self.done[words]

    def fail(self, path: tuple[Words, ...], reason: str, done: Done) -> None:
        """Record a way that leads nowhere."""
        steps = " -> ".join(shlex.join(words) for words in path)
        self.result.failures.append(f"{reason}: {steps}: {done.stderr.strip()}")


def next_steps(words: Words, done: Done) -> Iterator[Words]:
    """Yield the commands that the messages of a command tell people to run, with its own model.

    Args:
        words: The command without `ropeconv`.
        done: What it printed.
    """
    text = done.stdout + done.stderr
    for match in COMPLETED.finditer(text):
        yield complete(words, (match[1], *_options_in(match[2])))
    for line in printed_commands(COMPLETED.sub("", text)):
        named = tuple(shlex.split(line))[1:]
        if named[0] in FOLLOWED and not _has_place(named):
            yield complete(words, named)
    if done.returncode == 0:
        return
    for fix in named_options(done.stderr):
        step = words
        for option, value in fix:
            step = with_option(step, option, value)
        if set(step) != set(words):  # a message about an option of the command repeats it
            yield step


def _options_in(text: str) -> Words:
    """The options at the beginning of a text, with their values."""
    found: list[str] = []
    rest = text.split()
    while rest and rest[0].startswith("--"):
        found.append(rest.pop(0))
        if takes_value(found[-1]):
            found.append(rest.pop(0))
    return tuple(found)


def named_options(message: str) -> Iterator[Options]:
    """Yield the options of each fix that a message names, with their values; "" for none.

    Fixes follow the first semicolon. Options with a space between them are one fix: "pass --yarn
    20M --replace". An option whose value people choose is left out.
    """
    without_commands = re.sub(r"`ropeconv [^`]*`", "", message)
    _, _, fixes = without_commands.partition(";")
    fix: list[tuple[str, str]] = []
    end_of_last = -1
    for match in OPTION.finditer(fixes):
        begins_another_fix = match.start() > end_of_last + 1
        if fix and begins_another_fix:
            yield tuple(fix)
            fix = []

        # "--yarn 20M", "--yarn=20M" or "--replace", behind which the sentence goes on
        option, _, value = match[0].replace("=", " ").partition(" ")
        if not takes_value(option):
            end_of_last = match.start() + len(option)
            fix.append((option, ""))
            continue
        end_of_last = match.end()
        is_chosen_by_people = not value or PLACE.fullmatch(value) is not None
        is_word_of_sentence = value in ("of", "to", "and", "or")
        if not is_chosen_by_people and not is_word_of_sentence:
            fix.append((option, value.strip("'\"`.:")))
    if fix:
        yield tuple(fix)


def with_option(words: Words, option: str, value: str) -> Words:
    """A command with another option, without those that do not go with it."""
    replaced = {option}
    if option in METHODS:
        replaced |= METHODS
    if option in ("--on-top", "--replace"):
        replaced |= {"--on-top", "--replace"}
    if option == "--as-is":  # which keeps the attention factor too
        replaced |= {"--on-top", "--replace", "--attention-factor"}
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in replaced:
            if takes_value(word):
                rest.pop(0)
            continue
        kept.append(word)
    return (*kept, option, value) if value else (*kept, option)


def complete(words: Words, named: Words) -> Words:
    """A named command with the model, and the family, of the command that named it.

    Sentences leave them out (`ropeconv inspect`).
    """
    if len(named) == 1 or named[1].startswith("--") or named[1].startswith("MODEL"):
        named = (named[0], words[1], *(word for word in named[1:] if word != "MODEL"))
    if "--family" in words and "--family" not in named:
        named = (*named, "--family", words[words.index("--family") + 1])
    return named


def _has_place(words: Words) -> bool:
    """Whether people put something in for a word of a command, other than the model."""
    return any(PLACE.fullmatch(word) and word != "MODEL" for word in words[1:])


def takes_value(option: str) -> bool:
    """Whether an option of `apply`, `advise` or `family` has a value behind it."""
    return OPTIONS.get(option, False)


def _options() -> dict[str, bool]:
    """All options of the commands that are followed, and whether a value comes behind them."""
    found: dict[str, bool] = {}
    group: Any = get_command(complete_app())
    context = group.make_context("ropeconv", ["apply"])
    for name in FOLLOWED:
        _, chosen, _ = group.resolve_command(context, [name])
        for option in chosen.options:
            for flag in option.opts:
                found[flag] = not option.is_flag
    return found


OPTIONS = _options()
METHODS = {f"--{name}" for name in REGISTRY}
