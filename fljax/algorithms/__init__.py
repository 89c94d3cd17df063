"""Algorithms, grouped by communication pattern; :data:`REGISTRY` lists them all by label.

There are four groups, each with its base class: :mod:`~fljax.algorithms.server`, one server whose
clients share a model; :mod:`~fljax.algorithms.personalized`, one server whose clients have models
of their own; :mod:`~fljax.algorithms.graph`, servers on a graph; :mod:`~fljax.algorithms.peers`,
clients without a server. A class is in the file of its name, or in that of the first of its family;
all can be imported from here. Read :mod:`~fljax.algorithms.algorithm` first, then one algorithm
such as :mod:`~fljax.algorithms.peers.extra`. What happens to a message on its way is in
:mod:`fljax.link`.
"""

from typing import TYPE_CHECKING, Any

from fljax._core.nearest_names import attribute_error, nearest
from fljax.algorithms.algorithm import (
    REGISTRY,
    Algorithm,
    Needs,
    algorithm,
    meanings,
    server_start,
    start_models,
)
from fljax.algorithms.graph.graph_fedavg import GraphFedAvg
from fljax.algorithms.graph.hier_local_qsgd import HierLocalQSGD
from fljax.algorithms.graph.hierfavg import HierFAVG
from fljax.algorithms.graph.pao_fed_graph import PAOFedGraph
from fljax.algorithms.graph.pgfl import GFL, PGFL, ClusterFL
from fljax.algorithms.graph.pgfl_discovery import PGFLByGradient, PGFLByLoss
from fljax.algorithms.graph.pgfl_single_step import PGFLSingleStep
from fljax.algorithms.peers.ad_psgd import ADPSGD
from fljax.algorithms.peers.admm import PADMM, NetworkedADMM
from fljax.algorithms.peers.admm_tracking import ADMMTracking
from fljax.algorithms.peers.beer import BEER
from fljax.algorithms.peers.cedas import CEDAS
from fljax.algorithms.peers.choco_sgd import ChocoSGD
from fljax.algorithms.peers.destress import DESTRESS
from fljax.algorithms.peers.detag import DeTAG
from fljax.algorithms.peers.diffusion import ATC, CTA, DGD, Consensus, Diffusion
from fljax.algorithms.peers.dinno import DiNNO
from fljax.algorithms.peers.dlm import DLM
from fljax.algorithms.peers.epidemic_learning import EpidemicLearning
from fljax.algorithms.peers.epsilon_delta_nfl import EpsilonDeltaNFL
from fljax.algorithms.peers.exact_diffusion import ExactDiffusion
from fljax.algorithms.peers.extra import EXTRA, PGEXTRA
from fljax.algorithms.peers.fedgd import FedGD, NetworkedFedSGD
from fljax.algorithms.peers.fedrelax import FedRelax
from fljax.algorithms.peers.gossip_sgd import GossipSGD
from fljax.algorithms.peers.gradient_tracking import ATCTracking, AugDGM, DIGing
from fljax.algorithms.peers.gt_saga import GTSAGA, GTSARAH, GTSVRG
from fljax.algorithms.peers.gt_vr import ATCGTSAGA, GTVR
from fljax.algorithms.peers.kgt import KGT
from fljax.algorithms.peers.lead import LEAD
from fljax.algorithms.peers.led import LED
from fljax.algorithms.peers.lt_admm import LTADMM, LTADMMVR
from fljax.algorithms.peers.model_agnostic_fedrelax import ModelAgnosticFedRelax
from fljax.algorithms.peers.motef import MoTEF
from fljax.algorithms.peers.network_dane import NetworkDANE, NetworkSARAH, NetworkSVRG
from fljax.algorithms.peers.networked_iteration import NetworkedIteration, NetworkState
from fljax.algorithms.peers.nids import NIDS
from fljax.algorithms.peers.npfl import NPFL
from fljax.algorithms.peers.npfl_discovery import NPFLByGradient, NPFLByLoss, NPFLByParameters
from fljax.algorithms.peers.npfl_rl import NPFLRL, DeterministicPolicyGradient, Policy, RandomProbe
from fljax.algorithms.peers.proxskip import ProxSkip
from fljax.algorithms.peers.qg_dsgdm import QGDSGDm
from fljax.algorithms.peers.random_walk import RandomWalk
from fljax.algorithms.peers.sampled_diffusion import SampledDiffusion
from fljax.algorithms.peers.sgp import SGP
from fljax.algorithms.peers.swarm_sgd import SwarmSGD
from fljax.algorithms.peers.teleportation import Teleportation
from fljax.algorithms.peers.wang_elia import WangElia
from fljax.algorithms.peers.zcdp_grad_nfl import ZCDPGradNFL
from fljax.algorithms.peers.zcdp_nfl import ZCDPNFL
from fljax.algorithms.personalized.apfl import APFL
from fljax.algorithms.personalized.apple import APPLE
from fljax.algorithms.personalized.cfl import CFL
from fljax.algorithms.personalized.ditto import Ditto
from fljax.algorithms.personalized.fedala import FedALA
from fljax.algorithms.personalized.fedamp import FedAMP
from fljax.algorithms.personalized.fedas import FedAS
from fljax.algorithms.personalized.fedbabu import FedBABU
from fljax.algorithms.personalized.feddistill import FedDistill
from fljax.algorithms.personalized.fedem import FedEM
from fljax.algorithms.personalized.fedfomo import FedFomo
from fljax.algorithms.personalized.fedkd import FedKD
from fljax.algorithms.personalized.fedmd import FedMD
from fljax.algorithms.personalized.fedpac import FedPAC
from fljax.algorithms.personalized.fedper import FedBN, FedPer, LGFedAvg
from fljax.algorithms.personalized.fedphp import FedPHP
from fljax.algorithms.personalized.fedproto import FedProto
from fljax.algorithms.personalized.fedrep import FedRep
from fljax.algorithms.personalized.fedrod import FedROD
from fljax.algorithms.personalized.finetuned_fedavg import FineTunedFedAvg
from fljax.algorithms.personalized.fml import FML
from fljax.algorithms.personalized.gpfl import GPFL
from fljax.algorithms.personalized.ifca import IFCA
from fljax.algorithms.personalized.knn_per import KNNPer
from fljax.algorithms.personalized.local_only import LocalOnly
from fljax.algorithms.personalized.per_fedavg import PerFedAvg
from fljax.algorithms.personalized.pfedme import PFedMe
from fljax.algorithms.personalized.pfedme_by_gradient import PFedMeByGradient
from fljax.algorithms.personalized.superfed import SuPerFed
from fljax.algorithms.server.adiana import ADIANA
from fljax.algorithms.server.afl import AFL
from fljax.algorithms.server.canita import CANITA
from fljax.algorithms.server.ccvr import CCVR
from fljax.algorithms.server.conventional_fl import ConventionalFL
from fljax.algorithms.server.dane import DANE
from fljax.algorithms.server.dasha import DASHA
from fljax.algorithms.server.diana import DIANA
from fljax.algorithms.server.easgd import EASGD
from fljax.algorithms.server.ef21 import EF21, EF21BC
from fljax.algorithms.server.ef_sgd import EFSGD
from fljax.algorithms.server.fedadmm import FedADMM
from fljax.algorithms.server.fedasync import FedAsync
from fljax.algorithms.server.fedavg import FedAvg
from fljax.algorithms.server.fedbuff import FedBuff
from fljax.algorithms.server.fedcross import FedCross
from fljax.algorithms.server.feddf import FedDF
from fljax.algorithms.server.feddpsgd import FedDPSGD
from fljax.algorithms.server.feddyn import FedDyn
from fljax.algorithms.server.fedexp import FedExP
from fljax.algorithms.server.fedgen import FedGen
from fljax.algorithms.server.fedlc import FedLC
from fljax.algorithms.server.fedlt import FedLT
from fljax.algorithms.server.fednova import FedNova
from fljax.algorithms.server.fedntd import FedNTD
from fljax.algorithms.server.fedopt import FedAdagrad, FedAdam, FedAvgM, FedOpt, FedYogi
from fljax.algorithms.server.fedpd import FedPD
from fljax.algorithms.server.fedprox import ExactFedProx, FedProx
from fljax.algorithms.server.fedrs import FedRS
from fljax.algorithms.server.fedsam import FedSAM
from fljax.algorithms.server.fetch_sgd import FetchSGD
from fljax.algorithms.server.fjord import FjORD
from fljax.algorithms.server.flora import FLoRA
from fljax.algorithms.server.generalized_gradient import GeneralizedGradient
from fljax.algorithms.server.heterofl import HeteroFL
from fljax.algorithms.server.isfedavg import ISFedAvg
from fljax.algorithms.server.marina import MARINA
from fljax.algorithms.server.mime import MIME, MIMELite
from fljax.algorithms.server.moon import MOON
from fljax.algorithms.server.online_fed import OnlineFed
from fljax.algorithms.server.pao_fed import PAOFed, PSOFed
from fljax.algorithms.server.power_sgd import PowerSGD
from fljax.algorithms.server.qfedavg import QFedAvg
from fljax.algorithms.server.scaffnew import Scaffnew
from fljax.algorithms.server.scaffold import SCAFFOLD
from fljax.algorithms.server.server_algorithm import Averaging
from fljax.algorithms.server.sharing_admm import SharingADMM
from fljax.algorithms.server.sign_sgd import SignSGD
from fljax.algorithms.server.staleness import HingeStaleness, PolynomialStaleness, Staleness
from fljax.algorithms.server.tamuna import TAMUNA

__all__ = [
    "ADIANA",
    "ADPSGD",
    "AFL",
    "APFL",
    "APPLE",
    "ATC",
    "ATCGTSAGA",
    "BEER",
    "CANITA",
    "CCVR",
    "CEDAS",
    "CFL",
    "CTA",
    "DANE",
    "DASHA",
    "DESTRESS",
    "DGD",
    "DIANA",
    "DLM",
    "EASGD",
    "EF21",
    "EF21BC",
    "EFSGD",
    "EXTRA",
    "FML",
    "GFL",
    "GPFL",
    "GTSAGA",
    "GTSARAH",
    "GTSVRG",
    "GTVR",
    "IFCA",
    "KGT",
    "LEAD",
    "LED",
    "LTADMM",
    "LTADMMVR",
    "MARINA",
    "MIME",
    "MOON",
    "NIDS",
    "NPFL",
    "NPFLRL",
    "PADMM",
    "PGEXTRA",
    "PGFL",
    "REGISTRY",
    "SCAFFOLD",
    "SGP",
    "TAMUNA",
    "ZCDPNFL",
    "ADMMTracking",
    "ATCTracking",
    "Algorithm",
    "AugDGM",
    "Averaging",
    "ChocoSGD",
    "ClusterFL",
    "Consensus",
    "ConventionalFL",
    "DIGing",
    "DeTAG",
    "DeterministicPolicyGradient",
    "DiNNO",
    "Diffusion",
    "Ditto",
    "EpidemicLearning",
    "EpsilonDeltaNFL",
    "ExactDiffusion",
    "ExactFedProx",
    "FLoRA",
    "FedADMM",
    "FedALA",
    "FedAMP",
    "FedAS",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedBuff",
    "FedCross",
    "FedDF",
    "FedDPSGD",
    "FedDistill",
    "FedDyn",
    "FedEM",
    "FedExP",
    "FedFomo",
    "FedGD",
    "FedGen",
    "FedKD",
    "FedLC",
    "FedLT",
    "FedMD",
    "FedNTD",
    "FedNova",
    "FedOpt",
    "FedPAC",
    "FedPD",
    "FedPHP",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedROD",
    "FedRS",
    "FedRelax",
    "FedRep",
    "FedSAM",
    "FedYogi",
    "FetchSGD",
    "FineTunedFedAvg",
    "FjORD",
    "GeneralizedGradient",
    "GossipSGD",
    "GraphFedAvg",
    "HeteroFL",
    "HierFAVG",
    "HierLocalQSGD",
    "HingeStaleness",
    "ISFedAvg",
    "KNNPer",
    "LGFedAvg",
    "LocalOnly",
    "MIMELite",
    "MoTEF",
    "ModelAgnosticFedRelax",
    "NPFLByGradient",
    "NPFLByLoss",
    "NPFLByParameters",
    "Needs",
    "NetworkDANE",
    "NetworkSARAH",
    "NetworkSVRG",
    "NetworkState",
    "NetworkedADMM",
    "NetworkedFedSGD",
    "NetworkedIteration",
    "OnlineFed",
    "PAOFed",
    "PAOFedGraph",
    "PFedMe",
    "PFedMeByGradient",
    "PGFLByGradient",
    "PGFLByLoss",
    "PGFLSingleStep",
    "PSOFed",
    "PerFedAvg",
    "Policy",
    "PolynomialStaleness",
    "PowerSGD",
    "ProxSkip",
    "QFedAvg",
    "QGDSGDm",
    "RandomProbe",
    "RandomWalk",
    "SampledDiffusion",
    "Scaffnew",
    "SharingADMM",
    "SignSGD",
    "Staleness",
    "SuPerFed",
    "SwarmSGD",
    "Teleportation",
    "WangElia",
    "ZCDPGradNFL",
    "algorithm",
    "server_start",
    "start_models",
]


def explained(name: str) -> str:
    """The class, and its arguments, that a name of :func:`meanings` stands for."""
    label, how = meanings()[name]
    return f"{name} is fljax.algorithms.{REGISTRY[label].__name__} {how}".rstrip()


def _missing(name: str) -> Any:
    """Raise the error of a missing name, with the class of the algorithm that it stands for."""
    near = [] if name.startswith("__") else nearest(name, meanings() | dict.fromkeys(__all__))
    classes = [candidate for candidate in near if candidate in __all__]
    if classes or not near:
        raise attribute_error(__name__, name, classes)
    raise AttributeError(f"{'; '.join(map(explained, near))}.")


if not TYPE_CHECKING:
    __getattr__ = _missing
