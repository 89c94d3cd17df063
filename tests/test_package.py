"""What the package promises about itself."""

import hashlib
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
import warnings
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

import fljax as fl
from fljax._core.nearest_names import suggest_names
from fljax.results.dataset import code_version
from fljax.simulation.compatibility import of_the_library
from tests.support.guides import program, programs

ROOT = Path(__file__).parents[1]
SHORT = "seeds=2, rounds=20"
README = (ROOT / "README.md").read_text()
MODULES = [module.name for module in pkgutil.walk_packages(fl.__path__, "fljax.")]


def public_modules(package=fl):
    """The modules that are reached as ``fl.x`` and ``fl.x.y``."""
    yield package
    for name in package.__all__:
        if inspect.ismodule(module := getattr(package, name)):
            yield from public_modules(module)


def test_every_place_has_the_same_version():
    """That of the project's file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == project["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert newest == project["version"]
    assert fl.__version__ == project["version"]


def test_a_renamed_name_works_with_a_warning():
    module = ModuleType("fljax.example")
    module.__all__ = ["Ring"]
    module.Ring = object()
    suggest_names(module, {"Circle": "Ring"})
    with pytest.warns(DeprecationWarning, match=r"fljax.example.Circle is fljax.example.Ring now"):
        assert module.Circle is module.Ring
    with pytest.raises(AttributeError, match="Did you mean 'Ring'"):
        _ = module.Rings


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_docstring(name):
    assert importlib.import_module(name).__doc__, name


@pytest.mark.parametrize("module", list(public_modules()), ids=lambda module: module.__name__)
def test_everything_public_is_listed_and_documented(module):
    name = module.__name__
    public = module.__all__
    assert len(set(public)) == len(public)
    for inner in public:
        value = getattr(module, inner)
        if inspect.isclass(value) or inspect.isroutine(value):
            text = value.__doc__ or ""  # that a dataclass or named tuple writes itself is none
            written = text and not text.startswith(f"{value.__name__}(")
            assert written, f"{name}.{inner} has no docstring"


#: Public names of two objects: the same operation or quantity, of the kind that the module names.
SAME_MEANING = {
    "fixed_point",  # theory: of any operator, and of PGFL's round
    "from_optax",  # an optimizer, or a schedule
    "load",  # results, or models
    "report",  # of results as a page, or of a run's alarms
    "save",  # results, or models
    "stable_step",  # theory: of the algorithm
    "steady_state",  # theory: of the algorithm
}


def test_public_names_have_one_meaning():
    objects = {}
    for module in public_modules():
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value):
                objects.setdefault(name, {})[id(value)] = f"{module.__name__}.{name}"
    twins = {name: [*paths.values()] for name, paths in objects.items() if len(paths) > 1}
    assert twins.keys() == SAME_MEANING, twins


def test_the_version_of_the_code_is_a_digest_of_all_its_files():
    digest = hashlib.sha256()
    for path in sorted((ROOT / "fljax").rglob("*.py")):
        digest.update(path.relative_to(ROOT / "fljax").as_posix().encode())
        digest.update(path.read_bytes())
    assert code_version() == digest.hexdigest()[:16]


def test_parts_of_the_library_are_told_from_a_users():
    class Custom(fl.algorithms.FedAvg):
        pass

    assert of_the_library(fl.algorithms.FedAvg(0.1))
    assert of_the_library(fl.link.Quantize(4))
    assert not of_the_library(Custom(0.1))


HEAVY = (
    "fljax.audit",
    "fljax.contrib",
    "fljax.executors",
    "fljax.metrics.fairness",
    "fljax.optimization.descent",
    "fljax.plotting",
    "fljax.results.monitoring",
    "fljax.results.statistics",
    "fljax.study",
    "fljax.study_files",
    "fljax.theory",
    "fljax.track",
    "fljax.tuning",
    "h5netcdf",
    "jax.scipy.stats",
    "matplotlib",
    "optax",
    "pandas",
    "scipy.linalg",
    "scipy.ndimage",
    "scipy.optimize",
    "scipy.sparse",
    "scipy.special",
    "scipy.stats",
    "xarray",
)


def loaded(program):
    """The heavy modules that a program loads, in a fresh process."""
    program += f"; import sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    command = [sys.executable, "-c", program]
    return set(subprocess.run(command, check=True, stdout=-1, text=True, cwd=ROOT).stdout.split())


def test_every_algorithm_is_exported_and_registered_under_its_label():
    for label, cls in fl.algorithms.REGISTRY.items():
        assert getattr(fl.algorithms, cls.__name__) is cls
        assert cls.label == label


@pytest.mark.parametrize("label", fl.algorithms.REGISTRY)
def test_an_algorithm_is_in_the_file_of_its_name_or_of_its_family(label):
    cls = fl.algorithms.REGISTRY[label]
    path = cls.__module__.removeprefix("fljax.algorithms.").split(".")
    assert path[0] in {"server", "personalized", "graph", "peers"}
    family = {
        registered.__name__.lower()
        for registered in fl.algorithms.REGISTRY.values()
        if registered.__module__ == cls.__module__
    }
    named = path[1].replace("_", "")
    families = {"admm", "diffusion", "gradienttracking", "fedgd"}  # that have a name of their own
    families |= {"pgfldiscovery", "npfldiscovery"}
    assert named in family | families
    assert cls.__name__.lower() == named or len(family) > 1
    assert getattr(fl.algorithms, cls.__name__) is cls


def test_importing_loads_the_simulation_modules():
    """Half of the time that `import fljax` once took went into plots and tables of statistics, and
    a third of the rest into optax and sparse matrices.
    """
    assert loaded("import fljax as fl; fl.Simulation, fl.algorithms, dir(fl)") == set()


def test_parts_made_of_plain_numbers_import_nothing():
    parts = "fl.problems.Problem([[[1.0]]], [[1.0]], fl.problems.LeastSquares())"
    parts += ", fl.algorithms.FedAvg(0.1, epochs=2)"
    assert loaded(f"import fljax as fl; fl.Simulation({parts})") == set()


@pytest.mark.slow
def test_subpackages_are_loaded_where_they_are_used():
    assert "matplotlib" not in loaded("import fljax as fl; fl.sweep")
    assert "optax" in loaded("import fljax as fl; fl.descent.backtracking()")
    assert "fljax.metrics.fairness" in loaded("import fljax as fl; fl.fairness")
    assert "matplotlib" in loaded("import fljax as fl; fl.plotting.learning_curves")
    assert "matplotlib" in loaded("from fljax import *; plotting")
    assert "scipy.stats" in loaded("import fljax as fl; fl.audit.two_worlds")


def test_all_names_are_there_before_they_are_used():
    program = "import fljax as fl; assert {*fl.__all__} <= {*dir(fl)}, dir(fl)"
    assert loaded(program) == set()
    assert "audit" not in dir(fl.privacy)
    for package in (fl, fl.privacy):
        with pytest.raises(
            AttributeError, match=f"module '{package.__name__}' has no attribute 'no'"
        ):
            package.no


def test_the_package_is_marked_as_typed():
    assert (ROOT / "fljax" / "py.typed").exists()


def test_a_source_distribution_includes_the_files_of_its_pages():
    """All that README and CONTRIBUTING link to, and the pictures of the gallery."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    linked = set()
    for page in ("README.md", "CONTRIBUTING.md", "figures/README.md", "figures/audit.md"):
        source = (ROOT / page).read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", source)
        linked |= {f"/{(Path(page).parent / link).as_posix()}" for link in links}
    assert {"/CONTRIBUTING.md", "/figures/README.md", "/figures/audit.png"} <= linked
    lacking = [
        link
        for link in sorted(linked)
        if not any(fnmatch(link, k) or link.startswith(f"{k}/") for k in included)
    ]
    assert lacking == []
    assert all((ROOT / link[1:]).exists() for link in linked)


def test_the_readme_has_its_two_commands():
    for marker, command in (("main", "experiments run gauthier-3.1"), ("tests", "pytest")):
        block = re.search(rf"<!-- {marker} -->\n```bash\n(.+)\n```", README)
        assert block, marker
        assert command in block[1]


def test_a_host_runs_the_same_commands():
    """A host checks as .ci/run and builds the site as the README, and a tag is a version."""
    workflows = {
        path.stem: path.read_text(encoding="utf-8")
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
    }
    assert workflows.keys() == {"tests", "site", "release"}
    assert "- run: .ci/run\n" in workflows["tests"]
    (site,) = re.findall(r"<!-- docs -->\n```bash\n(.+)\n```", README)
    assert f"- run: {site}\n" in workflows["site"]
    for command in ("python3 -m build", "twine check --strict", "GITHUB_REF_NAME"):
        assert command in workflows["release"]
    for workflow in workflows.values():
        assert (
            "permissions:\n  contents: read" in workflow
        )  # nothing else is allowed unless it is named


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_the_readmes_comparison_runs(monkeypatch, tmp_path):
    """On the sample of MNIST that ships, with fewer clients and rounds."""
    source = programs("README")[0].code
    code = source.replace("clients=100", "clients=10").replace(
        "rounds=50, seeds=5", "rounds=4, seeds=2"
    )
    assert code.count("clients=10,") == 1
    assert code.count("rounds=4") == 1
    monkeypatch.setattr(fl.data, "mnist", lambda download: fl.data.mnist_sample())
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert (tmp_path / "accuracy.png").exists()
    assert {*names["compared"].table().index} == {"FedAvg", "FedProx", "SCAFFOLD"}
    assert names["compared"].results.accuracy.sizes["round"] == 4


def test_the_readmes_private_program_runs(monkeypatch, tmp_path):
    source = programs("README")[1].code
    code = source.replace("seeds=100, rounds=200", "seeds=2, rounds=10")
    assert code != source
    names = {}
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fl.AssumptionWarning)  # its promise holds
        exec(compile(code, "README.md", "exec"), names)
    assert (tmp_path / "curves.png").exists()
    assert dict(names["results"].sizes) == {"budget": 3, "seed": 2, "round": 10}


@pytest.mark.slow
def test_the_guide_to_streams_runs():
    source = program("docs/guides/streams")
    code = source.replace("clients=256", "clients=16").replace("seeds=20, rounds=2000", SHORT)
    assert SHORT in code
    names = {"fl": fl, "jax": jax}
    exec(compile(code, "README.md", "exec"), names)
    assert dict(names["results"].sizes) == {"algorithm": 2, "seed": 2, "round": 2}


@pytest.mark.slow
def test_the_guide_to_attackers_runs():
    source = program("docs/guides/links")
    code = source.replace("seeds=20, rounds=200", SHORT)
    assert SHORT in code
    names = {"fl": fl, "jax": jax}
    exec(compile(code, "README.md", "exec"), names)
    assert dict(names["results"].sizes) == {"share": 3, "seed": 2, "round": 20}
    assert np.isfinite(names["results"].normalized_error).all()


@pytest.mark.slow
def test_the_guide_to_networks_runs():
    source = program("docs/guides/networks")
    code = source.replace("rounds=20", "rounds=3")
    names = {"fl": fl, "jax": jax}
    exec(compile(code, "README.md", "exec"), names)
    assert dict(names["results"].accuracy.sizes) == {"rate": 2, "seed": 2, "round": 3}
    assert names["results"].attrs["compilations"] == 1
    error = names["results"].train_error.mean(("seed", "client"))
    assert (error[:, -1] < error[:, 0]).all()


@pytest.mark.slow
def test_the_guide_to_networks_of_models_runs():
    source = program("docs/guides/graphs")
    code = source.replace("seeds=50, rounds=300", SHORT)
    assert SHORT in code
    names = {"fl": fl, "jax": jax}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.AssumptionWarning)  # few nodes may be in pieces
        exec(compile(code, "README.md", "exec"), names)
    assert dict(names["results"].sizes) == {"coupling": 3, "seed": 2, "round": 20}
    assert np.isfinite(names["results"].normalized_error).all()
    assert names["models"].shape == (1000, 10)


@pytest.fixture(scope="module")
def cancelled():
    """Printed by the guide's program of noise that cancels."""
    source = program("docs/guides/cancelling")
    printed = []
    names = {"fl": fl, "jax": jax, "print": lambda *parts: printed.append(parts[0])}
    exec(compile(source, "guide", "exec"), names)
    return printed


@pytest.mark.slow
def test_the_guide_s_program_of_noise_predicts_an_error(cancelled):
    assert 0 < float(cancelled[0]) < np.inf
