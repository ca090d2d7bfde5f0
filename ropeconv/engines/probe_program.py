"""A program that asks a transformers installation what it computes from a config.

It runs as `python probe_program.py`, so that any version on PYTHONPATH can be asked. It imports
transformers at once, while its caller plans and copies, and answers a line of JSON on stdin by a
line on stdout. The lines on stdin are:

- {"model_type": name} starts the import of the code of a model, and gets no answer.
- {"path": folder, "context": n, "own": false, "as": ""} asks for a config. "own" runs the modelling
  file in the folder, which the caller has written or trusts. "as" is the model type with which a
  config is read whose own model type this installation does not have.
- {"call": "MODULE:FUNCTION", "given": {...}} calls a function of ropeconv that takes and returns a
  JSON object, for work that needs transformers too.

The answer about a config holds, per rotary module of the text model, the frequencies and attention
factor that it applies at the last position of the context and at the first ones, taken from its
buffers after a forward pass. A model with an encoder and a decoder is asked as a whole, and both
have to compute the same.
"""

from __future__ import annotations

import gc

# a quarter of the imports: 4.1 in place of 5.5 s of CPU for the Llama of transformers 5.23
gc.disable()

import contextlib
import copy
import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

sys.path.append(str(Path(__file__).parents[2]))  # behind the packages that the installation has
from ropeconv.loader import keep_layers, load_class, load_config, make_config, make_model
from ropeconv.models.parts import text_path
from ropeconv.rope.errors import RopeconvError

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PretrainedConfig


def main() -> None:
    """Answer the questions on stdin until it ends, each by a line of JSON on stdout.

    {"path": folder, "context": 131072, ...} asks for the frequencies that transformers computes
    from a config; {"model_type": "llama"} gets no answer, and imports that model early.
    """
    # imports fail here in silence: the question that needs them fails with a message
    answers = open_answers()
    with contextlib.suppress(Exception):
        importlib.import_module("transformers.modeling_utils")

    for line in sys.stdin:
        question = json.loads(line)
        if "model_type" in question:
            # no answer: the caller names the type while it still plans, so that the import, which
            # takes seconds, is over when it asks for a config
            with contextlib.suppress(Exception):
                name = question["model_type"]
                importlib.import_module(f"transformers.models.{name}.modeling_{name}")
            continue

        try:
            answer = answer_question(question)
        except Exception as problem:
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        with contextlib.suppress(Exception):  # transformers may be what cannot be imported
            answer["transformers"] = version()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    answers.close()
    os._exit(0)  # interpreter shutdown takes half a second after these imports


def answer_question(question: dict[str, Any]) -> dict[str, object]:
    """Return the answer to a question about a config, or the result of a function of ropeconv."""
    if "call" in question:
        module, _, name = question["call"].partition(":")
        function = getattr(importlib.import_module(module), name)
        result: dict[str, object] = function(question["given"])
        return result
    if question.get("own"):  # an output with a modelling file of its own
        return ask_own(question["path"], question["context"])
    return ask(question["path"], question["context"], question.get("as", ""))


def open_answers() -> TextIO:
    """Return the stream for answers, and keep everything else out of it, and off the network."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ["HF_HUB_OFFLINE"] = "1"
    return answers


def version() -> str:
    """Return the version of transformers."""
    import transformers

    return str(transformers.__version__)


def ask(path: str, context: int, loaded_as: str) -> dict[str, object]:
    """Return the frequencies and attention factor per rotary module of a text model.

    Args:
        path: The folder of its config.json.
        context: The length in tokens.
        loaded_as: The model type of a config whose own is not known here; empty to read it
            unchanged.
    """
    # the config of the text model, which may be a part of that of a vision model
    config, read_as = read_config(Path(path), loaded_as)
    has_encoder_and_decoder = getattr(config, "is_encoder_decoder", False)
    if has_encoder_and_decoder:
        text = config
    elif hasattr(config, "get_text_config"):
        text = config.get_text_config()
    else:
        text = getattr(config, "text_config", config)

    # the model, with few layers and without weights
    try:
        model = build(shrink(text))
    except ValueError:  # a class that needs a module of a layer which was left out
        model = build(text)

    # by the kind of layers, "global" or "local" with a window, the frequencies that these rotate by
    modules: dict[str, object] = {}
    for name, module in model.named_modules():
        if "RotaryEmbedding" not in type(module).__name__:
            continue
        # of two sets for one kind, the later one counts
        by_kind = dict(read_rotary_module(module, name, context))
        for layer_kind, frequencies in by_kind.items():
            is_other = layer_kind in modules and modules[layer_kind] != frequencies
            if has_encoder_and_decoder and is_other:
                raise ValueError(
                    f"its encoder and its decoder compute different {layer_kind} frequencies"
                )
            modules[layer_kind] = frequencies
    if not modules:
        raise ValueError(f"{type(model).__name__} has no rotary module")
    return {"modules": modules, "class": type(model).__name__, "read_as": read_as}


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the text model in a config, which may be the config itself."""
    part = config
    for key in text_path(config):
        part = part[key]
    return part


def read_config(folder: Path, loaded_as: str) -> tuple[PretrainedConfig, str]:
    """Load the config in a folder with transformers.

    Args:
        folder: The folder with config.json.
        loaded_as: A model type such as "llama", which is used where transformers does not have the
            model type of the config; empty to use only the model type of the config.

    Returns:
        The config, and `loaded_as` if that type was used, else an empty string.

    Raises:
        LookupError: For a model type that transformers does not have.
    """
    from transformers import CONFIG_MAPPING

    whole_config = json.loads((folder / "config.json").read_bytes())
    whole_type = whole_config.get("model_type")

    # the user's other model type; a multimodal config has a second type in its text part
    if loaded_as:
        text_config = text_part(whole_config)
        text_type = text_config.get("model_type")
        if text_type not in CONFIG_MAPPING or whole_type not in CONFIG_MAPPING:
            return make_config(text_config, loaded_as), loaded_as

    # the model type of the config
    try:
        return load_config(folder, trust=False), ""
    except RopeconvError:
        if whole_type in CONFIG_MAPPING:
            raise
        raise LookupError(f"it has no model type {whole_type}") from None


def ask_own(path: str, context: int) -> dict[str, object]:
    """Return the frequencies of a checkpoint that stores them as a tensor, for a given length.

    ropeconv has written its modelling file (`--encoding buffers`): the rotary module, `StoredRope`,
    has the frequencies as the buffer `inv_freq`, which is a tensor of the checkpoint.

    Args:
        path: The folder of the checkpoint.
        context: The length in tokens.
    """
    from safetensors.torch import load_file

    # the rotary module alone, without the model around it
    config = load_config(Path(path), trust=True)
    model = load_class(config, "AutoModel", Path(path))
    rotary = sys.modules[model.__module__].StoredRope(config)

    # its frequencies, from the shard that has them
    name = "model.rotary_emb.inv_freq"
    with open(os.path.join(path, "model.safetensors.index.json"), encoding="utf-8") as index:
        shard = json.load(index)["weight_map"][name]
    rotary.inv_freq = load_file(os.path.join(path, shard))[name]
    modules = dict(read_rotary_module(rotary, "model.rotary_emb", context))
    return {"modules": modules, "class": model.__name__}


def build(text: PretrainedConfig) -> Module:
    """Return the text model of a config without weights, on the meta device.

    Only its rotary modules are on the CPU.
    """
    import torch
    from transformers import PreTrainedModel

    # random numbers for weights would take minutes, and nothing is computed with them; this changes
    # transformers for the rest of the process, which only reads frequencies
    PreTrainedModel.init_weights = lambda self: None
    model_class = class_of(text)
    for member in vars(sys.modules[model_class.__module__]).values():
        if isinstance(member, type) and "RotaryEmbedding" in member.__name__:
            keep_on_cpu(member)
    try:
        with torch.device("meta"):
            return make_model(model_class, text)
    except NotImplementedError:  # a class that looks at its own parameters while it is built
        return make_model(model_class, text)


def class_of(text: PretrainedConfig) -> type[Module]:
    """Return the class that transformers' AutoModel has for a config of a language model.

    For a config with a modelling file, the class is the class in that file which takes the config.
    """
    from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

    for auto in (AutoModel, AutoModelForCausalLM):
        # a mapping can name classes that are not there (Voxtral Realtime)
        with contextlib.suppress(KeyError, ValueError):
            entry = auto._model_mapping[type(text)]
            classes = entry if isinstance(entry, (tuple, list)) else [entry]
            first: type[Module] = classes[0]
            return first

    # no auto class has it, as for the text model of some vision models: modeling_x.py beside its
    # configuration_x.py has a class with this `config_class`
    code = importlib.import_module(type(text).__module__.replace(".configuration_", ".modeling_"))
    for name, member in vars(code).items():
        if not name.endswith("Model") or name.endswith("PreTrainedModel"):
            continue
        if not isinstance(member, type) or not issubclass(member, PreTrainedModel):
            continue
        if getattr(member, "config_class", None) is type(text):
            return member
    raise LookupError(f"{code.__name__} has no model of {type(text).__name__}")


def keep_on_cpu(rotary: type[Module]) -> None:
    """Make a rotary class compute its frequencies on the CPU, also where a model is built on meta.

    Tensors on the device "meta" have shapes and no numbers, which suffices for all other modules.
    """
    import torch

    original = rotary.__init__
    if getattr(original, "on_cpu", False):  # it was replaced for an earlier model
        return

    def init(self: Module, *args: object, **kwargs: object) -> None:
        """Take the place of `__init__`, in which the class computes its frequencies."""
        with torch.device("cpu"):
            original(self, *args, **kwargs)

    init.on_cpu = True  # type: ignore[attr-defined]
    rotary.__init__ = init


def shrink(config: PretrainedConfig) -> PretrainedConfig:
    """Return a copy of a config with as few layers as show every kind of layer.

    Args:
        config: The config of a text model, or of one with an encoder and a decoder.
    """
    config = copy.deepcopy(config)
    parts = [config]
    if getattr(config, "is_encoder_decoder", False) and hasattr(config, "encoder"):
        parts = [config.encoder.get_text_config(), config.decoder.get_text_config()]

    for part in parts:
        # the layers up to the first one of the kind that comes last, such as 6 of Gemma 3, whose
        # sixth layer is the first without a window
        layer_types = getattr(part, "layer_types", None)
        needed = 1
        if layer_types:
            first_layers = [layer_types.index(layer_type) for layer_type in set(layer_types)]
            needed = max(first_layers) + 1
        keep_layers(part, min(getattr(part, "num_hidden_layers", 1), needed))
    return config


def read_rotary_module(
    module: Module, name: str, context: int
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each set of frequencies of a rotary module, with the kind of layer that uses it.

    Args:
        module: The rotary module, which computes cosines and sines for all layers.
        name: The name of the module in the model, such as "rotary_emb_local".
        context: The length of the input in tokens.

    Yields:
        "local" for layers with a sliding window, or "global", and the frequencies as
        `read_frequencies` returns them.
    """
    # Gemma 3: a buffer with frequencies for each layer type, such as sliding_attention_inv_freq.
    # Some rope types have a second buffer, sliding_attention_original_inv_freq.
    layer_types = []
    for buffer_name, _buffer in module.named_buffers():
        is_second_buffer = buffer_name.endswith("original_inv_freq")
        if buffer_name.endswith("_inv_freq") and not is_second_buffer:
            layer_types.append(buffer_name.removesuffix("_inv_freq"))

    # most models: one set of frequencies; a module for local layers shows in its name
    if not layer_types:
        is_local = name.endswith(("_local", "_unscaled")) or "sliding_attention" in name
        frequencies = read_frequencies(module, layer_type=None, context=context)
        yield "local" if is_local else "global", frequencies
        return

    has_several_types = len(layer_types) > 1
    for layer_type in layer_types:
        # "main" is the name of layers with a window in DeepSeek V4
        has_window = "sliding" in layer_type or layer_type == "main"
        # the only set of a model is the global set
        is_local = has_window and has_several_types
        frequencies = read_frequencies(module, layer_type, context)
        yield "local" if is_local else "global", frequencies


def read_frequencies(module: Module, layer_type: str | None, context: int) -> dict[str, object]:
    """Return the frequencies of a rotary module, for a long and for a short input.

    Args:
        module: The rotary module.
        layer_type: The layer type whose frequencies are read, such as "sliding_attention"; None for
            a module that has the same frequencies for all layers.
        context: The length of the long input in tokens.

    Returns:
        "inv_freq" and "attention_factor" for the long input, and "short", the frequencies for the
        short input.
    """
    buffer_name = "inv_freq" if layer_type is None else f"{layer_type}_inv_freq"

    # Running a module of dynamic NTK or LongRoPE writes the frequencies for the length of the input
    # into the buffer. `run_module` runs the module and returns its attention factor.
    run_module(module, layer_type, positions=[0, 1])
    short_inv_freq = getattr(module, buffer_name).double().tolist()
    last_position = context - 1
    attention_factor = run_module(module, layer_type, positions=[0, last_position])
    long_inv_freq = getattr(module, buffer_name).double().tolist()
    return {
        "inv_freq": long_inv_freq,
        "short": short_inv_freq,
        "attention_factor": attention_factor,
    }


def run_module(module: Module, layer_type: str | None, positions: list[int]) -> float:
    """Run a rotary module at some positions, the first of them 0, and return its attention factor.

    The factor is its cosine at position 0. While it runs, some modules choose the frequencies in
    their buffer by the last position.

    Args:
        module: The rotary module.
        layer_type: The layer type to run, such as "sliding_attention"; None for a module without.
        positions: The positions.
    """
    import torch

    # the states only give the dtype and the device; cos(0) = 1, so cosines at 0 are the factor
    states = torch.zeros(1, len(positions), 2)
    extra = {}
    if layer_type is not None:
        extra["layer_type"] = layer_type
    ids = torch.tensor([positions])

    # modules differ in their arguments, so each form is tried in turn
    try:
        result = module(states, ids, **extra)
    except (IndexError, RuntimeError):
        try:
            # Qwen VL has three sections of positions: [3, batch, tokens]
            sections = ids[None].expand(3, 1, -1)
            result = module(states, sections, **extra)
        except RuntimeError:
            # before transformers 4.48, some modules are given only the length
            result = module(states, seq_len=positions[-1] + 1)

    if isinstance(result, tuple):
        cosines = result[0]  # then sines
    else:
        cosines = result.abs()  # complex numbers, whose absolute value is the factor
    first_row = cosines.reshape(-1, cosines.shape[-1])[0]  # that of position 0
    return float(first_row[0])


if __name__ == "__main__":
    main()
