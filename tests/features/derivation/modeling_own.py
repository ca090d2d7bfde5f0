"""A model with its own code, whose attention does what its config says: the tests copy this file
into a checkpoint. It names its sizes, modules and settings otherwise than transformers does.
"""

import math

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel


class OwnConfig(PretrainedConfig):
    model_type = "own_model"

    def __init__(
        self,
        d_model=64,
        n_heads=4,
        n_kv_heads=2,
        n_layers=4,
        max_seq_len=256,
        rope_base=50000.0,
        rotary_share=1.0,
        pairs="half",
        still_every=0,
        position="rope",
        outside_every=0,
        head_norms=False,
        score_scale=None,
        vocab_size=64,
        **kwargs,
    ):
        self.d_model = d_model
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.n_layers = n_layers
        self.max_seq_len = max_seq_len
        self.rope_base = rope_base
        self.rotary_share = rotary_share
        self.pairs = pairs
        self.still_every = still_every
        self.position = position
        self.outside_every = outside_every
        self.head_norms = head_norms
        self.score_scale = score_scale
        self.vocab_size = vocab_size
        super().__init__(**kwargs)


def turn(states, angles, pairs):
    """Rotates the first dimensions of states (batch, heads, tokens, width) by angles."""
    width = 2 * angles.shape[-1]
    turning, rest = states[..., :width], states[..., width:]
    if pairs == "half":
        first, second = turning.chunk(2, -1)
    else:
        first, second = turning[..., ::2], turning[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    one, two = first * cos - second * sin, second * cos + first * sin
    turned = (
        torch.cat((one, two), -1) if pairs == "half" else torch.stack((one, two), -1).flatten(-2)
    )
    return torch.cat((turned, rest), -1)


class OwnRotary(nn.Module):
    """Gives the angles of linear attention, which no softmax follows."""

    def forward(self, positions, inv_freq):
        angles = positions[..., None].float() * inv_freq
        return angles.cos(), angles.sin()


class OwnHeadNorm(nn.Module):
    """A norm with a weight for each head."""

    def __init__(self, heads, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, width))

    def forward(self, states):
        centred = states - states.mean(-1, keepdim=True)
        return self.weight * centred / (states.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt()


class OwnLinearAttention(nn.Module):
    def __init__(self, config, number):
        super().__init__()
        self.Wq = nn.Linear(config.d_model, config.d_model, bias=False)
        self.rotary = OwnRotary()
        count = config.d_model // 2
        self.inv_freq = config.rope_base ** (-torch.arange(count).float() / count)

    def forward(self, states, positions):
        cos, sin = self.rotary(positions, self.inv_freq)
        first, second = self.Wq(states).chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).cumsum(1)


class OwnAttention(nn.Module):
    def __init__(self, config, number):
        super().__init__()
        self.config = config
        self.width = config.d_model // config.n_heads
        self.still = config.still_every and (number + 1) % config.still_every == 0
        self.Wq = nn.Linear(config.d_model, config.d_model, bias=False)
        self.Wk = nn.Linear(config.d_model, config.n_kv_heads * self.width, bias=False)
        self.Wv = nn.Linear(config.d_model, config.n_kv_heads * self.width, bias=False)
        self.out = nn.Linear(config.d_model, config.d_model, bias=False)
        if config.head_norms:
            self.q_norm = OwnHeadNorm(config.n_heads, self.width)
            self.k_norm = OwnHeadNorm(config.n_kv_heads, self.width)

    def angles(self, positions):
        config = self.config
        count = int(self.width * config.rotary_share) // 2
        base = 10000.0 if config.position == "fixed" else config.rope_base
        inv_freq = base ** (-torch.arange(count).float() / count)
        if config.position == "axial":
            row, column = positions // 8, positions % 8
            both = torch.where(torch.arange(count) < count // 2, row[..., None], column[..., None])
            return both * inv_freq
        return positions[..., None].float() * inv_freq

    def forward(self, states, positions):
        config = self.config
        shape = (*states.shape[:-1], -1, self.width)
        q, k, v = (layer(states).view(shape) for layer in (self.Wq, self.Wk, self.Wv))
        if config.head_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))
        if not self.still and config.position not in ("alibi", "learned"):
            angles = self.angles(positions)[:, None]
            q, k = turn(q, angles, config.pairs), turn(k, angles, config.pairs)
        if config.position == "growing" or (config.position == "still-growing" and self.still):
            q = q * (1 + 0.1 * torch.log1p(positions.float()))[:, None, :, None]
        groups = config.n_heads // config.n_kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scale = config.score_scale or 1 / math.sqrt(self.width)
        scores = torch.matmul(q, k.transpose(-1, -2)) * scale
        if config.position == "alibi":
            scores = scores - (positions[:, None, :, None] - positions[:, None, None, :]).abs()
        hidden = torch.full(scores.shape[-2:], float("-inf")).triu(1)
        weights = torch.softmax(scores + hidden, -1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class OwnLayer(nn.Module):
    def __init__(self, config, number):
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        is_outside = config.outside_every and (number + 1) % config.outside_every == 0
        self.attn = (OwnLinearAttention if is_outside else OwnAttention)(config, number)
        self.mlp = nn.Linear(config.d_model, config.d_model)

    def forward(self, states, positions):
        states = states + self.attn(self.norm(states), positions)
        return states + self.mlp(states)


class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "body"

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(OwnLayer(config, number) for number in range(config.n_layers))
        self.post_init()

    def forward(self, input_ids, position_ids=None, **kwargs):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None]
        states = self.embed(input_ids)
        for layer in self.layers:
            states = layer(states, position_ids)
        return states


class OwnModelForCausalLM(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "body"

    def __init__(self, config):
        super().__init__(config)
        self.body = OwnModel(config)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, position_ids=None, **kwargs):
        return self.head(self.body(input_ids, position_ids))
