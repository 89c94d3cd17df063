"""The flax modules of :mod:`~fljax.models.published_networks`; imported only when they are used."""

from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array


def normalization(kind: str, groups: int, train: bool) -> Callable[[Array], Array]:
    """A layer that normalizes an image's channels."""
    if kind == "batch":
        return nn.BatchNorm(use_running_average=not train, momentum=0.9)
    return nn.GroupNorm(num_groups=groups)


class ResidualBlock(nn.Module):
    """Two convolutions of 3 x 3 pixels, added to the input (He et al. 2016, Figure 2)."""

    channels: int
    stride: int
    norm: str
    groups: int

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        stride = (self.stride, self.stride)
        y = nn.Conv(self.channels, (3, 3), stride, padding=1, use_bias=False)(x)
        y = nn.relu(normalization(self.norm, self.groups, train)(y))
        y = nn.Conv(self.channels, (3, 3), padding=1, use_bias=False)(y)
        y = normalization(self.norm, self.groups, train)(y)
        if x.shape != y.shape:
            x = nn.Conv(self.channels, (1, 1), stride, use_bias=False)(x)
            x = normalization(self.norm, self.groups, train)(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Stages of residual blocks, each of half the width and height of the one before."""

    outputs: int
    blocks: tuple[int, ...]
    width: int
    norm: str
    groups: int
    remat: bool

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        made = nn.remat(ResidualBlock, static_argnums=(2,)) if self.remat else ResidualBlock
        x = nn.Conv(self.width, (3, 3), padding=1, use_bias=False)(x)
        x = nn.relu(normalization(self.norm, self.groups, train)(x))
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                channels = self.width * 2**stage
                name = f"ResidualBlock_{sum(self.blocks[:stage]) + block}"
                x = made(channels, stride, self.norm, self.groups, name=name)(x, train)
        return nn.Dense(self.outputs)(jnp.mean(x, axis=(1, 2)))


class VGG(nn.Module):
    """Convolutions of 3 x 3 pixels, pooled where the list says ``0``, and dense layers."""

    outputs: int
    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    dropout: float

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        for channels in self.channels:
            if channels == 0:
                x = nn.max_pool(x, (2, 2), (2, 2))
            else:
                x = nn.relu(nn.Conv(channels, (3, 3), padding=1)(x))
        x = x.reshape(len(x), -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
            if self.dropout:
                x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(self.outputs)(x)


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max pooling."""

    outputs: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x[..., None] if x.ndim == 3 else x
        edge = "SAME" if x.shape[1] == 28 else "VALID"  # 28 pixels with an edge of two, or 32
        x = nn.max_pool(nn.relu(nn.Conv(6, (5, 5), padding=edge)(x)), (2, 2), (2, 2))
        x = nn.max_pool(nn.relu(nn.Conv(16, (5, 5), padding="VALID")(x)), (2, 2), (2, 2))
        x = x.reshape(len(x), -1)
        for width in (120, 84):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.outputs)(x)


class DropoutCNN(nn.Module):
    """Two convolutions, pooling, and a dense layer, with dropout after both."""

    outputs: int
    rates: tuple[float, float]

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        x = x[..., None] if x.ndim == 3 else x
        glorot = nn.initializers.glorot_uniform()
        for channels in (32, 64):
            x = nn.relu(nn.Conv(channels, (3, 3), padding="VALID", kernel_init=glorot)(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.Dropout(self.rates[0], deterministic=not train)(x).reshape(len(x), -1)
        x = nn.relu(nn.Dense(128, kernel_init=glorot)(x))
        x = nn.Dropout(self.rates[1], deterministic=not train)(x)
        return nn.Dense(self.outputs, kernel_init=glorot)(x)


class LSTM(nn.Module):
    """Tokens to the scores of the next ones."""

    vocabulary: int
    embedding: int
    hidden: tuple[int, ...]
    projection: int | None
    last: bool
    param_dtype: DTypeLike

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        settings: dict[str, Any] = {"param_dtype": self.param_dtype}
        x = nn.Embed(self.vocabulary, self.embedding, **settings)(tokens)
        for width in self.hidden:
            x = cast(Array, nn.RNN(nn.OptimizedLSTMCell(width, **settings))(x))
            if self.projection is not None:
                x = nn.Dense(self.projection, **settings)(x)
        x = x[:, -1] if self.last else x
        return nn.Dense(self.vocabulary, **settings)(x)


class Transformer(nn.Module):
    """A causal decoder with normalization before each part, whose embedding reads the output."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    longest: int
    dropout: float
    last: bool
    remat: bool

    @nn.compact
    def __call__(self, tokens: Array, train: bool) -> Array:
        length = tokens.shape[1]
        embed = nn.Embed(self.vocabulary, self.width, embedding_init=nn.initializers.normal(0.02))
        places = self.param("places", nn.initializers.normal(0.02), (self.longest, self.width))
        x = embed(tokens) + places[:length]
        mask = nn.make_causal_mask(tokens)

        def dropped(values: Array) -> Array:
            return nn.Dropout(self.dropout, deterministic=not train)(values)

        def layer(_: nn.Module, x: Array) -> Array:
            y = nn.MultiHeadDotProductAttention(self.heads)(nn.LayerNorm()(x), mask=mask)
            x = x + dropped(y)
            y = nn.Dense(4 * self.width)(nn.LayerNorm()(x))
            return x + dropped(nn.Dense(self.width)(nn.gelu(y)))

        for _ in range(self.layers):
            x = nn.remat(layer)(self, x) if self.remat else layer(self, x)
        x = x[:, -1] if self.last else x
        return embed.attend(nn.LayerNorm()(x))
