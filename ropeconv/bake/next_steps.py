"""The commands that follow an output: they train it, run it and check it.

Each works where it is printed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..formats.package_data import render
from ..inspection.memory.runtime import MEMORY
from ..inspection.receipts.places import find_source
from ..inspection.receipts.receipt import RuntimeRecord
from ..inspection.receipts.storage import has_receipt
from ..models.gguf import GgufSource
from ..models.purpose import Purpose, checkpoint_purpose
from ..models.source import Source
from ..rope.errors import command_line
from ..runtimes.llamacpp.archs import Arch, arch_of_header, assumed_keys
from ..runtimes.llamacpp.purpose import (
    diffusion_schedule,
    gives_no_logits,
    predicts_no_next_token,
    purpose_of,
)
from ..runtimes.runtime import RUNS
from ..runtimes.verdict import Verdict
from .fits import CACHE_SETTINGS, formulas_of, runtimes_with
from .plan import GgufOutput, Plan
from .projector import find_projector
from .shown_runtime import shown_runtime

PORTS = {"vllm": 8000, "sglang": 30000, "llama-cpp": 8080}
"""Where the servers that `validate` compares listen by default."""


@dataclass(frozen=True)
class NextSteps:
    """The answers to what people ask of an output, and the commands that follow it.

    Texts are empty where there is nothing to say or to do.
    """

    fits: str = ""
    """Whether the output fits the machine, and the longest context that does."""
    quality: str = ""
    """The measured losses of its method, or the command that measures them."""
    train: str = ""
    """Makes the config of a trainer, for an output that needs fine-tuning."""
    run: tuple[str, ...] = ()
    """Run the output with its whole context."""
    check: str = ""
    """Compares the output with its source."""
    images: str = ""
    """Writes the projector of a vision model, where there is none."""

    def answers(self) -> list[str]:
        """Return the answers, each behind its question."""
        answers = {"Fits:": self.fits, "Quality:": self.quality}
        return [f"{question:<8} {answer}" for question, answer in answers.items() if answer]

    def lines(self) -> list[str]:
        """Return the commands with what each does, in the order in which they are run."""
        lines = []
        for title, command in (("Train:", self.train), ("Check:", self.check)):
            if command:
                lines.append(f"{title:<8} {command}")
        title = "Run:"
        for command in self.run:
            lines.append(f"{title:<8} {command}")
            title = ""
        if self.images:
            lines.append(f"{'Images:':<8} {self.images}")
        return lines


def run_commands(
    plan: Plan, path: Path, modelfile: Path | None = None, draft: Plan | None = None
) -> list[str]:
    """Return the commands that run an output with its whole context.

    For vLLM: ["vllm serve ./Qwen3-8B-yarn4 --max-model-len 131072"]. The list is empty for a
    config.json without weights, and for the draft model of another output.

    Args:
        plan: The plan of the output.
        path: The output.
        modelfile: The Modelfile for Ollama; None where none was written.
        draft: The plan of the draft model for speculative decoding; None without a draft.
    """
    is_draft = bool(plan.target.drafts_for or plan.draft)
    if plan.source.kind == "config" or is_draft:
        return []
    runtime = runtime_to_show(plan, draft)
    purpose = plan_purpose(plan)  # such as "text" or "embedding"

    # speculative decoding: what vLLM and SGLang call the kind of the draft, which is "eagle3" or
    # the like for a head that was trained for the model, and "draft_model" for a smaller model
    draft_path = None
    kind_of_draft = "draft_model"
    speculative_config = ""  # the value of vLLM's --speculative-config
    if draft is not None:
        draft_path = _quote(draft.out)
        if draft.draft is not None:  # the head of the draft plan
            kind_of_draft = draft.draft.name
        settings = {"method": kind_of_draft, "model": str(draft.out), "num_speculative_tokens": 3}
        speculative_config = shlex.quote(json.dumps(settings))

    # The template has the commands of each runtime and purpose, with places for these words.
    text = render(
        "run.jinja",
        runtime=runtime,
        purpose=purpose,
        path=_quote(path),
        folder=_quote(path.parent),
        file=shlex.quote(path.name),
        context=plan.context,
        options=options_of(plan.result.verdicts, runtime),
        cache_option=_cache_option(plan, runtime),
        # names of the model in LM Studio and in Ollama
        model=shlex.quote(path.stem.lower()),
        ollama=_ollama_name(path),
        modelfile=_quote(modelfile),
        # llama.cpp's file with the vision part; a program that runs an encoder; and options for a
        # diffusion language model
        mmproj=_quote(find_projector(plan)),
        pipeline=feature_extraction(str(path)),
        schedule=_diffusion_options(plan, purpose),
        # speculative decoding
        draft=draft_path,
        kind=kind_of_draft,
        speculation=speculative_config,
    )
    return text.splitlines()


def _quote(path: Path | None) -> str | None:
    """Return a path as a word for a shell; None for None."""
    return None if path is None else shlex.quote(str(path))


def _arch_of(plan: GgufOutput) -> Arch:
    """Return the architecture of an output; an unknown one where the plan accepts that."""
    with assumed_keys(plan.target.assume_arch_keys):
        return arch_of_header(plan.start)


def why_not_compared(plan: Plan) -> str:
    """Return why nothing compares the logits of an output; empty where `validate` does."""
    if plan.source.kind == "config":
        return "validating runs a model, and this source has no weights"
    if plan.target.in_place:
        return "the file is changed in place, and its source is gone then"
    if plan.draft:
        return "nothing runs a draft model of this kind without its target"
    if isinstance(plan, GgufOutput) and gives_no_logits(plan.start, _arch_of(plan)):
        return "llama.cpp gives no logits of this model"
    return ""


def check_command(plan: Plan, path: Path, computed_here: bool = True, against: str = "") -> str:
    """Return the `ropeconv validate` command that checks an output; empty where nothing does.

    It is as short as it can be and works when it is pasted: --against is left out where `validate`
    finds the source without it.

    Args:
        plan: The plan of the output.
        path: The output.
        computed_here: Whether the installed transformers computes the output; else a running server
            is compared.
        against: The source, if it is not the source of the plan.
    """
    if why_not_compared(plan) or not has_receipt(path):
        return ""

    # ropeconv validate OUT --against SOURCE
    words = ["validate", str(path)]
    is_found_without = not against and _is_found(plan, path)
    if not is_found_without:
        words += ["--against", against or plan.source.reference]
    if not computed_here:
        # the installed transformers would compute another model, so a server is asked
        port = PORTS.get(runtime_to_show(plan))
        if port is None:
            return ""
        words += ["--server", f"http://localhost:{port}"]
    return command_line(*words)


def plan_purpose(plan: Plan) -> Purpose:
    """Return what the output of a plan is run for."""
    if isinstance(plan, GgufOutput):
        return purpose_of(plan.start, _arch_of(plan))
    assert isinstance(plan.source, Source)
    return checkpoint_purpose(plan.source)


def reads_both_directions(plan: Plan) -> bool:
    """Return whether an output predicts no next token: it is an encoder or a diffusion model."""
    if isinstance(plan, GgufOutput):
        return predicts_no_next_token(plan.start, _arch_of(plan))
    assert isinstance(plan.source, Source)
    return plan.source.family.encoder


def feature_extraction(path: str) -> str:
    """Return a program for `python -c` that embeds a text with an encoder, quoted for a shell."""
    return shlex.quote(
        "from transformers import pipeline; print(pipeline('feature-extraction',"
        f" {path!r})('Hello'))"
    )


def runtime_to_show(plan: Plan, draft: Plan | None = None) -> str:
    """Return the runtime with which an output is run in the commands that are shown to the user.

    The runtime supports the output, and the draft model if there is one. The runtimes that the user
    names with --runtime come first, then vLLM, SGLang and transformers, or llama.cpp for GGUF.

    Args:
        plan: The plan of the output.
        draft: The plan of the draft model for speculative decoding; None without a draft.

    Returns:
        The name, such as "vllm"; empty where no runtime supports the output.
    """
    # one verdict for each version of a runtime, such as "vllm@0.33"; with a draft, only for
    # versions that run the draft too
    verdicts = plan.result.verdicts
    if draft is not None:
        runs_draft = {
            verdict.runtime for verdict in draft.result.verdicts if verdict.status in RUNS
        }
        verdicts = tuple(verdict for verdict in verdicts if verdict.runtime in runs_draft)

    # with --cache-type q8_0, only runtimes that offer this type of KV cache
    target = plan.target
    cache_type = plan.asked.cache_type  # empty without the option
    runtimes_with_type = runtimes_with(cache_type, plan.shape, plan.is_folder)
    return shown_runtime(
        verdicts,
        plan.is_folder,
        named=target.runtimes,
        allow_untested=target.allow_untested,
        candidates=runtimes_with_type,
    )


def options_of(verdicts: Iterable[Verdict | RuntimeRecord], name: str) -> str:
    """Return the options with which a runtime is started, after a blank; empty for none.

    Args:
        verdicts: Those on an output, each runtime's from its oldest version to the newest, which
            counts.
        name: The runtime, without a version.
    """
    options = ""
    for verdict in verdicts:
        if verdict.runtime.partition("@")[0] == name:
            options = verdict.options
    return f" {options}" if options else ""


def _cache_option(plan: Plan, runtime: str) -> str:
    """Return the option of a runtime that sets the type of the KV cache, as --cache-type asks.

    For llama.cpp and `--cache-type q8_0` it is " --cache-type-k q8_0 --cache-type-v q8_0". It
    begins with a blank, so that it can be appended to a command. It is empty where no option is
    needed.

    Args:
        plan: The plan of the output. `plan.asked` has the options of the user on memory.
        runtime: The name of the runtime.
    """
    # the runtime with the same code, which is llama.cpp for koboldcpp
    runtime_in_table = formulas_of(runtime)
    if not runtime_in_table:
        return ""
    options_by_type = MEMORY[runtime_in_table].cache_options
    if runtime in CACHE_SETTINGS:
        # the same code, and another option: {"q8_0": "--quantkv 1"} for koboldcpp
        options_by_type = CACHE_SETTINGS[runtime].types

    option = options_by_type.get(plan.asked.cache_type, "")
    return f" {option}" if option else ""


def _is_found(plan: Plan, path: Path) -> bool:
    """Whether the source of an output is found on the Hub or beside it, on every machine."""
    if plan.source.commit:
        return True
    # the notes in the user's state are on this machine only, and people copy commands
    beside = find_source(path, use_state=False)
    if not beside:
        return False
    place = Path(plan.source.reference).expanduser()
    if isinstance(plan.source, GgufSource):
        place = plan.source.path
    return os.path.exists(place) and os.path.samefile(beside, place)


def _diffusion_options(plan: Plan, purpose: Purpose) -> str:
    """The options of llama-diffusion-cli for the schedule of an output; empty for other models."""
    if purpose != "diffusion" or not isinstance(plan, GgufOutput):
        return ""
    return diffusion_schedule(_arch_of(plan).name, plan.schedule.context)


def _ollama_name(path: Path) -> str:
    """A name that Ollama accepts: up to 80 of a-z, 0-9, `-`, `_` and `.`.

    It does not begin with `-` or `.`.
    """
    name = re.sub(r"[^a-z0-9._-]+|\.{2,}", "-", path.stem.lower())
    return name.strip("-.")[:80] or "model"
