"""Ask transformers what it computes from a config.

The text model is built small: few layers of every kind, few heads of the same width, less of
everything that does not rotate, and weights as memory has them. In a forward pass, what each layer
hands to the function that rotates queries and keys (apply_rotary_pos_emb and its relatives) is
recorded, so that it does not matter which module made it.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel

if TYPE_CHECKING:
    from typing import Any

    from . import probe_protocol

    Answer = dict[str, Any]
else:  # a program has only this folder on its path
    import probe_protocol

VERSION = str(transformers.__version__)
ROTATING_FUNCTIONS = ("apply_rotary", "apply_multimodal_rotary", "apply_interleaved_mrope")
"""How the names of functions begin that rotate queries and keys."""
BEFORE_4_48 = tuple(map(int, VERSION.split(".")[:2])) < (4, 48)
"""Whether transformers is older than 4.48."""
TYPES_THAT_COUNT_CACHED_KEYS = ("phi3", "mixtral")
"""Model types whose classes, before 4.48, take the length of the cache for the last position."""
LONGEST_WHOLE_PROMPT = 1024
"""Prompts up to this many tokens are run with all their positions."""
SHORT_PROMPT = 8
"""Tokens of a prompt that is well inside the trained length."""
WORDS_OF_UNKNOWN_MODEL_TYPE = ("does not recognize", "Unrecognized model")
"""Parts of messages of AutoConfig about a model type that it does not have."""
SMALL_SIZES = {
    "vocab_size": 320,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "ffn_hidden_size": 64,
    "intermediate_size_mlp": 64,
    "shared_expert_intermediate_size": 32,
}
"""Sizes of the vocabulary and of the MLPs, which do not rotate, in a model that is made small."""


def ask(config: Answer, question: Answer) -> Answer:
    """Return the RoPE that transformers computes from a config.json, for every layer.

    Args:
        config: The whole config.json.
        question: {"trained": 4096, "context": 16384}, the trained length and the context in tokens.

    Returns:
        The frequencies and factors, under keys that the docstring of `probe_protocol` explains.
    """
    # the config of the language model, which is a part of the config of a multimodal model
    whole_config = load(config)
    text_config = getattr(whole_config, "text_config", whole_config)
    if hasattr(whole_config, "get_text_config"):
        text_config = whole_config.get_text_config()
    if isinstance(text_config, dict):
        raise refusal_of_dictionary(whole_config)

    # a small model with the same RoPE; a model with an encoder and a decoder keeps its size
    has_encoder_and_decoder = bool(getattr(whole_config, "is_encoder_decoder", False))
    small_config = shrink(text_config)
    try:
        model = build(whole_config if has_encoder_and_decoder else small_config)
    except probe_protocol.NoModel:
        raise
    except Exception as error:
        raise probe_protocol.Refused(stage="load", error=error) from error

    # run a short and a long prompt, for which LongRoPE uses different frequencies
    try:
        short_run = forward(model, min(question["trained"], SHORT_PROMPT))
        long_run = forward(model, question["context"])
    except Exception as error:
        raise probe_protocol.Refused(stage="forward", error=error) from error

    # the RoPE of each layer, from the tables of cosines and sines; None for a layer without RoPE
    ropes: list[Answer | None] = []
    for number in range(len(decoder_layers(model))):
        if number not in long_run.calls:
            ropes.append(None)
            continue
        short_inv_freq, short_factor = read_tables(short_run.calls[number])
        inv_freq, factor = read_tables(long_run.calls[number])
        ropes.append(probe_protocol.rope(inv_freq, factor, short_inv_freq, short_factor))

    # an encoder and a decoder: the layers of both, which must have the same RoPE
    if has_encoder_and_decoder:
        middle = len(ropes) // 2
        assert ropes[:middle] == ropes[middle:], "the encoder rotates otherwise than the decoder"
        ropes = ropes[:middle]

    # the model class, and the factors on logits and queries
    other_keys: Answer = {"class": type(model).__name__}
    scaling = logit_scale(model)
    if scaling is not None:
        other_keys["scaling"] = scaling
    if long_run.query_scale is not None:
        other_keys["query_scale"] = long_run.query_scale
    return probe_protocol.answer(ropes, **other_keys)


def refusal_of_dictionary(loaded: Any) -> Exception:
    """Return how transformers fails on a text model whose config has a text_config.

    The config class of a text model keeps a text_config as a plain dictionary. Ministral 3 3B had
    such a config in its first publication.
    """
    try:
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(loaded, trust_remote_code=False)
    except Exception as error:
        return probe_protocol.Refused(stage="load", error=error)
    return probe_protocol.Unseen("it has a text_config, and its class is that of a text model")


def load(config: Answer) -> Any:
    """Return a config.json as an object of transformers, such as a LlamaConfig.

    Raises NoModel where transformers does not know its model type. Raises Refused where
    transformers fails on the config for another reason.

    Args:
        config: The whole config.json, as a dictionary.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            # code of the checkpoint never runs here, and nobody is asked on stdin
            return AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except (ValueError, KeyError) as error:
            is_unknown_type = any(words in str(error) for words in WORDS_OF_UNKNOWN_MODEL_TYPE)
            if is_unknown_type:
                raise probe_protocol.NoModel(
                    f"it has no model type {config.get('model_type')}"
                ) from None
            raise probe_protocol.Refused(stage="config", error=error) from None
        except Exception as error:
            raise probe_protocol.Refused(stage="config", error=error) from None


class Recorder:
    """Records, by decoder layer, what rotates: cos and sin, or a complex tensor.

    Only the first call of a layer is recorded, which rotates the queries. DeepSeek V4 rotates its
    values back in a later call.
    """

    def __init__(self) -> None:
        self.layer = -1
        """The layer that is running."""
        self.calls: dict[int, tuple[torch.Tensor, ...]] = {}
        self.query_scale: float | None = None
        """The factor on queries at the last position, in models that have one."""
        self.replaced: list[tuple[Any, str, Any]] = []
        """For each replaced function its module, its name and itself, for `restore`."""

    def enter(self, layer: int) -> None:
        """Record the calls that follow under a layer, which is about to run."""
        self.layer = layer
        self.calls.pop(layer, None)

    def patch(self, module: Any) -> None:
        """Put recorders in place of the rotating functions of a modelling file."""
        for name, function in list(vars(module).items()):
            if name.startswith(ROTATING_FUNCTIONS) and "vision" not in name and callable(function):
                self.replaced.append((module, name, function))
                setattr(module, name, self.record(function))
            if name.endswith("get_llama_4_attn_scale"):
                self.replaced.append((module, name, function))
                setattr(module, name, self.record_scale(function))

    def restore(self) -> None:
        """Put the replaced functions back into their modules."""
        for module, name, function in self.replaced:
            setattr(module, name, function)

    def record(self, function: Any) -> Any:
        """Return a rotating function that notes its tables: cosines and sines, or complex numbers.

        Args:
            function: A function of a modelling file, such as apply_rotary_pos_emb.
        """
        # the functions of models are f(x, cos, sin) or f(q, k, cos, sin), and with complex numbers
        # f(q, k, freqs_cis): the tables follow one or two rotated tensors
        names = list(inspect.signature(function).parameters)
        takes_one_tensor = names[1:2] == ["cos"]
        rotated = 1 if takes_one_tensor else 2

        def call(*args: Any, **kwargs: Any) -> Any:
            """Note the tables behind the rotated states, for the first call of the layer."""
            tables = []
            for value in [*args[rotated:], *kwargs.values()]:
                is_tensor = isinstance(value, torch.Tensor)
                if is_tensor and (value.is_complex() or value.is_floating_point()):
                    tables.append(value.detach())
            # a layer may call it more than once; the first call is kept
            self.calls.setdefault(self.layer, tuple(tables[:2]))
            return function(*args, **kwargs)

        return call

    def record_scale(self, function: Any) -> Any:
        """Return a function of transformers for the factor on queries, which notes its result.

        Args:
            function: A function of positions, whose result has a factor for each of them.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            scale = function(*args, **kwargs)
            self.query_scale = float(scale.flatten()[-1])
            return scale

        return call


def build(text: Any) -> Any:
    """Return the model of a config, with arbitrary weights; raise NoModel where it has no class."""
    # the methods that give weights their first values do nothing
    PreTrainedModel.init_weights = lambda self: None
    PreTrainedModel._initialize_weights = lambda self, module, *args, **kwargs: None
    model_class = class_of(text)
    if model_class is None:
        raise probe_protocol.NoModel(f"it has no model for {type(text).__name__}")
    with contextlib.suppress(Exception):
        text._attn_implementation = "eager"
    with without_initialisation():
        return model_class(text).eval()


def class_of(text: Any) -> Any:
    """Return the class of transformers that computes a config, such as LlamaModel; None if none.

    Args:
        text: The config of a text model, such as a LlamaConfig.
    """
    config_class = type(text)

    # the tables of transformers from a config class to a model class
    for auto in (AutoModel, AutoModelForCausalLM):
        classes_by_config = auto._model_mapping
        if config_class in classes_by_config:
            entry = classes_by_config[config_class]
            if isinstance(entry, (tuple, list)):  # a few configs have several classes
                return entry[0]
            return entry

    # The text model of some vision models is in no table. Its class is in modeling_x.py, beside
    # configuration_x.py, and names the config class.
    file = config_class.__module__.replace(".configuration_", ".modeling_")
    members = vars(importlib.import_module(file))
    for name in sorted(members, key=len):  # the shortest name is FooModel, not FooForSomethingModel
        if not name.endswith("Model") or name.endswith("PreTrainedModel"):
            continue
        if getattr(members[name], "config_class", None) is config_class:
            return members[name]
    return None


@contextlib.contextmanager
def without_initialisation() -> Iterator[None]:
    """Let a model be built without random weights in this block, which is faster.

    Weights then have whatever is in the memory; how queries rotate does not depend on them.
    """
    # functions of torch that write into a tensor, such as normal_
    originals = {}
    for name, function in vars(torch.nn.init).items():
        if name.endswith("_") and not name.startswith("_"):
            originals[name] = function
    try:
        for name in originals:
            setattr(torch.nn.init, name, lambda tensor, *args, **kwargs: tensor)
        yield
    finally:
        for name, function in originals.items():
            setattr(torch.nn.init, name, function)


def decoder_layers(model: Any) -> list[Any]:
    """Return the layers of a language model.

    For a model with an encoder and a decoder, these are the layers of the decoder, then the layers
    of the encoder.
    """
    if model.config.is_encoder_decoder:
        encoder = model.encoder
        if not hasattr(encoder, "layers"):
            encoder = encoder.text_model
        return [*model.decoder.layers, *encoder.layers]

    # the list is called `layers` in most classes, and `h` in those like GPT-2. It is in the model,
    # or in a module of it
    holders = (model, getattr(model, "model", None), getattr(model, "language_model", None))
    for name in ("layers", "h", "blocks"):
        for holder in holders:
            if isinstance(getattr(holder, name, None), torch.nn.ModuleList):
                return list(getattr(holder, name))

    # other classes have several stacks of layers, which run one after the other
    layers = []
    for stack in model.children():
        if isinstance(getattr(stack, "layers", None), torch.nn.ModuleList):
            layers += list(stack.layers)
    assert layers, f"{type(model).__name__} has no list of layers"
    return layers


def forward(model: Any, tokens: int) -> Recorder:
    """Run a prompt through a model, and return the cosines and sines that each layer rotates with.

    For a long prompt, the model runs only on four tokens: the positions 0, 1 and 2, and the last
    position, by which the model knows the length.

    Args:
        model: The model.
        tokens: The length of the prompt.

    Returns:
        The recorder, which has the arguments of the rotating functions for each layer.
    """
    # replace the rotating functions by functions that record their arguments
    recorder = Recorder()
    recorder.patch(sys.modules[type(model).__module__])

    # let the recorder know which layer is running; the default `number=number` gives each function
    # the number of its layer
    hooks = []
    for number, layer in enumerate(decoder_layers(model)):

        def enter(*_: Any, number: int = number) -> None:
            recorder.enter(number)

        hooks.append(layer.register_forward_pre_hook(enter))

    # the prompt
    is_long = tokens > LONGEST_WHOLE_PROMPT
    last_position = tokens - 1
    positions = [0, 1, 2, last_position] if is_long else list(range(tokens))
    input_ids = torch.zeros(1, len(positions), dtype=torch.long)
    position_ids = torch.tensor([positions])
    arguments: Answer = {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "use_cache": False,
    }
    if model.config.is_encoder_decoder:
        arguments |= {"decoder_input_ids": input_ids, "decoder_position_ids": position_ids}

    # transformers before 4.48: some classes know the length by the number of keys in the cache, so
    # the cache gets keys in place of the tokens that are left out
    counts_cached_keys = BEFORE_4_48 and model.config.model_type in TYPES_THAT_COUNT_CACHED_KEYS
    try:
        with torch.no_grad():
            if is_long and counts_cached_keys:
                arguments |= with_cache(model, tokens - len(positions))
            try:
                model(**arguments)
            except RuntimeError as error:
                # transformers 4.53: models with M-RoPE, such as Qwen2-VL, need an attention mask,
                # and fail without it in `expand`
                if "expand" not in str(error):
                    raise
                arguments["attention_mask"] = torch.ones_like(input_ids)
                model(**arguments)
    finally:
        for hook in hooks:
            hook.remove()
        recorder.restore()
    return recorder


def with_cache(model: Any, tokens: int) -> Answer:
    """Return arguments of a model: a cache with keys and values of zeros for `tokens` tokens."""
    from transformers import DynamicCache

    config = model.config
    cache = DynamicCache()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        keys = torch.zeros(1, heads, tokens, width)
        cache.update(keys, torch.zeros_like(keys), layer)
    return {"past_key_values": cache, "use_cache": True}


def read_tables(tensors: tuple[torch.Tensor, ...]) -> tuple[list[float], float]:
    """Return inv_freq and the attention factor, read from the tables that a layer rotates with.

    Args:
        tensors: Cosines and sines, or one complex tensor, each [..., positions, pairs]. Row 1 is
            position 1, at which an angle is the frequency itself.
    """

    def row_at_1(table: torch.Tensor) -> torch.Tensor:
        """Return the values at position 1, [pairs], in the first sequence of a batch."""
        rows = table.reshape(-1, table.shape[-1])
        return rows[1]

    if tensors[0].is_complex():
        row = row_at_1(tensors[0]).to(torch.complex128)
        return probe_protocol.from_cos_sin(row.real.tolist(), row.imag.tolist())

    cos_table, sin_table = tensors
    cos = row_at_1(cos_table).to(torch.float64)
    sin = row_at_1(sin_table).to(torch.float64)

    # most tables have the value of each pair twice: in both halves, or in two neighbours
    half = cos.shape[-1] // 2
    if torch.equal(cos[:half], cos[half:]):
        cos = cos[:half]
        sin = sin[:half]
    elif torch.equal(cos[0::2], cos[1::2]):
        cos = cos[0::2]
        sin = sin[0::2]
    return probe_protocol.from_cos_sin(cos.tolist(), sin.tolist())


def logit_scale(model: Any) -> float | None:
    """Return the factor on the logits of attention, from the last layer that has one."""
    for layer in reversed(decoder_layers(model)):
        for module in layer.modules():
            for name in ("scaling", "softmax_scale"):
                value = getattr(module, name, None)
                if isinstance(value, float):
                    return value
    return None


def shrink(config: Any) -> Any:
    """Return a copy of a config for a small model with the same RoPE and the same width of heads.

    The small model has fewer layers, heads and experts, and a smaller vocabulary, so it is built in
    a second. The copy of a small config is unchanged.

    Args:
        config: The config of a language model, such as a LlamaConfig.
    """
    small = copy.deepcopy(config)
    is_small_already = small.num_hidden_layers <= 8 and small.hidden_size <= 1024
    if is_small_already:
        return small

    # Gemma 4: the number of heads differs by layer, and transformers allows access to
    # `num_attention_heads` only while this flag is set
    # (transformers/integrations/heterogeneity/configuration_utils.py)
    small.allow_global_per_layer_attribute_access = True

    # layers and heads
    shrink_layers(small)
    has_latent_attention = hasattr(small, "qk_rope_head_dim")
    if has_latent_attention:  # the width of its heads does not depend on these sizes
        small.num_attention_heads = 2
        small.num_key_value_heads = 2
        small.hidden_size = 256
    else:
        shrink_heads(small)

    # the vocabulary and the MLPs
    for name, small_size in SMALL_SIZES.items():
        if getattr(small, name, None):
            setattr(small, name, small_size)
    small.pad_token_id = None  # the id may be too large for the smaller vocabulary

    # at most 8 experts in one group, of which a token uses at most 2
    for name in ("num_local_experts", "n_routed_experts", "num_experts"):
        experts = getattr(small, name, None) or 0
        if experts > 8:
            setattr(small, name, 8)
    for name in ("n_group", "topk_group"):
        if getattr(small, name, None):
            setattr(small, name, 1)
    experts_per_token = getattr(small, "num_experts_per_tok", None) or 0
    if experts_per_token > 2:
        small.num_experts_per_tok = 2

    small.allow_global_per_layer_attribute_access = False
    return small


def shrink_layers(config: Any) -> None:
    """Reduce the number of layers in a config, so that one layer of each kind remains.

    For Gemma 3, where five layers with a window and one without alternate, six layers remain.

    Args:
        config: The config of a language model, which is changed.
    """
    # a list with the kind of each layer: "sliding_attention" and "full_attention", or in
    # no_rope_layers 1 for a layer with RoPE and 0 for a layer without
    layer_kinds = getattr(config, "layer_types", None) or getattr(config, "no_rope_layers", None)
    # or the number of layers after which the kinds repeat
    pattern = getattr(config, "sliding_window_pattern", None)

    layers_needed = 2  # for a config without kinds of layers
    if layer_kinds:
        first_layer_of_each_kind = [layer_kinds.index(kind) for kind in set(layer_kinds)]
        layers_needed = max(first_layer_of_each_kind) + 1
    elif isinstance(pattern, int):
        layers_needed = pattern
    config.num_hidden_layers = min(config.num_hidden_layers, layers_needed)

    # shorten the lists with a value for each layer
    for name in ("layer_types", "no_rope_layers", "mlp_layer_types", "moe_layers"):
        values = getattr(config, name, None)
        if isinstance(values, list):
            setattr(config, name, values[: config.num_hidden_layers])


def shrink_heads(config: Any) -> None:
    """Reduce the number of attention heads in a config, without changing the width of a head.

    32 query heads of width 128, a hidden size of 4096 and 8 key heads become 2 query heads of width
    128, a hidden size of 256 and 1 key head.

    Args:
        config: The config of a language model, which is changed.
    """
    query_heads = config.num_attention_heads
    key_heads = query_heads
    for name in ("num_key_value_heads", "num_kv_heads"):
        if getattr(config, name, None):
            key_heads = getattr(config, name)
            break
    query_heads_per_key_head = max(1, query_heads // key_heads)

    # Query heads: the smallest number from 2 on that divides the old number. The hidden size is
    # divided by the same quotient, which must leave no remainder.
    new_query_heads = query_heads
    for candidate in range(2, query_heads + 1):
        divides_heads = query_heads % candidate == 0
        quotient = query_heads // candidate
        divides_hidden_size = config.hidden_size % quotient == 0
        if divides_heads and divides_hidden_size:
            new_query_heads = candidate
            break

    # Hidden size. Usually the width of a head is hidden size / heads, so both numbers shrink alike.
    # Qwen 3 has the width in the config (head_dim), so any small hidden size does.
    head_dim = getattr(config, "head_dim", None)
    has_separate_width = isinstance(head_dim, int) and head_dim * query_heads != config.hidden_size
    if has_separate_width:
        config.hidden_size = 256
    else:
        config.hidden_size = config.hidden_size * new_query_heads // query_heads
    config.num_attention_heads = new_query_heads

    # Key heads: as many query heads for each key head as before, if the numbers allow it
    new_key_heads = max(1, new_query_heads // query_heads_per_key_head)
    if new_query_heads % new_key_heads != 0:
        new_key_heads = new_query_heads
    for name in ("num_key_value_heads", "num_kv_heads"):
        if getattr(config, name, None):
            setattr(config, name, new_key_heads)


torch.set_num_threads(1)
