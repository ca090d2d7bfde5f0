"""Ask the class of a model in another process for its family, and check what it says.

`derive_family` is for people; `family_of` is the hook through which a source with an unknown
`model_type` gets its family. A family is only made where ropeconv, with that family, reads from the
config what the class computes from it.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np

from ropeconv.engines.probe import Probe, ProbeCache
from ropeconv.engines.process import ProgramProcess
from ropeconv.environment import require, user_folder, without_secrets
from ropeconv.errors import BadSource, UsageError
from ropeconv.formats.drafts import write_file
from ropeconv.formats.files import scratch
from ropeconv.formats.jsontext import JsonObject
from ropeconv.models.config import text_part, text_parts
from ropeconv.models.family import Family
from ropeconv.models.gguf import GgufSource
from ropeconv.models.open import open_source
from ropeconv.models.registry import by_model_type
from ropeconv.models.schema import Config, check_config, text_config
from ropeconv.models.source import Source
from ropeconv.models.unread_keys import unread_rope_keys
from ropeconv.rope.errors import RopeconvError, shown
from ropeconv.runtimes.read_config import read_spec, rope_dict

PATIENCE = 300.0
"""Seconds after which a class that does not answer is given up."""
FREQUENCY_TOLERANCE = 2e-4
"""The relative error of frequencies that are measured in float32."""
MOST_BYTES_OF_CODE = 4 << 20
"""Bytes of the modelling files of a repository, together."""
FACTOR_TOLERANCE = 1e-3
"""The relative error of an attention factor that is measured in float32."""
TRIED_ROPE_TYPES = {"default", "linear", "dynamic", "yarn", "longrope", "llama3"}
"""The rope types that are tried in every class."""
HERE = Path(__file__).parent
"""The folder of the program and its modules."""
FILES_OF_MODEL_TYPES = ("auto/configuration_auto.py", "auto/auto_mappings.py")
"""Files of transformers that name its model types."""


class Derivation(msgspec.Struct, frozen=True):
    """The answer of the program about the class of a model."""

    transformers: str
    """The version of transformers."""

    class_name: str = msgspec.field(name="class", default="")
    """The class that was run."""

    error: str = ""
    """Why there is no family."""

    family: JsonObject = {}
    """The fields of a family file, without its name."""

    not_derived: tuple[str, ...] = ()
    """Facts that could not be found."""

    measured: JsonObject = {}
    """The layers, frequencies and factors that the class computes from the config."""

    tried: tuple[JsonObject, ...] = ()
    """Other RoPE settings, and the frequencies that the class computes from them."""

    effective: tuple[str, ...] = ()
    """The keys about RoPE of the config that change the frequencies."""

    own_code: bool = False
    """Whether the class is in the repository of the model."""

    @property
    def origin(self) -> str:
        """The class, for sentences."""
        if self.own_code:
            return f"the model's own class {self.class_name}"
        return f"transformers {self.transformers}'s class {self.class_name}"


class DerivationProcess(ProgramProcess):
    """`program.py`, which runs classes of models without weights.

    Args:
        patience: Seconds after which a class that does not answer is given up. The process is then
            killed, and the next question starts another one.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        script = HERE / "program.py"
        super().__init__([sys.executable, "-P", "-W", "ignore", str(script)], without_secrets())

    def ask(self, folder: Path, own_code: bool) -> Derivation:
        """Return the family of a model, derived by its class in the other process.

        Args:
            folder: The folder with its config.json.
            own_code: Whether to run the modelling file in the folder, which the caller trusts.
        """
        if not self.is_running:
            self.start()
        self.send(json.dumps({"path": str(folder), "own": own_code}).encode())
        try:
            text = self.receive(self.patience)
            answer = msgspec.json.decode(text, type=Derivation)
        except TimeoutError:
            self.stop()  # else a late answer would be taken for that to the next question
            return Derivation("", error=f"its class did not answer in {self.patience:.0f} seconds")
        except (msgspec.DecodeError, UnicodeError):
            self.stop()
            return Derivation("", error="its class ended the process that ran it")
        return msgspec.structs.replace(answer, own_code=own_code)


def derive_family(model: str | Source, *, trust_remote_code: bool = False) -> Family:
    """Run the class of a model without weights, and return the family that it shows.

    A family describes how RoPE is computed from a config. It is derived also for a model type that
    ropeconv knows. The class runs in a process of its own.

    Args:
        model: A checkpoint folder, a config.json, or a name on the Hub.
        trust_remote_code: Run the modelling file of the model, if it has one.

    Raises:
        BadSource: The class is not there, or no family can describe it.
    """
    source = model if isinstance(model, Source) else open_source(model)
    if isinstance(source, GgufSource):
        raise BadSource(
            f"{source.reference} is a GGUF file, whose architecture llama.cpp defines; give a"
            " checkpoint with config.json"
        )

    # check that there is code to run: the modelling file of the model, or a class of transformers
    config = source.config()
    if trust_remote_code:
        if not config.get("auto_map"):
            raise UsageError(
                "--trust-remote-code has no effect, since config.json names no code in auto_map;"
                " leave it out"
            )
        missing = _missing_code(source)
        if missing:
            raise BadSource(
                f"config.json names {missing} in auto_map, and {source.reference} does not have it;"
                " give the whole repository, as a folder or as owner/name on the Hub"
            )
    elif not _has_class(config):
        raise BadSource(_no_class(source))

    # run the code, and make a family of what it shows
    answer = ask(source, trust_remote_code)
    if answer.error:
        raise BadSource(_refusal(source, answer))
    try:
        return describe(source, answer)
    except BadSource as problem:
        # By the derived family ropeconv would read another RoPE than the class computes, and the
        # message ends with "so it cannot be extended". Name a family that people have written for
        # this model type, if there is one.
        known_family = by_model_type().get(_model_type(config))
        if known_family is None or known_family.refuse:
            raise
        raise BadSource(
            f"{problem}; ropeconv has a description of this model_type, the family"
            f" {known_family.name}, with which it can be"
        ) from None


def family_of(source: Source) -> Family | None:
    """Return the family of a source whose `model_type` is unknown; None without its class.

    Raises:
        BadSource: The class is there, and no family can describe it.
    """
    if not Probe.available() or not _has_class(source.config()):
        return None
    return derive_family(source)


def ask(source: Source, own_code: bool) -> Derivation:
    """Return the family of a model, derived by running its class in another process.

    A family says how RoPE is computed from the config: the keys, the layers, the tensors. The
    answer is taken from the user's cache if this config was asked about before, with the same
    versions of transformers, torch and this package.

    Args:
        source: The model.
        own_code: Whether to run its own modelling file, whose answer is never cached.
    """
    require("torch", "running the class of a model")
    require("transformers", "running the class of a model")
    config = source.config()

    # an answer in the cache; answers of a model's own code are not there, since the key of the
    # cache does not have the code
    cache_file = None
    if not own_code:
        config_text = json.dumps(config, sort_keys=True)
        cache_file = _cache_file(config_text, _model_type(config))
    if cache_file is not None:
        with suppress(OSError, msgspec.DecodeError, UnicodeError):
            return msgspec.json.decode(cache_file.read_bytes(), type=Derivation)

    # else its class is run, in a process of its own
    with scratch() as folder, DerivationProcess() as process:
        write_file(folder / "config.json", json.dumps(config))
        if own_code:
            _copy_code(source, folder)
        answer = process.ask(folder, own_code)

    has_answered = answer.transformers != ""  # empty where the process ended or took too long
    if cache_file is not None and has_answered:
        with suppress(OSError, RopeconvError):
            cache_file.parent.mkdir(parents=True, exist_ok=True)
            write_file(cache_file, msgspec.json.encode(answer).decode())
    return answer


def _missing_code(source: Source) -> str:
    """Return the first file of code that config.json names and a source does not have; else empty.

    auto_map of {"AutoConfig": "configuration_x.XConfig"} names configuration_x.py. A class of
    another repository, "owner/name--configuration_x.XConfig", gives a file
    "owner/name--configuration_x.py", which no source has: nothing is downloaded from there.
    """
    auto_map = source.config().get("auto_map")
    if not isinstance(auto_map, dict):
        return ""
    present_files = {file.name for file in source.files()}
    for value in auto_map.values():
        classes = value if isinstance(value, list) else [value]  # a tokenizer has two classes
        for reference in classes:
            if not isinstance(reference, str):
                continue
            module, _, _ = reference.rpartition(".")
            file_of_class = f"{module}.py"
            if file_of_class not in present_files:
                return file_of_class
    return ""


def _copy_code(source: Source, folder: Path) -> None:
    """Copy the modelling files of a source into a folder."""
    size = 0
    for file in source.files():
        if "/" in file.name or not file.name.endswith(".py"):
            continue
        size += file.size
        if size > MOST_BYTES_OF_CODE:
            raise BadSource(
                f"the code of {source.reference} has more than {MOST_BYTES_OF_CODE:,} bytes"
            )
        source.copy(file.name, folder / file.name)


def _cache_file(config_text: str, model_type: str) -> Path | None:
    """The file of the answer to a config in the user's cache; None where nothing is cached."""
    key = ProbeCache.key(config_text, model_type, 0)
    if not key:
        return None
    digest = hashlib.sha256(key.encode())
    # other code of this package may give another answer
    for file in sorted(HERE.glob("*.py")):
        digest.update(file.read_bytes())
    try:
        return user_folder("cache") / "families" / f"{digest.hexdigest()}.json"
    except RopeconvError:
        return None


def _model_type(config: Config) -> str:
    """Return the model type of the text model of a config; empty without one."""
    part = text_config(config) or config
    return str(part.get("model_type") or config.get("model_type") or "")


def _has_class(config: Config) -> bool:
    """Whether the installed transformers names the model type of a config; nothing is imported."""
    spec = find_spec("transformers")
    if spec is None or not spec.origin:
        return False
    name = config.get("model_type")
    models = Path(spec.origin).parent / "models"
    for file in FILES_OF_MODEL_TYPES:
        with suppress(OSError):
            if f'"{name}"' in (models / file).read_text("utf-8"):
                return True
    return False


def _refusal(source: Source, answer: Derivation) -> str:
    """Return why there is no family, for a message."""
    name = shown(_model_type(source.config()))
    place = f" from {answer.origin}, which was run" if answer.class_name else ""
    message = f"no family can be derived for model_type {name}{place}: {answer.error}"
    known = by_model_type().get(_model_type(source.config()))
    if known is not None and not known.refuse:
        message += f"; ropeconv has a description of it, the family {known.name}"
    return message


def _no_class(source: Source) -> str:
    """Return why there is no class to run, for a message."""
    model_type = _model_type(source.config())
    name = shown(model_type)
    known = by_model_type().get(model_type)
    if known is not None:
        return (
            f"model_type {name} has a description already, the family {known.name}, and the"
            " installed transformers has no class from which another could be derived"
        )
    if source.config().get("auto_map") and not _missing_code(source):
        return (
            f"the installed transformers has no model_type {name}, and {source.reference} has code"
            " of its own; read it, and pass --trust-remote-code to run it"
        )
    return (
        f"the installed transformers has no model_type {name}; install a version that has it, or"
        " describe the model in a file (docs/families.md)"
    )


def describe(source: Source, answer: Derivation) -> Family:
    """Return the family of a model from the fields that were found, and check it.

    By this family, ropeconv must read the frequencies, layers and factors from config.json that the
    class has computed.

    Args:
        source: The model.
        answer: The fields of its family, found by running its class, and the numbers that the class
            has computed.

    Raises:
        BadSource: The numbers differ.
    """
    config = source.config()
    model_type = _model_type(config)
    derived_from = answer.origin  # such as "transformers 5.18.0's class LlamaModel"
    fields = {
        **answer.family,
        "name": re.sub(r"[^-\w.]", "_", model_type) or "derived",
        "display_name": answer.class_name,
        "model_types": [model_type],
        "source": f"derived from {derived_from}",  # where its facts are from, for its readers
        "origin": f"{derived_from}, from which its family is derived",  # for messages
        "derived": derived_from,  # empty in families that people have written
        "not_derived": answer.not_derived,
    }
    family = msgspec.convert(fields, Family)
    family = _with_prefixes(family, source.tensor_names() or ())

    _check_against_class(config, family, answer)
    return _with_supported_rope_types(family, answer, config)


def _with_supported_rope_types(family: Family, answer: Derivation, config: Config) -> Family:
    """Return a family with a list of the rope types, such as "yarn", that its models support.

    A type is supported if the class and ropeconv compute the same frequencies from it.

    Args:
        family: The family, by which ropeconv reads a config.
        answer: The result of running the class. `tried` has an item for each type, such as
            {"kind": "yarn", "config": {...}, "inv_freq": [...]}: a config of this type, and the
            frequencies that the class computed from it.
        config: The content of config.json.
    """
    supported_types = []

    # the type in config.json: `_check_against_class` has compared its frequencies already
    settings, _ = rope_dict(text_part(config, family), family)
    type_of_model = settings.get("rope_type", settings.get("type"))
    if type_of_model is not None and type_of_model not in TRIED_ROPE_TYPES:
        supported_types.append(type_of_model)

    # the types that were tried
    for item in answer.tried:
        if _reads_same_frequencies(item["config"], family, item["inv_freq"]):
            supported_types.append(item["kind"])

    # a family without a list supports all types
    supports_all = set(supported_types) >= TRIED_ROPE_TYPES
    if supports_all:
        return family
    writing = msgspec.structs.replace(family.writing, types=tuple(supported_types))
    return msgspec.structs.replace(family, writing=writing)


def _with_prefixes(family: Family, names: Sequence[str]) -> Family:
    """Return a family with the prefixes that the tensors of a checkpoint have.

    With language_model.model.layers.0.self_attn.q_proj.weight in the checkpoint, the prefix of a
    layer is language_model.model.layers.{layer}.

    Args:
        family: The family, with the prefix of the class that was run.
        names: The names of all tensors; empty where there is only a config.json.
    """
    weights = family.weights
    projection = re.escape(weights.fused or weights.q)
    prefixes: dict[str, None] = {}  # in the order of the tensors, each once
    for name in names:
        match = re.fullmatch(rf"(.*\.)?\d+\.{projection}\.weight", name)
        if match is not None:
            before_number = match[1] or ""
            prefixes[before_number + "{layer}."] = None
    if not prefixes:
        return family
    return msgspec.structs.replace(
        family, weights=msgspec.structs.replace(weights, layer=tuple(prefixes))
    )


def _check_against_class(config: Config, family: Family, answer: Derivation) -> None:
    """Raise BadSource where ropeconv reads another RoPE from a config than the class computes.

    Args:
        config: The content of config.json.
        family: The family by which ropeconv reads the config.
        answer: The result of running the class with the same config. `effective` has the keys that
            change its RoPE, and `measured` the RoPE as numbers, such as {"rotary_dim": 128,
            "inv_freq": {"global": [1.0, ...]}, ...} (`measure_numbers` describes its keys).
    """
    # keys on which the RoPE of the class depends, and which ropeconv does not read
    unread = unread_rope_keys(text_part(config, family), family)
    unread_with_effect = [name for name in unread if name in answer.effective]
    if unread_with_effect:
        raise BadSource(
            f"{answer.origin} computes its RoPE from {' and '.join(unread_with_effect)}, which no"
            " field of a family describes, so it cannot be extended"
        )

    # layers and sizes
    check_config(config, text_parts(config, family), family)
    read_by_ropeconv = read_spec(config, family)
    measured = answer.measured
    compared = {
        "the layers that rotate": (list(read_by_ropeconv.layers), measured["layers"]),
        "the dimensions that rotate": (read_by_ropeconv.rotary_dim, measured["rotary_dim"]),
        "the width of a head": (read_by_ropeconv.head_dim, measured["head_dim"]),
    }
    for words, (value_read, value_measured) in compared.items():
        if value_read != value_measured:
            raise BadSource(_disagreement(words, answer, value_read, value_measured))

    # frequencies of layers that see the whole context (global), and of those with a sliding window
    # that have frequencies of their own (local)
    schedule = read_by_ropeconv.current()
    frequencies = measured["inv_freq"]
    if not _same_frequencies(schedule.inv_freq, frequencies["global"]):
        raise BadSource(_disagreement("frequencies", answer))
    if "local" in frequencies:
        local = read_by_ropeconv.local_inv_freq
        if local is None or not _same_frequencies(local, frequencies["local"]):
            raise BadSource(_disagreement("frequencies of local layers", answer))

    # the attention factor
    factor_read = schedule.attention_factor
    factor_measured = measured["factor"]
    if abs(factor_read / factor_measured - 1) > FACTOR_TOLERANCE:
        raise BadSource(_disagreement("the attention factor", answer, factor_read, factor_measured))

    # queries that get longer with their position, as in Llama 4
    queries_grow = bool(measured["grows"])
    if queries_grow and read_by_ropeconv.query_scaling is None:
        raise BadSource(
            f"{answer.origin} scales its queries by the position, by keys that are not"
            " derived, so it cannot be extended"
        )


def _disagreement(words: str, answer: Derivation, ours: object = "", theirs: object = "") -> str:
    """Return a sentence that says what the class computes, and that config.json says otherwise."""
    numbers = f" ({shown(theirs)}, and config.json says {shown(ours)})" if ours or theirs else ""
    return (
        f"{answer.origin} was run, and {words} that it computes{numbers} do not follow from keys of"
        " config.json that a family can describe, so it cannot be extended"
    )


def _same_frequencies(ours: object, theirs: object) -> bool:
    """Whether two lists of frequencies are the same, within what float32 shows."""
    first = np.asarray(ours, float)
    second = np.asarray(theirs, float)
    if first.shape != second.shape:
        # a run does not show pairs at the end that do not rotate, so one list may have more zeros
        count = min(len(first), len(second))
        if first[count:].any() or second[count:].any():
            return False
        first = first[:count]
        second = second[:count]
    return bool(np.allclose(first, second, rtol=FREQUENCY_TOLERANCE, atol=1e-10))


def _reads_same_frequencies(config: Config, family: Family, inv_freq: Sequence[float]) -> bool:
    """Whether ropeconv reads from other RoPE settings what the class computes from them."""
    try:
        schedule = read_spec(config, family).current()
    except RopeconvError:
        return False
    return _same_frequencies(schedule.inv_freq, inv_freq)
