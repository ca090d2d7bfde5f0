"""Zamba 2 attends over hidden states beside embeddings, so that its heads are twice as wide."""

from ..family import FamilyHooks
from ..schema import Names


class Hooks(FamilyHooks):
    keys = {"layers_block_type": Names}
    types_key = "layers_block_type"

    def head_dim(self, hidden: int, heads: int) -> int:
        return 2 * hidden // heads
