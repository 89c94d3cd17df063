"""Names of before 0.1, refused with those of today; to be removed with 0.2."""

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["argument", "lookup"]

#: Of attributes, by module: what they are called now, or what is meant by them.
ATTRIBUTES = {
    "fljax": {"optimisers": "fljax.optimizers"},
    "fljax.aggregation": {"WinsorisedMean": "WinsorizedMean"},
    "fljax.algorithms": {
        "DPSGD": "FedDPSGD (differentially private SGD of clients with a server); D-PSGD, the "
        "decentralized method of Lian et al. 2017, is Consensus with batches",
        "FedSGD": "FedAvg of one step on all samples (McMahan et al. 2017); the method over a "
        "network (Jung 2025) is NetworkedFedSGD",
        "GeneralisedGradient": "GeneralizedGradient",
        "InexactFedProx": "FedProx (Li et al. 2020); the exact form (Jung 2025) is ExactFedProx",
    },
    "fljax.audit": {"worst_neighbours": "worst_neighbors"},
    "fljax.link": {"Quantise": "Quantize"},
    "fljax.privacy": {"audit": "fljax.audit"},
    "fljax.problems": {
        "NoRegulariser": "NoRegularizer",
        "Regulariser": "Regularizer",
        "factorise": "factorize",
        "local_models": "train, with ridge=1e-4",
    },
    "fljax.simulation": {
        "as_key": "fljax._generator.as_key",
        **{
            name: f"fljax.running.{name}"
            for name in ("check_perturbed", "run", "unperturbed", "view")
        },
        **{
            name: f"fljax.engine.{name}"
            for name in (
                "Carry",
                "Prepared",
                "advance",
                "begin",
                "check_length",
                "check_metrics",
                "check_rounds",
                "final_ledger",
                "final_model",
                "look",
                "noise_plan",
                "outcome",
                "prepare",
                "stepped",
                "trace",
                "witnessed",
            )
        },
    },
    "fljax.theory.multiagent_privacy": {"bound_chance": "bound_probability"},
    "fljax.theory.network_rates": {"iterations": "fljax.descent.rounds_needed"},
}

#: Of arguments, what each may be called now.
ARGUMENTS = {
    "adaptation": ("interpolation_step_size",),
    "apart": ("separation",),
    "attention": ("attention_step_size",),
    "blend_step": ("blend_step_size",),
    "chances": ("probabilities",),
    "consensus_step": ("consensus_step_size",),
    "coupling": ("consensus_step_size",),
    "dual_step": ("dual_step_size",),
    "edge_chance": ("edge_probability",),
    "epochs": ("policy_steps",),
    "found": ("estimate", "results"),
    "head_passes": ("head_epochs",),
    "keeps_optimiser": ("keeps_optimizer",),
    "local_rounds": ("local_steps",),
    "mixing": ("interpolation", "server_step_size"),
    "normalised": ("normalized",),
    "outer_step": ("outer_step_size",),
    "personal_step": ("personal_step_size",),
    "rate": ("sampling_rate", "step_size"),
    "regulariser": ("regularizer",),
    "scheduler": ("selector",),
    "server_step": ("server_step_size",),
    "steps": ("local_steps",),
    "tuning_step": ("tuning_step_size",),
}


def lookup(module: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``."""

    def missing(name: str) -> Any:
        if name in (known := ATTRIBUTES[module]):
            raise AttributeError(f"{module}.{name} is now {known[name]}.")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing


def argument(given: Iterable[str], known: Iterable[str]) -> str:
    """What is wrong with arguments that have other names now; empty if nothing is."""
    known = set(known)
    for name in set(given) - known:
        for new in ARGUMENTS.get(name, ()):
            if new in known:
                return f"got an unexpected keyword argument {name!r}, which is now {new!r}."
    return ""
