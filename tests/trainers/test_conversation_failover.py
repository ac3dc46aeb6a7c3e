"""A conversation whose worker dies goes on with another worker, turn by turn, as if nothing had happened."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from worker_runs import request, spec

from swift_rlx.backends.progress import Draft, sampled_part
from swift_rlx.errors import WorkerDied
from swift_rlx.testing.fake_engine import FakeEngine
from swift_rlx.types import Completion, FinishReason, Prompt

TURNS = 3


class Engine(FakeEngine):
    """Counts its tokens; with `dies_at` (turn, tokens) it dies there."""

    dies_at: tuple[int, int] | None = None
    made = turn = 0

    async def generate(self, request: Any, on_progress: Any = lambda chunk: None) -> Completion:
        self.turn += 1
        told = 0 if request.prefix is None else request.prefix.num_tokens

        def tell(chunk: Any) -> None:
            nonlocal told
            on_progress(chunk)
            told = chunk.end
            if self.dies_at == (self.turn, told):
                raise WorkerDied("killed")

        answer = await super().generate(request, tell)
        self.made += answer.num_tokens - (0 if request.prefix is None else request.prefix.num_tokens)
        return answer


class Talk:
    """Stands in for ms-swift's scheduler: three turns, between which an environment says `word` and the turn."""

    infer_engine: Any

    def __init__(self, word: int = 7) -> None:
        self._word = word

    async def run(self, infer_request: Any, config: Any) -> Any:
        ids, masks = [], []
        for turn in range(TURNS):
            response = await self.infer_engine.infer_async(infer_request)
            own = response.choices[0].token_ids
            said = [self._word, turn] if turn + 1 < TURNS else []
            infer_request.ids = [*infer_request.ids, *own, *said]
            ids.append([*own, *said])
            masks.append([1] * len(own) + [0] * len(said))
        return SimpleNamespace(
            response_token_ids=ids,
            response_loss_mask=masks,
            messages=[],
            rollout_infos={},
            rollout_logprobs=[],
        )


def encoder() -> Any:
    return SimpleNamespace(
        template=SimpleNamespace(tokenizer=None, decode_generate_ids=str),
        request_config=None,
        request=lambda prompt, name: SimpleNamespace(ids=prompt.token_ids.tolist()),
        encode=lambda infer, index, epoch, columns: Prompt(index, np.array(infer.ids, np.int32), epoch),
    )


def talk(engine: Engine, draft: Draft, word: int = 7) -> Completion:
    from swift_rlx.trainers.conversations import ConversationBackend

    async def main() -> Completion:
        backend = ConversationBackend(engine, Talk(word), encoder(), limit_is_total=False)
        return await backend.generate(replace(request(max_tokens=12), prefix=draft.whole()), draft.add)

    return asyncio.run(main())


@pytest.mark.parametrize("dies_at", [(1, 5), (2, 4), (3, 9)])
def test_the_conversation_is_the_undisturbed_one_and_only_what_was_missing_is_made(
    tmp_path: Path, dies_at: tuple[int, int]
) -> None:
    whole = talk(Engine(spec(tmp_path)), Draft())
    draft, dying, second = Draft(), Engine(spec(tmp_path)), Engine(spec(tmp_path))
    dying.dies_at = dies_at
    with pytest.raises(WorkerDied):
        talk(dying, draft)
    before = draft.num_tokens
    assert before == 12 * (dies_at[0] - 1) + dies_at[1]
    answer = talk(second, draft)
    for name in ("token_ids", "logprobs", "policy_steps", "sampled"):
        np.testing.assert_array_equal(getattr(answer, name), getattr(whole, name))
    assert second.made == TURNS * 12 - before
    assert draft.num_tokens == answer.num_sampled


def test_where_the_environment_answers_otherwise_only_the_turns_before_are_kept(tmp_path: Path) -> None:
    draft, dying, second = Draft(), Engine(spec(tmp_path)), Engine(spec(tmp_path))
    dying.dies_at = (3, 5)
    with pytest.raises(WorkerDied):
        talk(dying, draft)
    answer = talk(second, draft, word=8)
    expected = talk(Engine(spec(tmp_path)), Draft(), word=8)
    np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
    assert second.made == 2 * 12


def test_an_aborted_conversation_is_cut_and_never_finished(tmp_path: Path) -> None:
    from swift_rlx.trainers.conversations import ConversationBackend

    async def main() -> Completion:
        engine = Engine(replace(spec(tmp_path), options={"token_s": 0.01}))
        backend = ConversationBackend(engine, Talk(), encoder(), limit_is_total=False)
        asking = asyncio.ensure_future(backend.generate(request(max_tokens=12)))
        await asyncio.sleep(0.2)
        await backend.abort(["r0"])
        return await asking

    answer = asyncio.run(main())
    assert answer.finish_reason is FinishReason.ABORT
    assert 12 <= answer.num_tokens < 36
    assert sampled_part(answer).num_tokens == answer.num_tokens
