"""Models in the installed transformers, which can be patched to compute a schedule.

`TransformersEngine` is all that others use: `load`, `logits`, and `read` for long sequences.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ...rope.errors import RopeconvError
from ...rope.lengths import MOST_TOKENS
from ..engine import Engine, Progress, TokenLosses
from .load import DeviceSpec, is_bidirectional, load_stock
from .memory import release
from .patch import compresses

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import PreTrainedModel

BLOCK = 512
"""Positions whose logits exist at a time."""
LOGITS = {"cpu": 1 << 23, "gpu": 1 << 24}
"""Numbers of logits that exist at a time where only losses are kept."""
MASK = {"cpu": 1 << 24, "gpu": 1 << 27}
"""Numbers of the mask of a chunk, one for each of its tokens and each token before it."""


def backbone_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the backbone of a language model: all but its head."""
    if model.get_output_embeddings() is None:
        return model
    base = model.base_model
    if base is model:  # Llama 4 names a prefix that it does not have
        return model.model
    return base


def has_decoder(model: PreTrainedModel) -> bool:
    """Return whether a model has an encoder for its input, and a decoder with its own tokens."""
    return "decoder_input_ids" in inspect.signature(backbone_of(model).forward).parameters


def has_cache(model: PreTrainedModel) -> bool:
    """Return whether a model has a key-value cache, so that it can be given a text in chunks."""
    parameters = inspect.signature(backbone_of(model).forward).parameters
    return "past_key_values" in parameters and not has_decoder(model)


def reads_in_chunks(model: PreTrainedModel) -> bool:
    """Return whether a model computes the same for a text in chunks.

    Where tokens attend to later ones, the first chunk would lack those of the next.
    """
    return has_cache(model) and not is_bidirectional(model.config)


class TransformersEngine(Engine):
    """A language model of transformers, which reads in chunks and can be patched."""

    model: PreTrainedModel

    chunk: int
    """Tokens that the backbone sees at a time; MOST_TOKENS for whole sequences.

    They are fewer for losses of long sequences where attention needs a mask.
    """

    has_logits: bool
    """Whether it has logits; encoders have none."""

    chunked: bool
    """Whether a sequence with gaps in its positions is the same in chunks."""

    vocabulary: int
    """The number of tokens that it both reads and predicts.

    Those of images have no logits (Llama 3.2 Vision, Molmo 2).
    """

    def __init__(self, model: PreTrainedModel, chunk: int = 4096) -> None:
        import transformers

        self.model = model
        self.chunk = chunk
        self.has_logits = model.get_output_embeddings() is not None
        self.chunked = self.has_logits and reads_in_chunks(model) and not compresses(model)
        tables = (model.get_input_embeddings(), model.get_output_embeddings())
        self.vocabulary = min(int(table.weight.shape[0]) for table in tables if table is not None)
        self.runtime = f"transformers {transformers.__version__}"

    @classmethod
    def load(
        cls, folder: Path, at: DeviceSpec, trust: bool = False, chunk: int = 4096
    ) -> TransformersEngine:
        """Return the engine of a checkpoint as transformers loads it.

        Args:
            folder: The checkpoint.
            at: Device and precision.
            trust: Whether to run the modelling file of the checkpoint.
            chunk: Tokens that the backbone reads at a time.
        """
        return cls(load_stock(folder, at, trust), chunk)

    def hidden_states(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        kept: Sequence[int],
        progress: Progress | None = None,
    ) -> Tensor:
        """Return final hidden states of some tokens, [len(kept), hidden_size] on the host.

        Args:
            ids: All tokens.
            positions: The position of every token, rising; gaps are allowed.
            kept: Rising indices into `ids` of the tokens whose states are returned.
            progress: Callbacks, of which advance and stopped are called.
        """
        import torch

        chunks = self.read(ids, positions, kept, progress or Progress())
        return torch.cat([rows.cpu() for rows in chunks])

    def read(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        kept: Sequence[int],
        progress: Progress,
        chunk: int = 0,
    ) -> Iterator[Tensor]:
        """Run the backbone over a text, and yield the final hidden states of some of its tokens.

        A long text is read in chunks, so that its attention fits into the memory. Each chunk
        attends to the keys of those before it, which are in a cache, and yields the states of its
        kept tokens, [kept tokens in it, hidden_size], in the dtype and place of the model. Encoders
        read the whole text at once; of a model with an encoder and a decoder, the states are those
        of the decoder.

        Args:
            ids: All tokens.
            positions: The position of every token, rising; gaps are allowed.
            kept: Rising indices into `ids` of the tokens whose states are returned.
            progress: Callbacks: `advance` gets the tokens of each chunk, and `stopped` is asked
                after it whether to end there.
            chunk: Tokens at a time, 0 for those of the engine.
        """
        import torch

        from .chunks import preallocate, without_masks

        backbone = backbone_of(self.model)
        device = self.model.get_input_embeddings().weight.device
        all_ids = torch.tensor([list(ids)], device=device)  # [1, tokens]
        all_positions = torch.tensor([list(positions)], device=device)
        has_gaps = any(later != earlier + 1 for earlier, later in pairwise(positions))

        # how many tokens are read at a time
        count = len(ids)
        chunk_size = chunk or self.chunk
        if not reads_in_chunks(self.model):
            chunk_size = count
        has_several_chunks = count > chunk_size

        cache = None
        for start in range(0, count, chunk_size):
            stop = min(start + chunk_size, count)
            inputs: dict[str, object] = {
                "input_ids": all_ids[:, start:stop],
                "position_ids": all_positions[:, start:stop],
            }
            # without a mask, transformers takes a gap in the positions for the beginning of another
            # sequence
            if has_gaps:
                inputs["attention_mask"] = torch.ones((1, stop), dtype=torch.long, device=device)

            # further inputs, by the kind of model
            if has_decoder(self.model):
                # the decoder reads the same tokens at the same positions as the encoder
                inputs |= {"decoder_input_ids": all_ids, "decoder_position_ids": all_positions}
            elif has_several_chunks:
                inputs |= {"past_key_values": cache, "use_cache": True}
            elif has_cache(self.model):
                # A single chunk needs no cache. But multimodal classes such as Molmo 2 ignore a
                # mask of ones, and take a gap for the beginning of a sequence unless there is one.
                is_multimodal = hasattr(backbone, "language_model")
                inputs["use_cache"] = has_gaps and is_multimodal

            with torch.no_grad(), without_masks(self.model):
                outputs = backbone(**inputs)
            cache = getattr(outputs, "past_key_values", None)
            if start == 0 and has_several_chunks:
                preallocate(cache, count)

            # the kept tokens of this chunk, counted from its beginning
            rows = [index - start for index in kept if start <= index < stop]
            yield outputs.last_hidden_state[0, rows]
            del outputs  # its memory is free for the next chunk
            progress.advance(stop - start)
            if progress.stopped():
                break

    def head(self, hidden: Tensor, gradient: bool = False) -> Tensor:
        """Return the logits of hidden states, float32 [positions, vocabulary].

        They are computed by the model's own forward with its backbone replaced, so the scales and
        caps that some families apply after the head are included.

        Args:
            hidden: Hidden states [positions, hidden_size].
            gradient: Whether the logits have a gradient.

        Raises:
            RopeconvError: The model has no head.
        """
        model = self.model
        if model.get_output_embeddings() is None:
            raise RopeconvError(f"{type(model).__name__} has no logits; compare its hidden states")
        import torch
        from transformers.modeling_outputs import BaseModelOutputWithPast

        class BackboneOutput(BaseModelOutputWithPast):  # type: ignore[misc]
            """The output of any backbone: fields that only some have are None."""

            def __getattr__(self, name: str) -> None:
                if name.startswith("__"):
                    raise AttributeError(name)

        # a backbone that returns the given states, [1, positions, hidden_size]. accelerate puts a
        # `forward` into the object, in place of that of the class, which is restored below
        backbone = backbone_of(model)
        device = model.get_output_embeddings().weight.device
        output = BackboneOutput(last_hidden_state=hidden[None].to(device))
        own_forward = vars(backbone).get("forward")
        backbone.forward = lambda *args, **given: output
        try:
            with torch.set_grad_enabled(gradient):
                # the tokens are not read
                ids = torch.zeros((1, len(hidden)), dtype=torch.long, device=device)
                outputs = model(input_ids=ids, use_cache=False)
        finally:
            del backbone.forward
            if own_forward is not None:
                backbone.forward = own_forward
        return outputs.logits[0].float()

    def logits(
        self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None
    ) -> Tensor:
        """Return logits after some tokens, float32 [len(kept), vocabulary].

        Args:
            ids: All tokens, from position 0 on.
            kept: Rising indices into `ids`.
            progress: Callbacks.
        """
        import torch

        hidden = self.hidden_states(ids, range(len(ids)), kept, progress)
        return torch.cat([self.head(rows).cpu() for rows in hidden.split(BLOCK)])

    def token_losses(
        self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None
    ) -> TokenLosses:
        """Return the losses of some tokens of a text, and whether each was the likeliest one.

        Args:
            ids: All tokens of the text.
            targets: Rising indices into `ids`, from 1 on, of the tokens that are predicted.
            progress: Callbacks, which are called while tokens are read.

        Raises:
            RopeconvError: The model has an encoder.
        """
        import torch

        from .chunks import needs_no_masks

        if has_decoder(self.model):
            raise RopeconvError(
                f"{type(self.model).__name__} has an encoder, which sees each token before it is"
                " predicted; evaluate it on its own task"
            )

        # the head makes the logits of one block of tokens at a time
        device = self.model.get_output_embeddings().weight.device
        place = "cpu" if device.type == "cpu" else "gpu"
        block_size = max(1, LOGITS[place] // self.vocabulary)

        # the layers read one chunk of tokens at a time. Where attention needs a mask, of one byte
        # for each token of the chunk and of the text, that limits the chunk
        chunk = self.chunk
        reads_whole = chunk >= MOST_TOKENS
        if not reads_whole and not needs_no_masks(self.model):
            chunk = min(chunk, max(256, MASK[place] // len(ids)))

        # the state after a token predicts the next one
        expected = torch.tensor([ids[index] for index in targets], device=device)
        before_targets = [index - 1 for index in targets]
        losses = []
        correct = []
        done = 0
        chunks = self.read(ids, range(len(ids)), before_targets, progress or Progress(), chunk)
        for states in chunks:
            for block in states.split(block_size):
                # the loss of a token is -log softmax: logsumexp of all logits minus its own
                logits = self.head(block)
                tokens = expected[done : done + len(block)].to(logits.device)
                own_logits = logits.gather(1, tokens[:, None])[:, 0]
                losses.append((logits.logsumexp(-1) - own_logits).double().cpu())
                correct.append((logits.argmax(-1) == tokens).cpu())
                done += len(block)
        return TokenLosses(torch.cat(losses).numpy(), torch.cat(correct).numpy())

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """Return the tokens that the model finds likeliest after a prompt.

        Args:
            ids: The tokens of the prompt.
            count: The most tokens of the answer; it may end before.
        """
        import torch
        from transformers import GenerationConfig

        from .chunks import without_masks

        # a long prompt is read in chunks, as by `read`
        device = self.model.get_input_embeddings().weight.device
        prompt = torch.tensor([list(ids)], device=device)
        in_chunks = self.chunked and len(ids) > self.chunk
        greedy = GenerationConfig(
            do_sample=False,
            max_new_tokens=count,
            pad_token_id=0,
            eos_token_id=self.model.generation_config.eos_token_id,
            prefill_chunk_size=self.chunk if in_chunks else None,
        )
        with torch.no_grad(), without_masks(self.model):
            generated = self.model.generate(
                prompt, attention_mask=torch.ones_like(prompt), generation_config=greedy
            )

        begin = len(ids)
        if self.model.config.is_encoder_decoder:  # a decoder begins with a token of its own
            begin = 1
        return [int(token) for token in generated[0, begin:]]

    def not_finite_in(self, ids: Sequence[int]) -> str:
        """Return the first module whose output has inf or NaN for these tokens; empty if none.

        Such as "model.layers.3.mlp.down_proj", whose products are too large for float16. The model
        runs over the tokens, and a hook checks the output of every module in it.
        """
        broken: list[str] = []  # the names of such modules, in the order in which they ran

        def check_output(name: str, module: Module, inputs: object, output: object) -> None:
            for tensor in _tensors(output):
                if not bool(tensor.isfinite().all()):
                    broken.append(name)
                    return

        # an inner module has its output before the one around it, so the first name is where it
        # began
        hooks = []
        for name, module in self.model.named_modules():
            if module is not self.model:
                hooks.append(module.register_forward_hook(partial(check_output, name)))
        try:
            # the text is read no further than the chunk in which a module broke
            positions = range(len(ids))
            stop_when_broken = Progress(stopped=lambda: bool(broken))
            for states in self.read(ids, positions, positions, stop_when_broken):
                # `read` runs the backbone; the head, which makes the logits, is a module too. Its
                # logits of one token are enough.
                if not broken and self.has_logits:
                    self.head(states[-1:])
        finally:
            for hook in hooks:
                hook.remove()
        if not broken:
            return ""
        return broken[0]

    def without_layers(self) -> TransformersEngine:
        """Free the memory of the layers, so that only `head` works, and return the engine.

        `head` makes logits of hidden states that were computed before.
        """
        from torch import nn

        # the layers are in lists of modules, which are emptied; embeddings are replaced by an empty
        # list, unless the head uses the same weights
        head = self.model.get_output_embeddings()
        embeddings = self.model.get_input_embeddings()
        head_needs_embeddings = head is not None and head.weight is embeddings.weight
        for module in backbone_of(self.model).modules():
            for name, child in list(module.named_children()):
                is_unused_table = child is embeddings and not head_needs_embeddings
                if is_unused_table or isinstance(child, nn.ModuleList):
                    setattr(module, name, nn.ModuleList())
        release()
        return self


def _tensors(output: object) -> Iterator[Tensor]:
    """Return the tensors of numbers in the output of a module; key-value caches are left out."""
    import torch

    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _tensors(part)
    elif hasattr(output, "last_hidden_state"):
        yield from _tensors(output.last_hidden_state)
