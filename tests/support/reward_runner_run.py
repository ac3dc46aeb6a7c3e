"""One contestant of the benchmark of the rewards: trains with a reward that takes its time, and writes the step's time.

python reward_runner_run.py NAME TRAIN_S GENERATE_S SCORE_S STEPS OUTPUT
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from hidden_generation_run import GROUP, PROMPTS, scaled_script, train

PLUGIN = Path(__file__).with_name("timed_reward.py")


def main() -> None:
    name, train_s, generate_s, score_s, steps, output = sys.argv[1:]
    os.environ["SCORE_S_A_ROW"] = str(float(score_s) / (PROMPTS * GROUP))
    script = scaled_script(0.0, float(generate_s), int(steps))
    script.write()
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            name, script, float(train_s), int(steps), Path(folder),
            external_plugins=[str(PLUGIN)], reward_funcs=["timed"], reward_workers=1,
        )  # fmt: skip
    Path(output).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
