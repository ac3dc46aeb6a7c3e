"""A multi-turn scheduler that asks a second time, and an environment that rewards by itself."""

from typing import Any

from swift.rollout.gym_env import Env, envs
from swift.rollout.multi_turn import MultiTurnScheduler, multi_turns

TURNS = 2


class AskTwice(MultiTurnScheduler):
    """Two turns, whatever is answered."""

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> dict[str, Any]:
        infer_request.messages.append({"role": "user", "content": "say it again"})
        return {"infer_request": infer_request}

    def check_finished(self, infer_request: Any, response_choice: Any, current_turn: int) -> bool:
        return current_turn >= TURNS


class Branch(AskTwice):
    """Makes several rows of one prompt."""

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        output = await super().run(*args, **kwargs)
        return [output, output]


class CountVowels(Env):
    """Ends after two turns; each turn's reward is its number of vowels."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        super().__init__(env_config)
        self._turn = 0

    async def reset(self, config: Any) -> tuple[str, dict[str, Any], str]:
        return f"say {config.data_dict.get('row', 0)}", {}, "You speak."

    async def step(self, action: Any) -> tuple[str, float, bool, dict[str, Any]]:
        self._turn += 1
        return "again", float(sum(c in "aeiou" for c in action[-1]["content"])), self._turn >= TURNS, {}

    async def close(self) -> None:
        """Nothing to free."""


multi_turns["ask_twice"] = AskTwice
multi_turns["branch"] = Branch
envs["count_vowels"] = CountVowels
