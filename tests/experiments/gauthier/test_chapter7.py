"""Figures of the sources' future work: what their scenarios are, and claims on made-up data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

import fljax as fl
from experiments import picture
from experiments.figure import REGISTRY
from experiments.gauthier import chapter3 as ch3
from experiments.gauthier import chapter4 as ch4
from experiments.gauthier import figure_7_poisoning as poisoning
from experiments.gauthier import figure_7_private as private
from experiments.gauthier import figure_7_servers as servers

SEEDS = 5


@pytest.mark.slow
def test_graphs_have_the_links_that_they_are_named_by():
    degrees = {
        name: np.asarray(servers.graph_of(jax.random.key(0), 16, float(number)).degree)
        for number, name in enumerate(servers.GRAPHS.value)
    }
    assert {*degrees["ring"]} == {2}
    assert {*degrees["complete"]} == {15}
    assert {*degrees["no links"]} == {0}
    assert degrees["random"].sum() == 16 * 3


@pytest.mark.slow
def test_servers_have_clients_of_all_groups():
    simulation = servers.scenario(jax.random.key(0), servers.pao(16, servers.RING))
    home = np.asarray(simulation.network.server)
    availability = np.asarray(simulation.participation.probability)
    for p in range(16):
        assert np.unique(availability[home == p], return_counts=True)[1].tolist() == [4] * 4


def made_servers(**gaps):
    """Errors of 0.1 plus the given decibels, with noise that all methods of a seed share."""
    names = [*servers.runs(quick=False)]
    noise = np.exp(0.01 * np.random.default_rng(0).normal(size=SEEDS))
    above = np.array([gaps.get(name, 0.0) for name in names])
    errors = 0.1 * np.multiply.outer(10 ** (above / 10), noise)[:, :, None] * np.ones(20)
    rounds = np.arange(100, 2001, 100)
    up = 2000.0 * rounds
    down = np.array([up + 100.0 * int(name.split()[0]) * rounds for name in names])
    down[[name.startswith("1 server,") or name == "1 server" for name in names]] = up
    shape = errors.shape
    return {
        "all": xr.Dataset(
            {
                "test_error": (("algorithm", "seed", "round"), errors, {"decibel": 1}),
                "bits_down": (
                    ("algorithm", "seed", "round"),
                    np.broadcast_to(down[:, None], shape),
                ),
                "bits": (
                    ("algorithm", "seed", "round"),
                    np.broadcast_to(down[:, None] + up, shape),
                ),
                "diverged": (("algorithm", "seed"), np.zeros(shape[:2], int)),
            },
            coords={"algorithm": names, "seed": np.arange(SEEDS), "round": rounds},
        )
    }


def verdicts(figure, studies):
    return {claim.name: claim.judge(studies).holds for claim in figure.claims}


def test_claims_of_servers_describe_costs():
    silent = {f"{p} servers, no links": gap for p, gap in ((4, 1.0), (16, 4.0), (64, 13.0))}
    outcomes = verdicts(servers.FIGURE, made_servers(**silent, **{"64 servers, ring": 5.0}))
    assert {name for name, holds in outcomes.items() if not holds} <= {
        "strain-alleviated-if-all-talk"
    }
    bad = {f"16 servers, {graph}": 2.0 for graph in ("ring", "random")}
    outcomes = verdicts(servers.FIGURE, made_servers(**bad))
    lost = {"costs-little", "talking-helps", "servers-must-talk", "graph-hardly-matters"}
    lost |= {"graph-of-many-matters"}
    assert {name for name, holds in outcomes.items() if not holds} == {
        *lost,
        "portions-between-servers-suffice",
    }


def test_the_load_of_a_server_counts_both_directions():
    data = made_servers()["all"]
    # 2000 bits to clients and from them; of 16 servers each 100 to others, and from them.
    np.testing.assert_allclose(servers.load(data, "1 server"), 4000)
    np.testing.assert_allclose(servers.load(data, "16 servers, ring"), 4000 / 16 + 200)
    np.testing.assert_allclose(servers.between_servers(data, "16 servers, ring"), 1600)


def test_a_larger_share_of_attackers_contains_the_smaller():
    among = jnp.arange(30) < 20
    masks = [
        np.asarray(poisoning.chosen(jax.random.key(3), among, jnp.asarray(share)))
        for share in (0.0, 0.1, 0.4)
    ]
    assert [mask.sum() for mask in masks] == [0, 2, 8]
    assert not masks[2][20:].any()
    assert (masks[1] <= masks[2]).all()


@pytest.mark.slow
def test_without_mixing_other_clusters_are_unaffected_by_attackers():
    method = poisoning.ch5.pgfl(0.0, False)
    runs = [
        fl.run(poisoning.pgfl_scenario(jax.random.key(0), method, 0, jnp.asarray(share), None), 5)
        for share in (0.0, 0.4)
    ]
    other_errors, own_errors = ([run[name].values for run in runs] for name in ("others", "own"))
    np.testing.assert_allclose(*other_errors, rtol=1e-9)
    assert own_errors[1][-1] > 1.1 * own_errors[0][-1]


def made_poisoned():
    """Errors that grow with the share of attackers, less where something is done against them."""
    every = poisoning.points(poisoning.ATTACKS, poisoning.SHARES.value)
    noise = np.exp(0.01 * np.random.default_rng(1).normal(size=SEEDS))

    def study(methods, aggregators, metrics, *rise):
        axes = ("algorithm", "point", "aggregator", "seed")
        shape = (len(methods), len(every), len(aggregators), SEEDS)
        shares = np.array([share for _, share in every.values()])
        above = 10 ** (np.multiply.outer(np.broadcast_to(rise, len(methods)), shares) / 4)
        errors = np.broadcast_to(above[..., None, None], shape) * noise
        data = {metric: (axes, errors, {"decibel": 1}) for metric in metrics}
        data["diverged"] = (axes, np.zeros(shape, int))
        coords = {
            "algorithm": [*methods],
            "point": [*every],
            "aggregator": [*aggregators],
            "seed": np.arange(SEEDS),
        }
        return xr.Dataset(data, coords=coords)

    portions = (poisoning.C2, poisoning.U2)
    mixed = poisoning.ch5.PGFL_MIXED
    error = [ch4.METRIC]
    within = ("own", "others")
    return {
        "portions": study((*portions, poisoning.WHOLE), ["mean"], error, 5, 6, 4),
        "robust": study(portions, poisoning.ROBUST, error, 0.1),
        "clusters": study((poisoning.ch5.PGFL_0, mixed), ["mean"], within, 5),
        "cells": study((mixed,), poisoning.ROBUST_CELLS, within, 0.1),
    }


def test_claims_of_poisoning_describe_the_harm():
    outcomes = verdicts(poisoning.FIGURE, made_poisoned())
    assert {name for name, holds in outcomes.items() if holds} == {
        *("portions-are-no-protection", "coordination-lets-aggregators-work"),
        *("medians-cost-little-with-coordination", "mixing-carries-the-harm"),
        *("robust-cells-contain-few", "robust-cells-contain-many", "robust-cells-cost-little"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["servers", "poisoning"])
def test_pictures_have_no_faults(name):
    build = {"servers": made_servers, "poisoning": made_poisoned}[name]()
    with picture.print_style():
        assert picture.faults(REGISTRY[f"gauthier-7.{name}"].plot(build)) == []


def made_private(ours=30.0, gradient=15.0, robust=0.5):
    """Errors that rise by these decibels with 40 % of attackers."""
    every = poisoning.points(poisoning.ATTACKS, private.SHARES.value)
    noise = np.exp(0.01 * np.random.default_rng(1).normal(size=SEEDS))
    shares = np.array([share for _, share in every.values()])

    def study(rises, aggregator):
        above = 10 ** (np.outer([*rises.values()], shares) / 0.4 / 10)
        errors = 0.01 * above[:, :, None, None] * noise
        axes = ("algorithm", "point", "aggregator", "seed")
        return xr.Dataset(
            {
                ch3.METRIC: (axes, errors, {"decibel": 1}),
                "diverged": (axes, np.zeros(errors.shape, int)),
            },
            {
                "algorithm": [*rises],
                "point": [*every],
                "aggregator": [aggregator],
                "seed": np.arange(SEEDS),
            },
        )

    return {
        private.PRIVATE: study({ch3.OURS: ours, ch3.GRADIENT: gradient}, poisoning.MEAN),
        private.ROBUST: study({ch3.GRADIENT: robust}, poisoning.TRIMMED),
    }


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, set()),
        ({"gradient": 1.0}, {"attackers-do-harm"}),
        ({"ours": 10.0}, {"dual-variables-carry-more-harm"}),
        ({"robust": 12.0}, {"trimmed-means-leave-little-harm"}),
    ],
)
def test_claims_of_poisoned_private_learning(changed, wrong):
    outcomes = verdicts(private.FIGURE, made_private(**changed))
    assert {name for name, holds in outcomes.items() if not holds} == wrong


def test_poisoned_private_learning_is_drawn():
    with picture.print_style():
        drawn = private.plot(made_private())
    assert picture.faults(drawn) == []
    assert len(drawn.axes[0].lines) == 3
    plt.close(drawn)


@pytest.mark.slow
@pytest.mark.parametrize("method", [*private.METHODS])
def test_without_attackers_private_learning_is_that_of_chapter_3(method):
    key = jax.random.key(4)
    simulation = private.scenario(key, private.METHODS[method], 0, jnp.asarray(0.0), None)
    assert simulation.honest_only
    assert not np.asarray(simulation.attack.attackers).any()
    clean = ch3.scenario(private.OBJECTIVE.value, ch3.CLIP_ABSOLUTE.value)(
        jax.random.split(key)[0], ch3.CURVE_BUDGET.value, private.METHODS[method]
    )
    runs = [fl.run(one, rounds=5)[ch3.METRIC].values for one in (simulation, clean)]
    np.testing.assert_allclose(*runs, rtol=1e-9)
    poisoned = private.scenario(key, private.METHODS[method], 0, jnp.asarray(0.2), None)
    assert int(np.asarray(poisoned.attack.attackers).sum()) == 10
    assert fl.run(poisoned, rounds=5)[ch3.METRIC].values[-1] > runs[0][-1]
