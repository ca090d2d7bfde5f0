"""What a checkpoint is now: its family, its RoPE, and the problems in its settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import BadSource
from ..families import Family
from ..families.config import detect
from ..formats.tokenizer_config import limit
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.read_file import read_file, rope_tensors
from ..runtimes.read_config import UnknownRopeType, read_spec
from ..sources.gguf import GgufSource
from ..sources.source import Origin, Source
from .config_problems import Problem, bound_problem, config_problems, limit_problem, tensor_problems
from .gguf_problems import gguf_problems

TOKENIZER = "tokenizer_config.json"


@dataclass(frozen=True)
class Inspection:
    """What a checkpoint is now: its RoPE, and what is wrong with it.

    name, title: of the model family, or of the GGUF architecture. refuse: why nothing can be baked, or empty.
    """

    source: Origin
    name: str
    display_name: str
    spec: RopeSpec
    problems: tuple[Problem, ...]
    refuse: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, stable."""
        spec, form = self.spec, self.spec.form
        return {
            "source": self.source.to_dict(),
            "family": self.name,
            "head_dim": spec.head_dim,
            "rotary_dim": spec.rotary_dim,
            "layout": spec.layout,
            "mla": spec.mla,
            "rope_type": form.kind,
            "rope": {key: list(value) if isinstance(value, tuple) else value for key, value in vars(form).items()},
            "rope_theta": spec.rope_theta,
            "attention_factor": spec.attention_factor,
            "softmax_scale": spec.softmax_scale,
            "original_context": spec.original_context,
            "context": spec.context,
            "scaled": spec.scaled,
            "layers": {kind: spec.count(kind) for kind in ("global", "local", "none")},
            "local_theta": spec.local_form.theta if spec.local_form else None,
            "refuse": self.refuse or None,
            "notes": list(spec.notes),
            "problems": [{"code": problem.code, "message": problem.message} for problem in self.problems],
            "schedule": spec.current().to_dict(),
        }  # fmt: skip


@dataclass(frozen=True)
class ConfigInspection(Inspection):
    """An inspection of a checkpoint with a config.json, and the family that was found."""

    family: Family = field(kw_only=True)


def inspect_source(source: Source | GgufSource) -> Inspection:
    """Reads a checkpoint's RoPE. Raises BadSource when it has none, or is damaged."""
    return inspect_gguf(source) if isinstance(source, GgufSource) else inspect_config(source)


def inspect_gguf(source: GgufSource) -> Inspection:
    """Reads the RoPE of a GGUF file as llama.cpp does."""
    reading = read_file(source.file)
    display_name = f"GGUF, {source.file.get('general.name', 'unnamed')}"
    problems = (*gguf_problems(reading, source.file, rope_tensors(source.file)), *bound_problem(reading.spec))
    return Inspection(source, reading.arch.name, display_name, reading.spec, problems)


def inspect_config(source: Source) -> ConfigInspection:
    """Reads the RoPE of a config.json as the newest transformers does."""
    config = source.config()
    family = detect(config)
    try:
        spec = read_spec(config, family)
    except UnknownRopeType as kind:
        raise BadSource(f"config.json has the rope_type {kind}, which transformers does not know; correct it") from None
    problems = [
        *config_problems(config, family, spec),
        *bound_problem(spec),
        *limit_problem(limit(source.text(TOKENIZER)), spec),
        *tensor_problems(source.tensor_names()),
    ]
    if source.kind == "folder" and not source.weights():
        problems.append(Problem("weights", "there are no safetensors weights here"))
    return ConfigInspection(
        source, family.name, family.display_name, spec, tuple(problems), family.refuse, family=family
    )
