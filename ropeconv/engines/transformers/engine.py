"""Models in the installed transformers, which can be patched to compute a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...rope.errors import RopeconvError
from ...rope.lengths import MOST_TOKENS
from ...rope.schedule import LogN, QueryScaling, Schedule
from ...rope.spec import RopeSpec
from ..engine import Engine, Progress, TokenLosses
from .backbone import first_not_finite, has_cache, has_decoder, hidden_states, keep_head, logits, read
from .load import DeviceSpec, load_stock
from .memory import release
from .patch import Undo, compresses, patch

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

BLOCK = 512  # positions whose logits exist at a time
LOGITS = {"cpu": 1 << 23, "gpu": 1 << 24}
"""Numbers of logits that exist at a time where only losses are kept."""
MASK = {"cpu": 1 << 24, "gpu": 1 << 27}
"""Numbers of the mask of a chunk, one for each of its tokens and each token before it."""


class TransformersEngine(Engine):
    """A language model of transformers, which reads in chunks and can be patched.

    model: the loaded model. chunk: tokens that its backbone sees at a time, for losses of long sequences fewer where
    its attention needs a mask; MOST_TOKENS for whole sequences. has_logits: encoders have none. chunked: a sequence
    with gaps in its positions is the same in chunks. vocabulary: number of tokens that it both reads and predicts:
    those of images have no logits (Llama 3.2 Vision, Molmo 2).
    """

    gives = frozenset({"hidden_states", "logits", "token_losses", "tokens"})

    def __init__(self, model: PreTrainedModel, chunk: int = 4096) -> None:
        import transformers

        self.model, self.chunk = model, chunk
        self.has_logits = model.get_output_embeddings() is not None
        self.chunked = self.has_logits and has_cache(model) and not compresses(model)
        tables = (model.get_input_embeddings(), model.get_output_embeddings())
        self.vocabulary = min(int(table.weight.shape[0]) for table in tables if table is not None)
        self.runtime = f"transformers {transformers.__version__}"

    @classmethod
    def load(cls, folder: Path, at: DeviceSpec, trust: bool = False, chunk: int = 4096) -> TransformersEngine:
        """The engine of a checkpoint as transformers loads it.

        folder: the checkpoint. at: device and precision. trust: run the modelling file of the checkpoint. chunk: tokens
        that the backbone reads at a time.
        """
        return cls(load_stock(folder, at, trust), chunk)

    def hidden_states(
        self, ids: Sequence[int], positions: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> Tensor:
        """As in `Engine`, with `chunk` tokens read at a time."""
        heard = progress or Progress()
        return hidden_states(self.model, ids, positions, kept, self.chunk, heard.advance, heard.stopped)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states [positions, hidden_size], float32 [positions, vocabulary]."""
        return logits(self.model, hidden)

    def logits(self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None) -> Tensor:
        import torch

        hidden = self.hidden_states(ids, range(len(ids)), kept, progress)
        return torch.cat([self.head(rows).cpu() for rows in hidden.split(BLOCK)])

    def token_losses(self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None) -> TokenLosses:
        import torch

        from .chunks import needs_no_masks

        if has_decoder(self.model):
            raise RopeconvError(
                f"{type(self.model).__name__} has an encoder, which sees each token before it is predicted; evaluate "
                "it on its own task"
            )
        heard, losses, right = progress or Progress(), [], []
        device = self.model.get_output_embeddings().weight.device
        wanted = torch.tensor([ids[index] for index in targets], device=device)
        kept = [index - 1 for index in targets]
        place = "cpu" if device.type == "cpu" else "gpu"
        rows, chunk, done = max(1, LOGITS[place] // self.vocabulary), self.chunk, 0
        if chunk < MOST_TOKENS and not needs_no_masks(self.model):
            chunk = min(chunk, max(256, MASK[place] // len(ids)))
        for states in read(self.model, ids, range(len(ids)), kept, chunk, heard.advance, heard.stopped):
            for block in states.split(rows):
                logits, tokens = self.head(block), wanted[done : done + len(block)]
                own = logits.gather(1, tokens[:, None].to(logits.device))[:, 0]
                losses.append((logits.logsumexp(-1) - own).double().cpu())
                right.append((logits.argmax(-1) == tokens.to(logits.device)).cpu())
                done += len(block)
        return TokenLosses(torch.cat(losses).numpy(), torch.cat(right).numpy())

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        import torch
        from transformers import GenerationConfig

        from .chunks import without_masks

        device = self.model.get_input_embeddings().weight.device
        prompt = torch.tensor([list(ids)], device=device)
        end = self.model.generation_config.eos_token_id
        chunk = self.chunk if self.chunked and len(ids) > self.chunk else None
        greedy = GenerationConfig(
            do_sample=False, max_new_tokens=count, pad_token_id=0, eos_token_id=end, prefill_chunk_size=chunk
        )
        with torch.no_grad(), without_masks(self.model):
            found = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=greedy)
        begin = 1 if self.model.config.is_encoder_decoder else len(ids)  # a decoder begins with a token of its own
        return [int(token) for token in found[0, begin:]]

    def not_finite_in(self, ids: Sequence[int]) -> str:
        return first_not_finite(self.model, ids, self.chunk)

    def patch(
        self, schedule: Schedule, before: RopeSpec, scale: LogN | QueryScaling | None = None, queries: str = ""
    ) -> Undo:
        """Makes the model compute a schedule, and returns a function that undoes it.

        schedule, before, scale, queries: as in `patch.patch`, which also says what it raises.
        """
        return patch(self.model, schedule, before, scale, queries)

    def without_layers(self) -> TransformersEngine:
        """Free the memory of the layers, so that only `head` works, and return the engine."""
        keep_head(self.model)
        release()
        return self
