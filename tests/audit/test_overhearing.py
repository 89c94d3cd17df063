"""Who hears what: exact numbers against closed forms, densities, and the simulator's own noise."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import as_key
from fljax.algorithms import ATC
from fljax.audit import overheard, overheard_upload, protection, upload_protection
from fljax.audit.overhearing import _shortest, _signals
from fljax.link import (
    GraphHomomorphic,
    Link,
    LocalGraphHomomorphic,
    PerEdge,
    PerMessage,
    SecureAggregation,
    UploadNoise,
)
from fljax.simulation.scan import begin, make_round, prepare, step_algorithm
from tests.cases import make_network, make_problem

#: Figure 4.2: agent 1 (here 0) and five neighbors; alone, or with links among these too.
STAR = fl.graphs.star(6).mixing()
RIM = [(k, k % 5 + 1) for k in range(1, 6)]
WHEEL = fl.graphs.from_edges(6, [(0, k) for k in range(1, 6)] + RIM).mixing()
#: Directed weights, not symmetric: rows are what receivers give.
UNEVEN = np.random.default_rng(5).uniform(0.2, 1, (5, 5)) * (
    np.eye(5) + np.eye(5, k=1) + np.eye(5, k=-1) + np.eye(5, k=4) + np.eye(5, k=-4)
)
UNEVEN /= UNEVEN.sum(axis=1, keepdims=True)
COMBINATION = fl.graphs.from_stochastic(UNEVEN, convention="right")
VARIANCE = 0.5
SCALE = math.sqrt(VARIANCE / 2)  # of Laplace noise


def epsilon(noise, over=COMBINATION, victim=1, attackers=(), **more):
    more = {"eavesdropper": not np.size(attackers)} | more
    return overheard(noise, over, victim, attackers, **more).epsilon


@pytest.mark.parametrize("rounds", [1, 4])
def test_epsilons_equal_closed_forms(rounds):
    """An eavesdropper on the line. Under PerMessage a node's own clean part fades as a_kk^t; under
    homomorphic noise nothing fades; under PerEdge the two copies of a message are two releases.
    """
    self_weight = float(COMBINATION.self_weight[1])
    fading = sum(self_weight**t for t in range(rounds)) / SCALE
    assert epsilon(PerMessage(VARIANCE), rounds=rounds) == pytest.approx(fading)
    assert epsilon(GraphHomomorphic(VARIANCE), rounds=rounds) == pytest.approx(rounds / SCALE)
    assert epsilon(GraphHomomorphic(VARIANCE), rounds=rounds, change=3.0) == pytest.approx(
        3 * rounds / SCALE
    )
    if rounds == 1:
        assert epsilon(PerEdge(VARIANCE)) == pytest.approx(2 / SCALE)
        assert epsilon(PerEdge(VARIANCE), attackers=0) == pytest.approx(1 / SCALE)
        assert epsilon(PerEdge(VARIANCE), attackers=3) == 0  # node 3 does not hear node 1
    gaussian = overheard(
        GraphHomomorphic(VARIANCE, "gaussian"), COMBINATION, 1, eavesdropper=True, rounds=rounds
    )
    assert gaussian.mu == pytest.approx(math.sqrt(rounds / VARIANCE))
    assert gaussian.epsilon == pytest.approx(
        float(fl.privacy.accounting.zcdp_epsilon(gaussian.mu**2 / 2, 1e-5, "gaussian"))
    )
    assert (gaussian.delta, gaussian.verdict) == (1e-5, "protected")


def test_an_own_noise_draw_hides_the_next_message():
    """The second message of node 1 is a_11 of its first, behind what 1 drew for itself and heard of
    others than the attacker.
    """
    own_noise = UNEVEN[1, 1] ** 2
    received = sum(UNEVEN[1, k] ** 2 for k in (2, 3, 4))
    for noise, hidden in ((False, 1 + received), (True, 1 + received + own_noise)):
        result = overheard(PerEdge(VARIANCE, "gaussian", own=noise), COMBINATION, 1, 0, rounds=2)
        assert result.mu**2 == pytest.approx((1 + own_noise / hidden) / VARIANCE)
    noises = (PerEdge(VARIANCE, own=own_noise) for own_noise in (False, True))
    assert len({epsilon(noise, rounds=1) for noise in noises}) == 1


def test_per_vector_the_coordinates_share_the_variance():
    result = epsilon(PerMessage(VARIANCE, per="vector"), dim=4)
    assert result == pytest.approx(2 * epsilon(PerMessage(VARIANCE)))


def test_local_noise_leaves_the_sum_in_the_clear():
    """To the receiver, who knows the other summands or does not; with the partner; and where a
    receiver hears one node only.
    """
    noise = LocalGraphHomomorphic(VARIANCE)
    receiver = overheard(noise, COMBINATION, 1, 0)  # hears 1 and 4, who share one mask
    assert receiver.verdict == "exposed to who knows the rest"
    # The mask moves by a_01, and what node 4 says makes up for the rest.
    assert receiver.uninformed == pytest.approx(UNEVEN[0, 1] / SCALE)
    partner = overheard(noise, COMBINATION, 1, (0, 4))
    assert partner.verdict == "exposed"
    assert overheard(noise, COMBINATION, 1, 4).verdict == "hears nothing"
    leaf = overheard(noise, STAR, 0, 3)
    assert (leaf.verdict, leaf.mu_uninformed) == ("exposed", math.inf)
    center = overheard(noise, STAR, 3, 0)  # behind the masks and messages of four others
    assert center.verdict == "exposed to who knows the rest"


def test_an_eavesdropper_on_all_edges_solves_for_messages_under_local_noise():
    """The weighted sums at all receivers are in the clear: as many equations as messages."""
    off = np.asarray(WHEEL.matrix()) * ~np.eye(6, dtype=bool)
    assert np.linalg.matrix_rank(off) == 6
    star = np.asarray(STAR.matrix()) * ~np.eye(6, dtype=bool)
    assert np.linalg.matrix_rank(star) == 2
    noise = LocalGraphHomomorphic(VARIANCE)
    for victim in range(6):
        assert overheard(noise, WHEEL, victim, eavesdropper=True).verdict == "exposed"
    assert overheard(noise, STAR, 2, eavesdropper=True).verdict != "exposed"


def test_homomorphic_noise_is_averaged_away_and_noise_of_messages_is_not():
    """Best linear estimates after many rounds: the deviation falls as one over the root."""
    many = [
        overheard(kind(1.0, "gaussian"), COMBINATION, 1, eavesdropper=True, rounds=12).mu
        for kind in (GraphHomomorphic, PerMessage)
    ]
    self_weight = float(COMBINATION.self_weight[1])
    assert many == pytest.approx([math.sqrt(12), 1 / math.sqrt(1 - self_weight**2)], rel=1e-4)


def test_without_noise_all_is_exposed():
    assert epsilon(None) == epsilon(PerMessage(0.0)) == math.inf
    assert overheard(None, COMBINATION, 1, 3).verdict == "hears nothing"
    assert overheard(None, COMBINATION, 1, 0).verdict == "exposed"


def test_the_shortest_shift_is_the_largest_ratio_of_densities():
    """One number under two Laplace draws: f(x) = (1 + |x|/b) e^(-|x|/b) / 4b."""
    shift = 1.0
    b = 0.7
    result = _shortest(np.ones(1), np.ones((1, 2)), True)
    assert result == pytest.approx((1 / math.sqrt(2), 1.0))
    x = np.linspace(-5e3, 5e3, 100_001)
    log_density = np.log1p(np.abs(x) / b) - np.abs(x) / b
    moved = np.log1p(np.abs(x - shift) / b) - np.abs(x - shift) / b
    most = np.max(np.abs(moved - log_density))
    assert most <= result[1] * shift / b + 1e-9
    assert most == pytest.approx(result[1] * shift / b, rel=1e-3)
    # Correlated observations x + z1, z1 + z2, z2: the shift goes through all of them, or one.
    looks = np.array([[1.0, 0, 0], [1, 1, 0], [0, 1, 1]])
    assert _shortest(np.array([1.0, 0, 0]), looks, True)[1] == pytest.approx(3)


def test_the_best_test_finds_the_exact_value():
    """Neyman and Pearson's test of two rounds of homomorphic noise, on draws of a loop."""
    rng = np.random.default_rng(0)
    runs = 40_000
    delta = 0.01
    change = 0.4
    noise = GraphHomomorphic(VARIANCE, "gaussian")
    scores = []
    for world in (0.0, change):
        g = math.sqrt(VARIANCE) * rng.normal(size=(2, 5, runs))
        x = np.zeros((5, runs))
        x[1] = world
        first = x + g[0]
        second = UNEVEN @ first - g[0] + g[1]
        # y1 = x + g0 and (A - I) y1 - y2 = -x - g1: two looks at x
        scores.append(first[1] - ((UNEVEN - np.eye(5)) @ first - second)[1])
    exact = epsilon(noise, rounds=2, change=change, delta=delta)
    mu = overheard(noise, COMBINATION, 1, eavesdropper=True, rounds=2, change=change).mu
    assert (np.mean(scores[1]) - np.mean(scores[0])) / np.std(scores[0]) == pytest.approx(
        mu, rel=0.03
    )
    at = (exact * 2 * VARIANCE + 2 * change**2) / (2 * change)  # where e^epsilon is the ratio
    hits, alarms = ((s >= at).sum() for s in scores[::-1])
    result = fl.audit.counted_epsilon(int(hits), int(alarms), runs, delta, 0.95)
    assert 0.7 * exact < result < exact


class Listener(Link):
    """Records the messages received over every edge, as a matrix."""

    def exchange(self, message):
        message_sent, inbox = super().exchange(message)
        noise, key = inbox._noise
        weights = jnp.asarray(UNEVEN * ~np.eye(5, dtype=bool))
        everyone = jnp.arange(5, dtype=jnp.int32)
        added = [noise.over_edges(key, k, everyone, weights[k], 3) for k in everyone]
        added = [
            jnp.zeros((5, 3)) if noise_of_edge is None else noise_of_edge for noise_of_edge in added
        ]
        self.heard = message_sent[None] + jnp.stack(added)
        return message_sent, inbox


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize("kind", [GraphHomomorphic, PerMessage, PerEdge, LocalGraphHomomorphic])
def test_the_simulator_sends_the_messages_of_the_analysis(kind):
    """Covariance, over seeds, of all that is heard in two rounds; the models hardly move."""
    rounds = 2
    seeds = 20_000
    simulation = fl.Simulation(
        problem=make_problem(),
        network=make_network(),
        algorithm=ATC(1e-9, COMBINATION),
        noise=kind(VARIANCE),
    )
    ready = prepare(simulation, rounds)

    @functools.partial(jax.vmap)
    def received(key):
        carry = begin(simulation, ready, key)
        result = []
        for number in range(1, rounds + 1):
            now, *_ = make_round(simulation, ready, key, carry, jnp.int32(number), rounds, Listener)
            carry = carry._replace(state=step_algorithm(simulation, carry.state, now))
            result.append(now.link.heard)
        return jnp.stack(result)

    edges = [(k, l) for k in range(5) for l in range(5) if k != l and UNEVEN[k, l] > 0]  # noqa: E741
    receivers, senders = np.array(edges).T
    keys = jax.random.split(as_key(3), seeds)
    result = np.asarray(jax.jit(received)(keys))[:, :, receivers, senders]  # [S, T, E, D]
    flat = np.moveaxis(result, 3, 1).reshape(3 * seeds, -1)
    _, draws, _ = _signals(kind(VARIANCE), UNEVEN, range(5), rounds)
    expected = VARIANCE * draws @ draws.T
    spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_allclose(np.cov(flat.T) / spread, expected / spread, atol=0.03)


@pytest.mark.slow
def test_the_table_states_attackers_and_victims():
    result = protection(STAR, 0, variance=2.0, rounds=(1, 2))
    verdicts = {(row.scheme, kind, row.rounds): row.verdict for kind, row in result.rows}
    assert len(verdicts) == 5 * 4 * 2
    for (scheme, _, _), verdict in verdicts.items():
        # The center's leaves hear it alone: no masks.
        exposed = scheme in ("none", "LocalGraphHomomorphic")
        assert verdict == ("exposed" if exposed else "protected")
    text = result.markdown().splitlines()
    assert len(text) == 2 + 5 * 4
    assert "ε, rest known, 1 round | ε, rest known, 2 rounds |" in text[0]
    assert "| GraphHomomorphic | eavesdropper | 1 | 2 | 1 | 2 | protected |" in text
    worst = dict(protection(WHEEL, 1, rounds=1).rows)
    assert worst["two nodes"].scheme == "LocalGraphHomomorphic"
    assert worst["two nodes"].verdict == "exposed"


def test_a_server_that_knows_the_other_summands_sees_through_masks():
    noise = UploadNoise(VARIANCE, "gaussian")
    masks = SecureAggregation(1.0)
    attack = functools.partial(overheard_upload, 6, 2)
    assert attack(masks=masks).verdict == "exposed to who knows the rest"
    # Single messages are hidden perfectly, from the server and from some of its clients.
    assert attack(masks=masks).mu_uninformed == attack((0, 1, 3), masks=masks).uninformed == 0
    assert attack((0, 1, 3, 4, 5), masks=masks).verdict == "exposed"
    # With both mechanisms the noise of the honest clients in the sum remains.
    with_noise = functools.partial(attack, upload_noise=noise, masks=masks)
    assert attack(upload_noise=noise).mu == pytest.approx(1 / math.sqrt(VARIANCE))
    assert with_noise().mu == pytest.approx(1 / math.sqrt(6 * VARIANCE))
    assert with_noise((0, 1, 3)).mu == pytest.approx(1 / math.sqrt(3 * VARIANCE))
    # Who receives the mean alone has the noise of all; masks change nothing for them.
    for masked in (None, masks):
        published = attack(1, server=False, upload_noise=noise, masks=masked)
        assert published.mu == pytest.approx(1 / math.sqrt(5 * VARIANCE))
    assert attack(1, server=False, masks=masks).verdict == "exposed to who knows the rest"


@pytest.mark.parametrize(("threshold", "needed"), [(0.0, 2), (0.3, 4), (2 / 3, 7)])
def test_the_recovery_threshold_of_clients_with_the_server_reveals_everything(threshold, needed):
    noise = UploadNoise(VARIANCE, "gaussian")
    masks = SecureAggregation(1.0, threshold=threshold)
    attack = functools.partial(overheard_upload, 10, 0)
    few = tuple(range(1, needed))
    many = tuple(range(1, needed + 1))
    assert attack(few, masks=masks).uninformed == 0
    assert attack(many, masks=masks).verdict == "exposed"
    assert attack(many, server=False, masks=masks).uninformed == 0
    alone = attack(many, upload_noise=noise, masks=masks)
    assert (
        alone.mu == attack(upload_noise=noise).mu > attack(few, upload_noise=noise, masks=masks).mu
    )


def test_the_table_of_clients_and_their_server():
    result = upload_protection(5, law="gaussian")
    assert len(result.rows) == 4 * 5
    verdicts = {(row.scheme, kind): row.verdict for kind, row in result.rows}
    assert verdicts["none", "another client"] == "exposed to who knows the rest"
    assert verdicts["SecureAggregation", "the server, all other clients"] == "exposed"
    assert {v for (s, _), v in verdicts.items() if "UploadNoise" in s} == {"protected"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 1}, "clients must be >= 2"),
        ({"victim": 4}, "victim must be in 0..3"),
        ({"server": False}, "there must be a listener"),
        ({"change": 0.0}, "change must be"),
    ],
)
def test_bad_uploads_are_refused(changes, message):
    arguments = {"clients": 4, "victim": 0, "upload_noise": UploadNoise(1.0)}
    with pytest.raises(ValueError, match=message):
        overheard_upload(**arguments | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"victim": 5}, "victim must be in 0..4, got 5"),
        ({"attackers": 7}, "attackers must be in 0..4, got 7"),
        ({"attackers": (1, 2)}, "other nodes than the victim 1, each once, got .1, 2."),
        ({"attackers": (2, 2)}, "each once"),
        ({"attackers": ()}, "there must be a listener"),
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"delta": 1.0}, "delta must be"),
        ({"change": 0.0}, "change must be"),
    ],
)
def test_bad_listeners_are_refused(changes, message):
    arguments = {"noise": PerEdge(1.0), "over": COMBINATION, "victim": 1, "attackers": 0}
    with pytest.raises(ValueError, match=message):
        overheard(**arguments | changes)


def test_a_custom_noise_class_is_not_analyzed():
    @fl.module
    class Own(fl.link.Noise):
        """A kind of noise that the analysis does not know."""

        def perturb(self, key, message):
            return message + self.draw(key, message.shape, message.dtype), None

    with pytest.raises(TypeError, match="noise of class Own cannot be analyzed"):
        overheard(Own(1.0), COMBINATION, 1, 0)
    with pytest.raises(ValueError, match="are tried at most"):
        protection(fl.graphs.ring(200).mixing(), 0)
