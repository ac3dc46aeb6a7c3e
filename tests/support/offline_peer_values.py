"""Asks d3rlpy, choix, scikit-learn and rjieba for the numbers in tests/algorithms/offline/peer_values.json.

Run by hand, in an environment of its own: d3rlpy needs eleven packages (gym, h5py, ...) beside torch.

    pip install d3rlpy==2.8.1 choix==0.4.1 scikit-learn==1.9.1 rjieba==0.2.2
    python tests/support/offline_peer_values.py > tests/algorithms/offline/peer_values.json

The data set is made from a fixed seed and is written with the numbers.
"""

import json
import sys
from importlib.metadata import version
from types import SimpleNamespace

import choix
import numpy as np
import rjieba
import torch
from d3rlpy.algos.qlearning.torch.awac_impl import AWACImpl
from d3rlpy.algos.qlearning.torch.cql_impl import DiscreteCQLImpl
from d3rlpy.models.torch.imitators import compute_discrete_imitation_loss
from sklearn.linear_model import LogisticRegression

SIZE, ACTIONS, RIDGE = 12, 5, 0.1
SENTENCE = "张伟在北京的清华大学学习。"


def main() -> None:
    draw = np.random.default_rng(7)
    values = draw.normal(size=(SIZE, ACTIONS)).round(3)
    actions = draw.integers(ACTIONS, size=SIZE)
    advantages = draw.normal(size=SIZE).round(3)
    pairs = draw.integers(6, size=(40, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    found = {
        "versions": {name: version(name) for name in ("d3rlpy", "choix", "scikit-learn", "rjieba")},
        "values": values.tolist(),
        "actions": actions.tolist(),
        "advantages": advantages.tolist(),
        "wins": pairs.tolist(),
        "d3rlpy": of_d3rlpy(torch.tensor(values), torch.tensor(actions), torch.tensor(advantages)),
        "bradley_terry": of_bradley_terry(pairs),
        "tags": [[SENTENCE, [list(one) for one in rjieba.tag(SENTENCE)]]],
    }
    json.dump(found, sys.stdout, ensure_ascii=False)
    sys.stdout.write("\n")


def of_d3rlpy(values, actions, advantages):
    """The discrete CQL term, the imitation loss of discrete BCQ, and the AWAC weights at two temperatures."""
    discrete = SimpleNamespace(
        _q_func_forwarder=SimpleNamespace(compute_expected_q=lambda x: values), action_size=ACTIONS
    )
    policy = lambda x: torch.distributions.Categorical(logits=values)  # noqa: E731
    return {
        "cql_term": DiscreteCQLImpl._compute_conservative_loss(discrete, None, actions).item(),
        "bcq_imitation": compute_discrete_imitation_loss(policy, None, actions, 0.0).imitation_loss.item(),
        "awac_weights": {str(lam): awac_weights(advantages, lam) for lam in (1.0, 0.3)},
    }


def awac_weights(advantages, lam):
    """The advantage is q - v, asked for one after the other; with v = 0 it is q."""
    calls = iter([advantages[:, None], torch.zeros(SIZE, 1, dtype=torch.float64)])
    impl = SimpleNamespace(
        _q_func_forwarder=SimpleNamespace(compute_expected_q=lambda *arguments: next(calls)),
        _modules=SimpleNamespace(
            policy=lambda x: SimpleNamespace(
                squashed_mu=torch.zeros(SIZE, 1), mu=torch.zeros(SIZE, 1), logstd=torch.zeros(SIZE, 1)
            )
        ),
        _n_action_samples=1,
        action_size=1,
        _lam=lam,
    )
    return AWACImpl._compute_weights(impl, torch.zeros(SIZE, 1), None)[:, 0].tolist()


def of_bradley_terry(wins):
    """theta of wins [winner, loser], with the penalty ridge * |theta|^2."""
    design = np.zeros((len(wins), 6))
    design[np.arange(len(wins)), wins[:, 0]] = 1
    design[np.arange(len(wins)), wins[:, 1]] = -1
    both = np.concatenate([design, -design])  # the same comparisons seen from the other side
    labels = np.repeat([1, 0], len(wins))
    model = LogisticRegression(C=1 / (4 * RIDGE), fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(both, labels)
    return {
        "choix": choix.opt_pairwise(
            6, [tuple(pair) for pair in wins.tolist()], alpha=RIDGE, tol=1e-10
        ).tolist(),
        "sklearn": model.coef_[0].tolist(),
    }


if __name__ == "__main__":
    main()
