"""A small config of a family, for statements about the family as a whole."""

from __future__ import annotations

from .config import Config
from .family import Family

HEADS, HEAD_DIM, CONTEXT = 8, 128, 4096


def sample_config(family: Family) -> Config:
    """The config of a model of a family, in the schema that publishers use: as few keys as its RoPE needs."""
    keys = family.keys
    config: Config = {"model_type": family.model_types[0], keys.hidden[0]: HEADS * HEAD_DIM, keys.heads[0]: HEADS}
    config[keys.layers[0]] = family.defaults.layers or 2
    config[keys.context[0]] = CONTEXT
    config[keys.theta[0]] = config["rope_theta"] = family.defaults.theta
    if family.mla:
        config |= {keys.head_dim[0]: 64, "qk_nope_head_dim": 128}
    elif family.writing.head_dim:
        config[keys.head_dim[0]] = HEAD_DIM
    if keys.partial and family.defaults.partial_rotary_factor != 1:
        config[keys.partial[0]] = family.defaults.partial_rotary_factor
    if not family.halves:
        return config
    whole: Config = {"model_type": config.pop("model_type")}
    for path in family.halves:
        *outer, last = path.split(".")
        part = whole
        for key in outer:
            part = part.setdefault(key, {})
        part[last] = dict(config)
    return whole
