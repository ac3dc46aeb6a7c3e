"""A reward from a judge: a language model behind any OpenAI-compatible server grades a completion from 0 to 10."""

from swift_rlx_judge.grades import NoGrade
from swift_rlx_judge.judge import Judge, JudgeFromFile, JudgeSettings, Usage, read_settings

__all__ = ["Judge", "JudgeFromFile", "JudgeSettings", "NoGrade", "Usage", "read_settings"]
