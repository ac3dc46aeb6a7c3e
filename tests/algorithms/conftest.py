"""Shared by these tests: a policy small enough to enumerate, and ranks played by threads."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

V, T = 3, 2


class ToyPolicy:
    """Two tokens from a vocabulary of three: 9 sequences, so every expectation is a finite sum.

    Row i of every [9, ...] tensor is the sequence (i // 3, i % 3). The reference is uniform.
    """

    def __init__(self) -> None:
        first = [0.2, -0.1, 0.4]
        second = [[0.0, 0.3, -0.3], [0.5, -0.2, 0.1], [-0.4, 0.2, 0.0]]
        self.first = torch.tensor(first, dtype=torch.float64, requires_grad=True)
        self.second = torch.tensor(second, dtype=torch.float64, requires_grad=True)
        rewards = [[1.0, 0.0, 0.5], [0.2, 0.9, -0.3], [0.0, 0.4, 0.7]]
        self.rewards = torch.tensor(rewards, dtype=torch.float64).flatten()
        self.ref_logprobs = torch.full((V**T, T), 1 / V, dtype=torch.float64).log()
        self.mask = torch.ones(V**T, T, dtype=torch.bool)

    def logprobs(self) -> Tensor:
        """[9, 2], with gradient."""
        first = self.first.log_softmax(-1)[:, None].expand(V, V).flatten()
        return torch.stack([first, self.second.log_softmax(-1).flatten()], 1)

    def probabilities(self) -> Tensor:
        """[9], without gradient."""
        return self.logprobs().detach().sum(1).exp()

    def objective(self, beta: float) -> Tensor:
        """J = E[R] - beta KL(policy || ref), exact."""
        logprobs = self.logprobs()
        kl = (logprobs - self.ref_logprobs).sum(1)
        return (logprobs.sum(1).exp() * (self.rewards - beta * kl)).sum()

    def gradient(self, scalar: Tensor) -> Tensor:
        """[12]: with respect to the three first-step and the nine second-step logits."""
        return torch.cat([g.flatten() for g in torch.autograd.grad(scalar, [self.first, self.second])])


@pytest.fixture
def toy_policy() -> ToyPolicy:
    return ToyPolicy()


class ThreadRanks:
    """Runs a function once per rank, each in its own thread, with a summing all-reduce between them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.calls = [0] * size
        self._barrier = threading.Barrier(size, timeout=20)
        self._parts: list[Tensor | None] = [None] * size

    def reduce_sum(self, rank: int) -> Callable[[Tensor], Tensor]:
        def reduce(vector: Tensor) -> Tensor:
            self.calls[rank] += 1
            self._parts[rank] = vector
            self._barrier.wait()
            total = torch.stack([part for part in self._parts if part is not None]).sum(0)
            self._barrier.wait()  # nobody overwrites a part that another rank has yet to read
            return total

        return reduce

    def run(self, function: Callable[[int], Tensor]) -> list[Tensor | ValueError]:
        results: list[Tensor | ValueError | None] = [None] * self.size

        def work(rank: int) -> None:
            try:
                results[rank] = function(rank)
            except ValueError as error:  # handed to the test, which looks at it
                results[rank] = error

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert all(result is not None for result in results), "a rank did not finish"
        return results


@pytest.fixture(scope="session")
def thread_ranks() -> Callable[[int], ThreadRanks]:
    return ThreadRanks
