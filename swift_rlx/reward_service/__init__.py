"""Rewards as a service: scored elsewhere, by a version that is known, for several runs at once.

    swift-rlx reward serve --reward helpful=model:/models/rm_v3 --version v3 --port 8101
    swift rlhf ... --reward_funcs http://127.0.0.1:8101/helpful@v3

Service: tenants -> app -> service -> fair_queue -> pool -> worker | worker_program -> sources (the rewards)
Client:  address -> client -> replicas, shadow. Both: wire. `serving` runs it, `frames` is what workers are sent.

A part of its own above `rewards`, `backends` and `cluster`: it asks with the HTTP client of the second, and its worker
processes are guarded by the third. The names here are the client's; the service's modules need the extra `serve`.
"""

from swift_rlx.reward_service.address import ServiceAddress, parse_address
from swift_rlx.reward_service.client import Answer, ServiceReward
from swift_rlx.reward_service.wire import Row

__all__ = ["Answer", "Row", "ServiceAddress", "ServiceReward", "parse_address"]
