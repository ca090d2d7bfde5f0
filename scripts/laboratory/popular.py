"""Writes 50 published models with two extensions each, and asks every runtime that is installed.

    python -m scripts.laboratory.popular --python vllm=./vllm/bin/python

`--yarn 4` and the extension that is usual for the model are written by `apply` into a config.json
as published. Where a runtime does not compute that, `apply --runtime NAME` is asked for an output
that it does. The answers of probes go into docs/evidence/popular.json, and from there into
docs/tables/popular.txt (scripts/pages/popular_tables.py). Runtimes that are asked replace their
earlier answers, and those of others stay.
"""

import argparse
import dataclasses
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec import structs

import ropeconv
from ropeconv.convert.target import Target
from ropeconv.engines.probes.installed import InstalledRuntime, find_installed
from ropeconv.formats.drafts import write_file
from ropeconv.inspection.inspection import ConfigInspection, inspect_source
from ropeconv.models.open import open_source
from ropeconv.models.source import Source
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.askable import ASKABLE
from ropeconv.runtimes.asked import asking
from ropeconv.runtimes.runtime import GOOD
from ropeconv.runtimes.verdict import PlannedConfig
from ropeconv.verbs.probing import expected_of

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
RESULTS = ROOT / "docs" / "evidence" / "popular.json"
FACTOR = 4.0
YARN = "yarn"

USUAL = {
    "01-ai--Yi-34B": "ntk",
    "CohereForAI--aya-23-8B": "ntk",
    "CohereForAI--c4ai-command-r7b-12-2024": "ntk",
    "EleutherAI--pythia-14m": "linear",
    "HuggingFaceTB--SmolLM2-1.7B-Instruct": "ntk",
    "HuggingFaceTB--SmolLM3-3B": "ntk",
    "LGAI-EXAONE--EXAONE-4.0-32B": "llama3",
    "MiniMaxAI--MiniMax-M2.5": "ntk",
    "Qwen--Qwen2-7B": "ntk",
    "Qwen--Qwen2-VL-7B-Instruct": "ntk",
    "Qwen--Qwen2.5-7B-Instruct": "ntk",
    "Qwen--Qwen2.5-VL-7B-Instruct": "ntk",
    "Qwen--Qwen3-30B-A3B": "ntk",
    "Qwen--Qwen3-8B": "ntk",
    "Qwen--Qwen3-VL-30B-A3B-Instruct": "ntk",
    "Qwen--Qwen3-VL-8B-Instruct": "ntk",
    "Qwen--Qwen3.5-27B": "ntk",
    "Qwen--Qwen3.5-35B-A3B": "ntk",
    "XiaomiMiMo--MiMo-V2-Flash": "ntk",
    "allenai--OLMo-2-1124-7B-Instruct": "ntk",
    "bigcode--starcoder2-7b": "ntk",
    "codellama--CodeLlama-7b-hf": "linear",
    "deepseek-ai--DeepSeek-R1-0528-Qwen3-8B": "ntk",
    "deepseek-ai--DeepSeek-V2-Lite": "linear",
    "deepseek-ai--DeepSeek-V3": "linear",
    "deepseek-ai--DeepSeek-V3.2": "linear",
    "google--gemma-2-9b": "linear",
    "google--gemma-3-1b-it": "linear",
    "google--gemma-3-27b-it": "linear",
    "google--gemma-3-4b-it": "linear",
    "google--gemma-4-26B-A4B": "ntk",
    "google--gemma-7b": "linear",
    "ibm-granite--granite-3.3-8b-instruct": "ntk",
    "meta-llama--Llama-2-7b-hf": "linear",
    "meta-llama--Llama-2-70b-hf": "linear",
    "meta-llama--Llama-3.2-11B-Vision-Instruct": "llama3",
    "meta-llama--Llama-3.2-1B-Instruct": "llama3",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": "llama3",
    "meta-llama--Meta-Llama-3-8B": "ntk",
    "meta-llama--Meta-Llama-3.1-8B": "llama3",
    "microsoft--Phi-4-mini-instruct": "mixed",
    "microsoft--phi-4": "ntk",
    "mistralai--Ministral-3-3B-Instruct-2512": "ntk",
    "mistralai--Mistral-7B-Instruct-v0.3": "ntk",
    "mistralai--Mistral-Nemo-Instruct-2407": "ntk",
    "mistralai--Mixtral-8x7B-v0.1": "ntk",
    "moonshotai--Kimi-K2.5": "ntk",
    "openai--gpt-oss-20b": "ntk",
    "tencent--Hunyuan-7B-Instruct": "ntk",
    "zai-org--GLM-5": "ntk",
}
"""The method beside YaRN that publishers, papers and users take for a model: the scaling of its own
family (Llama 3.1, Gemma 3), of the first long variants (Llama 2), factors (Phi), or a new base.
"""


class Answered(msgspec.Struct, frozen=True):
    """The answer of a runtime about an output."""

    status: str
    """As in `Verdict`."""

    reason: str = ""
    """The difference or the message; empty where there is nothing to say."""

    encoding: str = ""
    """How the output was written."""

    options: str = ""
    """The options of the server with which it is exact."""

    only_for: str = ""
    """The words of `apply` for an output that this runtime computes, such as "--runtime mlx-lm"."""


class Asked(msgspec.Struct, frozen=True):
    """The content of docs/evidence/popular.json."""

    versions: dict[str, str]
    """By runtime."""

    models: dict[str, dict[str, dict[str, Answered]]]
    """By model, by the words of `apply`, and by runtime."""


@dataclasses.dataclass(frozen=True)
class Output:
    """An output, or why there is none."""

    planned: PlannedConfig | None
    """The config, and the schedule in its receipt."""

    encoding: str = ""
    refusal: str = ""


def main() -> None:
    """Ask the installed runtimes that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the Python that has a runtime; those that are installed here are asked anyway",
    )
    parser.add_argument("--models", default="", metavar="A,B", help="only these, as in the table")
    given = parser.parse_args()
    elsewhere = dict(pair.split("=", 1) for pair in given.python)
    found = [find_installed(runtime.name, elsewhere.get(runtime.name, "")) for runtime in ASKABLE]
    runtimes = [runtime for runtime in found if runtime is not None]
    names = given.models.split(",") if given.models else list(USUAL)

    asked = read_results() or Asked({}, {})
    for runtime in runtimes:
        asked.versions[runtime.name] = runtime.version
    with ExitStack() as stack:
        for runtime in runtimes:
            stack.callback(runtime.stop)
        for name in names:
            rows = asked.models.setdefault(name, {})
            for words, answers in ask_model(name, runtimes).items():
                rows.setdefault(words, {}).update(answers)
                for runtime_name, answer in answers.items():
                    print(name, words, runtime_name, answer.status, answer.reason, flush=True)
    text = msgspec.json.format(msgspec.json.encode(asked, order="sorted"), indent=1).decode()
    write_file(RESULTS, text + "\n")


def read_results() -> Asked | None:
    """Return the answers of earlier runs; None without any."""
    if not RESULTS.exists():
        return None
    return msgspec.json.decode(RESULTS.read_bytes(), type=Asked)


def config_of(model: str) -> Path:
    """Return the published config of a model."""
    (path,) = DATA.glob(f"*configs/{model}.json")
    return path


def ask_model(model: str, runtimes: list[InstalledRuntime]) -> dict[str, dict[str, Answered]]:
    """Return what runtimes do with the outputs of a model, by the words of `apply` and runtime.

    A runtime that does not compute the usual output is asked about one that is written for it. Its
    answer then says that this needs `--runtime NAME`.

    Args:
        model: A published model, such as "Qwen--Qwen3-8B".
        runtimes: The runtimes.
    """
    rows: dict[str, dict[str, Answered]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copy(config_of(model), folder / "config.json")
        source = open_source(str(folder / "config.json"))
        assert isinstance(source, Source)
        for method in (YARN, USUAL[model]):
            words, recipe, replace = extension(source, method)
            usual = write_output(source, recipe, Target(replace=replace), folder)
            rows[words] = {}
            for runtime in runtimes:
                answered = ask_about(usual, runtime)
                if answered.status not in GOOD:
                    target = Target(replace=replace, runtimes=(runtime.name,))
                    with asking([runtime]):
                        own = ask_about(write_output(source, recipe, target, folder), runtime)
                    if own.status in GOOD:
                        answered = structs.replace(own, only_for=f"--runtime {runtime.name}")
                rows[words][runtime.name] = answered
    return rows


def extension(source: Source, method: str) -> tuple[str, Recipe, bool]:
    """Return how `apply` extends a model to four times its declared context.

    Args:
        source: The model.
        method: The name of the method.

    Returns:
        The words of `apply`, such as "--yarn 16 --replace", the recipe, and whether it replaces a
        scaling.
    """
    inspection = inspect_source(source)
    assert isinstance(inspection, ConfigInspection)
    spec = inspection.spec
    # a scaling is replaced by one over the trained length, so that its factor is part of the new
    factor = FACTOR
    if spec.scaled:
        factor *= max(1.0, spec.context / spec.original_context)
    words = f"--{method} {factor:g}"
    if spec.scaled:
        words += " --replace"
    return words, Recipe(REGISTRY[method](factor)), spec.scaled  # type: ignore[call-arg]


def write_output(source: Source, recipe: Recipe, target: Target, folder: Path) -> Output:
    """Write an output into a new folder, and read from it what a runtime has to compute."""
    out = Path(tempfile.mkdtemp(dir=folder)) / "out"
    try:
        plan = ropeconv.make_plan(source, recipe, dataclasses.replace(target, out=out))
        ropeconv.apply(plan, check=False)
    except RopeconvError as refusal:
        return Output(None, refusal=str(refusal))
    opened = open_source(str(out))
    assert isinstance(opened, Source)
    inspection = inspect_source(opened)
    assert isinstance(inspection, ConfigInspection)
    return Output(expected_of(inspection, opened), plan.result.encoding)


def ask_about(output: Output, runtime: InstalledRuntime) -> Answered:
    """Return what a runtime does with an output, with an option of its server if it needs one."""
    if output.planned is None:
        return Answered("not written", output.refusal)
    answer, outcome = runtime.outcome(output.planned)
    verdict = runtime.verdict_from(output.planned, answer, outcome)
    if verdict.status not in GOOD:
        verdict = runtime.verdict_with_option(output.planned, verdict) or verdict
    return Answered(verdict.status, verdict.reason, output.encoding, verdict.options)


if __name__ == "__main__":
    main()
