"""Configurations with which trainers fine-tune an output."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "train-config": (
            "ropeconv.features.training.command",
            "Print a training config for Axolotl, LLaMA-Factory, Megatron-LM, NeMo, TRL or"
            " Unsloth.",
        )
    },
    functions={"train_config": "ropeconv.features.training.configs"},
    hooks={"training_step": "ropeconv.features.training.training:training_step"},
)
