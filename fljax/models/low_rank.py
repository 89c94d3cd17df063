"""Adapters of low rank on a given network (LoRA)."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.models.architecture import Architecture


@checked
def lora(
    network: Architecture, rank: int, targets: str = "kernel$", scale: float = 1.0
) -> Architecture:
    r"""A network with adapters of low rank on some of its weights (Hu et al. 2022, section 4.1).

    .. math:: W=W_0+s\,AB,\qquad A\in\mathbb R^{m\times r},\ B\in\mathbb R^{r\times n}

    Parameters are ``base/...``, the network's own, and ``lora/.../a`` and ``lora/.../b``: ``A`` is
    drawn with variance :math:`1/m`, and ``B`` is zero, so that training begins at the network.
    Weights of more than two axes, as of attention and convolutions, are matrices of the leading and
    the other axes, divided where both sides are most alike.

    Clients train and send the ones that are chosen by
    :meth:`problem.training_only <fljax.problems.Model.training_only>`: with ``"^lora/"`` federated
    averaging averages both factors (FedIT, Zhang et al. 2024), with ``"^lora/.*/b$"`` the
    first stays as it is drawn (FFA-LoRA, Sun et al. 2024), so that the average is exact.
    :class:`~fljax.algorithms.FLoRA` averages the products of both factors instead (Wang et al.
    2024). Batches compute with the sum of both matrices, of which a client holds one while it
    trains.

    Args:
      network: of :mod:`fljax.models`.
      rank: :math:`r`.
      targets: a regular expression of the paths of the weights that have an adapter.
      scale: :math:`s>0`, the paper's :math:`\alpha/r`.

    Raises:
      TypeError: no network of :mod:`fljax.models`.
      ValueError: no rank, a scale that is not positive; no regular expression, and, once the
        network meets samples, one that no weight of two axes or more matches.

    Example:
      >>> import jax, fljax as fl
      >>> network = fl.models.lora(fl.models.mlp(3, hidden=[16]), rank=2)
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> problem = fl.problems.Model.of(data, network, jax.random.key(1))
      >>> problem.dim, problem.training_only("^lora/").dim, problem.training_only("/b$").dim
      (245, 82, 38)
    """
    if not isinstance(network, Architecture):
        raise TypeError(
            "network must be one of fljax.models, such as fljax.models.linen(module), got "
            f"{checks.shown(network)}."
        )
    checks.count("rank", rank)
    checks.positive("scale", scale)
    try:
        re.compile(targets)
    except re.error as error:
        raise ValueError(f"targets={targets!r} is no regular expression: {error}.") from error
    return LowRank(network, int(rank), targets, float(scale))


@dataclasses.dataclass(frozen=True)
class LowRank(Architecture):
    """A network with adapters; made by :func:`lora`."""

    network: Architecture
    rank: int
    targets: str
    scale: float

    def init(self, key: Array, features: Array) -> Any:
        k_base, k_factors = jax.random.split(key)
        base = self.network.init(k_base, features)
        leaves = jax.tree_util.tree_flatten_with_path(base)[0]
        named = {_name(path): leaf for path, leaf in leaves}
        chosen = {
            n: leaf for n, leaf in named.items() if re.search(self.targets, n) and leaf.ndim > 1
        }
        if not chosen:
            raise ValueError(
                f"no weight of two axes or more matches targets={self.targets!r}; there are: "
                f"{', '.join(named)}."
            )
        factors = {}
        for name, leaf in chosen.items():
            rows, columns = _matrix_shape(leaf.shape)
            factors[name] = {
                "a": jnp.zeros((rows, self.rank), leaf.dtype),
                "b": jnp.zeros((self.rank, columns), leaf.dtype),
            }
        return self.begun(k_factors, {"base": base, "lora": factors})

    def begun(self, key: Array, parameters: PyTree) -> PyTree:
        """The same parameters with newly drawn adapters, whose product is zero.

        Args:
          key: consumed.
          parameters: of the network with its adapters.
        """
        factors = {}
        for number, (name, pair) in enumerate(parameters["lora"].items()):
            a = pair["a"]
            drawn = jax.random.normal(jax.random.fold_in(key, number), a.shape, a.dtype)
            factors[name] = {"a": drawn / math.sqrt(len(a)), "b": jnp.zeros_like(pair["b"])}
        return {"base": parameters["base"], "lora": factors}

    def merged(self, parameters: PyTree) -> PyTree:
        """The same network with its adapters added to its own weights, and zero products left."""
        factors = {
            name: {"a": pair["a"], "b": jnp.zeros_like(pair["b"])}
            for name, pair in parameters["lora"].items()
        }
        return {"base": self._adapted(parameters), "lora": factors}

    def init_state(self, key: Array, features: Array) -> Any:
        return self.network.init_state(jax.random.split(key)[0], features)

    def apply(self, parameters: PyTree, features: Array) -> Array:
        return self.network.apply(self._adapted(parameters), features)

    def train(
        self, parameters: PyTree, state: PyTree, features: Array, key: Array
    ) -> tuple[Array, PyTree]:
        return self.network.train(self._adapted(parameters), state, features, key)

    def evaluate(self, parameters: PyTree, state: PyTree, features: Array) -> Array:
        return self.network.evaluate(self._adapted(parameters), state, features)

    def _adapted(self, parameters: PyTree) -> PyTree:
        """The network's own parameters with the adapters added."""
        factors = parameters["lora"]

        def adapted(path: Any, leaf: Array) -> Array:
            if (pair := factors.get(_name(path))) is None:
                return leaf
            return leaf + self.scale * (pair["a"] @ pair["b"]).reshape(leaf.shape)

        return jax.tree_util.tree_map_with_path(adapted, parameters["base"])


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a weight as a matrix, divided where they are most alike."""
    total = math.prod(shape)
    sides = [math.prod(shape[:axis]) for axis in range(1, len(shape))]
    rows = min(sides, key=lambda side: max(side, total // side))
    return rows, total // rows
