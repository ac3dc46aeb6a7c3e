"""The servers of `--rollout_endpoints`, before the model is loaded: a wrong key or address need not wait for that."""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from swift_rlx.backends.remote_endpoint import parse_endpoints, read_api_key


def refuse_unfit_servers(addresses: Sequence[str]) -> None:
    """Raise ConfigError where one that answers wants another key, or is none that can be used.

    One that does not answer is asked again at the start of the run.
    """
    from swift_rlx.backends.remote_start import refuse_unfit  # with aiohttp

    endpoints, key = parse_endpoints(addresses), read_api_key(os.environ)
    with ThreadPoolExecutor(1) as pool:  # a notebook has a loop of its own in this thread
        pool.submit(lambda: asyncio.run(refuse_unfit(endpoints, key))).result()
