"""Simulated runs: the real scheduler, or a peer's rule, on a virtual clock with the same arrivals."""

from swift_rlx.simulation.ours import simulate
from swift_rlx.simulation.outcome import Outcome
from swift_rlx.simulation.peers import PEERS, simulate_peer
from swift_rlx.simulation.setting import Setting

__all__ = ["PEERS", "Outcome", "Setting", "simulate", "simulate_peer"]
