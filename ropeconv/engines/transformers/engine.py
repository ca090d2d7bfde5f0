"""Models in the installed transformers, patched or with a method in their config.

A source with the method in its config is a second reference. It uses neither the code of an encoding nor that of the
patched reference, but the formula in transformers' modeling_rope_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...formats.jsontext import JsonObject
from ...models.layers import settings_name
from ...models.registry import by_model_type
from ...rope.errors import RopeconvError
from ...rope.forms import InterpolatedForm, Llama3, LongRope, Plain, Yarn
from ...rope.lengths import MOST_TOKENS
from ...rope.schedule import LogN, QueryScaling, Schedule
from ...rope.spec import RopeSpec
from ..engine import Engine, Progress, TokenLosses
from .backbone import first_not_finite, has_cache, has_decoder, hidden_states, keep_head, logits, read
from .load import DeviceSpec, load_stock, stock_config
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


def parameters(schedule: Schedule, spec: RopeSpec) -> JsonObject:
    """The `rope_parameters` of a schedule. spec: the RoPE of the source. Raises UsageError where there are none."""
    form, why = schedule.form, ""
    found: JsonObject = {}
    if isinstance(form, Plain):
        found = {"rope_type": "default"}
    elif isinstance(form, InterpolatedForm):
        found = {"rope_type": "linear", "factor": form.factor}
    elif isinstance(form, Yarn):
        found = {
            "rope_type": "yarn", "factor": form.factor, "original_max_position_embeddings": form.original_context,
            "beta_fast": form.beta_fast, "beta_slow": form.beta_slow, "truncate": form.truncate,
            "attention_factor": schedule.attention_factor,
        }  # fmt: skip
    elif isinstance(form, Llama3):
        found = {
            "rope_type": "llama3", "factor": form.factor, "original_max_position_embeddings": form.original_context,
            "low_freq_factor": form.low_freq_factor, "high_freq_factor": form.high_freq_factor,
        }  # fmt: skip
    elif isinstance(form, LongRope):
        found = {
            "rope_type": "longrope", "factor": schedule.context / form.original_context,
            "short_factor": list(form.short_factor), "long_factor": list(form.long_factor),
            "original_max_position_embeddings": form.original_context, "attention_factor": schedule.attention_factor,
        }  # fmt: skip
    else:
        why = "these frequencies"
    if schedule.log_n is not None:
        why = "log-n"
    elif schedule.attention_factor != 1 and "attention_factor" not in found:
        why = why or f"an attention factor with {found['rope_type']}"
    elif spec.mla:
        why = "the softmax scale of MLA in a method's own numbers"
    if why:
        raise UsageError(f"transformers has no method of its own for {why}; leave --reference config out")
    return {**found, "rope_theta": schedule.form.theta if schedule.form else spec.rope_theta}


def load_with_method(folder: Path, at: DeviceSpec, schedule: Schedule, spec: RopeSpec) -> PreTrainedModel:
    """The source as transformers loads it with the method in its config.

    folder: of the source. spec: its RoPE. Raises UsageError where transformers does not have the method.
    """
    settings = parameters(schedule, spec)
    config = stock_config(folder, at.stands_for)
    part = config.get_text_config()
    part.max_position_embeddings = schedule.context
    if hasattr(part, "rope_parameters"):
        known = part.rope_parameters or {}
        family = by_model_type().get(part.model_type)
        name = settings_name(part.to_dict(), family, "global") if family is not None else ""
        if isinstance(known.get(name), dict):
            part.rope_parameters = {**known, name: {**known[name], **settings}}
        else:
            part.rope_parameters = {k: v for k, v in known.items() if k == "partial_rotary_factor"} | settings
    else:
        part.rope_theta = settings["rope_theta"]
        part.rope_scaling = None if settings["rope_type"] == "default" else settings
    return load_stock(folder, at, config=config)
