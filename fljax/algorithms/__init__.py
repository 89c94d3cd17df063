"""One file per algorithm or close family; :data:`REGISTRY` lists them all by label."""

from fljax import _renamed
from fljax.algorithms.admm import PADMM, NetworkedADMM
from fljax.algorithms.apfl import APFL
from fljax.algorithms.asynchronous import (
    FedAsync,
    FedBuff,
    HingeStaleness,
    PolynomialStaleness,
    Staleness,
)
from fljax.algorithms.base import REGISTRY, Algorithm, Needs, algorithm, server_start, start_models
from fljax.algorithms.choco_sgd import ChocoSGD
from fljax.algorithms.conventional_fl import ConventionalFL
from fljax.algorithms.diffusion import ATC, CTA, Consensus, Diffusion
from fljax.algorithms.ditto import Ditto
from fljax.algorithms.dlm import DLM, DiNNO
from fljax.algorithms.dp_nfl import EpsilonDeltaNFL
from fljax.algorithms.dp_sgd import FedDPSGD
from fljax.algorithms.exact_diffusion import LED, NIDS, ExactDiffusion
from fljax.algorithms.extra import EXTRA, PGEXTRA, WangElia
from fljax.algorithms.fedala import FedALA
from fljax.algorithms.fedamp import FedAMP
from fljax.algorithms.fedavg import FedAvg
from fljax.algorithms.fedavg_finetuned import FineTunedFedAvg
from fljax.algorithms.feddyn import FedDyn
from fljax.algorithms.fedexp import FedExP
from fljax.algorithms.fedlt import FedLT
from fljax.algorithms.fednova import FedNova
from fljax.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedOpt, FedYogi
from fljax.algorithms.fedpd import FedPD
from fljax.algorithms.fedprox import ExactFedProx, FedProx
from fljax.algorithms.fedsam import FedSAM
from fljax.algorithms.gossip import GossipSGD
from fljax.algorithms.gradient_tracking import KGT, ADMMTracking, ATCTracking, AugDGM, DIGing
from fljax.algorithms.graph_fedavg import GraphFedAvg
from fljax.algorithms.gt_saga import GTSAGA, GTSARAH, GTSVRG
from fljax.algorithms.ifca import IFCA
from fljax.algorithms.isfedavg import ISFedAvg
from fljax.algorithms.local_only import LocalOnly
from fljax.algorithms.lt_admm import LTADMM, LTADMMVR
from fljax.algorithms.mime import MIME, MIMELite
from fljax.algorithms.model_agnostic import GeneralizedGradient, ModelAgnosticFedRelax
from fljax.algorithms.networked_iteration import (
    FedGD,
    FedRelax,
    NetworkedFedSGD,
    NetworkedIteration,
    NetworkState,
)
from fljax.algorithms.npfl import NPFL
from fljax.algorithms.npfl_rl import (
    NPFLRL,
    DeterministicPolicyGradient,
    Policy,
    RandomProbe,
)
from fljax.algorithms.online_fed import OnlineFed
from fljax.algorithms.pao_fed import PAOFed, PSOFed
from fljax.algorithms.partial import FedBABU, FedBN, FedPer, FedRep, LGFedAvg
from fljax.algorithms.per_fedavg import PerFedAvg
from fljax.algorithms.pfedme import PFedMe
from fljax.algorithms.pgfl import GFL, PGFL, ClusterFL
from fljax.algorithms.pgfl_single_step import PGFLSingleStep
from fljax.algorithms.proxskip import ProxSkip, Scaffnew
from fljax.algorithms.push_sum import SGP
from fljax.algorithms.qfedavg import QFedAvg
from fljax.algorithms.scaffold import SCAFFOLD
from fljax.algorithms.sharing_admm import SharingADMM
from fljax.algorithms.sign_sgd import SignSGD
from fljax.algorithms.superfed import SuPerFed
from fljax.algorithms.zcdp_grad_nfl import ZCDPGradNFL
from fljax.algorithms.zcdp_nfl import ZCDPNFL

__all__ = [
    "APFL",
    "ATC",
    "CTA",
    "DLM",
    "EXTRA",
    "GFL",
    "GTSAGA",
    "GTSARAH",
    "GTSVRG",
    "IFCA",
    "KGT",
    "LED",
    "LTADMM",
    "LTADMMVR",
    "MIME",
    "NIDS",
    "NPFL",
    "NPFLRL",
    "PADMM",
    "PGEXTRA",
    "PGFL",
    "REGISTRY",
    "SCAFFOLD",
    "SGP",
    "ZCDPNFL",
    "ADMMTracking",
    "ATCTracking",
    "Algorithm",
    "AugDGM",
    "ChocoSGD",
    "ClusterFL",
    "Consensus",
    "ConventionalFL",
    "DIGing",
    "DeterministicPolicyGradient",
    "DiNNO",
    "Diffusion",
    "Ditto",
    "EpsilonDeltaNFL",
    "ExactDiffusion",
    "ExactFedProx",
    "FedALA",
    "FedAMP",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedBuff",
    "FedDPSGD",
    "FedDyn",
    "FedExP",
    "FedGD",
    "FedLT",
    "FedNova",
    "FedOpt",
    "FedPD",
    "FedPer",
    "FedProx",
    "FedRelax",
    "FedRep",
    "FedSAM",
    "FedYogi",
    "FineTunedFedAvg",
    "GeneralizedGradient",
    "GossipSGD",
    "GraphFedAvg",
    "HingeStaleness",
    "ISFedAvg",
    "LGFedAvg",
    "LocalOnly",
    "MIMELite",
    "ModelAgnosticFedRelax",
    "Needs",
    "NetworkState",
    "NetworkedADMM",
    "NetworkedFedSGD",
    "NetworkedIteration",
    "OnlineFed",
    "PAOFed",
    "PFedMe",
    "PGFLSingleStep",
    "PSOFed",
    "PerFedAvg",
    "Policy",
    "PolynomialStaleness",
    "ProxSkip",
    "QFedAvg",
    "RandomProbe",
    "Scaffnew",
    "SharingADMM",
    "SignSGD",
    "Staleness",
    "SuPerFed",
    "WangElia",
    "ZCDPGradNFL",
    "algorithm",
    "server_start",
    "start_models",
]

__getattr__ = _renamed.lookup("fljax.algorithms")
