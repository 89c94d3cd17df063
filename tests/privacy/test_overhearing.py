"""Who hears what: exact numbers against closed forms, densities, and the simulator's own noise."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._generator import as_key
from fljax.algorithms import ATC
from fljax.audit import overheard, overheard_upload, protection, upload_protection
from fljax.audit.overhearing import _shortest, _signals
from fljax.engine import begin, look, prepare, stepped
from fljax.link import (
    GraphHomomorphic,
    Link,
    LocalGraphHomomorphic,
    PerEdge,
    PerMessage,
    SecureAggregation,
    UploadNoise,
)
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
OVER = fl.graphs.from_stochastic(UNEVEN, convention="right")
VARIANCE = 0.5
SCALE = math.sqrt(VARIANCE / 2)  # of Laplace noise


def epsilon(noise, over=OVER, victim=1, attackers=(), **more):
    more = {"eavesdropper": not np.size(attackers)} | more
    return overheard(noise, over, victim, attackers, **more).epsilon


@pytest.mark.parametrize("rounds", [1, 4])
def test_epsilons_are_those_of_closed_forms(rounds):
    """Of an eavesdropper on the line. Of PerMessage a node's own clean part fades as a_kk^t; of
    homomorphic noise nothing fades; per edge the two copies of a message are two releases.
    """
    own = float(OVER.self_weight[1])
    fading = sum(own**t for t in range(rounds)) / SCALE
    assert epsilon(PerMessage(VARIANCE), rounds=rounds) == pytest.approx(fading)
    assert epsilon(GraphHomomorphic(VARIANCE), rounds=rounds) == pytest.approx(rounds / SCALE)
    assert epsilon(GraphHomomorphic(VARIANCE), rounds=rounds, change=3.0) == pytest.approx(
        3 * rounds / SCALE
    )
    if rounds == 1:
        assert epsilon(PerEdge(VARIANCE)) == pytest.approx(2 / SCALE)
        assert epsilon(PerEdge(VARIANCE), attackers=0) == pytest.approx(1 / SCALE)
        assert epsilon(PerEdge(VARIANCE), attackers=3) == 0  # who does not hear node 1
    gaussian = overheard(
        GraphHomomorphic(VARIANCE, "gaussian"), OVER, 1, eavesdropper=True, rounds=rounds
    )
    assert gaussian.mu == pytest.approx(math.sqrt(rounds / VARIANCE))
    assert gaussian.epsilon == pytest.approx(
        float(fl.privacy.accounting.zcdp_epsilon(gaussian.mu**2 / 2, 1e-5, "gaussian"))
    )
    assert (gaussian.delta, gaussian.verdict) == (1e-5, "protected")


def test_a_draw_for_the_own_part_hides_what_is_said_next():
    """The second message of node 1 is a_11 of its first, behind what 1 drew for itself and heard of
    others than the attacker.
    """
    own, heard = UNEVEN[1, 1] ** 2, sum(UNEVEN[1, k] ** 2 for k in (2, 3, 4))
    for noise, hidden in ((False, 1 + heard), (True, 1 + heard + own)):
        told = overheard(PerEdge(VARIANCE, "gaussian", own=noise), OVER, 1, 0, rounds=2)
        assert told.mu**2 == pytest.approx((1 + own / hidden) / VARIANCE)
    one = (PerEdge(VARIANCE, own=own) for own in (False, True))
    assert len({epsilon(noise, rounds=1) for noise in one}) == 1


def test_per_vector_the_coordinates_share_the_variance():
    result = epsilon(PerMessage(VARIANCE, per="vector"), dim=4)
    assert result == pytest.approx(2 * epsilon(PerMessage(VARIANCE)))


def test_local_noise_leaves_the_sum_in_the_clear():
    """To the receiver, who knows the other summands or does not; with the partner; and where a
    receiver hears one node only.
    """
    noise = LocalGraphHomomorphic(VARIANCE)
    receiver = overheard(noise, OVER, 1, 0)  # hears 1 and 4, who share one mask
    assert receiver.verdict == "exposed to who knows the rest"
    # The mask moves by a_01, and what node 4 says makes up for the rest.
    assert receiver.uninformed == pytest.approx(UNEVEN[0, 1] / SCALE)
    partner = overheard(noise, OVER, 1, (0, 4))
    assert partner.verdict == "exposed"
    assert overheard(noise, OVER, 1, 4).verdict == "hears nothing"
    leaf = overheard(noise, STAR, 0, 3)
    assert (leaf.verdict, leaf.mu_uninformed) == ("exposed", math.inf)
    center = overheard(noise, STAR, 3, 0)  # behind the masks and messages of four others
    assert center.verdict == "exposed to who knows the rest"


def test_who_hears_all_edges_solves_for_all_messages_under_local_noise():
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
        overheard(kind(1.0, "gaussian"), OVER, 1, eavesdropper=True, rounds=12).mu
        for kind in (GraphHomomorphic, PerMessage)
    ]
    own = float(OVER.self_weight[1])
    assert many == pytest.approx([math.sqrt(12), 1 / math.sqrt(1 - own**2)], rel=1e-4)


def test_without_noise_all_is_exposed():
    assert epsilon(None) == epsilon(PerMessage(0.0)) == math.inf
    assert overheard(None, OVER, 1, 3).verdict == "hears nothing"
    assert overheard(None, OVER, 1, 0).verdict == "exposed"


def test_the_shortest_shift_is_the_largest_ratio_of_densities():
    """Of one number heard under two Laplace draws: f(x) = (1 + |x|/b) e^(-|x|/b) / 4b."""
    shift, b = 1.0, 0.7
    result = _shortest(np.ones(1), np.ones((1, 2)), True)
    assert result == pytest.approx((1 / math.sqrt(2), 1.0))
    x = np.linspace(-5e3, 5e3, 100_001)
    log_density = np.log1p(np.abs(x) / b) - np.abs(x) / b
    moved = np.log1p(np.abs(x - shift) / b) - np.abs(x - shift) / b
    most = np.max(np.abs(moved - log_density))
    assert most <= result[1] * shift / b + 1e-9
    assert most == pytest.approx(result[1] * shift / b, rel=1e-3)
    # Of correlated looks: x + z1, z1 + z2, z2: the shift goes through all of them, or one.
    looks = np.array([[1.0, 0, 0], [1, 1, 0], [0, 1, 1]])
    assert _shortest(np.array([1.0, 0, 0]), looks, True)[1] == pytest.approx(3)


def test_the_best_test_finds_what_is_exact_and_no_more():
    """Neyman and Pearson's test of two rounds of homomorphic noise, on draws of a loop."""
    rng, runs, delta, change = np.random.default_rng(0), 40_000, 0.01, 0.4
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
    mu = overheard(noise, OVER, 1, eavesdropper=True, rounds=2, change=change).mu
    assert (np.mean(scores[1]) - np.mean(scores[0])) / np.std(scores[0]) == pytest.approx(
        mu, rel=0.03
    )
    at = (exact * 2 * VARIANCE + 2 * change**2) / (2 * change)  # where e^epsilon is the ratio
    hits, alarms = ((s >= at).sum() for s in scores[::-1])
    result = fl.audit.counted_epsilon(int(hits), int(alarms), runs, delta, 0.95)
    assert 0.7 * exact < result < exact


class Listener(Link):
    """Keeps what is heard over every edge, as a matrix of messages."""

    def exchange(self, message):
        said, inbox = super().exchange(message)
        noise, key = inbox._noise
        weights = jnp.asarray(UNEVEN * ~np.eye(5, dtype=bool))
        everyone = jnp.arange(5, dtype=jnp.int32)
        added = [noise.over_edges(key, k, everyone, weights[k], 3) for k in everyone]
        added = [jnp.zeros((5, 3)) if one is None else one for one in added]
        self.heard = said[None] + jnp.stack(added)
        return said, inbox


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize("kind", [GraphHomomorphic, PerMessage, PerEdge, LocalGraphHomomorphic])
def test_the_simulator_sends_what_the_analysis_assumes(kind):
    """Covariance, over seeds, of all that is heard in two rounds; the models hardly move."""
    rounds, seeds = 2, 20_000
    simulation = fl.Simulation(
        problem=make_problem(),
        network=make_network(),
        algorithm=ATC(1e-9, OVER),
        noise=kind(VARIANCE),
    )
    ready = prepare(simulation, rounds)

    @functools.partial(jax.vmap)
    def heard(key):
        carry, result = begin(simulation, ready, key), []
        for number in range(1, rounds + 1):
            now, *_ = look(simulation, ready, key, carry, jnp.int32(number), rounds, Listener)
            carry = carry._replace(state=stepped(simulation, carry.state, now))
            result.append(now.link.heard)
        return jnp.stack(result)

    edges = [(k, l) for k in range(5) for l in range(5) if k != l and UNEVEN[k, l] > 0]  # noqa: E741
    receivers, senders = np.array(edges).T
    keys = jax.random.split(as_key(3), seeds)
    result = np.asarray(jax.jit(heard)(keys))[:, :, receivers, senders]  # [S, T, E, D]
    flat = np.moveaxis(result, 3, 1).reshape(3 * seeds, -1)
    _, draws, _ = _signals(kind(VARIANCE), UNEVEN, range(5), rounds)
    expected = VARIANCE * draws @ draws.T
    spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_allclose(np.cov(flat.T) / spread, expected / spread, atol=0.03)


@pytest.mark.slow
def test_the_table_says_who_is_protected_from_whom():
    result = protection(STAR, 0, variance=2.0, rounds=(1, 2))
    verdicts = {(it.scheme, kind, it.rounds): it.verdict for kind, it in result.rows}
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


def test_a_server_sees_through_masks_who_knows_the_other_summands():
    noise, masks = UploadNoise(VARIANCE, "gaussian"), SecureAggregation(1.0)
    told = functools.partial(overheard_upload, 6, 2)
    assert told(masks=masks).verdict == "exposed to who knows the rest"
    # Single messages are hidden perfectly, from the server and from some of its clients.
    assert told(masks=masks).mu_uninformed == told((0, 1, 3), masks=masks).uninformed == 0
    assert told((0, 1, 3, 4, 5), masks=masks).verdict == "exposed"
    # With both the sum's noise is left, of those who did not tell theirs.
    both = functools.partial(told, upload_noise=noise, masks=masks)
    assert told(upload_noise=noise).mu == pytest.approx(1 / math.sqrt(VARIANCE))
    assert both().mu == pytest.approx(1 / math.sqrt(6 * VARIANCE))
    assert both((0, 1, 3)).mu == pytest.approx(1 / math.sqrt(3 * VARIANCE))
    # Who receives the mean alone has the noise of all; masks change nothing for them.
    for masked in (None, masks):
        published = told(1, server=False, upload_noise=noise, masks=masked)
        assert published.mu == pytest.approx(1 / math.sqrt(5 * VARIANCE))
    assert told(1, server=False, masks=masks).verdict == "exposed to who knows the rest"


@pytest.mark.parametrize(("threshold", "needed"), [(0.0, 2), (0.3, 4), (2 / 3, 7)])
def test_as_many_clients_as_recover_dropouts_recover_everything_with_the_server(threshold, needed):
    noise, masks = UploadNoise(VARIANCE, "gaussian"), SecureAggregation(1.0, threshold=threshold)
    told = functools.partial(overheard_upload, 10, 0)
    few, many = tuple(range(1, needed)), tuple(range(1, needed + 1))
    assert told(few, masks=masks).uninformed == 0
    assert told(many, masks=masks).verdict == "exposed"
    assert told(many, server=False, masks=masks).uninformed == 0
    alone = told(many, upload_noise=noise, masks=masks)
    assert alone.mu == told(upload_noise=noise).mu > told(few, upload_noise=noise, masks=masks).mu


def test_the_table_of_clients_and_their_server():
    result = upload_protection(5, law="gaussian")
    assert len(result.rows) == 4 * 5
    verdicts = {(it.scheme, kind): it.verdict for kind, it in result.rows}
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
    given = {"clients": 4, "victim": 0, "upload_noise": UploadNoise(1.0)}
    with pytest.raises(ValueError, match=message):
        overheard_upload(**given | changes)


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
    given = {"noise": PerEdge(1.0), "over": OVER, "victim": 1, "attackers": 0}
    with pytest.raises(ValueError, match=message):
        overheard(**given | changes)


def test_noise_of_ones_own_is_not_known():
    @fl.module
    class Own(fl.link.Noise):
        """Of another kind."""

        def said(self, key, message):
            return message + self.draw(key, message.shape, message.dtype), None

    with pytest.raises(TypeError, match="noise of class Own cannot be analyzed"):
        overheard(Own(1.0), OVER, 1, 0)
    with pytest.raises(ValueError, match="are tried at most"):
        protection(fl.graphs.ring(200).mixing(), 0)
