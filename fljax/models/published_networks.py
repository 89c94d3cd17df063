"""Networks as papers on federated learning have them, with their numbers of parameters; of flax."""

from collections.abc import Sequence

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype
from fljax.models.adapters import linen
from fljax.models.architecture import Architecture

#: Normalizations of images.
NORMS = ("batch", "group")


@checked
def resnet(
    outputs: int,
    norm: str = "group",
    blocks: Sequence[int] = (2, 2, 2, 2),
    width: int = 64,
    groups: int = 32,
    remat: bool = False,
) -> Architecture:
    """A residual network in its form for images of 32 x 32 pixels; ResNet-18 by default, with
    11,173,962 parameters for ten classes.

    The first convolution is of 3 x 3 pixels without pooling (He et al. 2016, section 4.2), and
    shortcuts between stages are convolutions. Group normalization needs no running statistics
    (Hsieh et al. 2020); batch normalization has some, ``Model(state=...)``.

    Args:
      outputs: number of entries of a prediction.
      norm: ``"group"`` or ``"batch"``.
      blocks: residual blocks of two convolutions in each stage.
      width: channels of the first stage; each next has twice as many.
      groups: of group normalization; they divide the width.
      remat: whether the activations within a block are computed again for its gradient, instead of
        being stored.

    Raises:
      ImportError: without flax.
      ValueError: sizes that are not counts, another normalization, groups that do not divide.

    Example:
      >>> import fljax as fl
      >>> fl.models.layout_of(fl.models.resnet(10), (32, 32, 3), "float32").dim
      11173962
    """
    from fljax.models.flax_modules import ResNet

    for name, value in (("outputs", outputs), ("width", width), ("groups", groups)):
        checks.count(name, value)
    checks.choice("norm", norm, NORMS)
    for count in blocks:
        checks.count("each of blocks", count)
    if not blocks:
        raise ValueError("blocks has no stage; give one number or more.")
    if norm == "group" and width % groups:
        raise ValueError(
            f"groups must divide the width of the first stage, got {groups} and {width}."
        )
    return linen(ResNet(outputs, tuple(map(int, blocks)), width, norm, groups, remat))


@checked
def vgg(
    outputs: int,
    channels: Sequence[int] = (32, 64, 0, 128, 128, 0, 256, 256, 0),
    hidden: Sequence[int] = (512, 512),
    dropout: float = 0.0,
) -> Architecture:
    """Convolutions of 3 x 3 pixels with pooling between them, and dense layers; by default VGG-9
    of Wang et al. 2020 (FedMA), with 3,491,530 parameters for ten classes of 32 x 32 pixels.

    Args:
      outputs: number of entries of a prediction.
      channels: of each convolution; 0 stands for 2 x 2 max pooling.
      hidden: widths of the dense layers before the last.
      dropout: share of their outputs that is left out in training, in [0, 1).

    Raises:
      ImportError: without flax.
      ValueError: sizes that are not counts, a share out of range.

    Example:
      >>> import fljax as fl
      >>> fl.models.layout_of(fl.models.vgg(10), (32, 32, 3), "float32").dim
      3491530
    """
    from fljax.models.flax_modules import VGG

    checks.count("outputs", outputs)
    for name, sizes in (("channels", channels), ("hidden", hidden)):
        for size in sizes:
            if name == "hidden" or size != 0:
                checks.count(f"each of {name}", size)
    checks.interval("dropout", dropout, at_least=0, below=1)
    return linen(VGG(outputs, tuple(map(int, channels)), tuple(map(int, hidden)), float(dropout)))


@checked
def lenet(outputs: int) -> Architecture:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling, for images of 28 or 32 pixels: 61,706
    parameters for ten classes and one channel, 62,006 for three.

    Args:
      outputs: number of entries of a prediction.

    Raises:
      ImportError: without flax.
      ValueError: no number of outputs.

    Example:
      >>> import fljax as fl
      >>> fl.models.layout_of(fl.models.lenet(10), (28, 28), "float32").dim
      61706
    """
    from fljax.models.flax_modules import LeNet

    checks.count("outputs", outputs)
    return linen(LeNet(outputs))


@checked
def dropout_cnn(outputs: int, rates: Sequence[float] = (0.25, 0.5)) -> Architecture:
    """Two convolutions and a dense layer with dropout: the network of EMNIST in Reddi et al. 2021
    (Table 4), with 1,206,590 parameters for 62 classes of 28 x 28 pixels, and of CIFAR10 in
    pfl-research (Granqvist et al. 2024), with 1,626,442.

    Args:
      outputs: number of entries of a prediction.
      rates: shares of what dropout leaves out, after pooling and after the dense layer, in [0, 1).

    Raises:
      ImportError: without flax.
      ValueError: no number of outputs, other than two rates, rates out of range.

    Example:
      >>> import fljax as fl
      >>> fl.models.layout_of(fl.models.dropout_cnn(10), (32, 32, 3), "float32").dim
      1626442
    """
    from fljax.models.flax_modules import DropoutCNN

    checks.count("outputs", outputs)
    if len(rates) != 2:
        raise ValueError(f"rates must be two numbers, got {checks.shown(rates)}.")
    for rate in rates:
        checks.interval("each of rates", rate, at_least=0, below=1)
    first, second = rates
    return linen(DropoutCNN(outputs, (float(first), float(second))))


@checked
def lstm(
    vocabulary: int,
    embedding: int = 8,
    hidden: Sequence[int] = (256, 256),
    projection: int | None = None,
    last: bool = False,
) -> Architecture:
    """A recurrent network that predicts the next token of every place in a sequence.

    Tokens ``[N, L]``, whole numbers, become scores ``[N, L, vocabulary]``. By default the network
    of next characters of McMahan et al. 2017, which has 820,522 parameters for the 90 tokens of
    Reddi et al. 2021 (Table 6). Theirs of next words is ``lstm(10_004, 96, [670], projection=96)``,
    with 4,050,748 (Table 7).

    Args:
      vocabulary: number of tokens, special ones included.
      embedding: width of a token's embedding.
      hidden: widths of the recurrent layers.
      projection: width of a dense layer after each of them, if there is one.
      last: whether only the token after the sequence is predicted, ``[N, vocabulary]``, as for
        LEAF's Shakespeare (:func:`fljax.data.shakespeare`), with ``Softmax(vocabulary)``.

    Raises:
      ImportError: without flax.
      ValueError: sizes that are not counts.

    Example:
      >>> import fljax as fl
      >>> fl.models.layout_of(fl.models.lstm(90), (80,), "int32").dim
      820522
      >>> words = fl.models.lstm(10_004, 96, [670], projection=96)
      >>> fl.models.layout_of(words, (20,), "int32").dim
      4050748
    """
    from fljax.models.flax_modules import LSTM

    checks.count("vocabulary", vocabulary)
    checks.count("embedding", embedding)
    for width in hidden:
        checks.count("each of hidden", width)
    if not hidden:
        raise ValueError("hidden has no layer; give one width or more.")
    if projection is not None:
        checks.count("projection", projection)
    layers = tuple(map(int, hidden))
    return linen(LSTM(vocabulary, embedding, layers, projection, last, float_dtype()))


@checked
def transformer(
    vocabulary: int,
    width: int = 128,
    layers: int = 2,
    heads: int = 4,
    longest: int = 128,
    dropout: float = 0.0,
    last: bool = False,
    remat: bool = False,
) -> Architecture:
    """A small causal transformer that predicts the next token of every place in a sequence.

    Normalization before each part, learned places, and the embedding of tokens once more for the
    scores (tied weights). Tokens ``[N, L]`` become scores ``[N, L, vocabulary]``.

    Args:
      vocabulary: number of tokens, special ones included.
      width: of a token's representation.
      layers: of attention and a dense layer of four times the width.
      heads: of attention; they divide the width.
      longest: largest number of tokens of a sequence.
      dropout: share of each part's outputs that is left out in training, in [0, 1).
      last: whether only the token after the sequence is predicted, as in :func:`lstm`.
      remat: whether the activations within a layer are computed again for its gradient, instead of
        being stored.

    Raises:
      ImportError: without flax.
      ValueError: sizes that are not counts, heads that do not divide the width, a share out of
        range.

    Reference:
      Vaswani et al. 2017.

    Example:
      >>> import fljax as fl
      >>> network = fl.models.transformer(90, width=32, layers=1, heads=2, longest=80)
      >>> fl.models.layout_of(network, (80,), "int32").dim
      18208
    """
    from fljax.models.flax_modules import Transformer

    sizes = {"vocabulary": vocabulary, "width": width, "layers": layers, "heads": heads}
    for name, value in (sizes | {"longest": longest}).items():
        checks.count(name, value)
    if width % heads:
        raise ValueError(f"heads must divide the width, got {heads} and {width}.")
    checks.interval("dropout", dropout, at_least=0, below=1)
    rate = float(dropout)
    return linen(Transformer(vocabulary, width, layers, heads, longest, rate, last, remat))
