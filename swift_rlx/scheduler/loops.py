"""The three loops, which never wait for each other's work, and the back-pressure between the stages.

    prompts --> [generate] --> completions --> [score] --> ready groups --> (trainer) --> weights --> [publish]
                   ^  ^                                                        |                         |
                   |  +------------- a place, once the group is dropped -------+                         |
                   +---------------- B places, once weights trained on them are live on the workers -----+

    loop      consumes                    produces           waits for             is woken by
    generate  prompts, places, slots      completions        any of the three      publish, drops, ended requests
    score     groups with completions     ready groups       such a group          generate, ended scorings
    publish   weights of the trainer      places             weights               the trainer
    (trainer) ready groups                weights            a batch of groups     score, drops, the end

Only places bound what is in the pipeline (`capacity.py`); there is no queue that could fill up between stages, and so
none that could block one. A stage that is slow makes the trainer wait, the trainer publishes later, and generation
runs out of places. Every wait is for an event, and every event has a setter that ends: requests, scoring and publishing
have time limits, an outage has one, groups that are dropped in a row are counted, and the first error of any task wakes
the trainer.

Weights are live when every worker that is not ejected serves them. Where all are ejected that is at once; a worker gets
the live weights before it is readmitted, so nothing older is ever made.
"""

from __future__ import annotations

from swift_rlx.scheduler.generation import Generation
from swift_rlx.scheduler.publishing import Publisher
from swift_rlx.scheduler.scoring import Scoring
from swift_rlx.scheduler.state import RunState


async def generate_loop(state: RunState, generation: Generation) -> None:
    """Admit and send whenever something changed that may allow it."""
    while True:
        await state.events.generate.wait()
        state.events.generate.clear()
        generation.step()


async def score_loop(state: RunState, scoring: Scoring) -> None:
    """Begin to score what has its completions."""
    while True:
        await state.events.score.wait()
        state.events.score.clear()
        scoring.step()


async def publish_loop(state: RunState, publisher: Publisher) -> None:
    """Bring the newest weights of the trainer to the workers; what came between is left out."""
    while True:
        await state.events.publish.wait()
        state.events.publish.clear()
        version, payload = state.version, state.payload
        with state.using(version):
            await publisher.publish(version, payload)
            state.live, state.live_payload = version, payload
        state.capacity.live(version.step)
        state.events.generate.set()
        state.events.live.set()
