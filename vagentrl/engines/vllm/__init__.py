"""The vLLM engine. vLLM itself is imported when the first weights arrive."""

from vagentrl.engines.vllm.engine import VLLMEngine

__all__ = ["VLLMEngine"]
