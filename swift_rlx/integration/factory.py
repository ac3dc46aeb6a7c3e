"""Send `rlx_type` runs to our trainers and our training configuration.

ms-swift's mapping tables stay as they are: without the hook an unknown rlhf_type must be an error there, not a run
of another algorithm under our name.
"""

import importlib
from types import ModuleType
from typing import Any

from swift_rlx.errors import ContractError
from swift_rlx.integration.algorithm_table import NAMES, OFFLINE_TRAINER, TRAINING_CONFIG, resolve


def install(module: ModuleType) -> None:
    """Wrap `TrainerFactory.get_cls(args, mapping)` of `swift.trainers.trainer_factory`."""
    factory = module.TrainerFactory
    stock = factory.get_cls

    def get_cls(args: Any, mapping: dict[str, str]) -> Any:
        name = getattr(args, "rlx_type", None)
        if name is None:
            if getattr(args, "rlhf_type", None) in NAMES:
                raise ContractError(
                    f"rlhf_type {args.rlhf_type!r} reached ms-swift's trainer table without swift-rlx's arguments;"
                    " build the arguments with swift.RLHFArguments after swift_rlx._boot.install() ran, and see"
                    " `swift-rlx doctor`"
                )
            return stock(args, mapping)
        from swift_rlx.integration.contract import require

        require()
        trainer = resolve(name).trainer if args.rlx_offline is None else OFFLINE_TRAINER
        path = TRAINING_CONFIG if mapping is factory.TRAINING_ARGS_MAPPING else trainer
        module_name, class_name = path.rsplit(".", 1)
        return getattr(importlib.import_module(module_name), class_name)

    factory.get_cls = staticmethod(get_cls)
