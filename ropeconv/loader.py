"""Load configs, tokenizers, models and pickled weights. Code in a checkpoint needs permission.

No other module calls `from_pretrained`, `from_config` or `torch.load`. transformers runs code from
the modules that `auto_map` names in any config (`REPOSITORY--MODULE.CLASS` is in another folder or
repository), from custom_generate/generate.py, and from kernels of the Hub that an
`attn_implementation` with a slash names, which it downloads and runs without trust_remote_code.
Without a value for trust_remote_code, it asks on stdin.

`load_model`, `load_tokenizer` and `load_config` are the functions to read first; `needs_permission`
says beforehand whether a checkpoint has anything that runs.
"""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .environment import require
from .errors import BadSource, sentence
from .formats import jsontext
from .formats.files import open_regular, read_text
from .formats.jsontext import JsonObject
from .rope.errors import RopeconvError, shown

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

CODE = (".py", ".pyc", ".so", ".pyd", ".dll", ".dylib")
"""Suffixes of files that Python may import, and of libraries."""
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
IMPLEMENTATION = "_implementation"
"""The end of the keys of a config that name code for attention or experts."""
MAP = "auto_map"
"""The key of a config that names classes in files of the checkpoint."""
ADVICE = ("trust_remote_code", "weights_only")
"""Options that transformers and torch recommend in messages, and that ropeconv does not have."""
MOST_SHOWN = 200
"""Characters of a name or an error that a message has."""


def auto_map_classes(config: JsonObject) -> Iterator[str]:
    """Yield the classes that a config names in an `auto_map`, at any depth, as `MODULE.CLASS`."""
    for key, value in entries(config):
        if key != MAP:
            continue
        # a class, a list of classes (a slow and a fast tokenizer), or either for each auto class
        of_auto_classes = list(value.values()) if isinstance(value, dict) else [value]
        for names in of_auto_classes:
            if not isinstance(names, list):
                names = [names]
            for name in names:
                if name:
                    yield str(name)[:MOST_SHOWN]


def kernels(config: JsonObject) -> Iterator[str]:
    """Yield the kernels of the Hub that a config names for attention or experts, or enables."""
    for key, value in entries(config):
        if key.endswith(IMPLEMENTATION):
            names = value.values() if isinstance(value, dict) else [value]
            for name in names:
                if isinstance(name, str) and "/" in name:
                    yield name
        elif key in ("use_kernels", "kernel_config") and value:
            yield f"{key}={str(value)[:MOST_SHOWN]}"


def entries(value: object) -> Iterator[tuple[str, object]]:
    """Yield every key of a JSON value with its value, at any depth."""
    level = [value]
    while level:
        next_level: list[object] = []
        for item in level:
            if isinstance(item, dict):
                yield from item.items()
                next_level += item.values()
            elif isinstance(item, list):
                next_level += item
        level = next_level


def permission_error(folder: Path, reason: str) -> BadSource:
    """Return the error for code that needs permission.

    Args:
        folder: The checkpoint.
        reason: A clause that names the file and the code.
    """
    return BadSource(
        f"{folder} has code that ropeconv did not write: {reason}; read it, and pass"
        " --trust-remote-code to run it"
    )


def read_json(path: Path) -> JsonObject:
    """Return the content of a JSON file of a checkpoint; empty without one.

    Raises:
        BadSource: For a damaged one.
    """
    try:
        return jsontext.parse(read_text(path, str(path)), path.name)
    except FileNotFoundError:
        return {}


def needs_permission(folder: Path) -> bool:
    """Whether a part of a checkpoint needs its own code, kernels of the Hub or pickles to load."""
    if pickled_weights(folder):
        return True
    for name in ("config.json", "tokenizer_config.json"):
        config = read_json(folder / name)
        if any(auto_map_classes(config)) or any(kernels(config)):
            return True
    return False


def load_config(folder: Path, trust: bool) -> PretrainedConfig:
    """Return the config of a checkpoint, as the installed transformers reads it.

    Args:
        folder: The checkpoint.
        trust: Run the configuration file of the checkpoint.

    Raises:
        BadSource: If transformers does not load it.
    """
    from transformers import AutoConfig

    with _explain_failures(folder, trust, f"transformers does not load the config of {folder}"):
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust)


def make_config(config: JsonObject, model_type: str) -> PretrainedConfig:
    """Return a config of transformers from a config.json, with another `model_type`."""
    from transformers import AutoConfig

    return AutoConfig.for_model(**{**config, "model_type": model_type})


PER_LAYER = ("layer_types", "no_rope_layers", "mlp_layer_types")
"""Keys of a config with a value for each layer."""


def keep_layers(config: PretrainedConfig, count: int) -> None:
    """Keep the first layers of the config of a text model, which is changed."""
    config.num_hidden_layers = count
    for name in PER_LAYER:
        of_layers = getattr(config, name, None)
        if isinstance(of_layers, list):
            # some classes compute such a list from the number of layers, and refuse to set it
            with suppress(AttributeError):
                setattr(config, name, of_layers[:count])


def load_tokenizer(
    folder: Path, trust: bool, fix: str = "add its tokenizer files"
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a checkpoint.

    Args:
        folder: The checkpoint.
        trust: Run its tokenization file.
        fix: The fix in the message if none loads.

    Raises:
        BadSource: If transformers loads none, and if it has its own class and `trust` is False: a
            class of transformers may give other tokens.
    """
    from transformers import AutoTokenizer

    # without permission, AutoTokenizer would fall back to a class of transformers without a word
    if not trust:
        _check_tokenizer_classes(folder)
    with _explain_failures(folder, trust, f"{folder} has no tokenizer that loads", fix):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
        # some settings of a wrong type only fail here
        ids = tokenizer("a", add_special_tokens=False).input_ids
    if not ids:  # some classes of transformers make a tokenizer without files
        raise BadSource(f"{folder} has no tokenizer that loads; {fix}")
    return tokenizer


def _check_tokenizer_classes(folder: Path) -> None:
    """Raise BadSource for a checkpoint whose tokenizer has a class of its own."""
    for name in ("tokenizer_config.json", "config.json"):
        value = read_json(folder / name).get(MAP)
        classes: object = ()
        if isinstance(value, dict):
            classes = value.get("AutoTokenizer")
        elif isinstance(value, list):
            classes = value
        if classes:
            first = next(auto_map_classes({MAP: classes}), classes)
            raise permission_error(folder, f"its {name} names {shown(first)} in {MAP}")


def load_model(
    auto_class: type[PreTrainedModel], folder: Path, trust: bool, pickles: bool, **given: object
) -> tuple[PreTrainedModel, JsonObject]:
    """Return a model with its weights, and the loading report of transformers.

    Args:
        auto_class: An auto class of transformers, or the class of the model.
        folder: The checkpoint.
        trust: Run the code of the checkpoint.
        pickles: Load pickled weights and kernels of the Hub.
        given: Further arguments of `from_pretrained`.

    Raises:
        BadSource: For code without permission, and if transformers does not load it.
    """
    _check_trusted(folder, trust or pickles)
    with _explain_failures(folder, trust, f"transformers does not load {folder}"):
        loaded: tuple[PreTrainedModel, JsonObject] = auto_class.from_pretrained(
            folder,
            trust_remote_code=trust,
            # None prefers safetensors, and True refuses a folder without them
            use_safetensors=None if pickles else True,
            weights_only=True,
            output_loading_info=True,
            **given,
        )
    return loaded


def load_skeleton(
    auto_class: type[PreTrainedModel],
    folder: Path,
    trust: bool,
    pickles: bool,
    config: PretrainedConfig,
    dtype: str,
) -> PreTrainedModel:
    """Return a model without weights, on torch's meta device, with the attention of `load_model`.

    Args:
        auto_class: An auto class of transformers, or the class of the model.
        folder: The checkpoint.
        trust: Run the code of the checkpoint.
        pickles: Accept pickled weights and kernels of the Hub.
        config: The config of the model.
        dtype: The name of a dtype of torch, such as "bfloat16".

    Raises:
        BadSource: As `load_model` does.
    """
    import torch

    _check_trusted(folder, trust or pickles)

    # only auto classes have from_config; the class of a model has _from_config, which runs no code
    permission: dict[str, bool] = {}
    if hasattr(auto_class, "from_config"):
        make = auto_class.from_config
        permission = {"trust_remote_code": trust}
    else:
        make = auto_class._from_config

    with (
        _explain_failures(folder, trust, f"transformers does not load {folder}"),
        torch.device("meta"),
    ):
        model: PreTrainedModel = make(config, dtype=getattr(torch, dtype), **permission)
        return model.eval()


def _check_trusted(folder: Path, allowed: bool) -> None:
    """Raise BadSource for kernels of the Hub and pickled weights, unless the user allowed both."""
    if allowed:
        return
    kernel = next(kernels(read_json(folder / "config.json")), "")
    if kernel:
        raise permission_error(folder, f"its config.json names the kernel {shown(kernel)}")
    pickle = pickled_weights(folder)
    if pickle:
        raise BadSource(
            f"{folder / pickle} is a pickle, which can run code when it is loaded; convert it to"
            " safetensors, or pass --trust-remote-code to load it"
        )


def pickled_weights(folder: Path) -> str:
    """Return the pickled weights that transformers would load; empty where it has safetensors."""
    if any((folder / name).exists() for name in WEIGHTS):
        return ""
    for name in PICKLED_WEIGHTS:
        if (folder / name).exists():
            return name
    return ""


def make_model(model_class: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """Return a model with random weights and the eager attention of transformers."""
    for key in ("_attn_implementation", "_experts_implementation"):
        if getattr(config, key, None) is not None:
            setattr(config, key, "eager")
    return model_class._from_config(config)


def load_class(config: PretrainedConfig, auto_class: str, folder: Path) -> type[PreTrainedModel]:
    """Run the modelling file of a checkpoint and return a class of it.

    Args:
        config: The config of transformers, with its `auto_map`.
        auto_class: The key of the class in that.
        folder: The checkpoint.
    """
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    model_class: type[PreTrainedModel] = get_class_from_dynamic_module(
        config.auto_map[auto_class], str(folder)
    )
    return model_class


def load_pickled(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file of `torch.save`, mapped into memory.

    torch refuses a file with objects of other classes.
    """
    import torch

    tensors: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return tensors


MOST_NUMBERS = 1 << 20
"""The most bytes of a file of `torch.save` with lists of numbers."""


def load_numbers(path: Path) -> object:
    """Return the content of a small file of `torch.save`: tensors, and containers of plain values.

    Raises:
        BadSource: Where it holds anything else, which torch does not load, where it is damaged, and
            where it is large or compressed, which no file with one list of numbers is.
    """
    require("torch", f"reading {path.name}")
    import torch

    with open_regular(path) as file:
        content = file.read(MOST_NUMBERS + 1)

    # torch.save writes a zip archive without compression; a compressed one can be a bomb, small
    # here and many gigabytes in memory
    unpacked_size = 0
    try:
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                unpacked_size = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError):
        raise BadSource(f"{path.name} is damaged; save it again") from None
    if max(len(content), unpacked_size) > MOST_NUMBERS:
        raise BadSource(
            f"{path.name} has more than {MOST_NUMBERS:,} bytes; save only the list of numbers"
        )

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as problem:  # of many kinds, for a damaged file; torch executes nothing
        if type(problem).__name__ == "UnpicklingError":
            raise BadSource(
                f"{path.name} has other objects than tensors, so it was not loaded; save a tensor"
                " with torch.save, or the numbers as JSON"
            ) from None
        raise BadSource(f"{path.name} is damaged; save it again") from None


@contextmanager
def _explain_failures(
    folder: Path, trust: bool, failure: str, fix: str = "correct its files"
) -> Iterator[None]:
    """Turn errors of a load into messages, and keep transformers from asking on stdin.

    Args:
        folder: The checkpoint.
        trust: Whether its code may run.
        failure: The beginning of the message.
        fix: The end of the message, which says how to fix it.
    """
    from transformers import dynamic_module_utils

    # transformers loads parts of some models without trust_remote_code, and then asks the user on
    # stdin; with 0 seconds for the answer it raises at once
    before = getattr(dynamic_module_utils, "TIME_OUT_REMOTE_CODE", 0)
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    except Exception as problem:
        # from the most particular reason to any other
        if _explains_itself(problem):
            raise

        if not trust and "trust_remote_code" in str(problem):
            classes = auto_map_classes(read_json(folder / "config.json"))
            code = next(classes, "a class of its own")
            reason = f"its config.json names {shown(code)} in {MAP}"
            raise permission_error(folder, reason) from problem

        if type(problem).__name__ == "UnpicklingError":
            weights = pickled_weights(folder) or "its weights"
            raise BadSource(
                f"{folder / weights} is damaged or has other objects than tensors, so it was not"
                " loaded; convert it to safetensors with a program that you trust"
            ) from None

        if isinstance(problem, ImportError):
            fix = "install that package, or correct its config.json"
        raise BadSource(f"{failure} ({_first_line(problem)}); {fix}") from problem
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = before


def _explains_itself(problem: Exception) -> bool:
    """Whether an error of a load has a message for the user, here or in the caller."""
    if isinstance(problem, RopeconvError):
        return True
    # `advice_on_memory` in engines/transformers/load.py says what to change
    if isinstance(problem, RuntimeError) and "memory" in str(problem).lower():
        return True
    # transformers raises OSError without a number for what it does not find or support
    if isinstance(problem, OSError) and problem.errno is None:
        return False
    return bool(sentence(problem))


def _first_line(problem: Exception) -> str:
    """Return the first line of a library's error; its class if that is advice on options of its
    own.
    """
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    line = lines[0] if lines else ""
    if not line or any(option in line for option in ADVICE):
        return type(problem).__name__
    return line[:MOST_SHOWN]
