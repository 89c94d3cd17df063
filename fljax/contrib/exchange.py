r"""How two nodes agree on a random draw that the relay of their messages must not know.

They agree on an integer by the exchange of Diffie and Hellman (1976), and on Laplace numbers by
Definition 4.2 of Rizk 2023. Simulations draw their masks directly from the same distribution:
secrecy is assumed there, and this module shows where the distribution comes from. It is not
cryptographically secure.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype

#: A large prime: the largest signed integer of 32 bits.
PRIME = 2**31 - 1

#: The multiple of the prime that is scaled by a uniform number before the remainder is taken.
MULTIPLE = 8


@checked
def public_number(secret: int, base: int, modulus: int) -> int:
    r""":math:`V=b^v\bmod\pi`, the public number of a node with secret :math:`v`.

    Args:
      secret: :math:`v\ge1`.
      base: :math:`b\ge2`, known to all.
      modulus: :math:`\pi\ge3`, a prime, known to all.

    Reference:
      Diffie and Hellman 1976; Rizk 2023, section 4.3.4.

    Example:
      >>> import fljax as fl
      >>> ours = fl.contrib.public_number(secret=6, base=5, modulus=23)
      >>> theirs = fl.contrib.public_number(secret=15, base=5, modulus=23)
      >>> fl.contrib.shared_number(6, theirs, 23), fl.contrib.shared_number(15, ours, 23)
      (2, 2)
    """
    checks.count("base", base, at_least=2)
    return shared_number(secret, base, modulus)


@checked
def shared_number(secret: int, public: int, modulus: int) -> int:
    r""":math:`V_l^{v_k}\bmod\pi=b^{v_kv_l}\bmod\pi`, which only the two nodes know.

    Args:
      secret: a node's own :math:`v_k\ge1`.
      public: the other's :math:`V_l\ge1`, see :func:`public_number`.
      modulus: :math:`\pi\ge3`.

    Example:
      Both nodes find the same number:

      >>> import fljax as fl
      >>> first, second = (fl.contrib.public_number(secret, 2, 101) for secret in (7, 12))
      >>> fl.contrib.shared_number(7, second, 101), fl.contrib.shared_number(12, first, 101)
      (31, 31)
    """
    for name, value in (("secret", secret), ("public", public)):
        checks.count(name, value, at_most=2**4096)
    checks.count("modulus", modulus, at_least=3, at_most=2**4096)
    return pow(int(public), int(secret), int(modulus))


@checked
def log_ratio(key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
    r""":math:`\ln(v/v')` of Definition 4.2, of Laplace's law with the scale one.

    One node draws :math:`v_l,v_l'\sim U(0,1)`, the other :math:`v_m,v_m'\sim\Gamma(2,1)`; a uniform
    times such a gamma number is exponential, :math:`e^{-v_lv_m}` uniform on (0, 1), and
    :math:`v=a\,e^{-v_lv_m}\bmod\pi`, with :math:`a` a multiple of the prime :math:`\pi`, uniform on
    :math:`(0,\pi)`. The logarithm of the ratio of two of these has the variance 2.

    Args:
      key: consumed.
      shape: of the result.

    Example:
      >>> import jax, fljax as fl
      >>> drawn = fl.contrib.log_ratio(jax.random.key(0), (20_000,))
      >>> bool(abs(drawn.mean()) < 0.1), bool(abs(drawn.var() - 2) < 0.2)
      (True, True)

    Reference:
      Rizk 2023, (4.58)-(4.59) and appendix 4.E.
    """
    dtype = float_dtype()

    def number(key: Array) -> Array:
        uniform, gamma = jax.random.split(key)
        product = jax.random.uniform(uniform, shape, dtype) * jax.random.gamma(
            gamma, 2.0, shape, dtype
        )
        # At least one, because the logarithm of zero is not finite.
        return jnp.maximum(jnp.mod(float(MULTIPLE * PRIME) * jnp.exp(-product), PRIME), 1)

    first, second = jax.random.split(key)
    return jnp.log(number(first)) - jnp.log(number(second))


@checked
def agreed_laplace(
    key: Key[Array, ""], variance: Float[Array, ""] | float, shape: tuple[int, ...] = ()
) -> Float[Array, "..."]:
    r"""The draw that two nodes agree on, Definition 4.2: :math:`\tfrac{\sigma_g}{\sqrt2}\ln(v/v')`.

    (4.60) prints :math:`\sqrt2/\sigma_g`, which makes the variance :math:`4/\sigma_g^2`.

    Args:
      key: consumed.
      variance: :math:`\sigma_g^2>0`.
      shape: of the result.

    Reference:
      Rizk 2023, Definition 4.2.

    Example:
      >>> import jax, fljax as fl
      >>> fl.contrib.agreed_laplace(jax.random.key(0), 0.1, (2, 3)).shape
      (2, 3)
    """
    checks.positive("variance", variance)
    drawn = log_ratio(key, shape)
    return jnp.sqrt(jnp.asarray(variance, drawn.dtype) / 2) * drawn
