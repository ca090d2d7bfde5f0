"""What the installed transformers and llama.cpp make of an output, before that has its final name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engines.llamacpp import loading
from ..engines.probe import Probe, ProbeCache
from ..errors import Disagreement, RopeconvError
from ..receipts.receipt import CheckRecord
from ..runtimes import find
from ..runtimes.find import ALL
from ..runtimes.rules import RUNS, SILENT
from ..validate.checks.frequencies import compare
from .checkpoint import CheckpointPlan
from .plan import GgufOutput

NOT_INSTALLED = "transformers is not installed; pip install 'ropeconv[validate]'"
Query = Callable[[Path], dict[str, Any]]


@dataclass
class OutputCheck:
    """The check of the output of a plan, called with the folder of the finished files.

    plan: what the output has to compute. query: from a folder to the answer of transformers, None where that is not
    installed. found: the result of the check, None before it and without one. reason: why there is none, or empty.
    """

    plan: CheckpointPlan
    query: Query | None
    found: CheckRecord | None = None
    reason: str = ""

    def __call__(self, folder: Path) -> CheckRecord | None:
        """The result; None where no verdict predicts that the installed transformers computes the schedule.

        Raises Disagreement where one does and it computes something else, and where one says that it computes another
        RoPE without an error, unless the plan is for other runtimes alone.
        """
        if self.query is None:
            self.reason = NOT_INSTALLED
            return None
        answer = self.query(folder)
        version = answer.get("transformers", "")
        predicted, runtimes = self.plan.predicted(version), self.plan.target.runtimes
        if predicted in SILENT and any(name in (ALL, "transformers") for name in runtimes or ("transformers",)):
            verdict = self.plan.result.verdict_of(find(f"transformers@{version}")[0])
            raise Disagreement(
                f"transformers {version}, which is installed here, computes another RoPE from this output "
                f"({verdict.reason or predicted}); install a version that `ropeconv runtimes` names, or say what the "
                "output is for, as in --runtime vllm; nothing was kept"
            )
        if predicted not in RUNS:
            self.reason = f"transformers {version or 'as installed here'} is not among those that read it exactly"
            return None
        result = self.plan.result
        if result.family.origin and answer.get("error", "").startswith("LookupError: it has no model type"):
            said = result.family.origin
            self.reason = f"transformers {version} has no such model type, so nothing was compared with {said}"
            return None
        try:
            self.found = compare(answer, result.in_config, self.plan.before, result.written_as)
        except Disagreement as problem:
            raise Disagreement(f"{problem}; nothing was kept") from None
        return self.found


@dataclass
class Decoding:
    """The check of a converted file by the installed llama.cpp, called with the folder that it is in.

    plan: of the file. reason: why it was not checked, or empty.
    """

    plan: GgufOutput
    reason: str = ""

    def __call__(self, folder: Path) -> None:
        """Raises RopeconvError where llama.cpp does not load the file or does not decode a few tokens with it."""
        if loading.available():
            problem, self.reason = loading.why_not_run(folder / self.plan.files[0].name)
            if problem:
                raise RopeconvError(
                    f"llama.cpp cannot run what was converted: {problem}; convert it with llama.cpp and patch that, or "
                    "keep safetensors; nothing was kept"
                )


def probe_query(plan: CheckpointPlan, probe: Probe) -> Query:
    """The function that asks transformers about the config in a folder: from the cache of answers, else by a probe.

    plan: of the folder. probe: a running one, which is stopped where the cache has the answer to the config of the
    plan; else its answer is put into the cache.
    """
    if plan.result.texts:
        return lambda folder: probe.ask(folder, plan.schedule.context, own=True)
    family, context = plan.result.family, plan.schedule.context
    stands_for = family.text_type if family.assumed else ""
    model_type = stands_for or str(plan.result.config.get("model_type", ""))
    planned = next(file.text for file in plan.files if file.name == "config.json") or ""
    cache = ProbeCache()
    known = cache.get(ProbeCache.key(planned, model_type, context, stands_for))
    if known is None:
        probe.prefetch(model_type)
    else:
        probe.stop()

    def ask(folder: Path) -> dict[str, Any]:
        text = (folder / "config.json").read_bytes().decode(errors="replace")
        if text == planned and known is not None:
            return known
        with Probe() if known is not None else nullcontext(probe) as running:
            answer = running.ask(folder, context, stands_for=stands_for)
        cache.put(ProbeCache.key(text, model_type, context, stands_for), answer)
        return answer

    return ask
