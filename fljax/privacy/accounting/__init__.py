r"""Privacy accounting: the privacy loss of a sequence of noisy releases, and noise for a budget.

A sensitivity passed to these functions is the maximum over all pairs of neighboring data sets; the
relation of neighbors is the caller's choice (:mod:`fljax.privacy.notions` has three). Everything
here (composition, conversion) holds for any relation, as long as it is the same throughout.
Post-processing is free: functions that a server or a neighbor computes of a release cost nothing.

Closed forms take Python numbers, NumPy arrays (both: float64 results) and JAX arrays, traced or
not (the dtype of the JAX arguments), so that a budget can be swept inside a compiled simulation.
Root finding (the conversions other than ``"proposition"``, the analytic Gaussian mechanism) runs
on the host in float64 and refuses traced values. All functions are elementwise; "per round" means
a trailing axis. A traced value cannot be checked.

References, by the names used below:

* *Bun & Steinke 2016*: Concentrated differential privacy: simplifications, extensions, and lower
  bounds, TCC.
* *Canonne, Kamath & Steinke 2020*: The discrete Gaussian for differential privacy, NeurIPS
  (numbering of arXiv:2004.00010v4).
* *Balle & Wang 2018*: Improving the Gaussian mechanism for differential privacy, ICML.
* *Dong, Roth & Su 2022*: Gaussian differential privacy, JRSS B (numbering of arXiv:1905.02383).
* *Dwork & Roth 2014*: The algorithmic foundations of differential privacy.
* *Kairouz, Oh & Viswanath 2015*: The composition theorem for differential privacy, ICML.
* *Balle, Barthe & Gaboardi 2018*: Privacy amplification by subsampling: tight analyses via
  couplings and divergences, NeurIPS.
* *Warner 1965*: Randomized response: a survey technique for eliminating evasive answer bias, JASA.
* *Choquette-Choo et al. 2023*: (Amplified) banded matrix factorization: a unified approach to
  private training, NeurIPS.
* *Chua et al. 2024*: Balls-and-bins sampling for DP-SGD (arXiv:2412.16802).
* *Choquette-Choo et al. 2024*: Near exact privacy amplification for matrix mechanisms
  (arXiv:2410.06266).
* *Hoeffding 1963*: Probability inequalities for sums of bounded random variables, JASA.
* *Waudby-Smith & Ramdas 2024*: Estimating means of bounded random variables by betting, JRSS B.
* *Wang et al. 2023*: A randomized approach to tight privacy accounting, NeurIPS.
* *Mironov 2017*: Rényi differential privacy, CSF.
* *Papernot & Steinke 2022*: Hyperparameter tuning with Rényi differential privacy, ICLR.
* *Gauthier 2024*: PhD thesis, NTNU, chapter 3.
"""

from fljax.privacy.accounting.balls_in_bins import (
    balls_in_bins_delta,
    balls_in_bins_epsilon,
    balls_in_bins_multiplier,
)
from fljax.privacy.accounting.composition import (
    RULES,
    Rule,
    advanced_composition,
    advanced_epsilon,
    allocate,
    basic_composition,
    kairouz_composition,
    pure_composition,
)
from fljax.privacy.accounting.conversions import (
    CONVERSIONS,
    Conversion,
    pure_to_zcdp,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from fljax.privacy.accounting.cyclic import (
    cyclic_poisson_epsilon,
    cyclic_poisson_event,
    cyclic_poisson_multiplier,
)
from fljax.privacy.accounting.dynamic import (
    dynamic_zcdp_curve,
    dynamic_zcdp_initial,
    dynamic_zcdp_total,
)
from fljax.privacy.accounting.events import gaussian_event, zcdp_event
from fljax.privacy.accounting.inputs import Result
from fljax.privacy.accounting.mechanisms import (
    analytic_gaussian_sigma,
    classical_gaussian_sigma,
    gaussian_sigma,
    gaussian_zcdp,
    laplace_epsilon,
    laplace_scale,
)
from fljax.privacy.accounting.monte_carlo import monte_carlo_delta, monte_carlo_epsilon
from fljax.privacy.accounting.randomized import (
    randomized_response_epsilon,
    randomized_response_probability,
    subsampled,
)
from fljax.privacy.accounting.renyi import (
    RENYI_CONVERSIONS,
    RENYI_ORDERS,
    RenyiConversion,
    renyi_delta,
    renyi_epsilon,
    renyi_gaussian,
    renyi_laplace,
    renyi_pure,
)
from fljax.privacy.accounting.sampling import (
    Sampling,
    sampled_gaussian_epsilon,
    sampled_gaussian_event,
    sampled_gaussian_multiplier,
)
from fljax.privacy.accounting.selection import (
    draw_trials,
    poisson_selection_epsilon,
    poisson_selection_renyi,
    selection_epsilon,
    selection_mean,
    selection_probabilities,
    selection_renyi,
    selection_stop,
)

__all__ = [
    "CONVERSIONS",
    "RENYI_CONVERSIONS",
    "RENYI_ORDERS",
    "RULES",
    "Conversion",
    "RenyiConversion",
    "Result",
    "Rule",
    "Sampling",
    "advanced_composition",
    "advanced_epsilon",
    "allocate",
    "analytic_gaussian_sigma",
    "balls_in_bins_delta",
    "balls_in_bins_epsilon",
    "balls_in_bins_multiplier",
    "basic_composition",
    "classical_gaussian_sigma",
    "cyclic_poisson_epsilon",
    "cyclic_poisson_event",
    "cyclic_poisson_multiplier",
    "draw_trials",
    "dynamic_zcdp_curve",
    "dynamic_zcdp_initial",
    "dynamic_zcdp_total",
    "gaussian_event",
    "gaussian_sigma",
    "gaussian_zcdp",
    "kairouz_composition",
    "laplace_epsilon",
    "laplace_scale",
    "monte_carlo_delta",
    "monte_carlo_epsilon",
    "poisson_selection_epsilon",
    "poisson_selection_renyi",
    "pure_composition",
    "pure_to_zcdp",
    "randomized_response_epsilon",
    "randomized_response_probability",
    "renyi_delta",
    "renyi_epsilon",
    "renyi_gaussian",
    "renyi_laplace",
    "renyi_pure",
    "sampled_gaussian_epsilon",
    "sampled_gaussian_event",
    "sampled_gaussian_multiplier",
    "selection_epsilon",
    "selection_mean",
    "selection_probabilities",
    "selection_renyi",
    "selection_stop",
    "subsampled",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_event",
    "zcdp_rho",
]
