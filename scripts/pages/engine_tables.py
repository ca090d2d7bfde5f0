"""Tables of docs/runtimes.md about published models in the main engines; `tables.py` writes them
into the page.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache

from ropeconv.bake.advice import METHODS
from ropeconv.convert.encoding import ENCODINGS, CheckpointResult, EncodeRequest, try_all
from ropeconv.convert.gguf_encoding import GgufModel
from ropeconv.convert.gguf_selection import select_gguf
from ropeconv.convert.target import Target
from ropeconv.convert.to_gguf.hparams import gguf_rules, hparams, sizes_of
from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf.header import INT32, GgufHeader, GgufValue, array, f32, string, u32
from ropeconv.models.config import detect, text_part
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.runtime import GOOD, newest
from ropeconv.runtimes.verdict import Verdict

from ..laboratory.sources import published_configs

ENGINES = ("transformers", "vllm", "sglang")
MAIN = (*ENGINES, "mlx-lm", "exllamav3", "llama-cpp", "lmdeploy", "tgi")
FACTOR = 4.0
POPULAR = (
    "meta-llama--Llama-2-7b-hf",
    "meta-llama--Meta-Llama-3-8B",
    "meta-llama--Meta-Llama-3.1-8B",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct",
    "mistralai--Mistral-7B-Instruct-v0.3",
    "mistralai--Mistral-Nemo-Instruct-2407",
    "mistralai--Mixtral-8x7B-v0.1",
    "mistralai--Ministral-3-3B-Instruct-2512",
    "Qwen--Qwen2.5-7B-Instruct",
    "Qwen--Qwen2.5-VL-7B-Instruct",
    "Qwen--Qwen3-8B",
    "Qwen--Qwen3-30B-A3B",
    "Qwen--Qwen3-VL-8B-Instruct",
    "Qwen--Qwen3.5-27B",
    "google--gemma-2-9b",
    "google--gemma-3-27b-it",
    "google--gemma-4-26B-A4B",
    "microsoft--Phi-4-mini-instruct",
    "microsoft--phi-4",
    "deepseek-ai--DeepSeek-V3",
    "openai--gpt-oss-20b",
    "HuggingFaceTB--SmolLM3-3B",
    "ibm-granite--granite-3.3-8b-instruct",
    "allenai--OLMo-2-1124-7B-Instruct",
)
"""Models of the table of engines."""

CONVERTED = {"llama4": "llama4", "qwen2_5_vl": "qwen2vl", "qwen3_vl": "qwen3vl"}
"""GGUF architectures of families that llama.cpp converts and ropeconv only patches."""


@cache
def configs() -> Mapping[str, dict[str, object]]:
    """Return the published configs of the tests by model."""
    return dict(published_configs())


def extended(model: str, method: str) -> EncodeRequest:
    """Return the schedule of a method for a model, to be written into its config."""
    config = configs()[model]
    family = detect(config)
    spec = read_spec(config, family)
    base = spec.unscaled() if spec.scaled else spec
    schedule = Recipe(REGISTRY[method](FACTOR)).schedule(base)  # type: ignore[call-arg]
    return EncodeRequest(schedule, base, family, config, Target(replace=True))


@cache
def changes_nothing(model: str, method: str) -> bool:
    """Whether a method changes no frequency of a model, as llama3 of Gemma 4."""
    request = extended(model, method)
    return request.schedule.keeps_frequencies(request.spec.current())


@cache
def obstacles(model: str, method: str) -> dict[str, str]:
    """Return why engines compute no output of a method exactly, by the name of the engine.

    The output is one checkpoint for transformers, vLLM and SGLang, and one GGUF file for llama.cpp.

    Args:
        model: A published model, such as "Qwen--Qwen3-8B".
        method: The name of the method.
    """
    request = extended(model, method)
    reasons = {}
    result = best_result(model, method)
    if result is None:
        for name in ENGINES:
            reasons[newest(name).title] = "no encoding of the config can hold it"
    else:
        reasons = _failing(result)

    # llama.cpp: whether a header of this model can hold the schedule
    try:
        header = GgufHeader(3, _gguf_keys(model, request.spec), {}, 32, 0, 0)
        select_gguf(request.schedule, GgufModel(header, {}, {}), Target(to="gguf"))
    except RopeconvError as problem:
        # such as "llama cannot hold it: by keys, there is no llama3; use another --encoding"
        sentence, _, _ = str(problem).partition("; ")
        _, _, reason = sentence.rpartition(": ")
        reasons["llama.cpp"] = reason.replace("by keys, ", "in its keys ")

    # without details in brackets
    return {engine: reason.partition(" (")[0] for engine, reason in reasons.items()}


@cache
def best_result(model: str, method: str) -> CheckpointResult | None:
    """Return the checkpoint that fails in the fewest servers, and needs the fewest options.

    None where no encoding of the config holds the method.
    """
    results = try_all(extended(model, method))[0]

    def cost(result: CheckpointResult) -> tuple[int, int]:
        return len(_failing(result)), len(options(result))

    return min(results, key=cost, default=None)


def options(result: CheckpointResult) -> dict[str, str]:
    """Return the options that servers need for a checkpoint, by their titles."""
    needed = {}
    for name in ENGINES:
        verdict = _verdict(result, name)
        if verdict.options:
            needed[newest(name).title] = verdict.options
    return needed


def _gguf_keys(model: str, base: RopeSpec) -> dict[str, GgufValue]:
    """Return the keys of a GGUF file of a model, as ropeconv or llama.cpp's converter writes them.

    Args:
        model: A published model.
        base: Its unscaled RoPE.
    """
    config = configs()[model]
    family = detect(config)
    arch = CONVERTED.get(family.name)
    if arch is None:
        keys = dict(hparams(sizes_of(config, family, base), family, base, vocabulary=1))
        return {**keys, "general.architecture": string(gguf_rules(family).arch)}
    part = text_part(config, family)
    sizes = {
        "context_length": base.original_context,
        "block_count": len(base.layers),
        "embedding_length": part["hidden_size"],
        "attention.head_count": part["num_attention_heads"],
        "attention.key_length": base.head_dim,
        "rope.dimension_count": base.rotary_dim,
    }
    keys = {f"{arch}.{name}": u32(value) for name, value in sizes.items()}
    keys[f"{arch}.rope.freq_base"] = f32(base.rope_theta)
    if base.mrope_section:
        keys[f"{arch}.rope.dimension_sections"] = array(INT32, [*base.mrope_section, 0])
    return {**keys, "general.architecture": string(arch)}


def _failing(result: CheckpointResult) -> dict[str, str]:
    """The reason of each engine that does not compute a checkpoint, by its name."""
    verdicts = {name: _verdict(result, name) for name in ENGINES}
    return {
        newest(name).title: verdict.reason
        for name, verdict in verdicts.items()
        if verdict.status not in GOOD
    }


def _verdict(result: CheckpointResult, runtime: str) -> Verdict:
    return next(verdict for verdict in reversed(result.verdicts) if verdict.covers(newest(runtime)))


def engines() -> str:
    """Return the table: a model per line, a method per column."""
    names = [method for method, _ in METHODS.values()]
    lines = [
        "| model | " + " | ".join(f"`--{name} {FACTOR:g}`" for name in names) + " |",
        "|---" * 6 + "|",
    ]
    for model in POPULAR:
        cells = (_cell(model, name) for name in names)
        lines.append("| " + " | ".join((model.replace("--", "/"), *cells)) + " |")
    return "\n".join(lines)


def _cell(model: str, method: str) -> str:
    """Return the cell of a model and a method: "yes", or the engines that fail."""
    if changes_nothing(model, method):
        return "changes no frequency"
    failing = obstacles(model, method)
    if failing:
        return f"not {', '.join(failing)}"
    result = best_result(model, method)
    needed = options(result) if result is not None else {}
    if not needed:
        return "yes"
    words = f"yes, {' and '.join(needed)} with an option"
    return f"{words}, for text" if is_for_text(needed) else words


def is_for_text(needed: Mapping[str, str]) -> bool:
    """Return whether a server refuses images with the options that it needs.

    Args:
        needed: The options by the title of the server, as `options` returns them.
    """
    for name in ENGINES:
        row = newest(name)
        for option in row.options:
            if option.text_only and needed.get(row.title) == option.words:
                return True
    return False


def engines_counted() -> str:
    """Return the sentence above that table."""
    cells = [(model, method) for model in POPULAR for method, _ in METHODS.values()]
    useful = [cell for cell in cells if not changes_nothing(*cell)]
    holds = sum(not obstacles(*cell) for cell in useful)
    servers = sum(set(obstacles(*cell)) <= {"llama.cpp"} for cell in useful)
    with_option = sum("option" in _cell(*cell) for cell in cells)
    for_text = sum("for text" in _cell(*cell) for cell in cells)
    sentence = (
        f"That holds in {holds} of {len(cells)} cells ({servers} without the GGUF file), in"
        f" {with_option} of them with an option of a server"
    )
    return sentence + (f", which in {for_text} then refuses images." if for_text else ".")


def reasons() -> str:
    """Return the lines of docs/tables/engines.txt: why engines fail, and which options they need.

    A line has an engine, a reason or an option, and the models and methods where it holds.
    """
    models_by_reason: dict[tuple[str, str], list[str]] = {}
    for model in POPULAR:
        # the methods by engine and reason, such as ("vLLM", "it ignores the attention factor")
        methods_by_reason: dict[tuple[str, str], list[str]] = {}
        for method, _ in METHODS.values():
            if changes_nothing(model, method):
                continue
            for engine, reason in obstacles(model, method).items():
                methods_by_reason.setdefault((engine, reason), []).append(method)
            result = best_result(model, method)
            if result is None:
                continue
            for engine, words in options(result).items():
                with_option = (f"{engine} with an option", words)
                methods_by_reason.setdefault(with_option, []).append(method)
        for key, methods in methods_by_reason.items():
            _, _, name = model.partition("--")
            models_by_reason.setdefault(key, []).append(f"{name} ({', '.join(methods)})")

    lines = []
    for (engine, reason), models in sorted(models_by_reason.items()):
        lines.append(f"- {engine}: {reason}: {', '.join(models)}.")
    return "\n".join(lines)


def share() -> str:
    """Return how many verdicts on published configs in the main runtimes were run."""
    run = _grades(tuple(configs()))["run"]
    models = f"{len(configs())} published models in the newest versions of eight runtimes"
    return f"For {models}, {run:.0%} of the statuses come from running them"


def shares() -> str:
    """Return how verdicts on published configs in the main runtimes are known: on all, and on those
    of the table.
    """
    text = (
        f"{share()}; the others come from their source code or are unknown. For the {len(POPULAR)}"
        f" models of the table below, {_grades(POPULAR)['run']:.0%} come from running them."
    )
    return textwrap.fill(text, 119)


def _grades(models: Iterable[str]) -> dict[str, float]:
    """The shares of verdicts that were run, read, and that are unknown."""
    grades = Counter[str]()
    for model in models:
        for method, encoding in METHODS.values():
            with suppress(UnsupportedBake):
                result = ENCODINGS[encoding].encode(extended(model, method))
                grades.update(_verdict(result, name).grade or "unknown" for name in MAIN)
    return {grade: grades[grade] / grades.total() for grade in ("run", "read", "unknown")}
