"""A reward that is replaced while a run goes on is seen at its end and in the timeline."""

from swift_rlx.monitors import Monitor, read_timeline
from swift_rlx.monitors.reward_changes import RewardChanges


def test_a_replaced_reward_is_told_with_both_versions_and_their_steps():
    changes = RewardChanges()
    for step, version in enumerate(["v3", "v3", "v4", "v4"], start=1):
        changes.trained(step, {"helpful": version, "length": "1"})
    assert changes.line() == "rewards that were replaced: helpful v3 from step 1, v4 from step 3"


def test_nothing_is_told_where_nothing_was_replaced():
    changes = RewardChanges()
    assert changes.line() is None
    changes.trained(1, {"helpful": "v3"})
    changes.trained(2, {"helpful": "v3"})
    assert changes.line() is None


def test_the_summary_and_the_steps_of_the_timeline_have_the_versions(tmp_path):
    monitor = Monitor(tmp_path, lambda: 0.0)
    assert len(monitor.summary().splitlines()) == 2
    for step, version in ((1, "v3"), (2, "v4")):
        monitor.scored_by(step, {"helpful": version, "own": ""})
        monitor.trained(float(step), step + 0.5, step)
    monitor.close()
    assert monitor.summary().splitlines()[2].endswith("helpful v3 from step 1, v4 from step 2")
    spans = [one for one in read_timeline(tmp_path / "timeline.json") if one["name"].startswith("train ")]
    assert [one["args"]["reward_versions"] for one in spans] == ["helpful=v3", "helpful=v4"]
