"""What each privacy mechanism promises, the premises of its theorem, and where each is kept.

The table of the guide on privacy is made of this list, and every premise has a test by name, so
that a mechanism without one is found (``tests/privacy/test_premises.py``).
"""

from typing import NamedTuple

__all__ = ["PREMISES", "PROMISES", "Premise", "table"]


class Premise(NamedTuple):
    """One premise of the theorems on which mechanisms rest."""

    statement: str
    code: tuple[str, ...]  # what keeps it
    test: str  # file and name of its test
    attack: str  # that was tried on it


#: Premises of Gaussian releases that secret sampling amplifies.
_OF_SAMPLED_RELEASES = ("grid", "noise", "keys", "law", "rate", "booked", "only exit")

#: What each mechanism promises, by which theorem, and on which premises.
PROMISES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "ZCDP": (
        "rho-zCDP of a client's messages",
        "Bun & Steinke 2016, Proposition 1.6 and Lemma 2.3",
        ("sensitivity", "sums", "steps", "grid", "noise", "keys", "booked", "only exit"),
    ),
    "DiscreteZCDP": (
        "rho-zCDP of a client's messages",
        "Canonne, Kamath & Steinke 2020, Theorem 14",
        ("sensitivity", "sums", "steps", "tables", "keys", "booked", "only exit"),
    ),
    "ApproximateDP": (
        "(epsilon, delta)-DP of a client's messages",
        "Dwork & Roth 2014, Theorem 3.22, and basic or advanced composition",
        ("sensitivity", "sums", "steps", "grid", "noise", "keys", "booked", "only exit"),
    ),
    "PureDP": (
        "epsilon-DP of a client's messages",
        "Ghosh, Roughgarden & Sundararajan 2012, and basic composition",
        ("sensitivity", "sums", "steps", "tables", "keys", "booked", "only exit"),
    ),
    "CentralGaussian": (
        "rho-zCDP of a client, amplified under secret sampling",
        (
            "Bun & Steinke 2016; Denisov et al. 2022 and Choquette-Choo et al. 2023 (strategies); "
            "Mironov et al. 2019 (sampling)"
        ),
        ("clipped sum", "participations", "encoding", *_OF_SAMPLED_RELEASES),
    ),
    "NoisyGradients": (
        "rho-zCDP of a sample, amplified under secret sampling",
        (
            "Abadi et al. 2016; McMahan & Andrew 2018 (parts); Denisov et al. 2022 and "
            "Choquette-Choo et al. 2023 (strategies, turns); Mironov et al. 2019 (sampling)"
        ),
        ("sums", "parts", "turns", "encoding", *_OF_SAMPLED_RELEASES),
    ),
    "gaussian_release": (
        "(epsilon, delta)-DP of released models",
        "Balle & Wang 2018, Theorem 8",
        ("grid", "noise"),
    ),
    "laplace_release": (
        "epsilon-DP of released models",
        "Ghosh, Roughgarden & Sundararajan 2012",
        ("tables",),
    ),
    "SecureAggregation": (
        "a server learns of masked messages their sum alone",
        "Bonawitz et al. 2017, Theorem 6.3 (masks as agreed)",
        ("masks",),
    ),
}

_GRID, _ROUNDING = "tests/privacy/test_grid.py", "tests/privacy/test_rounding.py"
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
        f"{_ROUNDING}::test_sums_of_gradients_are_as_far_apart_as_is_said",
        "samples whose partial sums are far above the final one",
    ),
    "clipped sum": Premise(
        "one client moves the sum of updates by a clip at most, roundings included",
        ("fljax._linalg.clipped_rows", "fljax.link.server.sum_rounding"),
        f"{_ROUNDING}::test_a_sum_over_many_clients_moves_by_one_client_at_most",
        "a million clients that add to and take from a sum near zero",
    ),
    "participations": Premise(
        "under a strategy a client pays what its participations add to the sensitivity at most",
        (
            "fljax.privacy.matrices.Strategy.participation_costs",
            "fljax.privacy.CentralGaussian.spent",
        ),
        f"{_CORRELATED}::test_a_client_pays_what_its_participations_add_to_the_sensitivity",
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
            "fljax.link.within.Within.descend",
        ),
        f"{_GRADIENTS}::test_a_sample_pays_what_its_turns_add_to_the_sensitivity",
        "a sample in every turn of its group, against the whole claim",
    ),
    "encoding": Premise(
        "roundings of encoding are counted, and make a run nominal above a hundredth",
        (
            "fljax.privacy.matrices.Strategy.roundings",
            "fljax.privacy.matrices.Strategy.absolute",
        ),
        f"{_CORRELATED}::test_an_encoded_row_is_as_exact_as_is_said",
        "rows of five sizes, whose terms cancel",
    ),
    "steps": Premise(
        "roundings of local steps are counted, and make a run nominal above a hundredth",
        ("fljax.algorithms.local_steps.descend_from", "fljax.problems.solvers.prox_rounding"),
        f"{_ROUNDING}::test_messages_after_many_short_steps_are_as_far_apart_as_is_said",
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
        ("fljax._generator.private_normal", "fljax.privacy.discrete.least_delta"),
        f"{_GRID}::test_private_normal_numbers_are_steps_of_one_distribution",
        "residues of steps in the middle and in the tails",
    ),
    "tables": Premise(
        "integers have their probabilities up to 2^-78 in total variation",
        ("fljax.privacy.discrete.discrete_gaussian", "fljax.privacy.discrete.discrete_laplace"),
        "tests/privacy/test_discrete.py::test_the_laplace_tables_are_their_digits_laws",
        "exact arithmetic on every entry of a table",
    ),
    "keys": Premise(
        "no number that hides something is drawn twice, or is a key of anything else",
        ("fljax._generator.house_key", "fljax._numerics.key_of"),
        "tests/privacy/test_keys.py::test_no_two_uses_of_a_private_run_have_one_key",
        "draws of participants that share a key with noise",
    ),
    "law": Premise(
        "participants are drawn by the distribution that is accounted for",
        ("fljax.participation.Selector.law",),
        "tests/privacy/test_sampling_laws.py::test_draws_refute_a_wrong_law",
        "a selector that always adds one client",
    ),
    "rate": Premise(
        "inclusion probabilities are those that are booked, however small",
        ("fljax._generator.bernoulli",),
        "tests/privacy/test_small_rates.py::test_a_draw_has_exactly_the_probability_that_is_said",
        "a rate of 1e-8, counted",
    ),
    "booked": Premise(
        "what the ledger does not count depends on nobody's data",
        ("fljax.link.out.Out._leave",),
        "tests/privacy/test_unbooked.py::test_what_is_not_booked_does_not_depend_on_data",
        "rows of absent, of unknown clients, and without receivers",
    ),
    "only exit": Premise(
        "nothing else that leaves depends on the samples",
        ("fljax.running.unperturbed",),
        "tests/privacy/test_leaving.py::test_nothing_leaves_an_algorithm_but_perturbed",
        "algorithms and stages that publish gradients, counts or choices",
    ),
    "masks": Premise(
        "any part of the masked messages is uniform, whatever the data",
        ("fljax.link.SecureAggregation",),
        "tests/link/test_masks.py::test_messages_without_one_of_each_sum_are_uniform_whatever_the_data",
        "linear tests and last bits of single messages",
    ),
}


def table() -> str:
    """The promises and premises as a table of Markdown."""
    lines = ["| mechanism | promise | theorem | premises |", "| --- | --- | --- | --- |"]
    for name, (promise, theorem, premises) in PROMISES.items():
        lines.append(f"| `{name}` | {promise} | {theorem} | {', '.join(premises)} |")
    lines += ["", "| premise | says | attack that was tried | test |", "| --- | --- | --- | --- |"]
    for name, premise in PREMISES.items():
        test = premise.test.split("::")[1]
        lines.append(f"| {name} | {premise.statement} | {premise.attack} | `{test}` |")
    return "\n".join(lines)
