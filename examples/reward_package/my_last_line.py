"""Reward: the last line of the completion is the solution."""


def last_line(completion: str, solution: str | None, **columns: object) -> float | None:
    """1 if the last line that is not blank equals the data set's `solution`, else 0; None without a
    solution."""
    if solution is None:
        return None
    last = completion.strip().rpartition("\n")[2]
    return float(last.strip() == solution.strip())
