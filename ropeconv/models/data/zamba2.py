"""Zamba 2 attends over the hidden states beside the embeddings, so that its heads are twice as wide
as usual.
"""

from ..family import FamilyHooks
from ..schema import Names


class Hooks(FamilyHooks):
    keys = {"layers_block_type": Names}
    types_key = "layers_block_type"

    def head_dim(self, hidden: int, heads: int) -> int:
        return 2 * hidden // heads
