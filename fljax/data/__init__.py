"""Real data sets and user tables, their distribution over clients, and random Fourier features.

Each data set is a file, which finds or downloads its raw files through
:mod:`~fljax.data.downloads`; :mod:`~fljax.data.partition` distributes samples over clients. Read
:mod:`~fljax.data.libsvm` first, the simplest loader. Data that are drawn from a key are in
:mod:`fljax.problems.synthetic`.
"""

from fljax.data.calcofi import CalCOFI, calcofi
from fljax.data.cifar import cifar10, cifar100, read_cifar
from fljax.data.clicks import Clicks, avazu, click_log
from fljax.data.downloads import download, locate
from fljax.data.fmi import Weather, fmi, fmi_records
from fljax.data.images import (
    DISSIMILAR_ORGANS,
    SIMILAR_ORGANS,
    SINGLE_DIGITS,
    TRIPLETS,
    Images,
    mnist,
    mnist_sample,
    organamnist,
    read_idx,
)
from fljax.data.leaf import LETTERS, Users, clients_of_leaf, femnist, leaf, shakespeare
from fljax.data.libsvm import SampleTable, ijcnn1, libsvm
from fljax.data.partition import (
    binary_tasks,
    by_label,
    by_user,
    detectors,
    dirichlet,
    dirichlet_sizes,
    few_shot,
    iid,
    power_law,
)
from fljax.data.ragged import Nodes, from_table
from fljax.data.random_fourier import RandomFourier, random_fourier
from fljax.data.samples import Samples, from_huggingface, from_sklearn
from fljax.data.shift import noisy, rotated
from fljax.problems.population_files import Population, clients_of_dataset, write_population
from fljax.problems.population_sources import SourcePopulation

__all__ = [
    "DISSIMILAR_ORGANS",
    "LETTERS",
    "SIMILAR_ORGANS",
    "SINGLE_DIGITS",
    "TRIPLETS",
    "CalCOFI",
    "Clicks",
    "Images",
    "Nodes",
    "Population",
    "RandomFourier",
    "SampleTable",
    "Samples",
    "SourcePopulation",
    "Users",
    "Weather",
    "avazu",
    "binary_tasks",
    "by_label",
    "by_user",
    "calcofi",
    "cifar10",
    "cifar100",
    "click_log",
    "clients_of_dataset",
    "clients_of_leaf",
    "detectors",
    "dirichlet",
    "dirichlet_sizes",
    "download",
    "femnist",
    "few_shot",
    "fmi",
    "fmi_records",
    "from_huggingface",
    "from_sklearn",
    "from_table",
    "iid",
    "ijcnn1",
    "leaf",
    "libsvm",
    "locate",
    "mnist",
    "mnist_sample",
    "noisy",
    "organamnist",
    "power_law",
    "random_fourier",
    "read_cifar",
    "read_idx",
    "rotated",
    "shakespeare",
    "write_population",
]
