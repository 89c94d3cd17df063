"""Jung 2025, section 10.2: reconstruction of a digit from a client's gradient, and defenses."""

import itertools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import estimate
from fljax._core.linalg import norm
from fljax.audit import invert
from fljax.problems import Model, Softmax
from fljax.results.dataset import provenance

DIGITS = Setting("digits", 4, "0 to 3 of the MNIST sample that comes with the library")
WIDTH = Setting("hidden units", 100, "one layer, with rectifiers: a small network of fl.models")
SCALE = Setting("pixels", (0.13, 0.31), "mean and deviation of MNIST, taken off before")
STEPS = Setting("steps of descent", (800, 0.1), "of Adam, and their size; one start")
SMOOTHNESS = Setting("total variation, of the cosine", 1e-3, "images are smooth")
CLIP = Setting("clipped to", 0.1, "of the gradient's norm")
NOISES = Setting("noise", (0.1, 1.0), "its norm, of the gradient's")
BATCHES = Setting("batches", (4, 8), "the digit, and others after it in the sample")

SQUARED = "squared"
COSINE = "cosine"
METHODS = {SQUARED: "DLG", COSINE: "cosine"}
OPEN = "as it is"
CLIPPED = "clipped"
QUIET, LOUD = (f"noise {level:g}" for level in NOISES.value)
FEW, MANY = (f"batch of {count}" for count in BATCHES.value)
DEFENSES = {OPEN: 1, CLIPPED: 1, QUIET: 1, LOUD: 1, FEW: BATCHES.value[0], MANY: BATCHES.value[1]}


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Scaled images in the order of one for each digit in turn, and their labels."""
    images = fl.data.mnist_sample()
    per_class = len(images.train_images) // len(images.classes)
    rows = np.arange(len(images.train_images)).reshape(len(images.classes), per_class).T.reshape(-1)
    mean, deviation = SCALE.value
    pixels = images.train_images[rows] / 255
    return (pixels - mean) / deviation, images.train_labels[rows].astype(float)


def of_client(first: int, count: int) -> Model:
    """A client with a digit and others after it."""
    pixels, labels = digits()
    rows = slice(first, first + count)
    network = fl.models.mlp(10, hidden=[WIDTH.value])
    client = Model(pixels[None, rows], labels[None, rows], Softmax(10), architecture=network)
    return client.initialized(jax.random.key(0))


def sent(defense: str, gradient: Array, key: Array) -> Array:
    """A gradient as a defense sends it: clipped, noisy or unchanged."""
    if defense == CLIPPED:
        return CLIP.value * gradient
    if defense in (QUIET, LOUD):
        noise = jax.random.normal(key, gradient.shape, gradient.dtype)
        level = NOISES.value[defense == LOUD]
        return gradient + level * norm(gradient) / norm(noise) * noise
    return gradient


def guessed(
    client: Model, message: Array, keys: Array, matching: str, batch: int, steps: int
) -> Array:
    """The reconstruction from each gradient."""
    model = jnp.asarray(client.initial)

    def reconstructed(gradient: Array, key: Array) -> Array:
        return invert(
            client,
            model,
            gradient,
            key,
            samples=batch,
            matching=matching,
            smoothness=SMOOTHNESS.value if matching == COSINE else 0.0,
            steps=steps,
            step_size=STEPS.value[1],
            restarts=1,
        ).features

    return jax.vmap(reconstructed)(message, keys)


def study(effort: Effort) -> Studies:
    count = 2 if effort.quick else DIGITS.value
    steps = 100 if effort.quick else STEPS.value[0]
    pixels = digits()[0][:count]
    result = np.zeros((count, len(DEFENSES), len(METHODS), *pixels.shape[1:]))
    keys = jax.random.split(fl.random_key(0), count)
    of_batch = np.asarray([*DEFENSES.values()])
    for batch in np.unique(of_batch):  # one program for all defenses of a batch
        places = np.flatnonzero(of_batch == batch)
        clients = [of_client(first, int(batch)) for first in range(count)]
        model = clients[0].initial
        pairs = [(c.loss_gradient(model[None])[0], k) for c, k in zip(clients, keys, strict=True)]
        names = [name for name, size in DEFENSES.items() if size == batch]
        messages = jnp.stack([sent(name, *pair) for name in names for pair in pairs])
        starts = jnp.tile(keys, len(places))
        for column, matching in enumerate(METHODS):
            guesses = guessed(clients[0], messages, starts, matching, int(batch), steps)
            guesses = np.asarray(guesses).reshape(len(places), count, batch, *pixels.shape[1:])
            nearest = np.mean((guesses - pixels[:, None]) ** 2, axis=(3, 4)).argmin(axis=2)
            best = np.take_along_axis(guesses, nearest[..., None, None, None], axis=2)[:, :, 0]
            result[:, places, column] = best.swapaxes(0, 1)
    axes = ("seed", "defense", "matching")
    error = np.mean((result - pixels[:, None, None]) ** 2, axis=(3, 4))
    peak = 1 / SCALE.value[1]
    data = xr.Dataset(
        {
            "found": ((*axes, "row", "column"), result),
            "truth": (("seed", "row", "column"), pixels),
            "ratio": (axes, 10 * np.log10(peak**2 / error), {"units": "dB", "decibel": 0}),
        },
        {"defense": [*DEFENSES], "matching": [*METHODS.values()], "seed": np.arange(count)},
    )
    data.attrs |= provenance(root=0, dtype=str(jnp.result_type(float)))
    return {"digits": data}


def plot(studies: Studies) -> Picture:
    data = studies["digits"].isel(seed=-1)
    methods = data["matching"].values
    drawing, grid = plt.subplots(
        len(methods),
        1 + len(DEFENSES),
        figsize=(picture.PAGE, 1.25 * len(methods)),
        layout="constrained",
    )
    mean, deviation = SCALE.value
    means = studies["digits"]["ratio"].mean("seed")
    for axes, method in zip(grid, methods, strict=True):
        pictures = {"the digit": data["truth"]}
        pictures |= {d: data["found"].sel(defense=d, matching=method) for d in DEFENSES}
        for ax, (name, pixels) in zip(axes, pictures.items(), strict=True):
            ax.imshow(pixels * deviation + mean, cmap="gray", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            ax.grid(False)
            if name in DEFENSES:
                ax.set_xlabel(f"{float(means.sel(defense=name, matching=method)):.1f} dB")
            if method == methods[0]:
                ax.set_title(name)
        axes[0].set_ylabel(method)
    note = (
        f"found from one gradient; below, the mean ratio of peak to error of {DIGITS.value} digits"
    )
    drawing.suptitle(note)
    return drawing


def likeness(*cases: tuple[str, str]) -> Measure:
    """The correlation of a reconstruction's pixels with the digit's."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["digits"]
        truth = data["truth"].transpose("seed", "row", "column").values
        return {
            f"{method}, {defense}": estimate(
                lambda a: a,
                correlations(
                    data["found"]
                    .sel(matching=method, defense=defense)
                    .transpose("seed", "row", "column")
                    .values,
                    truth,
                ),
                unit="",
            )
            for method, defense in cases
        }

    return measure


def correlations(pictures: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """``[S]``: of the pixels of each pair, cut off at the black and the white of the second."""
    pictures = np.clip(pictures, truth.min(), truth.max())
    return np.array(
        [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(pictures, truth, strict=True)]
    )


#: What is correlated more than this shows the digit, and less than that does not.
SEEN = 0.9
HIDDEN = 0.5
CHANGED = (
    "A ratio of peak to error depends on brightness, which an eye does not: it called digits "
    "undecided that everybody sees."
)


INSTANCE = "this network, at its start, and four digits"

FIGURE = Figure(
    name="jung-inversion",
    title="A digit from one gradient, and what hides it",
    source="Jung 2025, section 10.2; Zhu et al. 2019; Geiping et al. 2020",
    caption="A client sends the gradient of a small network at its start, and an attacker searches "
    "for samples and labels with the same: by squared differences (DLG) or by the angle with a "
    "penalty of total variation (cosine). The client's gradient is sent as it is, clipped, with "
    "noise of a norm relative to its own, or is of a batch, of which the sample nearest to the "
    "digit is shown. Noise for a guarantee is `privacy=` (ZCDP among peers is (190)).",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "one-gradient-tells-the-digit",
            "from the gradient of one sample the sample is seen",
            "section 10.2; Zhu et al. 2019; Geiping et al. 2020",
            likeness(("DLG", OPEN), ("cosine", OPEN)),
            (SEEN, INFINITE),
            f"a correlation of pixels above {SEEN:g}",
            condition=INSTANCE,
            changed=CHANGED,
        ),
        Claim(
            "clipping-hides-nothing-from-the-cosine",
            "a clipped gradient has the same direction, and that is enough",
            "Geiping et al. 2020",
            likeness(("cosine", CLIPPED)),
            (SEEN, INFINITE),
            f"a correlation of pixels above {SEEN:g}",
            condition=INSTANCE,
            changed=CHANGED,
        ),
        Claim(
            "noise-and-batches-hide",
            "noise as long as the gradient, and batches, hide the digit",
            "section 10.3, (190); Zhu et al. 2019",
            likeness(*itertools.product(METHODS.values(), (LOUD, MANY))),
            (-INFINITE, HIDDEN),
            f"a correlation of pixels below {HIDDEN:g}",
            condition=INSTANCE,
            changed=CHANGED,
            note="A gradient has a hundred times as many numbers as the digit, and most of the "
            "noise averages out; of a batch some sample is still found.",
        ),
    ],
    settings=(DIGITS, WIDTH, SCALE, STEPS, SMOOTHNESS, CLIP, NOISES, BATCHES),
)
