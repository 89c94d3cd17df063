"""What a round of each algorithm must move, compute and draw, counted by hand from its own lines.

State arrays are read and written once, the data read once, each neighbor's model gathered once.
`tests.cases.CASES` assigns counts to algorithms; the roofline benchmark compares them with the
machine's limits.
"""

from typing import Any, NamedTuple

import fljax as fl

#: Clients of a server where an algorithm has several servers.
SERVED = 10
#: A stream's samples: the number of inputs of the random features, and of remembered inputs.
INPUTS = 4
RECENT = 5
#: Operations of a random feature besides its product with the inputs: the cosine is a polynomial.
COSINE = 16


class Size(NamedTuple):
    """The shapes that determine a round's cost."""

    clients: int
    samples: int
    dim: int
    mean_degree: int
    seeds: int  # runs that share the device at a time

    @property
    def arcs(self) -> int:
        return self.clients * self.mean_degree

    @property
    def models(self) -> int:
        """Numbers in one array of all models."""
        return self.clients * self.dim


class Cost(NamedTuple):
    """The work of one round of one run."""

    words: float  # moved
    flops: float
    draws: float = 0  # normal numbers

    def __add__(self, other: Any) -> "Cost":
        return Cost(*(left + right for left, right in zip(self, other, strict=True)))


def mixing(size: Size) -> Cost:
    """A sum over neighbors, the result written: by matrix in a small network, else by list."""
    if size.clients < fl.graphs.DENSE_BELOW:
        return Cost(size.clients**2 + 2 * size.models, 2 * size.clients * size.models)
    gathered = size.arcs * size.dim
    return Cost(2 * size.arcs + gathered + size.models, 2 * gathered)


def gradient(size: Size, private: bool) -> Cost:
    """The Gram matrices or the samples, whichever fljax keeps; the bound check reads samples."""
    samples = size.clients * size.samples
    by_samples = Cost(samples * (size.dim + 3), 4 * samples * size.dim)  # targets, weights, norms
    if size.samples <= size.dim:
        return by_samples
    by_gram = Cost(size.models * (size.dim + 1), 2 * size.models * size.dim)
    check = Cost(samples * (size.dim + 3), 2 * samples * size.dim)
    return by_gram + check if private else by_gram


def exact_step(size: Size, private: bool) -> Cost:
    """A solve with the stored factor; the bound check reads the samples."""
    samples = size.clients * size.samples
    if size.samples < size.dim:
        traffic = samples * (size.dim + size.samples) + size.models
        flops = 4 * samples * size.dim + 2 * samples * size.samples
        extra = Cost(3 * samples, 2 * samples * size.dim)
    else:
        traffic = size.models * (size.dim + 1)
        flops = 2 * size.models * size.dim
        extra = Cost(samples * (size.dim + 3), 2 * samples * size.dim)
    return Cost(traffic, flops) + (extra if private else Cost(0, 0))


def update(size: Size, arrays: int, operations: int, private: bool) -> Cost:
    """State arrays read and written once, ``operations`` for each entry, one noisy message."""
    written = size.models if private else 0  # received models differ from the sent ones by noise
    draws = size.models if private else 0
    return Cost(arrays * size.models + written, operations * size.models, draws)


def linearized(size: Size, private: bool) -> Cost:
    # Read: noisy models, their sums, duals. Written: noisy models, duals (sums: with the mixing).
    return gradient(size, private) + mixing(size) + update(size, 5, 16, private)


def exact(size: Size, private: bool) -> Cost:
    return exact_step(size, private) + mixing(size) + update(size, 5, 14, private)


def subgradient(size: Size, private: bool) -> Cost:
    # Read: noisy models. Written: the models, with the mixing.
    return gradient(size, private) + mixing(size) + update(size, 1, 6, private)


def diffused(size: Size, private: bool) -> Cost:
    """With two combinations a round."""
    return subgradient(size, private) + mixing(size)


def corrected(size: Size, private: bool) -> Cost:
    # Read and written: the models and their corrections.
    return gradient(size, private) + mixing(size) + update(size, 4, 8, private)


def proximal(size: Size, private: bool) -> Cost:
    # Read and written: the models, their proximal points' arguments, the duals.
    return gradient(size, private) + mixing(size) + update(size, 6, 14, private)


def tracked(size: Size, private: bool) -> Cost:
    # Read and written: the models, the trackers and the last gradients; two of them are combined.
    exchanges = mixing(size._replace(dim=2 * size.dim))
    return gradient(size, private) + exchanges + update(size, 6, 8, private)


def tracked_in_phases(exchanges: int, size: Size, private: bool) -> Cost:
    # As tracked, with several exchanges, between which the last two combinations are read.
    message = mixing(size._replace(dim=2 * size.dim))
    extrapolated = Cost(4 * size.models, 6 * size.models)
    combined = times(exchanges, message + extrapolated)
    return gradient(size, private) + combined + update(size, 6, 8, private)


def walked(steps: int, vectors: int, size: Size, private: bool) -> Cost:
    """``steps`` steps of every client along corrected gradients; one message."""
    step = gradient(size, private) + Cost(0, 3 * size.models)
    walk = Cost(*(steps * part for part in step))
    message = mixing(size._replace(dim=vectors * size.dim))
    return walk + message + update(size, 4, 8, private)


def coupled(size: Size, private: bool) -> Cost:
    # Read: the models, mixed messages. Written: the models (mixed messages: with the mixing).
    return gradient(size, private) + mixing(size) + update(size, 3, 6, private)


def estimated(batch: int, size: Size, private: bool) -> Cost:
    """A step along gradients of ``batch`` gathered samples of each client."""
    return some_samples(batch, size) + mixing(size) + update(size, 3, 6, private)


def relaxed(size: Size, private: bool) -> Cost:
    # Read: the models of isolated clients, mixed messages. Written: the models.
    return exact_step(size, private) + mixing(size) + update(size, 3, 3, private)


def generalized(size: Size, private: bool) -> Cost:
    # As many points as parameters: pseudo-labels, and the maps from these to models. Written: the
    # # models and their predictions, which for the default points are the models themselves.
    return Cost(size.models * (size.dim + 3), 4 * size.models * size.dim)


def agreed(size: Size, private: bool) -> Cost:
    return generalized(size, private) + mixing(size)


def of_columns(size: Size, private: bool) -> Cost:
    # Read: the columns, and the maps from requested predictions to parameters.
    cells = size.clients * size.samples
    return Cost(cells * (2 * size.dim + 4) + 2 * size.models, 4 * cells * size.dim + 6 * cells)


def near_the_server(size: Size, private: bool) -> Cost:
    return exact_step(size, private) + Cost(0, 4 * size.models)


def server(size: Size, private: bool) -> Cost:
    # One shared model: nothing of size [K, D] need ever be stored.
    return gradient(size, private) + Cost(0, 4 * size.models, size.models if private else 0)


def estimating(size: Size, private: bool) -> Cost:
    # Read and written: the estimates, or the errors. Written and read: the compressed messages.
    return gradient(size, private) + update(size, 4, 8, private)


def estimating_twice(size: Size, private: bool) -> Cost:
    # Two estimates.
    return gradient(size, private) + update(size, 6, 10, private)


def trusted(size: Size, private: bool) -> Cost:
    """One noisy vector at the server; privately, every update's norm besides."""
    norms = Cost(0, 3 * size.models, size.dim) if private else Cost(0, 0)
    return server(size, False) + norms


def local(steps: int, size: Size) -> Cost:
    """``steps`` steps of every client: models are read and written from the second on."""
    step = gradient(size, False) + Cost(0, 4 * size.models)
    between = Cost(2 * (steps - 1) * size.models, 0)
    return Cost(*(steps * part for part in step)) + between


def trusted_steps(steps: int, size: Size, private: bool) -> Cost:
    norms = Cost(0, 3 * size.models, size.dim) if private else Cost(0, 0)
    return local(steps, size) + Cost(0, 3 * steps * size.models) + norms


def normalized(steps: int, size: Size, private: bool) -> Cost:
    # Read and written: the momentum.
    speeds = Cost(2 * (steps - 1) * size.models, 5 * steps * size.models)
    return local(steps, size) + speeds + Cost(0, 3 * size.models)


def controlled(steps: int, size: Size, private: bool) -> Cost:
    # Read and written: the control variates.
    return local(steps, size) + Cost(2 * size.models, (2 * steps + 8) * size.models)


def bent(steps: int, size: Size, private: bool) -> Cost:
    # Read and written: the corrections.
    return local(steps, size) + Cost(2 * size.models, (4 * steps + 5) * size.models)


def read(steps: int, models: int, size: Size, private: bool) -> Cost:
    """``steps`` steps along sample gradients, each at ``models`` models."""
    samples = size.clients * size.samples
    step = Cost(samples * (size.dim + 3), (2 + 2 * models) * samples * size.dim + 4 * size.models)
    between = Cost(2 * (steps - 1) * size.models, 0)
    noise = Cost(0, 3 * size.models, size.dim) if private else Cost(0, 0)
    return times(steps, step) + between + noise


def distilled(steps: int, size: Size, private: bool) -> Cost:
    """Two models and a transform of half a model's numbers squared; products of two classes."""
    samples = size.clients * size.samples
    width = size.dim // 2
    turned = Cost(2 * size.clients * width**2, 8 * samples * width**2)
    pairs = Cost(size.models, 6 * size.models)
    return read(steps, 4, size, False) + times(steps, turned) + pairs


def generated(steps: int, generator_steps: int, draws: int, size: Size, private: bool) -> Cost:
    """For two classes: clients' steps on generated samples, too, and the generator's steps with all
    heads. The small generator's own cost is negligible.
    """
    width = size.dim // 2
    virtual = Cost(0, 4 * size.clients * draws * size.dim, size.clients * draws * width)
    heads = Cost(size.models, 4 * draws * size.models, draws * width)
    return read(steps, 1, size, False) + times(steps, virtual) + times(generator_steps, heads)


def collaborating(steps: int, size: Size, private: bool) -> Cost:
    """For two classes and no body: steps of heads, moments of half a model's numbers, their inner
    products, and one combination of all heads at each client.
    """
    samples = size.clients * size.samples
    width = size.dim // 2
    moments = Cost(samples * (width + 3), 6 * samples * width)
    pairs = Cost(2 * size.clients**2 + 4 * size.models, 4 * size.clients * size.models)
    return read(steps, 1, size, False) + moments + pairs


def calibrated(steps: int, draws: int, size: Size, private: bool) -> Cost:
    """For two classes: moments of features (half a model's numbers), and a head's steps."""
    samples = size.clients * size.samples
    width = size.dim // 2
    moments = Cost(samples * (width + 3) + 2 * width**2, samples * width * (width + 3))
    virtual = Cost(4 * draws * width, 4 * draws * width**2, 2 * draws * width)
    virtual_steps = times(steps, Cost(0, 16 * draws * width))
    return read(2, 1, size, False) + moments + virtual + virtual_steps


def mimicked(size: Size, private: bool) -> Cost:
    # One step on all samples: a gradient at the server's model serves the correction, too.
    return gradient(size, False) + server(size, False) + Cost(size.models, 6 * size.models)


def mimicked_lite(size: Size, private: bool) -> Cost:
    # One step on all samples: the gradient at the server's model is the step's own.
    return server(size, False) + Cost(0, 5 * size.models)


def losses(size: Size) -> Cost:
    samples = size.clients * size.samples
    return Cost(samples * (size.dim + 2), 2 * samples * (size.dim + 4))


def fair(size: Size, private: bool) -> Cost:
    # A gradient, and the losses of one model.
    return server(size, False) + losses(size) + Cost(0, 6 * size.models)


def agnostic(size: Size, private: bool) -> Cost:
    # A gradient, and the losses of one model; the server has each message for itself.
    return server(size, False) + losses(size) + Cost(2 * size.models, 4 * size.models)


def extrapolated(size: Size, private: bool) -> Cost:
    # One shared model; the norm of every change.
    return server(size, False) + Cost(0, 2 * size.models)


def sharpness_aware(size: Size, private: bool) -> Cost:
    # Two gradients, and the norm of the first.
    ascent = Cost(size.models, 5 * size.models)
    return gradient(size, False) + trusted(size, private) + ascent


def dual(steps: int, size: Size, private: bool) -> Cost:
    # Read and written: models, duals, centers and the last messages.
    return local(steps, size) + Cost(8 * size.models, (4 * steps + 8) * size.models)


def augmented(steps: int, size: Size, private: bool) -> Cost:
    # Read and written: the models and the duals.
    return local(steps, size) + Cost(4 * size.models, (4 * steps + 8) * size.models)


def elastic(steps: int, size: Size, private: bool) -> Cost:
    # Read and written: the workers' models.
    return local(steps, size) + Cost(2 * size.models, 4 * size.models)


def crossed(size: Size, private: bool) -> Cost:
    # Read and written: as many models as participants.
    return server(size, False) + Cost(2 * size.models, 3 * size.models)


def split(steps: int, size: Size, private: bool) -> Cost:
    # Read and written: the models and the auxiliary ones.
    return local(steps, size) + Cost(4 * size.models, (3 * steps + 6) * size.models)


def important(size: Size, private: bool) -> Cost:
    """All samples of all clients, with their cumulative probabilities, probabilities and norms."""
    samples = size.clients * size.samples
    # Gradients of batches are computed by sample; norms follow from the same predictions.
    by_samples = Cost(samples * (size.dim + 3), 6 * samples * size.dim + 4 * size.models)
    return by_samples + Cost(2 * samples, 16 * samples, samples)


def stepped(steps: int, size: Size, private: bool) -> Cost:
    """``steps`` noisy gradients of every client, by sample, because each is clipped."""
    samples = size.clients * size.samples
    by_samples = Cost(samples * (size.dim + 3), 4 * samples * size.dim)
    step = by_samples + Cost(0, 4 * size.models, size.models if private else 0)
    return times(steps, step)


def alone(size: Size, private: bool) -> Cost:
    # Read and written: the models.
    return gradient(size, private) + Cost(2 * size.models, 2 * size.models)


def tuned(size: Size, private: bool) -> Cost:
    # The server's round, and a step of every client from its result.
    return server(size, private) + gradient(size, private) + Cost(size.models, 2 * size.models)


def attracted(size: Size, private: bool) -> Cost:
    # The server's round, and a step of every client from its own model.
    return server(size, private) + alone(size, private) + Cost(0, 3 * size.models)


def adapted(size: Size, private: bool) -> Cost:
    # Four gradients of a step, one after the other, and one of the models that are judged.
    steps = Cost(*(5 * part for part in gradient(size, private)))
    return steps + Cost(size.models, 12 * size.models)


def mixed(size: Size, private: bool) -> Cost:
    # Two gradients in one pass over the data, one before them. Read, written: own models, mixtures.
    gradients = gradient(size, private)
    gradients = Cost(gradients.words, 2 * gradients.flops)
    return gradient(size, private) + gradients + Cost(3 * size.models, 14 * size.models)


def attentive(size: Size, private: bool) -> Cost:
    # Inner products of all pairs and their weighted sums. Read, written: own models, copies.
    pairs = Cost(3 * size.models + 2 * size.clients**2, 4 * size.clients * size.models)
    return pairs + alone(size, private) + Cost(2 * size.models, 6 * size.models)


def weighed_by_gain(size: Size, private: bool) -> Cost:
    # The losses of all models at all clients in one pass over the samples, and sums of the models.
    samples = size.clients * size.samples
    models = size.clients + 1
    losses = Cost(samples * (size.dim + 2), models * samples * (2 * size.dim + 4))
    sums = Cost(2 * size.models, 6 * size.clients * size.models)
    return alone(size, private) + losses + sums


def combined(size: Size, private: bool) -> Cost:
    # Two combinations of all models at every client, and inner products with its gradient.
    # Read, written: core and personal models, copies, vectors.
    pairs = Cost(4 * size.models + 2 * size.clients**2, 6 * size.clients * size.models)
    return pairs + alone(size, private) + Cost(2 * size.models, 8 * size.models)


def in_turn(size: Size, private: bool) -> Cost:
    # A gradient for the head, one for the representation.
    return gradient(size, private) + alone(size, private)


def body_first(size: Size, private: bool) -> Cost:
    # A gradient for the body at one shared model, a step of every client from it. Read and written:
    # the models, before and after.
    return gradient(size, private) + alone(size, private) + Cost(2 * size.models, 2 * size.models)


def enveloped(size: Size, private: bool) -> Cost:
    # Written: the personal models, which all start at the server's.
    return exact_step(size, private) + Cost(size.models, 8 * size.models)


def stepwise_enveloped(size: Size, private: bool) -> Cost:
    # One personal step. Read and written: the pairs of models, and the personal models.
    return alone(size, private) + Cost(2 * size.models, 9 * size.models)


def clustered(size: Size, private: bool) -> Cost:
    # A gradient, and the losses of two models in one pass over the samples.
    samples = size.clients * size.samples
    losses = Cost(samples * (size.dim + 2), 2 * samples * (2 * size.dim + 4))
    return gradient(size, private) + losses + Cost(size.models, 4 * size.models)


def mixing_components(size: Size, private: bool) -> Cost:
    # Two components: their losses, and their gradients with the losses of the first inferred again.
    samples = size.clients * size.samples
    return Cost(samples * (size.dim + 3), 12 * samples * size.dim)


def halved(size: Size, private: bool) -> Cost:
    # Read and written: the models of the clients; the products of their updates.
    products = Cost(size.clients**2, 2 * size.clients * size.models)
    return gradient(size, False) + products + Cost(2 * size.models, 6 * size.models)


def federated(size: Size, private: bool) -> Cost:
    # Read: duals, servers' models. Written: models, duals; a server has SERVED clients.
    servers = update(size, 1, 8, False)
    return exact_step(size, private) + update(size, 4, 10, private) + servers


def drawn(per_server: int, size: Size, private: bool) -> Cost:
    """``per_server`` clients of each server take part."""
    return federated(size._replace(clients=per_server * size.clients // SERVED), private)


def sorted_out(size: Size, private: bool) -> Cost:
    """Clients' local solutions are compared with the servers' models."""
    return federated(size, private) + update(size, 1, 8, False)


def chosen(size: Size, private: bool) -> Cost:
    """The losses of two models in one pass over the samples."""
    samples = size.clients * size.samples
    losses = Cost(samples * (size.dim + 2), 2 * samples * (2 * size.dim + 4))
    return federated(size, private) + losses


def averaged(size: Size, private: bool) -> Cost:
    return gradient(size, private) + update(size, 3, 8, private)


def related(size: Size, private: bool) -> Cost:
    # The sums over neighbors of the same cluster and of the others are apart.
    return exact_step(size, private) + mixing(size) + mixing(size) + update(size, 5, 16, private)


def learned(size: Size, private: bool) -> Cost:
    # A probe's two primal steps and their costs on as many validation samples.
    samples = size.clients * size.samples
    judged = Cost(samples * (size.dim + 2), 4 * samples * size.dim)
    steps = exact_step(size, private) + exact_step(size, private)
    return related(size, private) + steps + judged


def linked(size: Size) -> Cost:
    """The message and the dual of every link, read and written."""
    return Cost(4 * size.arcs * size.dim, 8 * size.arcs * size.dim)


def choosing(size: Size, private: bool) -> Cost:
    samples = size.clients * size.samples
    judged = Cost(samples * (size.dim + 2), 4 * samples * size.dim)
    return exact_step(size, private) + linked(size) + judged + update(size, 4, 12, private)


def classified(size: Size, private: bool) -> Cost:
    return learned(size, private) + linked(size)


def some_samples(batch: int, size: Size) -> Cost:
    """The sum of gradients of ``batch`` gathered samples of each client."""
    samples = size.clients * min(batch, size.samples)
    # Read and written as they are gathered, and read again.
    return Cost(3 * samples * (size.dim + 3), 4 * samples * size.dim)


def some_rows(batch: int, size: Size) -> Cost:
    """The same; each sample gradient replaces its entry in a table."""
    rows = size.clients * min(batch, size.samples) * size.dim
    return some_samples(batch, size) + Cost(2 * rows, 4 * rows)


def times(count: float, cost: Cost) -> Cost:
    return Cost(*(count * part for part in cost))


def doubled(size: Size) -> Cost:
    """A message of two models, combined."""
    return mixing(size._replace(dim=2 * size.dim))


def tabulated(batch: int, size: Size, private: bool) -> Cost:
    # Read: models, trackers, estimates, means. Written: estimates, means (the others mixed).
    return some_rows(batch, size) + doubled(size) + update(size, 6, 10, private)


def stored(batch: int, size: Size, private: bool) -> Cost:
    """One batch estimates the gradient, another one updates the table."""
    return tabulated(batch, size, private) + some_rows(batch, size)


def snapped(batch: int, period: int, size: Size, private: bool) -> Cost:
    # Read: models, trackers, estimates, the snapshot, its gradient. Written: estimates.
    full_gradients = times(1 / period, gradient(size, private) + Cost(2 * size.models, 0))
    batch_gradients = times(2, some_samples(batch, size))
    return full_gradients + batch_gradients + doubled(size) + update(size, 6, 10, private)


def newton_tracked(size: Size, private: bool) -> Cost:
    # Read and written: models, trackers, gradients.
    computed = gradient(size, private) + exact_step(size, private)
    return computed + doubled(size) + update(size, 6, 12, private)


def newton_stepped(size: Size, private: bool) -> Cost:
    # Gradients at one shared model; they and the solutions are averaged as they are computed.
    return gradient(size, private) + exact_step(size, private) + Cost(0, 8 * size.models)


def tracked_steps(steps: int, batch: int, size: Size, private: bool) -> Cost:
    # A whole gradient, and of each step two of its batch. Models of steps are in the cache.
    step = times(2, some_samples(batch, size)) + Cost(0, 4 * size.models)
    tracking = gradient(size, private) + doubled(size) + update(size, 6, 6, private)
    return tracking + times(steps, step)


def remixed(batch: int, period: int, exchanges: int, size: Size, private: bool) -> Cost:
    # Models and directions, combined one after the other; read: both, trackers, gradients.
    full_gradients = times(
        1 / period, gradient(size, private) + Cost(4 * size.models, 2 * size.models)
    )
    batch_gradients = times(2 * (period - 1) / period, some_samples(batch, size))
    combined = times(2 * exchanges, mixing(size))
    return full_gradients + batch_gradients + combined + update(size, 4, 8, private)


def trained(steps: int, size: Size, private: bool) -> Cost:
    # Read: models, messages, their sums, duals. Written: models, duals; a step is in the cache.
    return times(steps, gradient(size, private)) + mixing(size) + update(size, 6, 16, private)


def remembered(steps: int, batch: int, size: Size, private: bool) -> Cost:
    # All samples once, each sample gradient written.
    samples = size.clients * size.samples
    table = Cost(samples * (2 * size.dim + 3), 4 * samples * size.dim)
    local = times(steps, some_rows(batch, size))
    return table + local + mixing(size) + update(size, 6, 16, private)


def steered(size: Size, private: bool) -> Cost:
    # Read: models, controls. Written: both.
    return gradient(size, private) + update(size, 4, 8, private)


def skipped(size: Size, private: bool) -> Cost:
    return corrected(size, private) + mixing(size)


def differing(size: Size, private: bool) -> Cost:
    # Read: models, copies, mixed copies. Written: the same; the largest are found by sorting.
    return gradient(size, private) + mixing(size) + update(size, 6, 24, private)


def twice_differing(size: Size, private: bool) -> Cost:
    # As differing, of models and of trackers, which hold the last gradients.
    return differing(size, private) + mixing(size) + update(size, 8, 28, private)


def of_pair(training: int, steps: int, size: Size, private: bool) -> Cost:
    # Some of two clients take steps; their models are read, exchanged and written.
    one = size._replace(clients=training)
    draws = Cost(size.mean_degree, 4 * size.mean_degree, size.mean_degree)
    return local(steps, one) + draws + Cost(4 * size.dim, 2 * size.dim)


def visited(size: Size, private: bool) -> Cost:
    # One client takes a step; the model is read there, and written there and at the next client.
    draws = Cost(size.mean_degree, 4 * size.mean_degree, size.mean_degree)
    return local(1, size._replace(clients=1)) + draws + Cost(2 * size.dim, 0)


def paired(size: Size, private: bool) -> Cost:
    # A random number for each edge, from either end; one model is gathered for each paired node.
    drawn = Cost(4 * size.arcs, 8 * size.arcs, size.arcs)
    return gradient(size, private) + drawn + mixing(size) + update(size, 2, 4, private)


def spread(size: Size, private: bool) -> Cost:
    # As paired, with a number for each direction of an edge, which are ranked.
    drawn = Cost(8 * size.arcs, 16 * size.arcs, 2 * size.arcs)
    return gradient(size, private) + drawn + mixing(size) + update(size, 2, 4, private)


def teleported(size: Size, private: bool) -> Cost:
    # Two exchanges, of all peers' models; most stay where they are.
    return gradient(size, private) + times(2, mixing(size)) + update(size, 2, 4, private)


def picked(size: Size, private: bool) -> Cost:
    # Probabilities, draws and distances of each edge; each neighbor's model is gathered.
    drawn = Cost(8 * size.arcs, 12 * size.arcs, size.arcs)
    return gradient(size, private) + drawn + mixing(size) + update(size, 2, 4, private)


def pushed(size: Size, private: bool) -> Cost:
    # Read: models, push sums. Written: both.
    wider = mixing(size._replace(dim=size.dim + 1))
    return gradient(size, private) + wider + update(size, 3, 6, private)


def sample(size: Size) -> Cost:
    """A new sample of every client, made where it is needed, and its random features."""
    # Read: the inputs so far, the process's parameters. Written: the inputs.
    inputs = Cost((2 * RECENT + 4) * size.clients, 20 * size.clients, 2 * size.clients)
    return inputs + Cost(0, (2 * INPUTS + COSINE) * size.models)


def streamed(size: Size, private: bool) -> Cost:
    # One shared model, as with `server`: predicted, moved and averaged as it is made.
    return sample(size) + Cost(0, 8 * size.models)


def portions(shared: int, size: Size, private: bool) -> Cost:
    """A least-mean-squares step of every client's own model; ``shared`` parameters are sent."""
    # Read and written: the models. Gathered from them: the shared parameters.
    sent = shared * size.clients
    return sample(size) + Cost(2 * size.models + sent, 7 * size.models + 4 * sent)
