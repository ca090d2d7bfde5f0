"""Options that the command line, plans of `run`, receipts and Python have alike: one field each.

To add one, add a field with `option(...)` to the class that it belongs to, such as `TargetOptions`
for the output of `apply`. The command line and its help, the tables of a plan, the receipt, the
command that is made from it, and docs/commands.md follow from the fields.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from .errors import UsageError
from .rope.errors import RopeconvError
from .rope.features import load_features

T = TypeVar("T")
Written = TypeVar("Written", bound="TargetOptions")
Format = Literal["safetensors", "gguf"]
FoldInto = Literal["q", "k", "qk"]
DualChunk = Literal["keep", "drop"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
ValidateOn = Literal["auto", "cuda", "cpu", "off"]
"""Where an output is validated after it was written; auto: where that is quick."""
LogNKind = Literal["clamped", "full"]

METHOD = "Method (choose one; S is a factor, 4, or a length, 128k or 100000)"
LENGTH = "Length"
OUTPUT = "Output"
RUNTIMES = "Runtimes"
HUB = "Hub"
MODEL = "Model"
RUNNING = "Running"
GENERAL = "General"
EXPERT = "Expert options"
"""Options in this panel are hidden from `--help`; `--help-all` shows them."""
PANELS = (METHOD, LENGTH, MODEL, RUNNING, OUTPUT, RUNTIMES, HUB, GENERAL, EXPERT)
"""The panels of the help, in their order."""

FLOATS = ("auto", "f32", "f16", "bf16")
"""Values of `outtype` that quantise nothing."""


@dataclass(frozen=True)
class Option:
    """A field as an option."""

    name: str
    """The name of the field."""

    kind: Any
    """The type of one value."""

    default: Any

    many: bool
    """Whether the field is a tuple, so that the option can be repeated."""

    help: str

    group: str
    """The panel of the help."""

    flag: str

    short: str = ""
    """A second spelling, such as `-o`."""

    metavar: str | None = None
    """The word for a value in the help."""

    choices: tuple[str, ...] = ()
    """The values that it can have, by default those of a Literal."""

    only: str = ""
    """"gguf" or "folder" if it applies only to that output; it is refused with the other one."""

    repeatable: bool = False
    """Whether the command line makes one output per value."""

    least: int | None = None
    """The smallest number."""

    most: int | None = None
    """The largest number."""

    shown: bool = True
    """Whether the help has the default, where that is not empty."""

    variable: str = ""
    """An environment variable with the default, or empty."""

    writes: bool = False
    """Whether it names what is written, or changes which names are written and how.

    Every such option is in the matrix of faults (tests/faults).
    """

    @property
    def parameter(self) -> str:
        """The name of the flag as a Python identifier, which is the name of the value on the
        command line.
        """
        flag, _, _ = self.flag.partition("/")  # a switch may be --name/--no-name
        return flag.removeprefix("--").replace("-", "_")


class Writes:
    """In the annotation of a parameter of a command: the same as `Option.writes` for a field."""


def option(default: Any, help: str, group: str, **details: Any) -> Any:
    """Return a field of a dataclass that is an option.

    Args:
        default: The default of the field.
        help: The sentence in the help.
        group: The panel of the help.
        details: Other fields of `Option`.
    """
    return field(default=default, metadata={"option": {"help": help, "group": group, **details}})


def options(*kinds: type) -> list[Option]:
    """Return the options among the fields of dataclasses."""
    found = []
    for kind in kinds:
        hints = get_type_hints(kind)
        for item in fields(kind):
            if "option" in item.metadata:
                details = item.metadata["option"]
                found.append(option_of(item.name, hints[item.name], item.default, details))
    return found


def option_of(name: str, hint: Any, default: Any, details: Mapping[str, Any]) -> Option:
    """Return the option of a field or parameter.

    Args:
        name: Its name.
        hint: Its type.
        default: Its default.
        details: Fields of `Option` that do not follow from these.
    """
    # `int | None` is an int that may be left out
    value_type = hint
    if NoneType in get_args(hint):
        value_type = next(part for part in get_args(hint) if part is not NoneType)

    # `tuple[str, ...]` is an option that may be repeated, such as `--runtime vllm --runtime sglang`
    many = get_origin(value_type) in (tuple, list)
    if many:
        value_type = get_args(value_type)[0]

    # `Literal["auto", "off"]` is a text with these choices
    derived: dict[str, Any] = {"flag": f"--{name.replace('_', '-')}"}
    if get_origin(value_type) is Literal:
        derived["choices"] = get_args(value_type)
        value_type = str
    return Option(name=name, kind=value_type, default=default, many=many, **{**derived, **details})


def from_command_line(kind: type[T], given: Mapping[str, Any], /, **others: Any) -> T:
    """Return an instance of a dataclass from the values of its options.

    Args:
        kind: The dataclass, such as `WriteOptions`.
        given: The values by their names on the command line. Empty ones stand for the default.
        others: Its other fields.
    """
    values = dict(others)
    for option in options(kind):
        value = given.get(option.parameter)
        if value in (None, ""):
            continue
        if isinstance(value, list):  # Typer's lists; the dataclasses are frozen, with tuples
            value = tuple(value)
        values[option.name] = value
    return kind(**values)


def check_bounds(values: Mapping[str, Any], *kinds: type) -> None:
    """Refuse numbers that are out of the bounds of their options.

    Args:
        values: The numbers, by the names of their fields. Other values are left out.
        kinds: The dataclasses that declare the options.

    Raises:
        UsageError: A number is below `Option.least` or above `Option.most`.
    """
    for option in _bounded_options(*kinds):
        number = values.get(option.name)
        if number is None:
            continue
        if option.least is not None and not number >= option.least:  # nor NaN
            raise UsageError(f"{option.flag} is {number}; give {option.least} or more")
        if option.most is not None and not number <= option.most:
            raise UsageError(f"{option.flag} is {number}; give {option.most} or less")


@cache
def _bounded_options(*kinds: type) -> list[Option]:
    """Return the options of dataclasses that have a smallest or a largest number."""
    bounded = []
    for option in options(*kinds):
        if option.least is not None or option.most is not None:
            bounded.append(option)
    return bounded


@dataclass(frozen=True)
class BoundedOptions:
    """Options whose bounds hold for every front.

    Typer checks the command line. Values from Python, from a plan of `run` and from the page are
    checked when they are put into an instance.
    """

    def __post_init__(self) -> None:
        check_bounds(vars(self), type(self))


def asked_names(values: Mapping[str, Any]) -> set[str]:
    """Return the names of the options that ask for something: False and "" ask for nothing."""
    return {name for name, value in values.items() if value is not False and value != ""}


def changed_names(kind: Any) -> set[str]:
    """Return the names of the fields of a dataclass that do not have their defaults."""
    return {item.name for item in fields(kind) if getattr(kind, item.name) != item.default}


def copied(kind: type[T], source: Any, **changes: Any) -> T:
    """Return an instance of a dataclass with the fields that another object has too.

    Args:
        kind: The dataclass.
        source: The other object.
        changes: The values of other fields.
    """
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    shared = {name: getattr(source, name) for name in names if hasattr(source, name)}
    return kind(**shared | changes)


def encoding_names() -> tuple[str, ...]:
    """Return the values of `--encoding`: the file names of the encodings, and those of features.

    Importing the encodings would import numpy.
    """
    folder = Path(__file__).parent / "convert" / "encodings"
    names = {path.stem for path in folder.glob("[a-z]*.py")}
    with suppress(RopeconvError):  # this runs at import; what uses the feature says what is wrong
        for feature in load_features().values():
            names.update(feature.encodings)
    return ("auto", *sorted(names), "carrier")


@dataclass(frozen=True)
class OutputPlace:
    """Where an output of `apply` is written."""

    out: Path | None = option(
        None,
        "The folder or GGUF file to write (default: ./NAME-METHODFACTOR or -restored), or the"
        " folder of several.",
        OUTPUT,
        short="-o",
        metavar="PATH",
        writes=True,
    )
    """None for `./NAME-METHODFACTOR`."""

    in_place: bool = option(
        False, "Change the GGUF file itself instead of a copy.", OUTPUT, writes=True
    )


@dataclass(frozen=True)
class ConverterOptions:
    """Options of an output that name places of this machine, so that receipts do not have them."""

    converter: Path | None = option(
        None,
        "Convert with this llama.cpp (a checkout, or its convert_hf_to_gguf.py) instead of"
        " ropeconv's converter.",
        EXPERT,
        metavar="PATH",
        only="gguf",
        writes=True,
    )
    """Code that is run. None for ropeconv's own converter, and where that does not know the model,
    for an installed one.
    """

    imatrix: Path | None = option(
        None,
        "Quantise by this importance matrix (GGUF or .dat), as llama-quantize does.",
        OUTPUT,
        metavar="FILE",
        only="gguf",
    )
    """The file is read when a plan is made, and the receipt has its digest."""


@dataclass(frozen=True)
class CompanionNames:
    """The names of outputs that belong together with one, which receipts record."""

    draft: str = ""
    """The name of the output with its draft model, beside it."""

    draft_digest: str = ""
    """The sha256 of what made that draft."""

    adapter: str = ""
    """The name of the output with a PEFT adapter, beside it."""

    adapter_digest: str = ""
    """The sha256 over the files that were copied into that adapter."""

    drafts_for: str = ""
    """For a draft, the name of the output of its target."""

    drafts_for_digest: str = ""
    """The sha256 of what made that output."""


@dataclass(frozen=True)
class TargetOptions:
    """How and for whom an output is written: the options, and nothing else.

    Each class over it adds what only it has: `Target` the place and the rules, `TargetRecord` in a
    receipt the format that was written, `TargetTable` in a plan of `run` a name, and `BakeForm` on
    the page the method.
    """

    to: Format | None = option(
        None,
        "safetensors or gguf (default: the format of SOURCE); repeatable. ollama: gguf with a"
        " Modelfile. overrides: only print JSON for vLLM or SGLang.",
        OUTPUT,
        metavar="FORMAT",
        repeatable=True,
        choices=("safetensors", "gguf", "ollama", "overrides"),
        writes=True,
    )
    """None for the format of the source."""

    encoding: str = option(
        "auto",
        f"How to write the method: {', '.join(encoding_names())}.",
        EXPERT,
        metavar="NAME",
        choices=encoding_names(),
    )
    runtimes: tuple[str, ...] = option(
        (),
        "Write a form that this runtime supports: vllm, ollama, vllm@0.30, ...; repeatable.",
        RUNTIMES,
        flag="--runtime",
        metavar="NAME",
    )
    """By default transformers, and llama.cpp for GGUF."""

    outtype: str | None = option(
        None,
        "Type of the weights in GGUF: auto (as stored), f32, f16, bf16, q8_0, q4_k_m, ...;"
        " repeatable.",
        OUTPUT,
        metavar="TYPE",
        only="gguf",
        repeatable=True,
        writes=True,
    )
    """None and "auto" for as stored, or f32 where a checkpoint is made from a quantised GGUF."""

    tensor_type: tuple[str, ...] = option(
        (),
        "Quantise the tensors whose names have this pattern to this type: attn_v=q8_0, ...;"
        " repeatable.",
        EXPERT,
        metavar="PATTERN=TYPE",
        only="gguf",
    )
    output_tensor_type: str | None = option(
        None,
        "Quantise output.weight to this type.",
        EXPERT,
        metavar="TYPE",
        only="gguf",
    )
    token_embedding_type: str | None = option(
        None,
        "Quantise the token embeddings to this type.",
        EXPERT,
        metavar="TYPE",
        only="gguf",
    )
    split_max_size: str | None = option(
        None,
        "Split the GGUF file into files whose tensors have at most this size, such as 2G.",
        OUTPUT,
        metavar="SIZE",
        only="gguf",
        writes=True,
    )
    pre: str | None = option(
        None,
        "The value of tokenizer.ggml.pre, for an unknown pre-tokenizer.",
        EXPERT,
        metavar="NAME",
        only="gguf",
    )
    carrier: str | None = option(
        None,
        "Write the GGUF file as this architecture, which supports any frequencies.",
        EXPERT,
        metavar="ARCH",
        only="gguf",
    )
    fold_into: FoldInto | None = option(
        None,
        "With --encoding weights: the projections to scale by the attention factor.",
        EXPERT,
        only="folder",
    )
    """None for "k"; "q" are the rows that make queries, "qk" are both, each by its share."""

    allow_approximate: bool = option(
        False,
        "Accept log-n in steps, and in GGUF the ramp of YaRN that llama.cpp computes; the plan says"
        " how far off it is.",
        EXPERT,
    )
    allow_untested: bool = option(
        False,
        "Also write for a --runtime where the output is untested.",
        RUNTIMES,
    )
    all_files: bool = option(False, "Also copy weights in other formats.", EXPERT, only="folder")
    replace: bool = option(False, "Replace the scaling that the model has.", LENGTH)
    assume_arch_keys: bool = option(
        False,
        "Accept an unknown GGUF architecture, with the keys that all others use.",
        EXPERT,
    )
    quantized_by: str | None = option(
        None,
        "The value of general.quantized_by (default: OWNER of --push).",
        EXPERT,
        metavar="NAME",
        only="gguf",
    )
    dual_chunk: DualChunk | None = option(
        None,
        "Keep or drop dual chunk attention (Qwen2.5-1M); vLLM and SGLang support the method only"
        " without it.",
        EXPERT,
        only="folder",
    )
    """None keeps it, and warns."""

    def published_by(self: Written, owner: str) -> Written:
        """Return the options with the owner of a repository as `quantized_by`.

        They do not change where nothing is quantised, and where `quantized_by` is given.
        """
        if not owner or self.outtype in (None, *FLOATS):
            return self
        return replace(self, quantized_by=self.quantized_by or owner)


@dataclass(frozen=True)
class MachineOptions:
    """The machine that a model is to fit, and the type of its key-value cache."""

    memory: str = option(
        "",
        "Memory that the model must fit, such as 24GB (default: that of this machine).",
        RUNTIMES,
        metavar="SIZE",
    )
    cache_type: str = option(
        "",
        "Type of the key-value cache in it: q8_0, q4_0, fp8, ... (default: the runtime's).",
        RUNTIMES,
        metavar="TYPE",
    )


@dataclass(frozen=True)
class DeviceOptions(BoundedOptions):
    """Where a model runs, and in which precision."""

    device: str = option("auto", "auto, cpu, cuda, cuda:1 or mps.", RUNNING, metavar="DEVICE")
    dtype: str = option(
        "auto", "auto: float32 on a CPU, elsewhere as stored.", RUNNING, choices=get_args(Dtype)
    )


@dataclass(frozen=True)
class RunOptions(DeviceOptions):
    """How `validate` and `eval` run a model."""

    chunk: int = option(4096, "Tokens that the model sees at a time.", RUNNING, least=1)


@dataclass(frozen=True)
class ValidateOptions(RunOptions):
    """How `validate` runs an output and its reference."""

    tokens: int | None = option(
        None,
        "Tokens of each spread run (512); for GGUF, run every position up to here.",
        RUNNING,
        least=16,
    )
    seed: int = option(0, "Seed of the synthetic tokens.", RUNNING)
    layer_by_layer: bool = option(
        False,
        "Read the weights layer by layer, as is done for models larger than the memory.",
        RUNNING,
    )


@dataclass(frozen=True)
class ValidateRequest(ValidateOptions):
    """The options of `validate`, as users write them."""

    against: str = option(
        "",
        "The model it was made from (default: the one on the Hub, where it was, or beside the"
        " output).",
        RUNNING,
        metavar="SOURCE",
    )
    length: str = option(
        "", "Also run every position up to here, with a cache.", RUNNING, metavar="TOKENS"
    )
    text: Path | None = option(
        None, "Read this instead of synthetic tokens.", RUNNING, metavar="FILE"
    )
    server: str = option(
        "",
        "Compare with a running vLLM, SGLang, llama-server or mlx_lm.server.",
        RUNNING,
        metavar="URL",
    )
    model: str = option("", "Which of the models that the server runs.", RUNNING, metavar="NAME")
    dequantised: bool = option(
        False, "Run a GGUF SOURCE in transformers, with its weights dequantised.", RUNNING
    )
    quick: bool = option(
        False, "Leave out the bytes of the weights, which are compared with SOURCE.", GENERAL
    )
    ignore_receipt: bool = option(
        False, "Accept edited files whose edits do not change what is computed.", GENERAL
    )
