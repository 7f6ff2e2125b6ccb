"""The command: tokenizer, random weights, cloning, score, model card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning import seed_everything

from vagentrl.cli.parser import run_function
from vagentrl.cli.plugins import load_plugins
from vagentrl.cli.warmstart.card import model_card
from vagentrl.cli.warmstart.cloning import Demonstrations, Stage, clone
from vagentrl.cli.warmstart.demonstrator import Demonstrator, demonstrated_texts
from vagentrl.cli.warmstart.evaluation import evaluate, success_in_training
from vagentrl.contexts import Context, FullHistory
from vagentrl.environment import Environment, seed_of
from vagentrl.errors import ConfigError
from vagentrl.models.load import checkpoint_path, context_length, load_model
from vagentrl.models.packing import allow_packing
from vagentrl.models.tiny import TinyModel, save_new_model
from vagentrl.noise import silence_noise
from vagentrl.policy.export import write_processors
from vagentrl.rollout.policy_record import Part
from vagentrl.rollout.renderer import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_REPEATS = 10
"""Of a stage that is repeated until the model errs enough."""


def warmstart(
    env: Callable[[], Environment],
    actions: tuple[str, ...],
    stages: list[Stage],
    output: str,
    model: TinyModel = TinyModel(),  # noqa: B008 (frozen)
    context: Context = FullHistory(),  # noqa: B008 (frozen)
    micro_batch_size: int = 4,
    tokenizer_episodes: int = 500,
    eval_episodes: int = 512,
    seed: int = 1,
    overwrite: bool = False,
    start: str | None = None,
    accelerator: Literal["cpu", "gpu", "auto"] = "cpu",
    workers: int = 0,
) -> None:
    """Build a tiny model from nothing: tokenizer, random weights, behaviour cloning.

    Or clone with a model that is there already, such as one that knows another format.

    Args:
        env: The environment whose oracle is cloned.
        actions: What the demonstrator draws from when it acts at random; empty for the actions
            that the environment names.
        stages: The cloning, one part after the other.
        output: Folder for the Hugging Face checkpoint and its model card. It appears when the
            model is complete.
        model: Shape of the model.
        context: Which earlier turns the model sees. With few of them it learns sooner, if the
            environment's observations say what there is to know.
        micro_batch_size: Most episodes in one forward and backward pass; it divides the larger
            batches of the stages. A small one stays in cache.
        tokenizer_episodes: Demonstrations that the tokenizer is trained on.
        eval_episodes: Held-out episodes to score it on, for its card.
        seed: Decides everything; the same machine, versions and `workers` give the same weights.
        overwrite: Replace a model that is in ``output`` already.
        start: A model to go on from, in place of a new one: a folder, or the name of one that
            ships.
        accelerator: Where the model learns; `auto` takes a GPU where there is one.
        workers: Processes that play demonstrations ahead, one core each; with 0 the model waits
            for them. A GPU learns faster than one process plays.
    """
    _check_settings(stages, model, micro_batch_size, start, accelerator, workers)
    with _complete_or_not_there(Path(output), overwrite) as folder:
        seed_everything(seed)
        if start is None:
            demonstrator = Demonstrator(stages[0].noise, actions)
            with closing(env()) as environment:
                texts = demonstrated_texts(environment, demonstrator, tokenizer_episodes)
                policy = save_new_model(model, texts, folder)
        else:
            policy = _save_copy(start, folder)
        allow_packing(policy)  # demonstrations share their system prompt, which is then read once
        length = context_length(policy.config)
        renderer = Renderer.from_pretrained(folder)
        renderer.self_test()
        for number, stage in enumerate(stages):
            demonstrator = Demonstrator(stage.noise, actions, stage.claim_noise, stage.obeys)
            at_once = min(micro_batch_size, stage.batch_size)
            played = (at_once, context, length, seed + number, stage.turns)
            demonstrations = Demonstrations(env, demonstrator, renderer, *played)
            for _ in range(MOST_REPEATS):
                name = f"stage {number + 1}/{len(stages)}"
                clone(policy, demonstrations, stage, name, accelerator, workers)
                policy.save_pretrained(folder)
                if stage.until is None or success_in_training(env, folder, context) <= stage.until:
                    break
    # The model is in its place: what goes wrong from here on does not cost the cloning.
    seeds = [seed_of("validation", index) for index in range(eval_episodes)]
    scores = evaluate(env, Path(output), seeds, context)
    settings: dict[str, Any] = {"start": start}
    if start is None:
        settings = {"model": model, "tokenizer_episodes": tokenizer_episodes}
    settings |= {"seed": seed, "accelerator": accelerator, "workers": workers}
    settings["context"] = Part.of(context)
    settings |= {f"stage {number}": stage for number, stage in enumerate(stages, 1)}
    card = model_card(Path(output).name, policy.num_parameters(), settings, scores, start)
    (Path(output) / "README.md").write_text(card)
    print(f"written to {output}:", *(f"{name} {value:.3f}" for name, value in scores.items()))


def _check_settings(
    stages: Sequence[Stage],
    model: TinyModel,
    micro_batch_size: int,
    start: str | None,
    accelerator: str,
    workers: int,
) -> None:
    """Raise on settings that would only fail, or do something else, after minutes of work."""
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise ConfigError("accelerator is gpu, but torch finds no CUDA device here; use auto")
    if workers < 0:
        raise ConfigError(f"workers is {workers}; it is a number of processes, or 0 for none")
    if start is not None and model != TinyModel():
        raise ConfigError(
            f"model gives the shape of a new model, but start names {start!r}, which has a shape; "
            "leave one of them out (model is often in the file that --config names)"
        )
    if micro_batch_size < 1:
        raise ConfigError(f"micro_batch_size is {micro_batch_size}; give at least 1")
    for number, stage in enumerate(stages, 1):
        if stage.batch_size > micro_batch_size and stage.batch_size % micro_batch_size:
            near = stage.batch_size // micro_batch_size * micro_batch_size
            raise ConfigError(
                f"stage {number} has a batch_size of {stage.batch_size}, no multiple of the "
                f"micro_batch_size, {micro_batch_size}; try {near} or {near + micro_batch_size}"
            )


def _save_copy(model: str, folder: Path) -> PreTrainedModel:
    """Write a model, its tokenizer and its image processor to a folder; returns the model."""
    policy = load_model(model)
    policy.save_pretrained(folder)
    write_processors(Renderer.from_pretrained(checkpoint_path(model)), model, folder)
    return policy


@contextmanager
def _complete_or_not_there(target: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to write a model to, which takes its place at the end of the block.

    A run that is interrupted leaves nothing. One that is killed leaves a folder that is no model:
    what it has written lies one level deeper.
    """
    if target.exists() and not target.is_dir():
        raise ConfigError(f"output: {target} is a file; name a folder")
    if target.is_dir() and any(target.iterdir()):
        if not (target / "config.json").is_file():
            raise ConfigError(
                f"output: {target} holds other things than a model; name a new folder"
            )
        if not overwrite:
            raise ConfigError(
                f"output: {target} holds a model already; name a new folder, or replace the model "
                "with --overwrite true"
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{target.name}.partial-", dir=target.parent) as aside:
        folder = Path(aside) / "unfinished"
        folder.mkdir()
        yield folder
        if target.exists():
            target.rename(Path(aside) / "replaced")
        folder.rename(target)


def run_warmstart(arguments: Sequence[str]) -> None:
    """``vagentrl warmstart``."""
    load_plugins()
    silence_noise()
    run_function(warmstart, "warmstart", arguments)
