"""Which mistakes are planted in which outputs; `planted.py` says how."""

from .planted import (
    Mistake,
    divisors,
    exchange_pairs,
    exchanged,
    first_half_only,
    folded,
    in_halves,
    in_json,
    in_pairs,
    of_source,
    refold,
    rest_too,
    scalar,
    set_item,
    stale,
    stored,
    times,
    with_constant,
    with_key,
    with_rows,
    within,
    without_file,
    without_key,
    without_tensor,
)
from .wrong_bakes import Change, config, lists, local, rope, setting, weights

YARN = "--yarn 16"
FOLDED = "--yarn 16 --encoding weights"
SHARED = "--yarn 16 --encoding weights --fold-into qk"
STORED = "--yarn 16 --encoding buffers"
LINEAR = "--linear 16"
LLAMA_3 = "--llama3 16"
BASE = "--theta 160000 --context 1024"
MIXED = "--mixed 16 --attention-factor 1"
LOG_N = "--yarn 16 --log-n clamped --encoding ministral3 --allow-approximate"
SHORT_AND_LONG = "--mixed 16 --attention-factor 1 --keep-short"

FIRST_KEYS = r"layers\.0\..*k_proj\.weight"
FIRST_QUERIES = r"layers\.0\..*q_proj\.weight"


def copy_long_list(settings: dict[str, object]) -> None:
    """The list of short prompts becomes that of long ones."""
    for name in ("rope_scaling", "rope_parameters"):
        part = settings.get(name)
        if isinstance(part, dict) and "long_factor" in part:
            part["short_factor"] = part["long_factor"]


# what is wrong, options, families, change
Row = tuple[str, str, str, Change]

CHECKPOINTS: tuple[Row, ...] = (
    (
        "factor 15 for 16",
        YARN,
        "llama qwen2 stablelm gemma3_text deepseek_v3 smollm3 glm4 gpt_oss qwen3_moe phi",
        rope(factor=15.0),
    ),
    (
        "theta off by 1 %",
        YARN,
        "llama qwen3 gemma2 granite smollm3 mixtral",
        rope(rope_theta=lambda old: old * 1.01),
    ),
    (
        "no attention factor",
        YARN,
        "llama gpt_neox cohere olmo2 qwen3_moe glm4 mixtral smollm3",
        rope(attention_factor=1.0),
    ),
    (
        "attention factor off by 1 %",
        YARN,
        "mixtral gemma2 qwen3 deepseek_v3",
        rope(attention_factor=1.29),
    ),
    ("betas swapped", YARN, "mixtral qwen2 granite", rope(beta_fast=1.0, beta_slow=32.0)),
    ("ramp begins later", YARN, "llama deepseek_v3 gemma2", rope(beta_slow=2.0)),
    ("ramp without rounding", YARN, "mistral stablelm olmo2", rope(truncate=False)),
    (
        "original length doubled",
        YARN,
        "llama gemma3_text gpt_neox phi smollm3 mistral",
        rope(original_max_position_embeddings=128),
    ),
    (
        "method not written",
        YARN,
        "llama gemma2 cohere deepseek_v3 olmo2 glm4 qwen3_moe",
        rope(rope_type="default"),
    ),
    ("linear for yarn", YARN, "qwen2 gpt_neox olmo2 stablelm phi", rope(rope_type="linear")),
    (
        "half of the rotated dimensions",
        YARN,
        "stablelm gpt_neox",
        rope(partial_rotary_factor=0.25, top=("rotary_pct",)),
    ),
    (
        "softmax scale forgotten",
        "--yarn 16 --mscale 1 --mscale-all-dim 1",
        "deepseek_v3",
        rope(mscale_all_dim=0.0, mscale=0.0),
    ),
    (
        "kinds of layers exchanged",
        YARN,
        "gemma3_text",
        setting(layer_types=["full_attention", "sliding_attention", "full_attention"]),
    ),
    (
        "window layers scaled too",
        LINEAR,
        "gemma3_text",
        local(rope_type="linear", factor=16.0),
    ),
    ("theta of window layers", YARN, "gemma3_text", local(rope_theta=20000.0)),
    ("a smaller window", YARN, "gemma2 gemma3_text", setting(sliding_window=16)),
    ("a window where none was", YARN, "mistral mixtral", setting(sliding_window=64)),
    (
        "layers without RoPE rotate",
        YARN,
        "smollm3 llama4_text",
        setting(no_rope_layers=[1, 1, 1, 1]),
    ),
    ("no log-n", LOG_N, "llama mistral", rope(llama_4_scaling_beta=0.0, beta=0.0)),
    (
        "log-n to another base",
        LOG_N,
        "llama mistral",
        rope(llama_4_scaling_beta=lambda old: 1.3 * old, beta=lambda old: 1.3 * old),
    ),
    ("factor upside down", LINEAR, "mistral gemma2 qwen3 phi", rope(factor=1 / 16)),
    ("factor off by 1 %", LINEAR, "llama granite cohere glm4 llama4_text", rope(factor=16.16)),
    ("theta of the source", BASE, "qwen3 phi3 mixtral smollm3", rope(rope_theta=10000.0)),
    ("theta off by 0.1 %", BASE, "mistral gemma3_text stablelm", rope(rope_theta=160160.0)),
    ("high_freq_factor 3", LLAMA_3, "llama qwen2 olmo2", rope(high_freq_factor=3.0)),
    ("low_freq_factor 2", LLAMA_3, "granite mistral gpt_neox", rope(low_freq_factor=2.0)),
    (
        "llama3 for by-parts",
        "--by-parts 16",
        "llama qwen3 cohere",
        rope(low_freq_factor=1.0, high_freq_factor=4.0),
    ),
    (
        "one frequency off by 1 %",
        MIXED,
        "llama qwen2 phi3 olmo2 deepseek_v3",
        lists(lambda old: [old[0], 1.01 * old[1], *old[2:]]),
    ),
    (
        "factors off by one",
        MIXED,
        "mistral gemma2 phi3 granite",
        lists(lambda old: [old[0], *old[:-1]]),
    ),
    ("factors backwards", MIXED, "qwen3 gpt_neox cohere", lists(lambda old: old[::-1])),
    (
        "factors upside down",
        MIXED,
        "stablelm mixtral phi3",
        lists(lambda old: [1 / value for value in old]),
    ),
    ("one list at every length", SHORT_AND_LONG, "llama qwen2", config(copy_long_list)),
    # folds
    (
        "keys by A",
        FOLDED,
        "llama mistral mixtral qwen2 qwen3 gemma2 gemma3_text phi3 stablelm gpt_neox olmo2 cohere"
        " granite smollm3 glm4",
        refold(1),
    ),
    ("fold twice", FOLDED, "llama stablelm olmo2 phi3 qwen3", refold(4)),
    ("no fold", FOLDED, "llama gemma2 mixtral smollm3", refold(0)),
    (
        "fold over dimensions that do not rotate",
        FOLDED,
        "stablelm gpt_neox phi3 glm4",
        folded(rest_too),
    ),
    (
        "fold forgotten in the last layer",
        FOLDED,
        "llama mistral mixtral qwen2 qwen3 gemma2 olmo2 phi3 stablelm gpt_neox granite cohere glm4",
        refold(0, r"layers\.1\."),
    ),
    (
        "last layer folded twice",
        FOLDED,
        "llama qwen3 gpt_neox phi3",
        refold(4, r"layers\.1\."),
    ),
    (
        "biases not folded",
        FOLDED,
        "qwen2 gpt_neox phi",
        refold(0, r"\.bias$"),
    ),
    ("half of the heads", FOLDED, "llama granite mistral", folded(first_half_only, "weight")),
    (
        "half of the heads of the last layer",
        FOLDED,
        "llama granite mistral gemma2",
        folded(first_half_only, r"layers\.1\..*weight"),
    ),
    ("keys and not queries", SHARED, "llama qwen2 mistral", refold(0, "q_proj|q_norm")),
    ("queries and not keys", SHARED, "llama qwen3 granite", refold(0, "k_proj|k_norm")),
    (
        "queries of the last layer not folded",
        SHARED,
        "llama qwen3 olmo2",
        refold(0, r"layers\.1\..*q_(proj|norm)"),
    ),
    # stored frequencies
    ("stored frequencies of the source", STORED, "llama qwen2 mistral", stored(stale)),
    ("one stored frequency", STORED, "llama qwen3 mistral", stored(times(7, 1.01))),
    ("stored frequencies backwards", STORED, "llama qwen2", stored(lambda old: old.flip(0))),
    # layouts
    (
        "keys in pairs",
        YARN,
        "llama mistral granite qwen2",
        weights(FIRST_KEYS, exchange_pairs),
    ),
    ("queries in pairs", LINEAR, "llama olmo2 smollm3", weights(FIRST_QUERIES, exchange_pairs)),
)


KEYS = "--yarn 4 --encoding keys"
KEYS_WITH_FACTOR = "--yarn 4 --attention-factor 1.3 --encoding keys"
TENSOR = "--mixed 4 --encoding tensor"
YARN_4 = "--yarn 4"
LINEAR_4 = "--linear 4"
GGUF: tuple[Row, ...] = (
    (
        "factor 3.5",
        YARN_4,
        "llama qwen2 qwen3 gemma2 qwen3_moe deepseek_v3 smollm3 granite",
        with_key("rope.scaling.factor", 3.5),
    ),
    (
        "no factor",
        YARN_4,
        "llama qwen3 cohere2 olmo2",
        without_key("rope.scaling.factor"),
    ),
    ("no type", YARN_4, "llama qwen2 gemma3_text mixtral", without_key("rope.scaling.type")),
    ("linear for yarn", YARN_4, "llama qwen3 gemma2", with_key("rope.scaling.type", "linear")),
    (
        "another original length",
        YARN_4,
        "llama qwen2 deepseek_v3 gpt_oss",
        with_key("rope.scaling.original_context_length", 128),
    ),
    (
        "no original length",
        YARN_4,
        "llama qwen3 mixtral",
        without_key("rope.scaling.original_context_length"),
    ),
    (
        "theta off by 1 %",
        YARN_4,
        "llama gemma2 qwen3_moe",
        with_key("rope.freq_base", lambda old: old * 1.01),
    ),
    ("context of the source", LINEAR_4, "llama qwen3 gemma3_text", with_key("context_length", 64)),
    (
        "attention factor off by 2 %",
        KEYS_WITH_FACTOR,
        "llama qwen2 granite",
        with_key("rope.scaling.attn_factor", lambda old: old * 1.02),
    ),
    (
        "no attention factor",
        KEYS_WITH_FACTOR,
        "llama qwen3 olmo2",
        without_key("rope.scaling.attn_factor"),
    ),
    (
        "window layers of another base",
        LINEAR_4,
        "gemma3_text",
        with_key("rope.freq_base_swa", 40000.0),
    ),
    ("one divisor off by 1 %", TENSOR, "llama phi3 granite", divisors(set_item(5, 1.01))),
    ("divisors upside down", TENSOR, "llama granite", divisors(lambda old: 1 / old)),
    (
        "divisors off by one",
        TENSOR,
        "llama granite",
        divisors(lambda old: old[[0, *range(len(old) - 1)]]),
    ),
    ("divisors of one", TENSOR, "llama phi3", divisors(lambda old: old * 0 + 1)),
    ("no divisors", TENSOR, "llama granite", without_tensor("rope_freqs.weight")),
)
CONVERSIONS: tuple[Row, ...] = (
    *GGUF[:9],
    GGUF[11],
    GGUF[15],
    (
        "keys not reordered",
        YARN_4,
        "llama mistral mixtral granite",
        with_rows(r"attn_k\.weight", in_halves),
    ),
    (
        "queries not reordered",
        LINEAR_4,
        "llama smollm3",
        with_rows(r"attn_q\.weight", in_halves),
    ),
    (
        "last layer not reordered",
        YARN_4,
        "llama mixtral granite",
        with_rows(r"blk\.1\.attn_(q|k)\.weight", in_halves),
    ),
    (
        "keys reordered",
        YARN_4,
        "qwen2 qwen3 qwen3_moe olmo2",
        with_rows(r"attn_k\.weight", in_pairs),
    ),
    (
        "values reordered",
        YARN_4,
        "llama qwen3",
        with_rows(r"attn_v\.weight", in_pairs),
    ),
)
IN_PLACE: tuple[Row, ...] = (
    ("factor 3.5", YARN_4, "llama qwen3 gemma2", scalar("rope.scaling.factor", 3.5)),
    ("original length", YARN_4, "llama qwen2", scalar("rope.scaling.original_context_length", 60)),
    ("context", LINEAR_4, "llama qwen3", scalar("context_length", 128)),
    ("one divisor", TENSOR, "llama", divisors(set_item(5, 1.01))),
)
DRAFTS: tuple[Row, ...] = (
    ("not extended", YARN_4, "llama qwen2 qwen3", of_source),
    ("factor of the target", YARN_4, "llama qwen2", rope(factor=4.0)),
    ("no attention factor", YARN_4, "llama qwen3", rope(attention_factor=1.0)),
    (
        "length of the target",
        YARN_4,
        "llama",
        rope(original_max_position_embeddings=64),
    ),
    ("fold forgotten in the last layer", FOLDED, "llama qwen3", refold(0, r"layers\.1\.")),
)
HEADS: tuple[Row, ...] = (
    ("not extended", YARN_4, "llama", of_source),
    ("factor of the target", YARN_4, "llama", rope(factor=4.0)),
    ("no attention factor", YARN_4, "llama", rope(attention_factor=1.0)),
    ("theta off by 1 %", LINEAR_4, "llama", rope(rope_theta=lambda old: old * 1.01)),
)
GGUF_DRAFTS: tuple[Row, ...] = (
    ("factor of the target", YARN_4, "llama qwen3", with_key("rope.scaling.factor", 4.0)),
    ("no type", YARN_4, "llama", without_key("rope.scaling.type")),
)
VECTOR = "inv_freq|rotary"
GRAPHS: tuple[Row, ...] = (
    ("constant of the source", YARN_4, "llama", with_constant(VECTOR, stale)),
    ("one frequency", YARN_4, "llama", with_constant(VECTOR, set_item((..., 5), 1.01))),
    ("frequencies backwards", LINEAR_4, "llama", with_constant(VECTOR, lambda old: old[..., ::-1])),
    ("config of the source", YARN_4, "llama", of_source),
    ("factor of the config", YARN_4, "llama", rope(factor=3.0)),
)
TABLES: tuple[Row, ...] = (
    ("no attention factor", YARN_4, "llama", with_constant("cache", lambda old: old / 1.138629)),
    ("cosines only", YARN_4, "llama", with_constant("cos", lambda old: old / 1.138629)),
    ("one row", YARN_4, "llama", with_constant("sin", set_item(77, 1.05))),
    ("one pair", LINEAR_4, "llama", with_constant("cos", set_item((slice(1, None), 3), 0.9))),
    ("rows of the source", LINEAR_4, "llama", with_constant("cache", lambda old: old[:64])),
    ("sines backwards", LINEAR_4, "llama", with_constant("sin", lambda old: old[:, ::-1])),
    ("config of the source", LINEAR_4, "llama", of_source),
)
ADAPTERS: tuple[Row, ...] = (
    ("base is the source", YARN_4, "llama qwen3", in_json(base_model_name_or_path="model")),
    ("another rank", YARN_4, "llama", in_json(lora_alpha=1)),
    ("scaled weights", LINEAR_4, "llama qwen3", stored(lambda old: 2 * old, "lora_B")),
    ("weights are missing", LINEAR_4, "llama", without_file("adapter_model.safetensors")),
)
PROFILES: tuple[Row, ...] = (
    ("factor 3", "", "llama qwen3", within("yarn4", rope(factor=3.0))),
    ("no attention factor", "", "llama mixtral", within("yarn4", rope(attention_factor=1.0))),
    ("configs exchanged", "", "llama gemma2", exchanged("yarn4", "linear2")),
    ("base is extended", "", "llama", exchanged("base", "linear2")),
)

TABLES_OF_CASES = {
    "checkpoint": CHECKPOINTS,
    "GGUF": GGUF,
    "conversion": CONVERSIONS,
    "in place": IN_PLACE,
    "draft": DRAFTS,
    "head": HEADS,
    "GGUF draft": GGUF_DRAFTS,
    "graph": GRAPHS,
    "tables": TABLES,
    "adapter": ADAPTERS,
    "profiles": PROFILES,
}
CASES = [
    Mistake(what, scene, family, words, change)
    for scene, rows in TABLES_OF_CASES.items()
    for what, words, families, change in rows
    for family in families.split()
]
