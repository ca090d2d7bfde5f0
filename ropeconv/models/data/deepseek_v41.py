"""DeepSeek V4.1 has the list of ratios of DeepSeek V4, where 1 is one that compresses nothing but
has the base of those that do.
"""

from .deepseek_v4 import Hooks as HooksOfV4


class Hooks(HooksOfV4):
    # vllm/models/deepseek_v41/common/rope.py:47-48 (0.32.0) switches both mscale off
    attention_factor = 1.0
