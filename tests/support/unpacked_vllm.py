"""A file of `external_plugins` that lets ms-swift load weights into a vLLM engine of its own on a CPU.

Packed linear layers take no new weights. Ms-swift alone needs this: our workers pack them again.
"""

import vllm._custom_ops

vllm._custom_ops._supports_onednn = False
