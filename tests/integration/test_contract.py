"""What swift-rlx changes in ms-swift's trainer is in the table that is checked before it is used."""

from swift.rlhf_trainers import GRPOTrainer
from transformers import Trainer

from swift_rlx.integration.contract import CONTRACT, breaches
from swift_rlx.trainers import ReinforcePPTrainer
from swift_rlx.trainers.offline_rloo import OfflineRLOOTrainer


def names_in(trainer: type, package: str) -> set[str]:
    """Methods and properties that classes of the package give to a trainer."""
    classes = [one for one in trainer.__mro__ if one.__module__.startswith(f"{package}.")]
    found = {name: value for one in classes for name, value in vars(one).items()}
    return {name for name, value in found.items() if callable(value) or isinstance(value, property)}


def test_every_method_of_ms_swift_that_a_trainer_overrides_is_in_the_contract() -> None:
    ours = names_in(OfflineRLOOTrainer, "swift_rlx") | names_in(ReinforcePPTrainer, "swift_rlx")
    overridden = ours & names_in(GRPOTrainer, "swift") - set(dir(Trainer))
    assert "_postprocess_batch" in overridden
    assert sorted(overridden - {clause.name for clause in CONTRACT}) == []


def test_the_installed_ms_swift_keeps_it() -> None:
    assert breaches() == []
