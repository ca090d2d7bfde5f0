"""The keywords of the functions of Python, for type checkers, editors and `help()`.

Written by `python -m scripts.pages` from the options of the command line; change them there.
"""

import os
from collections.abc import Sequence
from typing import Literal, TypedDict

from .models.vectors import VectorLike
from .reporting import Reporter

StrPath = str | os.PathLike[str]
Length = float | str
"""A factor (4), a number of tokens (100000), or a text with either ("4", "128k")."""


class RecipeKeywords(TypedDict, total=False):
    """A method, its settings, and modifiers.

    Attributes:
        theta: A new base.
        theta_for: A base for a length, by the scaling law.
        theta_bound: A base above the bound that keeps near tokens preferred.
        linear: Position interpolation.
        ntk: NTK-aware scaling, through the base.
        ntk_old: NTK-RoPE-old: the base times s.
        ntk_fixed: NTK-RoPE-fixed: base times s, positions divided by s^(2/r).
        mixed: NTK-RoPE-mixed: a mixture of bases.
        by_parts: NTK-by-parts as published (ramp over wavelengths).
        yarn: YaRN as every runtime computes it (ramp over dimensions).
        llama3: Llama 3.1 scaling.
        longrope: Short and long factor lists.
        piecewise: Two bases that meet at a pair.
        inv_freq: Any vector: JSON, text, .npy, .safetensors or .pt.
        dynamic: A dynamic method, materialised at the length --at.
        as_is: Keep the RoPE, rewrite the config consistently.
        mixed_exponent: Exponent e of the mixture, 0 (linear) to 1 (NTK-fixed); with --mixed
            (default: 0.625).
        alpha: Rotations in the trained context below which a pair is divided by s; with --by-parts
            (default: 1).
        beta: Rotations above which a pair is unchanged; with --by-parts (default: 32).
        beta_fast: Rotations in the trained context above which a pair is unchanged; with --yarn
            (default: 32).
        beta_slow: Rotations below which a pair is divided by s; with --yarn (default: 1).
        truncate: Round the ramp's ends to whole pairs; with --yarn (default: on).
        mscale: DeepSeek's numerator of the attention factor; with --yarn.
        mscale_all_dim: DeepSeek's denominator of the attention factor; with --yarn.
        low_freq_factor: Rotations in the trained context below which a pair is divided by s; with
            --llama3 (default: 1).
        high_freq_factor: Rotations above which a pair is unchanged; with --llama3 (default: 4).
        at: The length at which a dynamic method is frozen, in tokens; with --dynamic.
        context: The context length to reach (128k = 131072); without a method, YaRN up to 4 times.
        original_context: The trained context length, where the config declares another.
        attention_factor: Factor on cos and sin, instead of the method's own.
        temperature_slope: Slope a in sqrt(1/t) = a ln s + b (default: 0.1).
        temperature_intercept: Intercept b in sqrt(1/t) = a ln s + b (default: 1).
        log_n: Scale queries by log(position): clamped at 1, or full.
        log_n_length: Length at which the log-n scale is 1 (default: the trained context).
        on_top: Keep the scaling that the model has, and extend it further.
        keep_short: Leave prompts within the trained context unchanged, in runtimes that can switch.
    """

    theta: float
    theta_for: Length
    theta_bound: Length
    linear: Length
    ntk: Length
    ntk_old: Length
    ntk_fixed: Length
    mixed: Length
    by_parts: Length
    yarn: Length
    llama3: Length
    longrope: VectorLike
    piecewise: str
    inv_freq: VectorLike
    dynamic: str
    as_is: bool
    mixed_exponent: float
    alpha: float
    beta: float
    beta_fast: float
    beta_slow: float
    truncate: bool
    mscale: float
    mscale_all_dim: float
    low_freq_factor: float
    high_freq_factor: float
    at: Length
    context: Length
    original_context: Length
    attention_factor: float
    temperature_slope: float
    temperature_intercept: float
    log_n: Literal["clamped", "full"]
    log_n_length: Length
    on_top: bool
    keep_short: bool


class TargetKeywords(TypedDict, total=False):
    """The output: its place, format, and the runtimes that it is for.

    Attributes:
        out: The folder or GGUF file to write (default: ./NAME-METHODFACTOR or -restored), or the
            folder of several.
        in_place: Change the GGUF file itself instead of a copy.
        converter: Convert with this llama.cpp (a checkout, or its convert_hf_to_gguf.py) instead of
            ropeconv's converter.
        to: safetensors or gguf (default: the format of SOURCE); repeatable. ollama: gguf with a
            Modelfile. overrides: only print JSON for vLLM or SGLang.
        encoding: How to write the method: auto, buffers, factors, keys, ministral3, native, ramp,
            tensor, weights, carrier.
        runtime: Write a form that this runtime supports: vllm, ollama, vllm@0.30, ...; repeatable.
        outtype: Type of the weights in GGUF: auto (as stored), f32, f16, bf16, q8_0, q4_k_m, ...;
            repeatable.
        pre: The value of tokenizer.ggml.pre, for an unknown pre-tokenizer.
        carrier: Write the GGUF file as this architecture, which supports any frequencies.
        fold_into: With --encoding weights: the projections to scale by the attention factor.
        allow_approximate: Accept log-n in steps, and in GGUF the ramp of YaRN that llama.cpp
            computes; the plan says how far off it is.
        allow_untested: Also write for a --runtime where the output is untested.
        all_files: Also copy weights in other formats.
        replace: Replace the scaling that the model has.
        assume_arch_keys: Accept an unknown GGUF architecture, with the keys that all others use.
        quantized_by: The value of general.quantized_by (default: OWNER of --push).
        dual_chunk: Keep or drop dual chunk attention (Qwen2.5-1M); vLLM and SGLang support the
            method only without it.
    """

    out: StrPath
    in_place: bool
    converter: StrPath
    to: Literal["safetensors", "gguf"]
    encoding: Literal[
        "auto",
        "buffers",
        "factors",
        "keys",
        "ministral3",
        "native",
        "ramp",
        "tensor",
        "weights",
        "carrier",
    ]
    runtime: str | Sequence[str]
    outtype: str
    pre: str
    carrier: str
    fold_into: Literal["q", "k", "qk"]
    allow_approximate: bool
    allow_untested: bool
    all_files: bool
    replace: bool
    assume_arch_keys: bool
    quantized_by: str
    dual_chunk: Literal["keep", "drop"]


class RunKeywords(TypedDict, total=False):
    """The source, and how the output is written.

    Attributes:
        memory: Memory that the model must fit, such as 24GB (default: that of this machine).
        cache_type: Type of the key-value cache in it: q8_0, q4_0, fp8, ... (default: the
            runtime's).
        force: Replace an earlier output of ropeconv.
        family: Treat the model as one of this family, whatever its model_type (`ropeconv list
            families`).
        python: The Python of another environment, whose runtime is asked what it computes.
        link: Hard-link unchanged files; programs that write into them also change the source.
        checksum: Also record the hashes of copied weights.
        push: Publish the output on the Hub; without -o, weights stay on the Hub.
        private: Make the repository private.
        create_pr: Open a pull request instead of committing.
        validate: Compare logits after writing; auto: where that takes less than half a minute.
        ollama: Write a Modelfile beside the GGUF file.
        draft: A path or Hub id: also extend this draft model to the same context, as OUT-draft.
        draft_original_context: Tokens that the draft was trained on, if it declares another length.
        adapter: Also write this PEFT adapter with the output as its base, as OUT-adapter.
        staged: Leave out files that are copied unchanged.
        fsync: Wait until everything is on the disk (default: True).
        check: Check what was written before it gets its name (default: True).
        remember: Note on this machine where the source is (default: True).
        probe: A running `Probe`, which imports transformers once for several outputs.
        reporter: Receives progress, and sentences for the user.
    """

    memory: str
    cache_type: str
    force: bool
    family: str
    python: str
    link: bool
    checksum: bool
    push: str
    private: bool
    create_pr: bool
    validate: Literal["auto", "cuda", "cpu", "off"]
    ollama: bool
    draft: object
    draft_original_context: Length
    adapter: object
    staged: bool
    fsync: bool
    check: bool
    remember: bool
    probe: object
    reporter: Reporter


class ApplyKeywords(RecipeKeywords, TargetKeywords, RunKeywords, total=False):
    """All of `apply`."""


class ValidateKeywords(TypedDict, total=False):
    """How an output is run.

    Attributes:
        device: auto, cpu, cuda, cuda:1 or mps.
        dtype: auto: float32 on a CPU, elsewhere as stored.
        chunk: Tokens that the model sees at a time.
        tokens: Tokens of each spread run (512); for GGUF, run every position up to here.
        seed: Seed of the synthetic tokens.
        layer_by_layer: Read the weights layer by layer, as is done for models larger than the
            memory.
        length: Also run every position up to here, with a cache.
        text: A file, or the text itself, instead of synthetic tokens.
        server: Compare with a running vLLM, SGLang, llama-server or mlx_lm.server.
        model: Which of the models that the server runs.
        dequantised: Run a GGUF SOURCE in transformers, with its weights dequantised.
        quick: Leave out the bytes of the weights, which are compared with SOURCE.
        ignore_receipt: Accept edited files whose edits do not change what is computed.
        device_map: auto spreads the model over several devices.
        trust_remote_code: Run code of the model that ropeconv has not written.
        reporter: Receives progress, and sentences for the user.
    """

    device: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    chunk: int
    tokens: int
    seed: int
    layer_by_layer: bool
    length: Length
    text: StrPath
    server: str
    model: str
    dequantised: bool
    quick: bool
    ignore_receipt: bool
    device_map: str
    trust_remote_code: bool
    reporter: Reporter


class PushKeywords(TypedDict, total=False):
    """How an output is published.

    Attributes:
        private: Make the repository private.
        public: Publish openly even though the source is gated or private.
        create_pr: Open a pull request instead of committing.
        revision: Commit to this branch.
        commit_message: The commit message.
        exist_ok: Commit to an existing repository.
        overwrite_card: Replace a README.md that ropeconv did not write.
        base_model: The base model for the card, if the source is not on the Hub.
        token: Use this token instead of HF_TOKEN and the stored login.
        ignore_receipt: Do not compare the files with the hashes in the receipt.
        reporter: Receives progress, and sentences for the user.
    """

    private: bool
    public: bool
    create_pr: bool
    revision: str
    commit_message: str
    exist_ok: bool
    overwrite_card: bool
    base_model: str
    token: str
    ignore_receipt: bool
    reporter: Reporter
