"""Names that do not exist are answered with the nearest ones, everywhere that names are taken."""

import ast
import importlib
import pickle
from pathlib import Path

import jax
import pytest

import fljax as fl
from fljax._core.nearest_names import nearest

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Scaffold",
            "module 'fljax.algorithms' has no attribute 'Scaffold'. Did you mean 'SCAFFOLD'?",
        ),
        *((name, "Did you mean 'SCAFFOLD'?") for name in ("scaffold", "SCAFOLD")),
        *((name, "Did you mean 'FedAvg'?") for name in ("fedavg", "fed_avg", "FedAvrg")),
        ("zcdp_nfl", "Did you mean 'ZCDPNFL'?"),
        ("q_FedAvg", "Did you mean 'QFedAvg'?"),
        ("dpsgd", "; D-PSGD is fljax.algorithms.Consensus with batches=."),
        ("DP_SGD", "D-PSGD is fljax.algorithms.Consensus with batches=."),
        ("dsgd", "DSGD is fljax.algorithms.Consensus with batches=."),
        ("fedsgd", "FedSGD is fljax.algorithms.FedAvg with one local step on all samples."),
        ("LocalSGD", "Local SGD is fljax.algorithms.FedAvg with local_steps= and batch=."),
        ("DPFedAvg", "fljax.algorithms.FedAvg under privacy=fljax.privacy.CentralGaussian(...)."),
        ("FL", "FL is fljax.algorithms.ConventionalFL."),
        ("Sonata", "SONATA is fljax.algorithms.ATCTracking."),
        ("standalone", "Standalone is fljax.algorithms.LocalOnly."),
    ],
)
def test_algorithms_are_found_by_the_names_of_papers_and_misspelt(name, message):
    with pytest.raises(AttributeError) as caught:
        getattr(fl.algorithms, name)
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize(
    ("namespace", "name", "meant"),
    [
        ("", "FedProx", "fljax.algorithms.FedProx"),
        ("", "zcdp", "fljax.privacy.ZCDP"),
        ("", "SignFlip", "fljax.attacks.SignFlip"),
        ("", "swep", "sweep"),
        ("aggregation", "trimmed_mean", "TrimmedMean"),
        ("attacks", "signflip", "SignFlip"),
        ("audit", "two_world", "two_worlds"),
        ("batches", "uniform", "Uniform"),
        ("contrib", "randomised_labels", "randomized_labels"),
        ("data", "dirichlett", "dirichlet"),
        ("graphs", "Ring", "ring"),
        ("graphs", "random_conected", "random_connected"),
        ("link", "fixed", "Fixed"),
        ("metrics", "acuracy", "accuracy"),
        ("models", "MLP", "mlp"),
        ("participation", "drawn", "Drawn"),
        ("plotting", "LearningCurves", "learning_curves"),
        ("privacy", "Zcdp", "ZCDP"),
        ("privacy.accounting", "zcdp_epsilons", "zcdp_epsilon"),
        ("problems", "Ridge", "ridge"),
        ("schedules", "power_decay", "PowerDecay"),
        ("statistics", "sumary", "summary"),
        ("theory", "operator", "operators"),
    ],
)
def test_public_names_are_found_misspelt(namespace, name, meant):
    module = fl
    for part in filter(None, namespace.split(".")):
        module = getattr(module, part)
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    assert str(caught.value).startswith(f"module {module.__name__!r} has no attribute {name!r}. ")
    assert f"{meant!r}" in str(caught.value)
    assert not hasattr(module, name)


def test_names_that_are_taken_as_text_are_answered_likewise():
    problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2)
    with pytest.raises(ValueError, match=r"unknown metric 'Accuracy'.*Did you mean 'accuracy'\?$"):
        fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics=["Accuracy"])
    with pytest.raises(ValueError, match=r"unknown schedule .*Did you mean 'variance'\?$"):
        fl.privacy.ZCDP(1.0, schedule="VARIANCE")


def test_modules_remain_as_they_are_for_python():
    for module in (fl, fl.algorithms, fl.graphs, fl.privacy):
        assert not hasattr(module, "__wrapped__")
        with pytest.raises(AttributeError, match=r"has no attribute '__wrapped__'$"):
            _ = module.__wrapped__
        assert set(module.__all__) <= set(dir(module))
        assert all(getattr(module, name) is not None for name in module.__all__)
    for cls in (fl.algorithms.SCAFFOLD, fl.privacy.ZCDP, fl.link.Fixed):
        assert pickle.loads(pickle.dumps(cls)) is cls
    assert importlib.import_module("fljax.algorithms.peers.extra").EXTRA is fl.algorithms.EXTRA
    with pytest.raises(ImportError, match="cannot import name 'Scaffold'"):
        from fljax.algorithms import Scaffold  # noqa: F401  # pyright: ignore


def test_no_name_is_near_to_all():
    assert nearest("xyzzy", fl.graphs.__all__) == []
    with pytest.raises(AttributeError, match=r"^module 'fljax\.graphs' has no attribute 'xyzzy'$"):
        _ = fl.graphs.xyzzy


def test_static_checkers_see_no_module_that_takes_any_name():
    """They accept any name of a module that defines ``__getattr__`` in its source."""
    for path in Path(fl.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            assert getattr(node, "name", "") != "__getattr__", path
