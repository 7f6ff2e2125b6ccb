"""A policy as a folder that other programs load."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from transformers import GenerationConfig
from transformers.utils.hub import cached_file

from vagentrl import __version__
from vagentrl.engines.base import Sampling
from vagentrl.errors import ConfigError
from vagentrl.models.load import checkpoint_path
from vagentrl.models.lora import has_adapter, merge_adapter, save_adapter
from vagentrl.policy.load import RECORD_FILE, load_policy
from vagentrl.policy.play import Policy
from vagentrl.rollout.renderer import Renderer

PROCESSOR_FILES = ("processor_config.json", "video_preprocessor_config.json")
"""Files of a model with images that neither its tokenizer nor its image processor writes."""
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
    loaded = load_policy(checkpoint, policy=policy, dtype=dtype)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _write(loaded, partial, merge_adapter)
        (partial / "README.md").write_text(_card(loaded, str(checkpoint), target.name))
        if target.exists():
            shutil.rmtree(target)
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


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


def _write(loaded: Policy, folder: Path, merge: bool) -> None:
    model, renderer = loaded.model, loaded.renderer
    if not has_adapter(model):
        _write_model(loaded, folder)
    elif merge:
        merge_adapter(model)
        _write_model(loaded, folder)
    else:
        save_adapter(model, str(folder), base=loaded.name)
    renderer.tokenizer.save_pretrained(folder)
    if renderer.images is not None:
        renderer.images.processor.save_pretrained(folder)  # pyright: ignore
        for name in PROCESSOR_FILES:
            file = cached_file(
                checkpoint_path(loaded.name), name, _raise_exceptions_for_missing_entries=False
            )
            if file is not None:
                shutil.copy(file, folder / name)
    if loaded.record is not None:
        lora = loaded.record.lora if has_adapter(model) else None
        text = json.dumps(replace(loaded.record, lora=lora).as_plain(), indent=2)
        (folder / RECORD_FILE).write_text(text + "\n")


def _write_model(loaded: Policy, folder: Path) -> None:
    loaded.model.generation_config = _generation_config(loaded.renderer, loaded.sampling)
    loaded.model.save_pretrained(folder)


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


def _card(loaded: Policy, checkpoint: str, title: str) -> str:
    """A model card in Markdown: where the policy comes from, and how to use it."""
    record = loaded.record
    learned = "" if record is None else f" after {record.iteration} iterations"
    prompt = loaded.system_prompt
    task = "" if prompt is None else f"\n## Task\n\nThe system prompt was:\n\n```\n{prompt}\n```\n"
    elsewhere = "transformers and vLLM load the folder like any other."
    if has_adapter(loaded.model):
        elsewhere = f"The folder holds an adapter alone, which peft adds to `{loaded.name}`."
    return f"""---
library_name: transformers
tags: [vagentrl, reinforcement-learning]
---
# {title}

A policy that vagentrl {__version__} exported from `{checkpoint}`{learned}. It started from
`{loaded.name}`; see the licence there.
{task}
## Use

```python
import vagentrl

policy = vagentrl.load_policy("{title}")  # samples with {loaded.sampling}
```

{elsewhere}
"""
