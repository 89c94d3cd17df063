"""What each privacy mechanism promises, the premises of its theorem, and where each is kept.

A mechanism declares its own promise (``promise``). The table of the guide on privacy is made of
these lists, and every premise has a test by name, so that a mechanism without one is found
(``tests/privacy/test_premises.py``).
"""

from typing import NamedTuple

from fljax.privacy import central, gradients, notions
from fljax.privacy.mechanism import Promise


class Premise(NamedTuple):
    """One premise of the theorems on which mechanisms rest."""

    statement: str
    code: tuple[str, ...]  # the code that ensures it
    test: str  # file and name of its test
    attack: str  # that was tried on it


#: What each mechanism promises, by which theorem, and on which premises.
PROMISES: dict[str, Promise] = {
    **{
        name: vars(kind)["promise"]
        for module in (notions, central, gradients)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and "promise" in vars(kind)
    },
    "gaussian_release": Promise(
        "(epsilon, delta)-DP of released models",
        "Balle & Wang 2018, Theorem 8",
        ("grid", "noise"),
    ),
    "laplace_release": Promise(
        "epsilon-DP of released models",
        "Ghosh, Roughgarden & Sundararajan 2012",
        ("tables",),
    ),
    "SecureAggregation": Promise(
        "a server learns of masked messages their sum alone",
        "Bonawitz et al. 2017, Theorem 6.3 (masks as agreed)",
        ("masks",),
    ),
}

_GRID = "tests/privacy/test_grid.py"
_ROUNDING = "tests/privacy/test_rounding.py"
_CORRELATED = "tests/privacy/test_correlated.py"
_PARTS = "tests/privacy/test_gradient_parts.py"
_GRADIENTS = "tests/privacy/test_gradient_strategies.py"

#: The premises by name.
PREMISES = {
    "sensitivity": Premise(
        "messages of neighbors are no farther apart than the stated sensitivity, for all data",
        ("fljax.privacy.notions.Gap.of", "fljax.algorithms.local_steps.descent_gap"),
        "tests/privacy/test_neighbors.py::test_messages_of_neighbors_differ_by_the_sensitivity",
        "search over data, penalties and histories (fl.audit.worst_neighbors)",
    ),
    "sums": Premise(
        "roundings of sums of clipped gradients are part of the sensitivity",
        ("fljax.problems.Problem.gradient_rounding",),
        f"{_ROUNDING}::test_sums_of_gradients_keep_the_sensitivity",
        "samples whose partial sums are far above the final one",
    ),
    "clipped sum": Premise(
        "one client moves the sum of updates by a clip at most, roundings included",
        ("fljax._core.linalg.clipped_rows", "fljax.link.sender_groups.sum_rounding"),
        f"{_ROUNDING}::test_a_sum_over_many_clients_moves_by_one_client_at_most",
        "a million clients that add to and take from a sum near zero",
    ),
    "participations": Premise(
        "under a strategy a client pays what its participations add to the sensitivity at most",
        (
            "fljax.privacy.matrices.Strategy.participation_costs",
            "fljax.privacy.CentralGaussian.spent",
        ),
        f"{_CORRELATED}::test_a_client_pays_for_its_participations_by_their_sensitivity",
        "a client in every round, whose columns overlap, against the whole claim",
    ),
    "parts": Premise(
        "each part of a sample's gradient is as long as its clip at most",
        (
            "fljax.problems.Problem.loss_gradient_in_parts",
            "fljax.privacy.NoisyGradients.units",
        ),
        f"{_PARTS}::test_no_sample_moves_a_part_by_more_than_its_clip",
        "samples that overflow; one far above the clip of every part, against the whole claim",
    ),
    "turns": Premise(
        "samples take part in the turns of their group, which are counted in their client's own "
        "steps, and pay what these add to the sensitivity at most",
        (
            "fljax.privacy.NoisyGradients.spent_by_turns",
            "fljax.link.private_gradients.PrivateGradients.descend",
        ),
        f"{_GRADIENTS}::test_a_sample_pays_for_its_steps_by_their_sensitivity",
        "a sample in every turn of its group, against the whole claim",
    ),
    "encoding": Premise(
        "roundings of encoding are counted, and make a run nominal above a hundredth",
        (
            "fljax.privacy.matrices.Strategy.roundings",
            "fljax.privacy.matrices.Strategy.absolute",
        ),
        f"{_CORRELATED}::test_an_encoded_row_has_the_stated_accuracy",
        "rows of five sizes, whose terms cancel",
    ),
    "steps": Premise(
        "roundings of local steps are counted, and make a run nominal above a hundredth",
        ("fljax.algorithms.local_steps.descend_from", "fljax.problems.solvers.prox_rounding"),
        f"{_ROUNDING}::test_messages_after_many_short_steps_keep_the_sensitivity",
        "a thousand steps of half of a last digit",
    ),
    "grid": Premise(
        "message and noise are integers of one grid, whose cost the noise provides for",
        ("fljax.privacy.discrete.perturbed", "fljax.privacy.discrete.widened"),
        f"{_GRID}::test_two_messages_have_the_same_possible_results",
        "last bits of messages of zeros and of sixteenths",
    ),
    "noise": Premise(
        "noise has the distribution of a rounded normal number, to a stated end",
        ("fljax._core.prng.private_normal", "fljax.privacy.discrete.least_delta"),
        f"{_GRID}::test_private_normal_numbers_are_steps_of_one_distribution",
        "residues of steps in the middle and in the tails",
    ),
    "tables": Premise(
        "integers have their probabilities up to 2^-78 in total variation",
        ("fljax.privacy.discrete.discrete_gaussian", "fljax.privacy.discrete.discrete_laplace"),
        "tests/privacy/test_discrete.py::test_the_laplace_tables_equal_their_digits_distributions",
        "exact arithmetic on every entry of a table",
    ),
    "keys": Premise(
        "no number that hides something is drawn twice, or is a key of anything else",
        ("fljax._core.prng.library_key", "fljax._core.prng.key_of"),
        "tests/privacy/test_keys.py::test_uses_of_a_private_run_have_different_keys",
        "draws of participants that share a key with noise",
    ),
    "law": Premise(
        "participants are drawn by the distribution that is accounted for",
        ("fljax.participation.Selector.law",),
        "tests/privacy/test_sampling_laws.py::test_draws_refute_a_false_sampling_scheme",
        "a selector that always adds one client",
    ),
    "rate": Premise(
        "inclusion probabilities are those that are booked, however small",
        ("fljax._core.prng.bernoulli",),
        "tests/privacy/test_small_rates.py::test_a_draw_has_exactly_the_accounted_probability",
        "a rate of 1e-8, counted",
    ),
    "booked": Premise(
        "what the ledger does not count depends on nobody's data",
        ("fljax.link.outgoing.OutgoingMessages._release_private",),
        "tests/privacy/test_unbooked.py::test_unbooked_steps_do_not_depend_on_data",
        "rows of absent, of unknown clients, and without receivers",
    ),
    "only exit": Premise(
        "nothing else that leaves depends on the samples",
        ("fljax.simulation.leaks.unperturbed",),
        "tests/privacy/test_leaving.py::test_algorithms_release_perturbed_values_only",
        "algorithms and stages that publish gradients, counts or choices",
    ),
    "masks": Premise(
        "any part of the masked messages is uniform, whatever the data",
        ("fljax.link.SecureAggregation",),
        "tests/link/test_masks.py::test_masked_messages_are_uniform_for_any_data",
        "linear tests and last bits of single messages",
    ),
}


def table() -> str:
    """The promises and premises as a table of Markdown."""
    lines = ["| mechanism | promise | theorem | premises |", "| --- | --- | --- | --- |"]
    for name, promise in PROMISES.items():
        premises = ", ".join(promise.premises)
        lines.append(f"| `{name}` | {promise.statement} | {promise.theorem} | {premises} |")
    lines += ["", "| premise | says | attack that was tried | test |", "| --- | --- | --- | --- |"]
    for name, premise in PREMISES.items():
        test = premise.test.split("::")[1]
        lines.append(f"| {name} | {premise.statement} | {premise.attack} | `{test}` |")
    return "\n".join(lines)
