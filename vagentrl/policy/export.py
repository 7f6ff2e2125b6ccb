"""A policy as a folder that other programs load."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils.hub import cached_file

from vagentrl import __version__
from vagentrl.engines.base import Sampling
from vagentrl.engines.vllm.weights import read, save
from vagentrl.errors import ConfigError
from vagentrl.models.load import checkpoint_path
from vagentrl.models.lora import has_adapter, merge_adapter, save_adapter
from vagentrl.policy.load import RECORD_FILE, Source, build_model, find_source
from vagentrl.policy.play import DEFAULT_SAMPLING
from vagentrl.policy.stored_weights import StoredWeights
from vagentrl.rollout.renderer import Renderer

PROCESSOR_FILES = ("processor_config.json", "video_preprocessor_config.json")
"""Files of a model with images that neither its tokenizer nor its image processor writes."""
SHARD_SIZE = "5GB"
MODEL_FILES = ("config.json", "adapter_config.json")
"""One of them is in every folder that can be overwritten."""


def export_policy(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    merge_adapter: bool = True,
    overwrite: bool = False,
    policy: str | None = None,
    dtype: str | None = None,
) -> Path:
    """Write a policy as a Hugging Face folder, for plain transformers, vLLM and `load_policy`.

    The folder holds the weights, the tokenizer with its chat template, the image processor, a
    generation config with the tokens that end a reply, and a card. It is written beside its place
    and moved there when it is whole.

    Args:
        checkpoint: As in `load_policy`.
        folder: Where to write.
        merge_adapter: Add an adapter (LoRA) to the weights; False writes the adapter alone, for
            peft.
        overwrite: Replace the folder if there is a model in it.
        policy: As in `load_policy`.
        dtype: Type of the weights, such as ``bfloat16``; None: as in training.

    Returns:
        The folder.

    Raises:
        ConfigError: When the folder may not be written, or the checkpoint does not say enough.
    """
    target = Path(folder).expanduser()
    _check_target(target, overwrite)
    parts = _parts_of(find_source(checkpoint, policy), merge_adapter)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _write(parts, partial, dtype)
        (partial / "README.md").write_text(_card(parts, str(checkpoint), target.name))
        if target.exists():
            shutil.rmtree(target)
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


class _Parts(NamedTuple):
    """What goes into a folder beside the weights."""

    source: Source
    renderer: Renderer
    sampling: Sampling
    adapter_alone: bool


def _parts_of(source: Source, merge: bool) -> _Parts:
    record = source.record
    sampling = DEFAULT_SAMPLING if record is None else record.sampling
    alone = record is not None and record.lora is not None and not merge
    return _Parts(source, Renderer.from_pretrained(source.name), sampling, alone)


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    if not overwrite:
        raise ConfigError(f"{target} exists; give another folder, or overwrite=True")
    if not any((target / name).is_file() for name in MODEL_FILES):
        raise ConfigError(
            f"{target} holds no model that could be overwritten (no {' or '.join(MODEL_FILES)}); "
            "give another folder"
        )


def write_processors(renderer: Renderer, model: str, folder: Path) -> None:
    """Write a model's tokenizer, and its image processor if it reads images, to a folder."""
    renderer.tokenizer.save_pretrained(folder)
    if renderer.images is not None:
        renderer.images.processor.save_pretrained(folder)  # pyright: ignore
        for name in PROCESSOR_FILES:
            file = cached_file(
                checkpoint_path(model), name, _raise_exceptions_for_missing_entries=False
            )
            if file is not None:
                shutil.copy(file, folder / name)


def _write(parts: _Parts, folder: Path, dtype: str | None) -> None:
    source, renderer = parts.source, parts.renderer
    if parts.adapter_alone:
        _write_adapter(source, folder, dtype)
    else:
        _write_model(parts, folder, dtype)
    write_processors(renderer, source.name, folder)
    if source.record is not None:
        record = source.record if parts.adapter_alone else replace(source.record, lora=None)
        (folder / RECORD_FILE).write_text(json.dumps(record.as_plain(), indent=2) + "\n")


def _write_adapter(source: Source, folder: Path, dtype: str | None) -> None:
    """Write the adapter alone; nothing of the model below it is read."""
    model = build_model(source, dtype, meta=True)
    assert source.weights is not None
    own = {name: weight.dtype for name, weight in model.state_dict().items() if "lora_" in name}
    weights = {name: weight.to(own[name]) for name, weight in source.weights.only(own)}
    model.load_state_dict(weights, strict=False, assign=True)
    save_adapter(model, str(folder), base=source.name)


def _write_model(parts: _Parts, folder: Path, dtype: str | None) -> None:
    """Write a whole model. Only one with an adapter, which is added, comes into memory whole."""
    source = parts.source
    adapted = source.record is not None and source.record.lora is not None
    stored = None if adapted else source.weights
    model = build_model(source, dtype, meta=stored is not None)
    if has_adapter(model):
        merge_adapter(model)
    model.generation_config = _generation_config(parts.renderer, parts.sampling)
    beside = folder / "unnamed"  # not yet under the names that Hugging Face gives them
    weights = None if stored is None else _mapped(model, stored, beside)
    model.save_pretrained(folder, state_dict=weights, max_shard_size=SHARD_SIZE)
    shutil.rmtree(beside, ignore_errors=True)


def _mapped(model: PreTrainedModel, stored: StoredWeights, beside: Path) -> dict[str, Tensor]:
    """The model's weights in its type, memory-mapped: they are read when they are written.

    Args:
        model: The model, on the meta device. Of tied weights one is taken.
        stored: Its weights.
        beside: A new folder for a copy that can be mapped.
    """
    once = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    types = {name: own.dtype for name, own in model.state_dict().items() if name in once}
    save(((name, w.to(types[name])) for name, w in stored.only(types)), str(beside))
    return dict(read(str(beside)))


def _generation_config(renderer: Renderer, sampling: Sampling) -> GenerationConfig:
    """What ``generate`` needs to sample as the policy does."""
    greedy = sampling.temperature == 0
    chances = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }
    return GenerationConfig(
        do_sample=not greedy,
        max_new_tokens=sampling.max_tokens,
        eos_token_id=sorted(renderer.stop_ids),
        pad_token_id=renderer.tokenizer.pad_token_id,
        suppress_tokens=sorted(renderer.banned_ids),
        **({} if greedy else chances),
    )


def _card(parts: _Parts, checkpoint: str, title: str) -> str:
    """A model card in Markdown: where the policy comes from, and how to use it."""
    name, record = parts.source.name, parts.source.record
    learned = "" if record is None else f" after {record.iteration} iterations"
    prompt = None if record is None else record.system_prompt
    task = "" if prompt is None else f"\n## Task\n\nThe system prompt was:\n\n```\n{prompt}\n```\n"
    elsewhere = "transformers and vLLM load the folder like any other."
    if parts.adapter_alone:
        elsewhere = f"The folder holds an adapter alone, which peft adds to `{name}`."
    return f"""---
library_name: transformers
tags: [vagentrl, reinforcement-learning]
---
# {title}

A policy that vagentrl {__version__} exported from `{checkpoint}`{learned}. It started from
`{name}`; see the licence there.
{task}
## Use

```python
import vagentrl

policy = vagentrl.load_policy("{title}")  # samples with {parts.sampling}
```

{elsewhere}
"""
