"""Compiled graphs for tests: a Llama that torch exports to ONNX, and small ONNX models that only
rotate.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from . import models
from .stored import stored

POSITIONS, X = "position_ids", "x"


def exported(folder: Path) -> Path:
    """The tiny Llama as `checkpoint`, and its export as `onnx/model.onnx` with the weights in a
    file of their own.
    """
    models.make("llama", folder / "checkpoint")
    stored(
        lambda place: export(folder / "checkpoint", place),
        folder / "onnx",
        (__file__, *models.SOURCES),
    )
    (folder / "onnx/config.json").write_text((folder / "checkpoint/config.json").read_text())
    return folder / "onnx" / "model.onnx"


def export(checkpoint: Path, place: Path) -> None:
    """Write model.onnx with the inputs input_ids and position_ids."""
    import torch
    from transformers import AutoModelForCausalLM

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForCausalLM.from_pretrained(
                checkpoint, attn_implementation="eager"
            )

        def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
            return self.model(
                input_ids=input_ids, position_ids=position_ids, use_cache=False
            ).logits

    tokens = torch.ones(1, 12, dtype=torch.int64)
    positions = torch.arange(12)[None]
    dynamic = {name: {1: torch.export.Dim("length")} for name in ("input_ids", POSITIONS)}
    torch.onnx.export(
        Logits().eval(),
        (tokens, positions),
        place / "model.onnx",
        input_names=list(dynamic),
        output_names=["logits"],
        dynamic_shapes=dynamic,
        dynamo=True,
        external_data=True,
        verbose=False,
    )


def logits(checkpoint: Path, tokens: np.ndarray) -> np.ndarray:
    """What transformers computes from a checkpoint, float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        return model(torch.tensor(tokens), use_cache=False).logits.numpy()


def rotating(
    path: Path,
    *vectors: np.ndarray,
    factor: float | None = None,
    length: Any = "length",
    **more: Any,
) -> Path:
    """An ONNX model of cos and sin at positions, of each vector of frequencies.

    factor: by which it multiplies them. length: of its input, a number where that is fixed. more:
    `opset`, and `mask`, another constant.
    """
    from onnx import TensorProto, helper

    # positions as a column, [1, length, 1]
    nodes = [
        helper.make_node("Cast", [POSITIONS], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["axis"], value=constant("axis", np.array([2], np.int64))),
        helper.make_node("Unsqueeze", ["floats", "axis"], ["column"]),
    ]
    constants = []
    if "mask" in more:
        constants.append(constant("mask", more["mask"]))
    if factor is not None:
        constants.append(constant("scaling", np.float32(factor)))

    # for each vector: cos and sin of (position x frequency), times the factor
    outputs = []
    for number, vector in enumerate(vectors):
        suffix = str(number) if number else ""
        inv_freq = f"inv_freq{suffix}"
        frequencies = f"frequencies{suffix}"
        phases = f"phases{suffix}"
        constants.append(constant(inv_freq, vector[None, None]))
        nodes.append(helper.make_node("Cast", [inv_freq], [frequencies], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", ["column", frequencies], [phases]))
        for kind in ("Cos", "Sin"):
            output = f"{kind.lower()}{suffix}"
            outputs.append(output)
            if factor is None:
                nodes.append(helper.make_node(kind, [phases], [output]))
            else:
                unscaled = f"plain_{output}"
                nodes.append(helper.make_node(kind, [phases], [unscaled]))
                nodes.append(helper.make_node("Mul", [unscaled, "scaling"], [output]))
    return save(
        path,
        nodes,
        constants,
        {POSITIONS: (TensorProto.INT64, [1, length])},
        outputs,
        more.get("opset", 17),
    )


def small_graph(folder: Path) -> Path:
    """A folder with an ONNX model that only rotates, and its config.json: trained on 2,048
    tokens.
    """
    rotating(folder / "model.onnx", (10_000.0 ** (-np.arange(32) / 32)).astype(np.float32))
    return write_config(folder, max_position_embeddings=2048)


def with_tables(path: Path, cos: np.ndarray, sin: np.ndarray, external: bool = False) -> Path:
    """An ONNX model that rotates x, [1, heads, length, head_dim], with onnxruntime's
    RotaryEmbedding and its tables.
    """
    from onnx import TensorProto, helper

    rotation = helper.make_node(
        "RotaryEmbedding", [X, POSITIONS, "cos_cache", "sin_cache"], ["y"], domain="com.microsoft"
    )
    inputs = {
        X: (TensorProto.FLOAT, [1, 1, "length", 2 * cos.shape[1]]),
        POSITIONS: (TensorProto.INT64, [1, "length"]),
    }
    constants = [constant("cos_cache", cos), constant("sin_cache", sin)]
    return save(path, [rotation], constants, inputs, ["y"], 17, external)


def with_two_lists(path: Path, short: tuple[np.ndarray, ...], long: tuple[np.ndarray, ...]) -> Path:
    """An ONNX model that chooses one of two pairs of tables in branches, as onnxruntime-genai
    writes Phi 3.
    """
    from onnx import TensorProto, helper

    def branch(name: str, tables: tuple[np.ndarray, ...]) -> Any:
        names = ["cos_cache", "sin_cache"]
        nodes = [
            helper.make_node("Constant", [], [each], value=constant(each, table))
            for each, table in zip(names, tables, strict=True)
        ]
        outputs = [helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in names]
        return helper.make_graph(nodes, name, [], outputs)

    choice = helper.make_node(
        "If",
        ["longer"],
        ["cos", "sin"],
        then_branch=branch("large", long),
        else_branch=branch("small", short),
    )
    return save(path, [choice], [], {"longer": (TensorProto.BOOL, [])}, ["cos", "sin"], 17)


def in_branches(path: Path, inv_freq: np.ndarray) -> Path:
    """The same as `rotating` in both branches of a choice, with the same names, as optimum merges
    decoders.
    """
    import onnx
    from onnx import TensorProto, helper

    inner = onnx.load(rotating(path, inv_freq)).graph
    branch = helper.make_graph(inner.node, "branch", [], inner.output, inner.initializer)
    choice = helper.make_node(
        "If", ["first"], ["cos", "sin"], then_branch=branch, else_branch=branch
    )
    inputs = {"first": (TensorProto.BOOL, []), POSITIONS: (TensorProto.INT64, [1, "length"])}
    return save(path, [choice], [], inputs, ["cos", "sin"], 17)


def constant(name: str, array: np.ndarray) -> Any:
    from onnx.numpy_helper import from_array

    return from_array(np.asarray(array), name)


def save(
    path: Path,
    nodes: list[Any],
    constants: list[Any],
    inputs: dict[str, Any],
    outputs: list[str],
    opset: int,
    external: bool = False,
) -> Path:
    """Write an ONNX model. external: its constants in PATH.data."""
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        constants,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    path.parent.mkdir(exist_ok=True)
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=9),
        path,
        save_as_external_data=external,
        location=f"{path.name}.data",
        size_threshold=0,
    )
    return path


def write_config(folder: Path, **changes: Any) -> Path:
    """Write the config.json of a Llama of 64 dimensions a head, trained on 64 tokens."""
    config = {**models.COMMON, "model_type": "llama", "rope_theta": 10000.0, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(path: Path, **inputs: np.ndarray) -> list[np.ndarray]:
    from onnxruntime import InferenceSession

    return [
        np.asarray(output)
        for output in InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)
    ]
