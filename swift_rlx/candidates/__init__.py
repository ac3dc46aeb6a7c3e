"""Candidates: several answers to each prompt of a file, into a store, by the scheduler and the backends of training.

    asked = read_prompts([file], PromptColumns())
    settings = CandidateSettings(count=8, samplings=(...), seed=0, engine="transformers m@3f2a")
    generate(store, asked, settings, make_backends, encoder)

A candidate is a function of its prompt, its number, its sampling and the seed: not of the order of the file, of how
many workers there are, or of how often the command was killed and begun again.
"""

from swift_rlx.candidates.asked import AskedPrompt, PromptColumns, read_prompts
from swift_rlx.candidates.generation import Generated, GenerationLimits, generate
from swift_rlx.candidates.settings import CandidateSettings

__all__ = [
    "AskedPrompt",
    "CandidateSettings",
    "Generated",
    "GenerationLimits",
    "PromptColumns",
    "generate",
    "read_prompts",
]
