"""The privacy loss of a run: its ledger as epsilon at a delta, and as events for accountants."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.privacy import accounting
from fljax.privacy.accounting.inputs import probability
from fljax.privacy.discrete import least_delta
from fljax.privacy.notions import NEIGHBORS

if TYPE_CHECKING:
    import xarray


@checked
def claimed_epsilon(ledger: dict[str, float], delta: float) -> float:
    r"""Return the smallest epsilon at ``delta`` that follows from the ledger of a run.

    A zCDP parameter :math:`\rho` is converted by the theorem that holds for every mechanism with
    it or, where all noise is declared to be continuous Gaussian noise, by the exact one for such
    noise (:func:`~fljax.privacy.accounting.zcdp_epsilon`), whose epsilon discrete Gaussian noise
    exceeds. From :math:`(\epsilon,\delta_0)`, and from pure :math:`\epsilon` with
    :math:`\delta_0=0`, follows

    .. math:: \ln\Big(e^\epsilon-\frac{\delta-\delta_0}{1-\delta_0}(1+e^\epsilon)\Big),

    which randomized response attains; nothing follows at :math:`\delta<\delta_0`. For ``releases``
    of a sampled Gaussian mechanism it is the epsilon under amplification by secret sampling
    (:func:`~fljax.privacy.accounting.sampled_gaussian_epsilon`), if that is smaller.

    Args:
      ledger: ``rho``, or ``epsilon`` with or without ``delta``; or ``rho`` and ``releases`` with
        ``noise_multiplier``, ``sampling_rate`` and ``drawn_from``, as they are named in results.
        With ``rho`` may be given ``gaussian_noise``, 1 where all noise is continuous Gaussian
        noise; 0 by default; and then ``release_rho``, the largest of a single release, and
        ``precision``, the bits of its numbers: below the delta at which the numbers that are drawn
        end (:func:`fljax.privacy.discrete.least_delta`) no epsilon holds, and it is infinite.
      delta: in (0, 1).

    Raises:
      ImportError: sampled releases without ``dp_accounting``.

    Example:
      >>> ledgers = {"rho": 0.5, "gaussian_noise": 1}, {"rho": 0.5}, {"epsilon": 1}
      >>> [round(claimed_epsilon(spent, 0.01), 2) for spent in ledgers]
      [2.32, 2.75, 0.99]
    """
    checks.interval("delta", delta, at_least=0, below=1)
    if "rho" in ledger:
        rho = ledger["rho"]
        if _gaussian(ledger) and "release_rho" in ledger:
            dtype = f"float{round(ledger.get('precision', 32))}"
            if delta < least_delta(rho, ledger["release_rho"], dtype):
                return math.inf
        conversion = "gaussian" if _gaussian(ledger) else "canonne-kamath-steinke"
        converted = float(accounting.zcdp_epsilon(rho, delta, conversion)) if rho > 0 else 0.0
        return min(converted, _secret_epsilon(ledger, delta))
    if "epsilon" not in ledger:
        raise ValueError(f"ledger must have rho or epsilon, got {checks.shown(ledger)}.")
    epsilon = ledger["epsilon"]
    first = ledger.get("delta", 0.0)
    if delta < first:
        return math.inf
    share = (delta - first) / (1 - first)
    return max(0.0, epsilon + math.log(max(1 - share * (1 + math.exp(-epsilon)), 1e-300)))


def _gaussian(ledger: dict[str, float], default: float = 0.0) -> bool:
    """Whether all noise is declared to be continuous Gaussian noise; old files do not say."""
    return ledger.get("gaussian_noise", default) > 0


def _releases(ledger: dict[str, float]) -> dict[str, Any] | None:
    """Arguments of the accounting of amplification by sampling; ``None`` where there is none."""
    # Results of earlier versions have these variables for mechanisms of Gaussian noise only.
    if not _gaussian(ledger, default=1.0):
        return None
    rate = ledger.get("sampling_rate", math.nan)
    releases = ledger.get("releases", math.nan)
    if not (rate < 1 and releases > 0):
        return None
    records = int(ledger["drawn_from"])
    return {
        "noise_multiplier": ledger["noise_multiplier"],
        "releases": round(releases),
        "rate": rate,
        "sampling": "drawn" if records else "poisson",
        "records": records or None,
    }


def _secret_epsilon(ledger: dict[str, float], delta: float) -> float:
    releases = _releases(ledger)
    return (
        math.inf
        if releases is None
        else accounting.sampled_gaussian_epsilon(delta=delta, **releases)
    )


#: Which runs' messages an epsilon covers: each seed's alone, or all seeds' together.
SEEDS = ("one", "all")


@checked
def spent(results: "xarray.Dataset", delta: float, seeds: str = "one") -> "xarray.Dataset":
    r"""Return epsilon at ``delta`` of all messages up to each round.

    It follows from the tightest theorem that the library has for the mechanism
    (:func:`claimed_epsilon`): exact where results declare that all noise was continuous Gaussian
    noise (``gaussian_noise``), with amplification where the sample stays secret; otherwise the one
    for all zCDP. It covers the messages, or a trusted server's publications, for the relation of
    neighbors of the budget and the most affected client. Where results are ``nominal`` or their
    models exact, the same reservation applies to this number. Amplification takes a quarter of a
    second for every different number of releases: record only some rounds of a long run.

    Runs of several seeds on the same data are releases of these data, each with its own noise. If
    more than one of them is published, or a mean over them, the loss is that of ``seeds="all"``:
    zCDP parameters and numbers of releases add up; pure and approximate guarantees compose by the
    best of basic composition, :func:`~fljax.privacy.accounting.kairouz_composition`, and for pure
    ones Rényi-DP. Either number holds only against observers who do not know the source of the
    noise (root and seeds, or the key): see the attribute ``privacy`` of the result.

    Args:
      results: of :func:`fljax.run` or :func:`fljax.sweep`.
      delta: in (0, 1).
      seeds: ``"one"``, the loss if only one run of a grid point is published; ``"all"``, if the
        runs of all seeds of a grid point are.

    Returns:
      A dataset with ``epsilon`` over the axes of the ledger (without ``seed`` for all of them), NaN
      for runs without privacy; and ``client_epsilon`` over ``client``, at the end of the run, where
      every client's ledger was recorded. Its attribute ``seeds`` states its runs.

    Raises:
      ImportError: amplification by sampling without ``dp_accounting``.
      ValueError: results without privacy, a delta outside (0, 1), all seeds of results without an
        axis of seeds.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=2).clipped(1),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...     privacy=fl.privacy.ZCDP(total_rho=0.5),
      ... )
      >>> results = fl.run(simulation, rounds=100, record_every=50)
      >>> spent(results, delta=1e-5).epsilon.values.round(2).tolist()
      [2.94, 4.38]
      >>> results = fl.sweep(lambda key: simulation, rounds=100, record_every=50, seeds=20)
      >>> spent(results, delta=1e-5, seeds="all").epsilon.values.round(2).tolist()
      [17.86, 28.37]
    """
    import xarray as xr

    probability("delta", delta)
    checks.choice("seeds", seeds, SEEDS)
    if seeds == "all" and "seed" not in results.dims:
        raise ValueError(
            'seeds="all" is for the results of fljax.sweep with all of their seeds, and these have '
            "no seed axis; leave it out for a single run."
        )
    budgets = {"epsilon": _epsilon(_ledger(results, "privacy_"), delta, seeds)}
    if {"client_rho", "client_epsilon", "client_releases"} & set(results.variables):
        budgets["client_epsilon"] = _epsilon(_ledger(results, "client_"), delta, seeds)
    stated = {
        name: results.attrs[name]
        for name in ("privacy", "not_covered", "tuning")
        if name in results.attrs
    }
    label = f"epsilon at delta={delta:g}"
    if (count := results.sizes.get("seed", 1)) > 1:
        label += f", all {count} seeds" if seeds == "all" else ", one seed"
        stated["seeds"] = (
            f"of the runs of all {count} seeds of a grid point together"
            if seeds == "all"
            else f"of one run: if more than one of the {count} seeds of a grid point, or a mean "
            'over them, is published for the same data, it is spent(..., seeds="all")'
        )
    for value in budgets.values():
        value.attrs = {"long_name": label, "units": "1"}
    return xr.Dataset(budgets, attrs=stated)


def _ledger(results: "xarray.Dataset", prefix: str) -> "xarray.Dataset":
    """A ledger's variables under the names of :func:`claimed_epsilon`."""
    names = {f"{prefix}{name}": name for name in ("rho", "epsilon", "delta", "releases")}
    about = ("noise_multiplier", "sampling_rate", "drawn_from", "gaussian_noise", "release_rho")
    present = [name for name in (*names, *about) if name in results]
    if not names.keys() & set(present):
        raise ValueError(
            "the results have no privacy ledger; run with privacy=, such as "
            "fljax.privacy.ZCDP(total_rho=1.0). Noise or masks without a budget claim no epsilon; "
            "fljax.audit.overheard says whom they protect from whom."
        )
    ledger = results[present].rename({old: new for old, new in names.items() if old in results})
    if "release_rho" in ledger:
        ledger["precision"] = 8.0 * np.dtype(results.attrs.get("dtype", "float32")).itemsize
    return ledger


def _epsilon(ledger: "xarray.Dataset", delta: float, seeds: str) -> "xarray.DataArray":
    """Epsilon of each ledger; each different one is converted once, as all seeds share theirs."""
    import xarray as xr

    arrays = xr.broadcast(*ledger.data_vars.values())
    names = [str(name) for name in ledger.data_vars]
    if seeds == "all":
        arrays = [array.transpose(..., "seed") for array in arrays]
        target = arrays[0].isel(seed=0, drop=True)
    else:
        target = arrays[0]
    # [points, variables, runs that are composed]
    table = np.stack(
        [np.asarray(a, np.float64).reshape(max(target.size, 1), -1) for a in arrays], axis=1
    )
    flat = table.reshape(len(table), -1)
    rows, inverse = np.unique(flat, axis=0, return_inverse=True)
    values = [
        _composed(dict(zip(names, row.reshape(table.shape[1:]), strict=True)), delta)
        for row in rows
    ]
    return target.copy(data=np.asarray(values)[inverse.ravel()].reshape(target.shape))


def _composed(ledgers: dict[str, np.ndarray], delta: float) -> float:
    """Epsilon of independent runs on the same data, from each variable of their ledgers, ``[S]``.

    Runs without privacy, or that are not there, have NaN.
    """
    losses = [ledgers[name] for name in ("rho", "epsilon", "releases") if name in ledgers]
    present = ~np.all(np.isnan(losses), axis=0)
    if not present.any():
        return math.nan
    runs = {name: value[present] for name, value in ledgers.items()}
    runs = {name: value for name, value in runs.items() if not np.isnan(value).any()}
    count = int(present.sum())
    if count > 1 and "epsilon" in runs:
        return _composed_pairs(runs["epsilon"], runs.get("delta", np.zeros(count)), delta)
    total = {name: float(value.min()) for name, value in runs.items()}
    total |= {name: float(runs[name].sum()) for name in ("rho", "releases") if name in runs}
    about = ("noise_multiplier", "sampling_rate", "drawn_from")
    if any(name in runs and np.ptp(runs[name]) > 0 for name in about):
        total["sampling_rate"] = 1.0  # different mechanisms: their composition is not amplified
    if not {"rho", "epsilon"} & total.keys():  # where the sample is secret, so is its rho
        return _secret_epsilon(total, delta)
    return claimed_epsilon(total, delta)


def _composed_pairs(epsilons: np.ndarray, deltas: np.ndarray, delta: float) -> float:
    """Epsilon of (epsilon, delta)-DP releases by the best theorem at hand."""
    basic = {"epsilon": float(epsilons.sum()), "delta": float(deltas.sum())}
    best = claimed_epsilon(basic, delta)
    slack = -math.expm1(math.log1p(-delta) - float(np.log1p(-deltas).sum()))
    if 0 < slack < 1:
        best = min(best, float(accounting.kairouz_composition(epsilons, deltas, slack)[0]))
    if not deltas.any():
        orders = accounting.RENYI_ORDERS
        curve = accounting.renyi_pure(orders[:, None], epsilons[None, :]).sum(axis=1)
        best = min(best, float(accounting.renyi_epsilon(orders, curve, delta)))
    return best


@checked
def events(results: "xarray.Dataset") -> Any:
    """Return all releases of a run as an event of ``dp_accounting``, to be composed with other
    mechanisms.

    Args:
      results: of one run, or of one grid point of a study (``results.sel(...)``), with a zCDP
        ledger.

    Returns:
      A ``DpEvent`` of the most affected client, to be composed under the budget's relation of
      neighbors: Gaussian releases where results declare that all noise was continuous
      Gaussian noise, otherwise a ``ZCDpEvent``, which only the ``RdpAccountant`` composes.

    Raises:
      ImportError: without ``dp_accounting``.
      ValueError: results of several grid points, without privacy, or without a zCDP parameter; of
        a study whose budgets have different relations of neighbors.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=50, samples=9, dim=2),
      ...     algorithm=fl.algorithms.FedAvg(
      ...         0.1, selector=fl.participation.Fraction(0.1)
      ...     ),
      ...     privacy=fl.privacy.CentralGaussian(noise_multiplier=2.0),
      ... )
      >>> events(fl.run(simulation, rounds=20)).count
      20
    """
    last = _ledger(results, "privacy_").isel(round=-1)
    several = [str(name) for name in last.dims if name != "seed"]
    if several:
        raise ValueError(
            f"the results have points over {', '.join(several)}; choose one, results.sel(...)."
        )
    row = {str(name): float(value.max()) for name, value in last.data_vars.items()}
    if "rho" not in row or math.isnan(row["rho"]):
        raise ValueError(
            "the ledger has no Gaussian releases and no others with a zCDP parameter, and only "
            "these can be exported."
        )
    relation = results["privacy_rho"].attrs["neighbors"]
    if relation not in NEIGHBORS:
        raise ValueError(
            f"the results mix budgets whose neighbors are of different kinds ({relation}); export "
            "studies of one kind."
        )
    if "gaussian_noise" in row:
        row["gaussian_noise"] = float(last["gaussian_noise"].min())
    releases = _releases(row)
    if releases is not None:
        return accounting.sampled_gaussian_event(**releases)
    if not _gaussian(row):
        return accounting.zcdp_event(row["rho"])
    return accounting.gaussian_event(row["rho"], relation)
