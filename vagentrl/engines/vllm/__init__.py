"""The vLLM engines. vLLM itself is imported at the first `update_weights`."""

from vagentrl.engines.vllm.engine import VLLMEngine

__all__ = ["VLLMEngine"]
