"""Objectives for stored completions: what trains when nothing is sampled. One file per formula.

`make_objective(name)` gives the object behind `--offline_objective name` (`objective.py` says what it does). Letters
besides those of the parent package: `P` prompts, `S` completions of one prompt, `C` comparisons, `F` sources of scores,
`N` completions or tokens that were picked out, `V` vocabulary.
"""

from .awac import (
    AWAC,
    AdaptiveTemperature,
    FlooredWeights,
    awac_weights,
    floored,
    normalized,
    reward_alone,
    temperature_for,
)
from .bradley_terry import BradleyTerry, bradley_terry, theta_advantages
from .comparisons import Comparisons, choose_pairs, hard_preferences, soft_preferences, votes, win_matrix
from .constraint_filter import (
    CONSTRAINTS,
    Candidate,
    ConstraintFilter,
    Limits,
    PooledTest,
    Verdict,
    pooled_words,
)
from .cql import CQL, ExponentialAlpha, LinearAlpha, conservative_penalty, soft_targets
from .entities import Extractor, chinese_entities, normalized_entities, overlap, pattern_entities
from .objective import MicroBatch, Needs, ObjectiveLoss, OfflineObjective, Plan, StoredRows
from .objective_table import OBJECTIVES, make_objective, resolve_auto
from .pairwise import PairwiseAdvantages, pairwise_advantages
from .rloo_is import RLOOWithImportance
from .softmax_ce import SoftmaxCE, SoftmaxCEForwardKL, SoftmaxWeights, softmax_weights, with_forward_kl
from .unigrams import LengthThresholds, ReferenceTokens, js_distance, js_divergence, token_counts
from .vocabulary_kl import vocabulary_kl

__all__ = [
    "AWAC",
    "CONSTRAINTS",
    "CQL",
    "OBJECTIVES",
    "AdaptiveTemperature",
    "BradleyTerry",
    "Candidate",
    "Comparisons",
    "ConstraintFilter",
    "ExponentialAlpha",
    "Extractor",
    "FlooredWeights",
    "LengthThresholds",
    "Limits",
    "LinearAlpha",
    "MicroBatch",
    "Needs",
    "ObjectiveLoss",
    "OfflineObjective",
    "PairwiseAdvantages",
    "Plan",
    "PooledTest",
    "RLOOWithImportance",
    "ReferenceTokens",
    "SoftmaxCE",
    "SoftmaxCEForwardKL",
    "SoftmaxWeights",
    "StoredRows",
    "Verdict",
    "awac_weights",
    "bradley_terry",
    "chinese_entities",
    "choose_pairs",
    "conservative_penalty",
    "floored",
    "hard_preferences",
    "js_distance",
    "js_divergence",
    "make_objective",
    "normalized",
    "normalized_entities",
    "overlap",
    "pairwise_advantages",
    "pattern_entities",
    "pooled_words",
    "resolve_auto",
    "reward_alone",
    "soft_preferences",
    "soft_targets",
    "softmax_weights",
    "temperature_for",
    "theta_advantages",
    "token_counts",
    "vocabulary_kl",
    "votes",
    "win_matrix",
    "with_forward_kl",
]
