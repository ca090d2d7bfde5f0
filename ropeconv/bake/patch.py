"""Patches a loaded model to compute a plan or recipe, with the code that makes the reference of validation."""

from __future__ import annotations

import math
from typing import Any

from ..engines.transformers import Undo
from ..engines.transformers import patch as patch_modules
from ..errors import RopeconvError
from ..families.config import detect
from ..rope.log_n import LogN, QueryScaling, effective_scaling
from ..rope.recipe import Recipe
from ..runtimes.compare import describe
from ..runtimes.read_config import read_spec
from .plan import Plan


def patch(model: Any, recipe_or_plan: Recipe | Plan) -> Undo:
    """Makes a loaded model compute a context extension. Calling the returned function undoes it.

    model: a causal language model of transformers, loaded from the source of the plan, or unscaled for a recipe; its
    RoPE is read from its config. recipe_or_plan: what to compute. The config of the model does not change, so that
    servers and `generate` still see its own context length. Patches are undone in the reverse order.

    Raises RopeconvError for a recipe over a model that is scaled already (plan it with `Target(replace=True)`),
    BadSource for a model whose rotary modules are not of the known shape.
    """
    config = model.config.to_dict()
    family = detect(config)
    spec = read_spec(config, family)
    if isinstance(recipe_or_plan, Recipe):
        if spec.scaled and recipe_or_plan.start(spec) is not spec:
            raise RopeconvError(
                f"the model is scaled already ({describe(spec.form)}); make a plan with Target(replace=True) and patch "
                "with that, or set on_top in the recipe"
            )
        schedule = recipe_or_plan.schedule(spec)
        scale: LogN | QueryScaling | None = schedule.log_n
    else:
        schedule, result, before = recipe_or_plan.schedule, recipe_or_plan.result, recipe_or_plan.before
        if before.rotary_dim != spec.rotary_dim or not math.isclose(before.rope_theta, spec.rope_theta, rel_tol=1e-6):
            raise RopeconvError(
                f"the plan is for {recipe_or_plan.source.reference}, whose RoPE is another than the model's; load that"
            )
        scale = effective_scaling(schedule.log_n, result.log_n_approximation, result.deviation)
    return patch_modules(model, schedule, spec, scale, family.weights.q_norm or family.weights.q)
