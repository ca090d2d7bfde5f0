"""Importance matrices: the inputs of each weight that a text gives, by which llama.cpp quantises."""

from ropeconv.rope.features import Feature

feature = Feature(
    commands={
        "imatrix": (
            "ropeconv.features.imatrix.command",
            "Compute an importance matrix from a text, for apply --imatrix.",
        )
    },
    functions={"imatrix": "ropeconv.features.imatrix.collecting"},
)
