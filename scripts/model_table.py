"""The table of models in README.md: how many families each line has, and how many of them become GGUF."""

from __future__ import annotations

import re

from ropeconv.families import families

LINES = {
    "Llama, Code World Model, SmolLM 3, Seed, Apertus": r"llama4?|mllama|cwm|smollm3|seed_oss|apertus",
    "Qwen 2 to 3.6, with experts, vision and sound": r"qwen.*",
    "Mistral, Mixtral, Ministral, Voxtral": r"mistral.*|mixtral|ministral.*|voxtral.*",
    "Gemma 1 to 4, VaultGemma, T5Gemma": r"(vault|t5)?gemma.*|(diffusion|embedding)_gemma.*",
    "DeepSeek V2 to V4, Kimi": r"deepseek.*|kimi.*",
    "GLM 4 to 5, ChatGLM": r"glm.*|chatglm",
    "gpt-oss, GPT-NeoX, GPT-J, Phi, Falcon, StarCoder 2": r"gpt_.*|gptj|phi.*|falcon.*|starcoder2",
    "Granite, OLMo, Command, Aya, LFM": r"granite.*|olmo.*|flex_olmo|molmo2|cohere.*|lfm.*",
    "MiniMax, MiniCPM, InternLM, Baichuan, Hunyuan, ERNIE, EXAONE, Ling, MiMo, Step": (
        r"minimax.*|minicpm.*|internlm.*|baichuan|hunyuan.*|hy_.*|ernie.*|exaone.*|bailing.*|mimo.*|step.*"
    ),
    "encoders: ModernBERT, NomicBERT, GTE, Jina v3, EuroBERT, UltraBERT": (
        r"modernbert|nomic_bert|gte|jina.*|eurobert|ultrabert|openai_privacy_filter"
    ),
}
"""Lines of the table, each with a pattern for the names of its families; all others are counted in the last one."""


def model_table() -> str:
    """The table, from the data of the families."""
    left = [family for family in families() if not family.refuse]
    lines = ["| models | families | as GGUF |", "|---|---|---|"]
    for title, pattern in LINES.items():
        own = [family for family in left if re.fullmatch(pattern, family.name)]
        left = [family for family in left if family not in own]
        lines.append(f"| {title} | {len(own)} | {sum(family.gguf is not None for family in own)} |")
    lines.append(f"| others | {len(left)} | {sum(family.gguf is not None for family in left)} |")
    return "\n".join(lines)
