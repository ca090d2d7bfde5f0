"""An example of a feature: one method, encoding, measure, command, runtime and model family."""

from pathlib import Path

from ropeconv import Feature

HERE = Path(__file__).parent

feature = Feature(
    modules=("ropeconv_nimble.method", "ropeconv_nimble.encoding", "ropeconv_nimble.measure"),
    encodings=("plain",),
    commands={"hello": ("ropeconv_nimble.command", "Greet a model, with its context length.")},
    runtimes=HERE / "runtimes",
    families=HERE / "families",
)
