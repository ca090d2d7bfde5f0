"""Baked: what a trainer has to know about a baked checkpoint, from the plan of one or from its receipt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..bake import CheckpointPlan, Plan
from ..errors import BadSource, UsageError, shown
from ..families import Family
from ..families.config import text_part
from ..families.registry import by_name
from ..formats.jsontext import parse
from ..receipts.folder_original import stated
from ..receipts.receipt import RuntimeRecord
from ..runtimes.find import newest
from ..runtimes.read_config import rope_dict, rope_type
from ..runtimes.runtime import runtimes
from ..runtimes.verdict import Verdict
from ..sources import GgufSource, Source

CONFIG = "config.json"
TRANSFORMERS = "transformers"
NO_GGUF = "a GGUF file is not trained"
TO_GGUF = f"{NO_GGUF}; leave --to gguf out, train the checkpoint, and convert what comes out"


@dataclass(frozen=True)
class Baked:
    """A baked checkpoint, for a trainer.

    path: what the trainer loads, a folder or a Hub id. method: the name of the method. context, trained: tokens that
    it declares, and that its source was trained with. model_type, rope_type: of config.json. two_lists: whether short
    sequences have other frequencies. own_code: whether it needs `trust_remote_code`. encoder: whether it has no logits
    of the next token. verdicts: by the keys of the rows of transformers, status and reason.
    """

    path: str
    method: str
    context: int
    trained: int
    model_type: str
    rope_type: str
    two_lists: bool
    own_code: bool
    encoder: bool
    verdicts: Mapping[str, tuple[str, str]]

    def verdict(self, version: str) -> tuple[str, str]:
        """What a version of transformers computes: status and reason. version: empty for the newest that is known."""
        rows = [row for row in runtimes() if row.name == TRANSFORMERS]
        row = next((row for row in rows if version and row.covers(version)), None) if version else rows[-1]
        return self.verdicts.get(row.key if row else "", ("unknown", "nobody looked"))


def baked_plan(plan: Plan, path: str = "") -> Baked:
    """The checkpoint that a plan will write.

    path: what the trainer loads, where that is not the output of the plan. Raises UsageError for GGUF output.
    """
    if not isinstance(plan, CheckpointPlan):
        raise UsageError(TO_GGUF)
    text = next((file.text for file in plan.files if file.name == CONFIG), None) or plan.source.text(CONFIG) or "{}"
    return _baked(
        path or str(plan.out), plan.recipe.method.name, plan.schedule.context,
        plan.schedule.original_context, plan.schedule.short_inv_freq is not None, parse(text, CONFIG),
        by_name()[plan.family], plan.result.verdicts,
    )  # fmt: skip


def baked_output(source: Source | GgufSource, path: str = "") -> Baked:
    """An output of `ropeconv apply`, from its receipt.

    source: the output. path: what the trainer loads, where that is another place. Raises UsageError for a GGUF file,
    and where there is no receipt of these files,
    BadSource for one of a family that is not known.
    """
    if isinstance(source, GgufSource):
        raise UsageError(f"{NO_GGUF}; give the checkpoint it was made from, with the method (--yarn 4)")
    receipt = stated(source)
    if receipt is None:
        raise UsageError(
            f"{source.reference} is not an output of ropeconv as that wrote it; add the method that is to be baked "
            "(--yarn 4), or give the folder `apply` made"
        )
    family = by_name().get(receipt.family)
    if family is None:
        raise BadSource(
            f"the receipt names the family {shown(receipt.family)}, which is not known here; run apply again"
        )
    # its `model_type` may be one of ropeconv, of which there is no family
    config = parse(source.text(CONFIG) or "{}", CONFIG)
    name = source.reference.partition("@")[0] if source.kind == "hub" else source.reference
    return _baked(
        path or name, receipt.extension.method, receipt.schedule.context, receipt.schedule.original_context,
        receipt.schedule.short_inv_freq is not None, config, family, receipt.runtimes,
    )  # fmt: skip


def _baked(
    path: str,
    method: str,
    context: int,
    trained: int,
    two_lists: bool,
    config: Mapping[str, Any],
    family: Family,
    verdicts: Iterable[Verdict | RuntimeRecord],
) -> Baked:
    rules = newest(TRANSFORMERS).rule_set(family.name, str(config.get("model_type", "")))
    found, _ = rope_dict(text_part(dict(config), family), family, rules)
    return Baked(
        path=path,
        method=method,
        context=context,
        trained=trained,
        model_type=str(config.get("model_type", "")),
        rope_type=rope_type(found, rules),
        two_lists=two_lists,
        own_code="auto_map" in config,
        encoder=family.encoder,
        verdicts={one.runtime: (one.status, one.reason) for one in verdicts},
    )
