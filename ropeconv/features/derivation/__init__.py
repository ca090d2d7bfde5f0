"""Derive the family of an unknown model from its class, by running it."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "family": (
            "ropeconv.features.derivation.command",
            "Print the description of a model's family, derived from its class.",
        )
    },
    functions={"derive_family": "ropeconv.features.derivation.derivation"},
    hooks={"derive_family": "ropeconv.features.derivation.derivation:family_of"},
)
