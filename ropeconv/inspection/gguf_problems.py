"""Problems in the RoPE settings of a GGUF file, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..families.registry import by_name
from ..formats.gguf import GgufFile
from ..rope.forms import Interpolated, LongRope, Vector, Yarn
from ..runtimes.llamacpp.read_header import FREQS, LONG, SHORT, Reading
from .config_problems import Problem


def gguf_problems(reading: Reading, file: GgufFile, vectors: Mapping[str, Vector]) -> Iterator[Problem]:
    """Problems in the keys and rope tensors of a file.

    reading: what llama.cpp computes from it. vectors: its rope tensors, by name.
    """
    spec, arch = reading.spec, reading.arch
    prefix = f"{arch.name}.rope.scaling."
    if isinstance(spec.form, Yarn) and file.get(f"{prefix}original_context_length") is None:
        yield Problem(
            "original", f"yarn without original_context_length: llama.cpp assumes {spec.form.original_context}"
        )
    if reading.dead:
        keys = ", ".join(reading.dead)
        yield Problem("dead-keys", f"llama.cpp does not read {keys} of {arch.name} here; what they say has no effect")
    yield from _tensors(reading, vectors, file.get(f"{prefix}type"))
    if isinstance(spec.form, (Yarn, Interpolated)):
        original = spec.form.original_context if isinstance(spec.form, Yarn) else spec.original_context
        reach = round(spec.form.factor * original)
        if reach != spec.context:
            yield Problem(
                "context",
                f"declares context_length {spec.context}, and factor x original is {reach}: servers cap windows there",
            )
    if file.get(f"{prefix}type") == "longrope" and not isinstance(spec.form, LongRope):
        yield Problem("no-factors", "the type longrope without factor tensors in use leaves the model unscaled")
    if "local" in spec.layers and abs(reading.local_attention_factor - 1) > 1e-6:
        yield Problem(
            "window-attention-factor",
            f"attn_factor also scales the window layers, by {reading.local_attention_factor:.4f}, as no method does",
        )
    family = by_name().get(arch.family)
    for known in family.trained if family else ():
        if known.declared == spec.context and known.doubt and not known.when and not spec.scaled:
            yield Problem(
                "trained",
                f"declares {known.declared} tokens and may have been trained for {known.trained} ({known.source}); "
                f"if so pass --original-context {known.trained}",
            )


def refused_tensors(reading: Reading, vectors: Mapping[str, Vector], scaling: str | None) -> tuple[str, ...]:
    """Names of rope tensors with which llama.cpp refuses the file, since it checks that every tensor is used.

    vectors: the rope tensors of the file. scaling: its rope.scaling.type, None where it has no such key.
    """
    arch = reading.arch
    lists = arch.factors in ("always", "ignored") or (arch.factors == "longrope" and scaling == "longrope")
    takes = {LONG: lists, SHORT: lists, FREQS: bool(arch.freqs) and not (lists and arch.factors == "longrope")}
    return tuple(name for name in vectors if not takes[name])


def _tensors(reading: Reading, vectors: Mapping[str, Vector], scaling: str | None) -> Iterator[Problem]:
    refused = refused_tensors(reading, vectors, scaling)
    for name in refused:
        yield Problem("refused-tensor", f"llama.cpp does not load a {reading.arch.name} file with {name}")
    for name in vectors:
        kept = reading.arch.freqs if name == FREQS else reading.arch.factors
        if name not in refused and kept == "ignored":
            yield Problem("ignored-tensor", f"llama.cpp loads {name} and then ignores it in {reading.arch.name}")
