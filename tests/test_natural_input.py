"""What is given without a thought, and what can only be a mistake: taken, or refused in words."""

import dataclasses
import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from flax import linen as nn
from flax import nnx
from scipy import sparse

import fljax as fl
from fljax.__main__ import main

K = 4


pytestmark = pytest.mark.usefixtures("annotations_unchecked")


def problem(clients=K, samples=5):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(clients, samples, 2))
    targets = rng.normal(size=(clients, samples))
    return squares(features, targets)


def squares(features, targets):
    return fl.problems.Problem(features, targets, fl.problems.LeastSquares())


def served(**more):
    parts = {"problem": problem(), "algorithm": fl.algorithms.FedAvg(0.1), "metrics": "objective"}
    return fl.Simulation(**parts | more)


def among_peers(**more):
    return served(algorithm=fl.algorithms.ATC(0.1), network=fl.graphs.ring(K), **more)


class TestLink:
    @pytest.mark.parametrize("base", [fl.link.Noise, fl.module(type("Mine", (fl.link.Noise,), {}))])
    def test_zero_noise_is_refused(self, base):
        with pytest.raises(TypeError, match=r"adds nothing to any message; take .*PerMessage"):
            base(1.0)

    def test_more_bits_than_a_word_has_are_refused(self):
        with pytest.raises(ValueError, match=r"bits_each must be <= 32, .* got 40"):
            fl.link.Quantize(40)
        fl.run(served(compression=fl.link.Quantize(32)), 2)

    def test_a_constant_lie_is_as_long_as_a_message(self):
        liar = fl.attacks.first(1, K)
        with pytest.raises(ValueError, match="the attack's value has 3 numbers and a message 2"):
            served(attack=fl.attacks.ConstantMessage(liar, [1.0, 2.0, 3.0]))
        fl.run(served(attack=fl.attacks.ConstantMessage(liar, [1.0, 2.0])), 2)

    @pytest.mark.parametrize("make", [served, among_peers])
    def test_links_may_always_fail(self, make):
        run = fl.run(make(losses=fl.link.Independent(1)), 3)
        assert np.isfinite(run.objective).all()

    @pytest.mark.slow
    def test_long_delays_are_not_enumerated(self):
        delays = fl.link.UniformDelay(10**6)
        assert isinstance(delays.lags, range)
        assert fl.run(served(delays=delays), 2).sizes["round"] == 2

    @pytest.mark.parametrize("make", [served, among_peers])
    def test_delays_that_exceed_memory_are_refused(self, make):
        with pytest.raises(MemoryError, match=r"what is on its way for up to 2000000000 rounds"):
            fl.run(make(delays=fl.link.UniformDelay(2 * 10**9)), 2)


class TestGraphs:
    def test_a_mapping_of_edges_holds_their_weights(self):
        graph = fl.graphs.from_edges(3, {(0, 1): 0.5, (2, 1): 2.0})
        np.testing.assert_array_equal(graph.degree, [0.5, 2.5, 2.0])
        with pytest.raises(ValueError, match="edges map to weights already"):
            fl.graphs.from_edges(3, {(0, 1): 0.5, (2, 1): 2.0}, [1.0, 1.0])

    def test_sparse_matrices_are_matrices(self):
        ring = np.asarray(fl.graphs.ring(K).adjacency)
        graph = fl.graphs.from_adjacency(sparse.csr_array(ring))
        np.testing.assert_array_equal(graph.degree, ring.sum(1))


class TestData:
    X = np.random.default_rng(1).normal(size=(6, 2))
    Y = np.array([1.0, -1, 1, 1, -1, -1])

    def made(self, x, y, loss=fl.problems.LeastSquares(), **more):  # noqa: B008 (immutable)
        return fl.problems.from_clients([(x, y)] * 2, loss, strength=1.0, **more)

    @pytest.mark.parametrize(
        ("x", "y"),
        [
            (pd.DataFrame(X), pd.Series(Y)),
            (pd.DataFrame(X).convert_dtypes(), pd.Series(Y).convert_dtypes()),
            (sparse.csr_array(X), Y),
            (sparse.csc_matrix(X), Y[:, None]),
            (X, pd.DataFrame({"y": Y})),
            (X.tolist(), Y.tolist()),
        ],
        ids=["frame", "nullable", "sparse", "column", "frame of one", "lists"],
    )
    def test_frames_and_sparse_matrices_are_arrays(self, x, y):
        got = self.made(x, y)
        wanted = self.made(self.X, self.Y)
        np.testing.assert_array_equal(got.features, wanted.features)
        np.testing.assert_array_equal(got.targets, wanted.targets)

    def test_missing_columns_of_a_frame_are_named(self):
        frame = pd.DataFrame(self.X).convert_dtypes()
        frame.iloc[0, 0] = None
        with pytest.raises((TypeError, ValueError), match="features"):
            self.made(frame, self.Y)

    def test_targets_may_be_columns(self):
        x = np.stack([self.X] * 2)
        y = np.stack([self.Y] * 2)
        column = fl.problems.Problem(x, y[..., None], fl.problems.LeastSquares())
        np.testing.assert_array_equal(column.targets, y)

    @pytest.mark.parametrize("of", [np.asarray, jnp.asarray, pd.Series, list])
    def test_truth_and_falsehood_are_labels(self, of):
        got = self.made(self.X, of(self.Y > 0), fl.problems.Logistic())
        np.testing.assert_array_equal(got.targets, [self.Y] * 2)

    def test_audits_of_networks_accept_true_and_refute_false_claims(self):
        net = fl.models.mlp(1, [3])
        result = fl.problems.Model.from_clients(
            net, jax.random.key(0), [(self.X, self.Y > 0)], fl.problems.Logistic()
        )
        np.testing.assert_array_equal(result.targets, [self.Y])

    @pytest.mark.parametrize("network", [False, True])
    def test_a_client_may_have_no_samples(self, network):
        data = [(self.X, self.Y), (self.X[:0], self.Y[:0]), ([], [])]
        loss = fl.problems.LeastSquares()
        if network:
            net = fl.models.linen(nn.Sequential([nn.Dense(1), lambda z: z[:, 0]]))
            result = fl.problems.Model.from_clients(net, jax.random.key(0), data, loss)
        else:
            result = fl.problems.from_clients(data, loss, fl.problems.SquaredL2(), 0.1)
        assert result.sample_counts().tolist() == [6, 0, 0]
        assert result.importance.tolist() == [1, 0, 0]
        metrics = "train_error" if network else ["objective", "normalized_error"]
        run = fl.run(fl.Simulation(result, fl.algorithms.FedAvg(0.1, 2), metrics=metrics), 3)
        for name in [metrics] if network else metrics:
            assert np.isfinite(run[name]).all()

    def test_one_client_is_a_federation(self):
        single = problem(clients=1)
        run = fl.run(served(problem=single, metrics="normalized_error"), 200)
        assert run.normalized_error[-1] < 1e-3


class TestNumbers:
    @pytest.mark.parametrize("of", [np.int32, np.uint8, jnp.int32, np.array])
    def test_integers_of_any_library_are_counts(self, of):
        simulation = served(algorithm=fl.algorithms.FedAvg(0.1, epochs=of(2)))
        assert hash(jax.tree.structure(simulation)) is not None
        assert fl.run(simulation, of(3), record_every=of(3)).sizes["round"] == 1
        assert fl.graphs.ring(of(4)).nodes == 4
        assert fl.problems.least_squares(jax.random.key(0), of(4), of(5), of(2)).samples == 5
        assert fl.data.iid(of(6), of(2), of(0))[0].shape == (3,)
        assert fl.participation.Subset(of(2)).count == 2

    @pytest.mark.parametrize("of", [np.int32, jnp.int32])
    def test_a_sweep_takes_integers_of_any_library(self, of):
        def study(key, rate):
            return served(algorithm=fl.algorithms.FedAvg(rate))

        results = fl.sweep(
            study, rounds=of(2), seeds=of(2), grid={"rate": [0.1]}, workers=of(1), block=of(1)
        )
        assert results.sizes["seed"] == 2

    def test_zeros_and_ones_are_masks(self):
        trace = fl.participation.Trace([[1, 0, 0, 1], [0, 1, 1, 0]])
        assert trace.table.dtype == bool
        assert fl.attacks.SignFlip([1, 0, 0, 0]).attackers.tolist() == [True, False, False, False]
        with pytest.raises(TypeError, match="attackers must be booleans"):
            fl.attacks.SignFlip([2, 0, 0, 0])

    TABLE = pd.DataFrame([[1, 0, 0, 1], [0, 1, 1, 0]])

    @pytest.mark.parametrize(
        "of",
        [
            lambda table: table,
            lambda table: table.astype(bool),
            lambda table: table.astype(float),
            lambda table: table.astype(bool).astype(object),
            lambda table: table.convert_dtypes(),
            lambda table: table.astype(bool).convert_dtypes(),
            sparse.csr_array,
            lambda table: jnp.asarray(table.to_numpy()),
        ],
    )
    def test_availability_may_be_a_frame(self, of):
        table = fl.participation.Trace(of(self.TABLE)).table
        assert table.dtype == bool
        np.testing.assert_array_equal(table, self.TABLE)

    def test_an_incomplete_frame_is_refused(self):
        missing = self.TABLE.astype(bool).convert_dtypes()
        missing.iloc[0, 0] = None
        text = self.TABLE.replace({0: "no", 1: "yes"})
        with pytest.raises(TypeError, match=r"got a DataFrame of shape \(2, 4\), .* no numbers"):
            fl.participation.Trace(text)
        with pytest.raises(ValueError, match="table must be booleans of shape"):
            fl.participation.Trace(missing)
        with pytest.raises(ValueError, match="table must be booleans of shape"):
            fl.participation.Trace(2 * self.TABLE)

    @pytest.mark.parametrize("of", [pd.Series, np.array, jnp.array, tuple])
    def test_sizes_of_batches_are_integers_of_any_library(self, of):
        assert fl.batches.Uniform(of([2, 1])).size == (2, 1)
        assert fl.batches.Uniform(of([2, 1])[0]).size == 2

    def test_numbers_of_parts_are_arrays_of_any_library(self):
        steps = pd.Series([0.1, 0.2, 0.1, 0.2])
        algorithm = fl.algorithms.FedGD(0.4, steps)
        np.testing.assert_array_equal(algorithm.step_size, steps)
        run = fl.run(served(algorithm=algorithm, network=fl.graphs.ring(K)), 2)
        assert np.isfinite(run.objective).all()
        assert fl.participation.Periodic(pd.Series([1.0, 2.0])).period == (1, 2)
        assert fl.batches.Uniform(pd.Series([1.0, 2.0])).size == (1, 2)
        edges = pd.DataFrame({"from": [0, 1], "to": [1, 2], "weight": [0.5, 2.0]})
        graph = fl.graphs.from_edges(3, edges[["from", "to"]], edges.weight)
        np.testing.assert_array_equal(graph.degree, [0.5, 2.5, 2.0])

    def test_missing_values_of_a_frame_are_not_observed(self):
        targets = pd.DataFrame([[1.0, np.nan, 3.0], [np.nan, 5.0, 7.0]])
        for frame in (targets, targets.convert_dtypes()):
            stream = fl.streams.from_observations(np.ones((2, 3, 1)), frame)
            np.testing.assert_array_equal(stream.rows >= 0, ~targets.isna())

    def test_sizes_that_are_traced_are_structure(self):
        with pytest.raises(TypeError, match="size is structure and cannot be traced"):
            jax.eval_shape(lambda size: fl.batches.Uniform(size).size, np.array([2, 1]))


class TestTraced:
    """Values drawn in a scenario may be in lists, as in a single run."""

    @pytest.mark.slow
    def test_clients_drawn_one_by_one_can_be_stacked(self):
        def listed(key):
            features = [jax.random.normal(k, (5, 3)) for k in jax.random.split(key, K)]
            targets = [rows.sum(1) for rows in features]
            return served(problem=squares(features, targets))

        def stacked(key):
            features = jnp.stack([jax.random.normal(k, (5, 3)) for k in jax.random.split(key, K)])
            targets = features.sum(2)
            return served(problem=squares(features, targets))

        from_list, from_stack = (
            fl.sweep(s, rounds=2, seeds=2).objective.values for s in (listed, stacked)
        )
        np.testing.assert_array_equal(from_list, from_stack)

    @pytest.mark.parametrize("of", [list, tuple])
    def test_numbers_of_clients_may_be_drawn(self, of):
        def drawn(key):
            rate = jax.random.uniform(key)
            return served(participation=fl.participation.Bernoulli(of([rate, 1.0, 0.5, rate])))

        assert fl.sweep(drawn, rounds=2, seeds=2).sizes["seed"] == 2

    @pytest.mark.slow
    def test_weights_of_edges_may_be_drawn(self):
        def drawn(key):
            weight = jax.random.uniform(key)
            network = fl.graphs.from_adjacency([[0, weight], [weight, 0]])
            return served(
                problem=problem(clients=2), algorithm=fl.algorithms.ATC(0.1), network=network
            )

        assert fl.sweep(drawn, rounds=2, seeds=2).sizes["seed"] == 2

    def test_clients_of_different_sizes_cannot_be_stacked(self):
        def ragged(key):
            features = [jax.random.normal(key, (5 + k, 3)) for k in range(K)]
            targets = [rows.sum(1) for rows in features]
            return served(problem=squares(features, targets))

        with pytest.raises(TypeError, match="features must be an array of real numbers"):
            fl.sweep(ragged, rounds=2, seeds=2)

    @pytest.mark.slow
    def test_a_drawn_network_may_be_a_table_with_hubs(self):
        """A part with a tuple of drawn arrays is described like any other."""

        def drawn(key):
            k_graph, k_data = jax.random.split(key)
            network = fl.graphs.random_connected(k_graph, nodes=600, mean_degree=4)
            assert network.overflow is not None
            data = fl.problems.least_squares(k_data, clients=600, samples=2, dim=2)
            return served(problem=data, algorithm=fl.algorithms.ATC(0.1), network=network)

        results = fl.sweep(drawn, rounds=2, seeds=2)
        assert "overflow=" in fl.decisions(results).to_string(max_colwidth=None)


class TestParts:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: fl.schedules.from_optax(optax.adam), r"take fljax\.optimizers\.from_optax"),
            (
                lambda: fl.schedules.from_optax(optax.adam, learning_rate=0.1),
                r"adam makes no schedule, .* take fljax\.optimizers\.from_optax\(adam, \.\.\.\)",
            ),
            (
                lambda: served(
                    algorithm=fl.algorithms.FedAvg(0.1, selector=fl.participation.PerServer(1))
                ),
                r"the simulation has no servers with clients of their own; give it network=",
            ),
            (lambda: fl.graphs.GraphSchedule(None), "graphs must be a list of graphs, .* got None"),
            (lambda: fl.participation.groups([0.5, np.nan], 4), "values holds 1 NaN"),
            *(
                (
                    lambda process=law: process(fl.participation.groups([0.5, 1.5], 4)),
                    "must be finite and .* <= 1, got 1.5",
                )
                for law in (
                    fl.participation.Bernoulli,
                    lambda rates: fl.participation.Markov(rates, 0.5),
                    lambda rates: fl.participation.Markov(0.5, rates),
                    lambda rates: fl.participation.Bounded(3, rates),
                    lambda rates: fl.participation.Unequal(1, rates),
                )
            ),
            (lambda: problem().split(None), "key must be a random key, .* got None"),
            (lambda: problem().split(0.2), "key must be a random key, .* got 0.2"),
            (lambda: fl.participation.Law(1.5), "rate must be finite and > 0 and <= 1, got 1.5"),
            (lambda: fl.participation.Law(0.5, 0), "separation must be >= 1"),
            (lambda: fl.participation.Law(0.5, sampling="often"), "unknown sampling 'often'"),
            (lambda: fl.participation.Law(0.5, 2, "drawn"), "may be drawn in two in a row"),
            (
                lambda: fl.problems.diagnose(np.ones(3), np.ones(2), 1.0),
                r"got shapes train_error \(3,\), validation_error \(2,\), reference \(\)",
            ),
        ],
    )
    def test_mismatches_are_reported(self, make, message):
        with pytest.raises((TypeError, ValueError), match=message):
            make()

    @pytest.mark.parametrize(
        ("step", "message"),
        [
            ({"gradient": lambda w: w[:1]}, r"gradient must .* shape \(2,\), got shape \(1,\)"),
            ({"projection": lambda w: w[None]}, r"projection must .* got shape \(1, 2\)"),
            ({"projection": lambda w: None}, "projection must .* got None"),
            ({"projection": lambda w: w > 0}, "projection must return float64, .* got bool"),
            ({"perturbation": lambda n, w: jnp.ones(3)}, r"perturbation must .* shape \(3,\)"),
        ],
    )
    def test_a_descent_keeps_the_shape_of_its_point(self, step, message):
        with pytest.raises((TypeError, ValueError), match=message):
            fl.descent.minimize(lambda w: jnp.sum(w**2), jnp.ones(2), 0.1, 3, **step)

    @pytest.mark.parametrize("make", [optax.sgd, optax.adam, optax.lion])
    @pytest.mark.parametrize(
        ("rate", "message"), [(-0.1, "goes up the objective"), (np.nan, "is .nan, nan.; give it")]
    )
    def test_an_optimizer_descends(self, make, rate, message):
        with pytest.raises(ValueError, match=message):
            fl.algorithms.FedAvg(make(rate))
        with pytest.raises(ValueError, match=message):
            fl.algorithms.FedAvg(optax.inject_hyperparams(make)(learning_rate=rate))
        if rate < 0:
            with pytest.raises(ValueError, match=message):
                fl.optimizers.from_optax(make, learning_rate=rate)

    def test_a_swept_optimizer_descends(self):
        def study(key, rate):
            adam = fl.optimizers.from_optax(optax.adam, learning_rate=rate)
            return served(algorithm=fl.algorithms.FedAvg(adam))

        with pytest.raises(ValueError, match="goes up the objective"):
            fl.sweep(study, rounds=1, grid={"rate": [0.1, -0.1]})

    def test_an_optimizer_that_warms_up_or_adds_noise_is_taken(self):
        fl.algorithms.FedAvg(optax.adam(optax.linear_schedule(0.0, 0.1, 5)))
        for seed in range(5):
            fl.algorithms.FedAvg(optax.noisy_sgd(0.1, seed=seed))


class TestModels:
    def model(self, network=None):
        network = fl.models.mlp(1, [3]) if network is None else network
        return fl.problems.Model.of(problem(), network, jax.random.key(0))

    def test_a_start_is_finite(self):
        lost = fl.models.plain(lambda key: jnp.full(2, jnp.nan), lambda w, x: x @ w)
        with pytest.raises(ValueError, match="the start that the network draws holds 2 NaN"):
            self.model(lost)

    @pytest.mark.parametrize("key", [None, 0, 0.2])
    def test_held_out_samples_are_drawn(self, key):
        with pytest.raises(TypeError, match="key must be a random key, such as"):
            self.model().split(key)
        assert self.model().split(jax.random.key(0)).test.samples == 1

    @pytest.mark.parametrize("models", [np.ones(3), np.ones((2, 4)), 1.0, {"a": 1.0}, "text"])
    def test_parameters_are_of_rows_of_the_networks_length(self, models):
        with pytest.raises((TypeError, ValueError), match=r"^models must be"):
            self.model().parameters(models)

    def test_adapters_refuse_built_networks(self):
        network = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
        with pytest.raises(
            TypeError, match=r"equinox takes what makes .* give equinox\(MLP, \.\.\."
        ):
            fl.models.equinox(network)
        with pytest.raises(TypeError, match=r"nnx takes what makes .* give nnx\(Linear, \.\.\."):
            fl.models.nnx(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
        with pytest.raises(TypeError, match="haiku takes a function, got a module of linen"):
            fl.models.haiku(nn.Dense(1))


def test_the_command_line_writes_one_format(tmp_path, capsys):
    assert main(["run", "a.py:study", "--rounds", "2", "--out", str(tmp_path / "x.csv")]) == 2
    assert "--out writes netCDF, and 'x.csv' does not end in .nc" in capsys.readouterr().err


class TestStudies:
    @pytest.mark.parametrize("ask", [fl.sweep, fl.plan])
    def test_a_scenario_can_be_remembered(self, ask):
        @dataclasses.dataclass
        class Scenario:
            rate: float = 0.1

            def __call__(self, key):
                return served()

        with pytest.raises(TypeError, match=r"scenario must be hashable.*a Scenario is not"):
            ask(Scenario(), rounds=1)

    @pytest.mark.parametrize("value", [np.ones(2), jnp.ones(2)])
    def test_structure_cannot_be_an_array(self, value):
        with pytest.raises(TypeError, match=r"a value of static is a static field.*give a tuple"):
            fl.static([value])

        @fl.module
        class Weighed:
            weights: Any = fl.static()

        with pytest.raises(TypeError, match=r"weights is a static field, .* an array of shape"):
            Weighed(value)

    @pytest.mark.parametrize(
        "change",
        [{"seeds": [0.5]}, {"seeds": 3}, {"rounds": "many"}, {"points": [1]}, {"axes": 3}],
    )
    def test_an_edited_manifest_is_named(self, tmp_path, change):
        fl.sweep(lambda key: served(), rounds=2, store=tmp_path / "kept")
        path = tmp_path / "kept" / "study.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(fl.StoreError, match=r"study.json was edited: .* Restore it"):
            fl.load(tmp_path / "kept")
