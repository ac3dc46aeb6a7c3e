"""A reward for meaning: how similar a completion is to the reference texts of its row, by a sentence encoder."""

from swift_rlx_semantic_similarity.encoder import Encoder, load_encoder
from swift_rlx_semantic_similarity.reward import SemanticSimilarity

__all__ = ["Encoder", "SemanticSimilarity", "load_encoder"]
