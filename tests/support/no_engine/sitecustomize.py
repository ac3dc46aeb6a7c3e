"""For a process of a benchmark: the engines of ours cannot be imported. vLLM is not installed where it is measured."""

import sys
from importlib.abc import MetaPathFinder

ENGINES = {
    "swift.infer_engine.vllm_engine",
    "swift_rlx.backends.transformers_engine",
    "swift_rlx.backends.vllm_engine",
    "swift_rlx.trainers.pipeline_plan",
}


class NoEngine(MetaPathFinder):
    """Knows nothing but what must not be there."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname in ENGINES:
            raise ModuleNotFoundError(f"No module named {fullname!r}: there is no engine here", name=fullname)
        return None


sys.meta_path.insert(0, NoEngine())
