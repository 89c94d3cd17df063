"""Chapter 7's discovered clusters: the figure's measures, and clients that change clusters."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments.gauthier import figure_7_clusters as figure
from fljax.problems.clustering import adjusted_rand

close = np.testing.assert_allclose


def test_kappa_over_all_pairs_is_the_adjusted_rand_index():
    ours = np.array([0, 0, 1, 1, 2, 2, 0])
    theirs = np.array([1, 1, 1, 0, 0, 2, 2])
    pairs = np.array(list(itertools.combinations(range(7), 2))).T
    together = [jnp.asarray(names[pairs[0]] == names[pairs[1]]) for names in (ours, theirs)]
    everywhere = jnp.ones(pairs.shape[1], bool)
    close(figure.kappa(*together, everywhere), adjusted_rand(ours, theirs), rtol=1e-12)
    first_ten = jnp.arange(pairs.shape[1]) < 10
    assert float(figure.kappa(together[1], together[1], first_ten)) == 1


@pytest.mark.slow
def test_parameters_rank_links_by_cluster():
    """With two links within and two between clusters, three of four pairs are in order; a tie
    counts half.
    """
    network = fl.graphs.from_edges(4, [(0, 1), (2, 3), (0, 2), (1, 3)])
    cluster = jnp.array([0, 0, 1, 1])
    tau = jnp.asarray(np.array([[0, 5, 1, 0], [5, 0, 0, 3], [1, 0, 0, 2], [0, 3, 2, 0]]) / 10)
    state = SimpleNamespace(context=SimpleNamespace(like=None), inter_cluster=tau)
    now = SimpleNamespace(
        state=state,
        model=jnp.zeros((4, 1)),
        network=network,
        problem=SimpleNamespace(tasks=SimpleNamespace(cluster=cluster)),
    )
    close(figure._told_apart(now), 0.75)
    state.inter_cluster = jnp.where(tau == 0.3, 0.2, tau)
    close(figure._told_apart(now), 0.875)


@pytest.mark.slow
def test_moving_clients_observe_the_next_cluster_with_their_own_noise():
    key = fl.random_key(0)
    cluster = fl.problems.random_clusters(key, 12, 3)
    problem = fl.problems.clustered_ridge(key, cluster, 3, (2, 5), 4, 0.5, 0.01, validated=True)
    after = figure.moved(jax.random.fold_in(key, 1), problem)
    change = (np.asarray(after.tasks.cluster) - np.asarray(cluster)) % 3
    assert sorted(change) == [0] * 8 + [1] * 4
    truth = jnp.asarray(problem.tasks.truth)
    parts = (problem, after), (problem.tasks.validation, after.tasks.validation)
    for before, later in parts:
        noise = before.targets - before.predictions(truth[cluster])
        close(later.targets - later.predictions(truth[after.tasks.cluster]), noise, atol=1e-12)


@pytest.mark.slow
def test_after_a_change_data_constants_and_truth_are_the_new_ones():
    """A run that changes in its first round is one of the later data; told or not, errors are of
    where clients are.
    """
    key = fl.random_key(2)

    def build(key, algorithm):
        return figure.on_servers(key, algorithm, 0.5, False)

    case = figure.served()[figure.KNOWN]
    plain = build(key, case)
    later = figure.moved(jax.random.fold_in(key, 1), plain.problem)
    expected = fl.run(figure.replace(plain, problem=later), 4)
    changed = figure.with_change(build, figure.Changing, 1)(key, case)
    results = fl.run(changed, 4)
    close(results[figure.NMSD].values, expected[figure.NMSD].values, rtol=1e-9)
    untold = fl.run(
        figure.with_change(build, figure.Changing, 1)(key, figure.FrozenClusters(case)), 4
    )
    assert float(untold[figure.NMSD][-1]) > float(results[figure.NMSD][-1])


def test_recovery_is_measured_around_the_change():
    rounds = np.arange(2, 161, 2)
    curve = np.where(rounds < 80, 0.5, 0.1)
    curve[rounds > 150] = 0.4
    study = xr.Dataset(
        {
            figure.RAND: (("algorithm", "seed", "round"), np.broadcast_to(curve, (1, 3, 80))),
            "diverged": (("algorithm", "seed"), np.zeros((1, 3), int)),
        },
        {"algorithm": [figure.LOSS], "round": rounds},
    )
    measure = figure.regained(("servers changing", figure.LOSS, 80))
    (estimate,) = measure({"servers changing": study}).values()
    close([estimate.value, estimate.low, estimate.high], 0.8)
