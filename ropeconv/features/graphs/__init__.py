"""Compiled graphs (ONNX, OpenVINO): their RoPE is constants, which are replaced."""

from ropeconv.rope.features import Feature

feature = Feature(
    hooks={
        "inspect_graphs": "ropeconv.features.graphs.commands:inspect_graphs",
        "compare_graphs": "ropeconv.features.graphs.commands:compare_graphs",
        "apply_graphs": "ropeconv.features.graphs.commands:apply_graphs",
        "validate_graph": "ropeconv.features.graphs.validation:validate_graph",
    },
)
