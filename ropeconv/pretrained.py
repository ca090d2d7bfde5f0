"""Loads configs, tokenizers, models and pickled weights. Code that a checkpoint brings needs permission.

No other module calls `from_pretrained`, `from_config` or `torch.load`. transformers takes code from the modules that
`auto_map` names in any config (`REPOSITORY--MODULE.CLASS` is of another folder or repository), from
custom_generate/generate.py, and from kernels of the Hub that an `attn_implementation` with a slash names, which it
downloads and runs without trust_remote_code. Where trust_remote_code is not stated, it asks on stdin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BadSource, sentence
from .formats import jsontext
from .formats.files import read_text
from .formats.jsontext import JsonObject
from .rope.errors import RopeconvError, shown

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

CODE = (".py", ".pyc", ".so", ".pyd", ".dll", ".dylib")
"""Ends of the names of files that Python may import, or libraries that those load."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Ends of the names of files that `torch.load` and pickle read."""
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
IMPLEMENTATION = "_implementation"
MAP = "auto_map"
ADVICE = ("trust_remote_code", "weights_only")
"""Options of transformers and torch that their own messages say to change, and that users of ropeconv do not have."""
MOST_SHOWN, MOST_NAMED = 200, 3


@dataclass(frozen=True)
class CodeFile:
    """A file of a checkpoint that can make a runtime run code. name: relative to its folder. reason: how it can."""

    name: str
    reason: str


def code_files(names: Iterable[str], configs: Mapping[str, JsonObject]) -> Iterator[CodeFile]:
    """Yields the files of a checkpoint that can make a runtime run code; none of them is opened here.

    names: of all files. configs: the content of those JSON files that are known, by their names.
    """
    for name, config in configs.items():
        if classes := list(dict.fromkeys(mapped(config))):
            named = ", ".join(classes[:MOST_NAMED]) + (", ..." if len(classes) > MOST_NAMED else "")
            yield CodeFile(name, f"names {named} in {MAP}, which trust_remote_code runs")
        for kernel in dict.fromkeys(kernels(config)):
            yield CodeFile(name, f"names the kernel {shown(kernel)}, which transformers downloads and runs")
    for name in names:
        if name.lower().endswith(CODE):
            yield CodeFile(name, "is code, which trust_remote_code may run")
        elif name.lower().endswith(PICKLES):
            yield CodeFile(name, "is a pickle, which can run code when it is loaded")


def mapped(config: JsonObject) -> Iterator[str]:
    """Yields the classes that a config names in an `auto_map`, at any depth, as `MODULE.CLASS`."""
    for key, value in entries(config):
        if key == MAP:
            found = list(value.values()) if isinstance(value, dict) else [value]
            flat = [one for each in found for one in (each if isinstance(each, list) else [each])]
            yield from (str(one)[:MOST_SHOWN] for one in flat if one)


def kernels(config: JsonObject) -> Iterator[str]:
    """Yields the kernels of the Hub that a config names as implementations of attention or experts, or turns on."""
    for key, value in entries(config):
        if key.endswith(IMPLEMENTATION):
            values = value.values() if isinstance(value, dict) else (value,)
            yield from (one for one in values if isinstance(one, str) and "/" in one)
        elif key in ("use_kernels", "kernel_config") and value:
            yield f"{key}={str(value)[:MOST_SHOWN]}"


def entries(value: object) -> Iterator[tuple[str, object]]:
    """Yields every key of a JSON value with what it holds, at any depth."""
    level = [value]
    while level:
        parts = [item for item in level if isinstance(item, (dict, list))]
        for part in parts:
            if isinstance(part, dict):
                yield from part.items()
        level = [inner for part in parts for inner in (part.values() if isinstance(part, dict) else part)]


def foreign(folder: Path, what: str) -> BadSource:
    """The error for code that needs permission. what: a clause that names the file and the code."""
    return BadSource(
        f"{folder} brings code that is not what ropeconv writes: {what}; read it, and pass --trust-remote-code to run "
        "it"
    )


def parsed(path: Path) -> JsonObject:
    """The content of a JSON file of a checkpoint; empty where there is none. Raises BadSource for a damaged one."""
    try:
        return jsontext.parse(read_text(path, str(path)), path.name)
    except FileNotFoundError:
        return {}


def needs_permission(folder: Path) -> bool:
    """Whether some part of a checkpoint does not load without code of its own, kernels of the Hub or pickles."""
    configs = [parsed(folder / name) for name in ("config.json", "tokenizer_config.json")]
    return bool(pickled_weights(folder)) or any(next(found(one), "") for one in configs for found in (mapped, kernels))


def load_config(folder: Path, trust: bool) -> PretrainedConfig:
    """The config of a checkpoint, as the installed transformers reads it.

    folder: the checkpoint. trust: run the configuration file of the checkpoint. Raises BadSource where transformers
    does not load it.
    """
    from transformers import AutoConfig

    with _sentences(folder, trust, f"transformers does not load the config of {folder}"):
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust)


def make_config(config: JsonObject, model_type: str) -> PretrainedConfig:
    """A config of transformers from the content of a config.json. model_type: takes the place of its own."""
    from transformers import AutoConfig

    return AutoConfig.for_model(**{**config, "model_type": model_type})


def load_tokenizer(folder: Path, trust: bool, otherwise: str = "add its tokenizer files") -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint.

    folder: the checkpoint. trust: run its tokenization file. otherwise: what to do where none loads, for the message.
    Raises BadSource where transformers loads none, and where it has a class of its own and `trust` is False: a class
    of transformers in its place may give other tokens.
    """
    from transformers import AutoTokenizer

    if not trust:
        for name in ("tokenizer_config.json", "config.json"):
            value = parsed(folder / name).get(MAP)
            own = value if isinstance(value, list) else value.get("AutoTokenizer") if isinstance(value, dict) else None
            if own:
                raise foreign(folder, f"its {name} names {shown(next(mapped({MAP: own}), own))} in {MAP}")
    with _sentences(folder, trust, f"{folder} has no tokenizer that loads", otherwise):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
        tokenizer("a")  # some settings of another type fail here at first
        return tokenizer


def load_model(
    auto_class: type[PreTrainedModel], folder: Path, trust: bool, pickles: bool, **given: object
) -> tuple[PreTrainedModel, JsonObject]:
    """A model with its weights, and what transformers says about loading it.

    auto_class: of transformers. folder: the checkpoint. trust: run its modelling file. pickles: load pickled weights
    and kernels of the Hub. given: further arguments of `from_pretrained`. Raises BadSource for code without
    permission, and where transformers does not load it.
    """
    _check_trusted(folder, trust or pickles)
    safe = None if pickles else True
    with _sentences(folder, trust, f"transformers does not load {folder}"):
        loaded: tuple[PreTrainedModel, JsonObject] = auto_class.from_pretrained(
            folder, trust_remote_code=trust, use_safetensors=safe, weights_only=True, output_loading_info=True, **given
        )
        return loaded


def load_skeleton(
    auto_class: type[PreTrainedModel], folder: Path, trust: bool, pickles: bool, config: PretrainedConfig, dtype: str
) -> PreTrainedModel:
    """A model without weights, on torch's meta device, with the attention that `load_model` gives it.

    auto_class, folder, trust, pickles: as in `load_model`, which also says what is raised. config: of transformers.
    dtype: of its weights, as torch names it.
    """
    import torch

    _check_trusted(folder, trust or pickles)
    code = {"trust_remote_code": trust} if hasattr(auto_class, "from_config") else {}
    make = auto_class.from_config if code else auto_class._from_config
    with _sentences(folder, trust, f"transformers does not load {folder}"), torch.device("meta"):
        model: PreTrainedModel = make(config, dtype=getattr(torch, dtype), **code)
        return model.eval()


def _check_trusted(folder: Path, allowed: bool) -> None:
    """Raises BadSource for kernels of the Hub and pickled weights, unless the user allowed both."""
    if allowed:
        return
    if kernel := next(kernels(parsed(folder / "config.json")), ""):
        raise foreign(folder, f"its config.json names the kernel {shown(kernel)}")
    if pickle := pickled_weights(folder):
        raise BadSource(
            f"{folder / pickle} is a pickle, which can run code when it is loaded; convert it to safetensors, or "
            "pass --trust-remote-code to load it"
        )


def pickled_weights(folder: Path) -> str:
    """The name of the pickled weights that transformers would load from a folder; empty where it has safetensors."""
    if any((folder / name).exists() for name in WEIGHTS):
        return ""
    return next((name for name in PICKLED_WEIGHTS if (folder / name).exists()), "")


def make_model(model_class: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """A model without weights, whose attention is that of transformers itself. config: of transformers."""
    for key in ("_attn_implementation", "_experts_implementation"):
        if getattr(config, key, None) is not None:
            setattr(config, key, "eager")
    return model_class._from_config(config)


def load_class(config: PretrainedConfig, auto_class: str, folder: Path) -> type[PreTrainedModel]:
    """A class of the modelling file of a checkpoint, which is run. auto_class: its key in the `auto_map` of config."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    found: type[PreTrainedModel] = get_class_from_dynamic_module(config.auto_map[auto_class], str(folder))
    return found


def load_pickled(path: Path) -> dict[str, Tensor]:
    """The tensors in a file that `torch.save` wrote, mapped into memory; torch refuses a file with other classes."""
    import torch

    found: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return found


@contextmanager
def _sentences(folder: Path, trust: bool, what: str, otherwise: str = "correct its files") -> Iterator[None]:
    """Runs a load, in which transformers asks nothing on stdin, and turns what fails into sentences.

    trust: as in the call. what: the beginning of the sentence. otherwise: what to do.
    """
    from transformers import dynamic_module_utils

    # parts of a model are loaded without the argument, and 0 seconds for an answer means not to ask
    before = getattr(dynamic_module_utils, "TIME_OUT_REMOTE_CODE", 0)
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    except Exception as problem:
        library = isinstance(problem, OSError) and problem.errno is None
        memory = "memory" in str(problem).lower() and isinstance(problem, RuntimeError)
        if isinstance(problem, RopeconvError) or memory or (sentence(problem) and not library):
            raise
        if not trust and "trust_remote_code" in str(problem):
            code = next(mapped(parsed(folder / "config.json")), "a class of its own")
            raise foreign(folder, f"its config.json names {shown(code)} in {MAP}") from problem
        if type(problem).__name__ == "UnpicklingError":
            raise BadSource(
                f"{folder / (pickled_weights(folder) or 'its weights')} is damaged or holds more than tensors, so it "
                "was not loaded; convert it to safetensors with a program that you trust"
            ) from None
        if isinstance(problem, ImportError):
            otherwise = "install that package, or correct its config.json"
        raise BadSource(f"{what} ({_said(problem)}); {otherwise}") from problem
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = before


def _said(problem: Exception) -> str:
    """The first line of an error of a library, without its advice on options that ropeconv sets itself."""
    line = next((line.strip() for line in str(problem).splitlines() if line.strip()), "")
    if not line or any(option in line for option in ADVICE):
        return type(problem).__name__
    return line[:MOST_SHOWN]
