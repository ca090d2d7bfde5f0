"""Commands of click from functions: annotated parameters are arguments and options, dataclasses groups of options."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, is_dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from ..errors import UsageError
from ..formats.files import expanded
from ..options import Option, described, from_command_line, options
from ..rope.errors import shown

METHOD = "Method (choose one; S is a factor, 4, or a length, 128k or 100000)"
LENGTH = "Length"
OUTPUT = "Output"
RUNTIMES = "Runtimes"
HUB = "Hub"
MODEL = "Model"
RUNNING = "Running"
GENERAL = "General"
EXPERT = "Expert options"
PANELS = (METHOD, LENGTH, MODEL, RUNNING, OUTPUT, RUNTIMES, HUB, GENERAL, EXPERT)
OTHER_WORDS = {
    "archs": "list archs", "bake": "apply", "check": "validate", "convert": "apply", "diff": "compare",
    "export": "apply", "extend": "apply", "families": "list families", "help": "--help", "info": "inspect",
    "merge": "compare", "methods": "list methods", "models": "list families", "perplexity": "eval", "publish": "push",
    "quantize": "apply", "recommend": "advise", "runtimes": "list runtimes", "schedule": "plot", "show": "inspect",
    "test": "validate", "train": "train-config", "undo": "restore", "upload": "push", "verify": "validate",
    "version": "--version",
}  # fmt: skip
"""Commands that people type by other names."""
OTHER_OPTIONS = {
    "--quantize": "--outtype", "--quant": "--outtype", "--gguf": "--to gguf", "--format": "--to", "--output": "-o",
    "--max-model-len": "--context", "--ctx-size": "--context", "--max-position-embeddings": "--context",
    "-c": "--context", "--num-ctx": "--context", "--hf-overrides": "--to overrides", "--rope-scale": "--linear",
    "--rope-theta": "--theta", "--rope-freq-base": "--theta", "--rope-scaling": "--yarn", "--factor": "--yarn",
    "--method": "--yarn", "--lora": "--adapter", "--overwrite": "--force", "--target": "--runtime",
    "--engine": "--runtime", "--backend": "--runtime", "--dtype": "--outtype", "--source": "--against",
    "--trainer": "--for", "--output-dir": "-o", "--pi": "--linear", "--rope-type": "--yarn",
    "--original-max-position-embeddings": "--original-context",
}  # fmt: skip
"""Options that people type by other names, such as those of runtimes."""
PUSH_ONLY = (
    "--public", "--revision", "--commit-message", "--exist-ok", "--overwrite-card", "--base-model", "--token",
)  # fmt: skip
"""Options of publishing that `apply` does not have."""
COMPLETE = "_ROPECONV_COMPLETE"
"""The variable by which a shell asks for completions: https://click.palletsprojects.com/en/stable/shell-completion/"""
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
Rule = tuple[Callable[[Mapping[str, Any]], object], str]
"""Whether an option has an effect beside the values of all options, by name; and what to say where it has none."""


@dataclass(frozen=True)
class Positional:
    """An argument, in the annotation of a parameter. metavar: its name in the help. help: a sentence."""

    metavar: str
    help: str = ""


@dataclass(frozen=True)
class OptionGroup:
    """Several options in the place of one parameter, in its annotation. build: makes its value from theirs, by name."""

    options: Callable[[], list[Option]]
    build: Callable[[dict[str, Any]], Any] = dict


def flag(help: str, spelling: str, group: str = GENERAL, **details: Any) -> dict[str, Any]:
    """An option, in the annotation of a parameter. details: other attributes of `Option`."""
    return {"help": help, "flag": spelling, "group": group, **details}


class PanelOption(click.Option):
    """An option with the panel of the help that it is in."""

    def __init__(self, names: list[str], panel: str, **details: Any) -> None:
        super().__init__(names, **details)
        self.panel = panel


class Command(click.Command):
    """A command. examples: lines below its help. rules: of its options, by name."""

    def __init__(self, function: Callable[..., None], examples: str, rules: Mapping[str, Rule]) -> None:
        name = function.__name__.removesuffix("_command").replace("_", "-")
        self.examples, self.rules = [line for line in examples.splitlines() if line], rules
        self.groups: dict[str, tuple[set[str], Callable[[dict[str, Any]], Any]]] = {}
        self.function = function
        signature = inspect.signature(function, eval_str=True)
        params = [param for given in signature.parameters.values() for param in self._params(given)]
        params.sort(key=_place)
        help = inspect.getdoc(function) or ""
        super().__init__(name, dict(SETTINGS), self._call, params, help, short_help=help.partition("\n")[0])

    def _params(self, given: inspect.Parameter) -> list[click.Parameter]:
        """The arguments or options of a parameter of the function."""
        hint = given.annotation
        about = hint.__metadata__[0] if hasattr(hint, "__metadata__") else None
        if isinstance(hint, type) and is_dataclass(hint):
            about = OptionGroup(partial(options, hint), partial(from_command_line, hint))
        if isinstance(about, OptionGroup):
            members = about.options()
            self.groups[given.name] = ({member.parameter for member in members}, about.build)
            return [_option(member.parameter, member) for member in members]
        default = MISSING if given.default is inspect.Parameter.empty else given.default
        if isinstance(about, Positional):
            return [_argument(given.name, hint.__origin__, about, default)]
        assert isinstance(about, dict), given
        return [_option(given.name, described(given.name, hint.__origin__, default, about))]

    def _call(self, **values: Any) -> None:
        grouped = {
            name: build({key: values.pop(key) for key in sorted(members)})
            for name, (members, build) in self.groups.items()
        }
        self.function(**values, **grouped)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command. Raises UsageError for options on the command line that have no effect, by its rules."""
        for param in self.params:
            has_effect, sentence = self.rules.get(param.name or "", (None, ""))
            typed = ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
            if has_effect is not None and typed and not has_effect(ctx.params):
                raise UsageError(f"{param.opts[0]} {sentence}")
        return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line; `--help-all` is `--help` with the expert options."""
        if "--help-all" in args:
            ctx.meta[EXPERT], args = True, ["--help"]
        positional = [word for word in args if not word.startswith("-")]
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as problem:
            arguments = [param for param in self.params if isinstance(param, click.Argument)]
            if problem.param in arguments and positional:  # what was typed has the place of the last argument
                problem.param = arguments[-1]
            raise
        except click.NoSuchOption as problem:
            name = problem.option_name
            if self.name == "apply" and name in PUSH_ONLY:
                words = f"{name} is an option of `ropeconv push`; write the output with -o, and publish it with that"
                raise UsageError(words) from None
            other = OTHER_OPTIONS.get(name.replace("quantise", "quantize"), "")
            if any(other.partition(" ")[0] in param.opts for param in self.params):
                raise UsageError(f"there is no option {name}; use {other}") from None
            if name == "--model" and any("--family" in param.opts for param in self.params):  # its argument is a model
                raise UsageError(f"there is no option {name}; use `{ctx.command_path} MODEL`") from None
            close = [option for option in problem.possibilities or () if option != "--help"]
            hint = f"did you mean {close[0]}?" if close else f"`{ctx.command_path} --help-all` lists them"
            raise UsageError(f"there is no option {name}; {hint}") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options by panel; expert options only with --help-all."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                panels.setdefault(getattr(param, "panel", GENERAL), []).append(record)
        expert = [] if ctx.meta.get(EXPERT) else panels.pop(EXPERT, [])
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)
        if expert:
            formatter.write(f"\n{len(expert)} expert options: --help-all\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples, which are not wrapped, so that they can be copied."""
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in self.examples))


class Group(click.Group):
    """`ropeconv` or `ropeconv list`: commands that are imported when they are used. modules: by their names."""

    def __init__(self, name: str, help: str, modules: Mapping[str, str]) -> None:
        super().__init__(name, help=help, short_help=help, context_settings=dict(SETTINGS))
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order of the help."""
        return [*self.modules, *self.commands]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of a name; None for an unknown one."""
        if name not in self.modules:
            return self.commands.get(name)
        module = import_module(f".commands.{self.modules[name]}", __package__)
        command: Command = getattr(module, f"{name.replace('-', '_')}_command")
        return command

    def summaries(self) -> Iterator[tuple[str, str]]:
        """Yield the names and summaries of the commands, from their source: to import all of them is slow."""
        for name, module in self.modules.items():
            text = Path(__file__).with_name("commands").joinpath(f"{module}.py").read_text("utf-8")
            function = text[text.index(f"\ndef {name.replace('-', '_')}_command(") :]
            yield name, function.split('"""')[1].splitlines()[0]
        yield from ((name, group.get_short_help_str()) for name, group in self.commands.items())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the names and summaries of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that begin with what was typed."""
        commands = [CompletionItem(name, help=words) for name, words in self.summaries() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command that is typed. Raises UsageError with its name for a command that has another one."""
        word, names = args[0], self.list_commands(ctx)
        if word not in names and not word.startswith("-"):
            path, outermost = ctx.command_path, ctx.parent is None
            near = OTHER_WORDS.get(word, "") if outermost else ""
            near = near or next(iter(get_close_matches(word, names, 1)), "")
            near = near or ("apply MODEL" if outermost and ("/" in word or os.path.exists(word)) else "")
            repair = f"use `{path} {near}`" if near else f"`{path} --help` lists them"
            raise UsageError(f"there is no command {shown(word)}; {repair}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line, and prints the help for an empty one."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def main(self, args: Any = None, *_: Any, **__: Any) -> Any:
        """Runs a command line. Unlike in click, all exceptions reach the caller, and nothing is printed about them."""
        if COMPLETE in os.environ:
            return super().main(args, "ropeconv", COMPLETE)
        with self.make_context("ropeconv", list(sys.argv[1:] if args is None else args)) as ctx:
            return self.invoke(ctx)


def command(examples: str, **rules: Rule) -> Callable[[Callable[..., None]], Command]:
    """Decorator: makes a function a command. examples: for its help, one a line.

    rules: of options by their names, judged where they are on the command line: an option that has no effect is
    refused with the sentence of its rule, which follows the flag.
    """
    return lambda function: Command(function, examples, rules)


def refuse(*cases: tuple[object, str]) -> None:
    """Raises UsageError with the sentence of the first case that is true."""
    for is_refused, sentence in cases:
        if is_refused:
            raise UsageError(sentence)


def _place(param: click.Parameter) -> tuple[int, bool]:
    """The place of a parameter: arguments, then options by panel, in each of which those of the screen come last."""
    return PANELS.index(param.panel) + 1 if isinstance(param, PanelOption) else 0, param.name in ("json", "quiet")


def _argument(name: str, hint: Any, about: Positional, default: Any) -> click.Argument:
    inner = [kind for kind in get_args(hint) if kind is not type(None)]
    many = list in (get_origin(hint), *map(get_origin, inner))
    kind = Path if Path in (hint, *inner, *(arg for part in inner for arg in get_args(part))) else str
    details = {} if default is MISSING or many else {"default": default}
    return click.Argument(
        [name], required=default is MISSING, help=about.help, type=kind, nargs=-1 if many else 1,
        metavar=about.metavar, **details,
    )  # fmt: skip


def _option(name: str, option: Option) -> PanelOption:
    kind: Any = expanded if option.kind is Path else option.kind
    if option.choices:
        kind = click.Choice(option.choices)
    elif option.least is not None or option.most is not None:
        kind = click.IntRange(option.least, option.most)
    is_required, several = option.default is MISSING, option.many or option.repeatable
    words = {int: "N", float: "X", Path: "PATH"}.get(option.kind, "TEXT")
    metavar = option.metavar or ("|".join(option.choices) if option.choices else words)
    details: dict[str, Any] = {"is_flag": True} if option.kind is bool else {"type": kind, "metavar": metavar}
    if not is_required and not several:
        details["default"] = option.default
    shown = option.shown and option.default not in (None, "", (), MISSING) and option.default is not False
    return PanelOption(
        [option.flag, *([option.short] if option.short else []), name], option.group, help=option.help,
        required=is_required, multiple=several, show_default=shown, **details,
    )  # fmt: skip


TRAINING = Path(__file__).parent.parent / "hub" / "trainers"


def trainer_names() -> tuple[str, ...]:
    """The values of `--for`, from the file names of the trainers."""
    return tuple(sorted(path.stem for path in TRAINING.glob("*.toml")))


if TYPE_CHECKING:
    TrainerName = str
else:
    TrainerName = Literal.__getitem__(trainer_names())


Device = Literal["auto", "cuda", "cpu", "off"]
LogNKind = Literal["clamped", "full"]
