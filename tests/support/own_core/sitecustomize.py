"""Put first on PYTHONPATH: the trainer stays on the first core of OWN_CORES, its rollout workers on the second.

`OWN_CORES` holds two numbers. A worker hands on its core alone, so that what vLLM starts stays there too.
"""

import os
import sys

cores = os.environ.get("OWN_CORES", "").split(",")
if cores != [""]:
    if "swift_rlx.cluster.host" in sys.orig_argv:
        cores = cores[1:]
        os.environ["OWN_CORES"] = cores[0]
    os.sched_setaffinity(0, {int(cores[0])})
