"""FSDP2: every rank holds a part of each weight, its gradient and its moments.

The parts that are gathered together are the decoder layers, one at a time, and what is outside of
them: the embeddings, the head, and a vision tower.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from vagentrl import ranks
from vagentrl.errors import ConfigError
from vagentrl.models.vision_memory import remember_images
from vagentrl.modules.actor import ActorModule
from vagentrl.modules.background_write import BackgroundWrite
from vagentrl.modules.checkpoint_io import atomic_folder, save_whole_folders
from vagentrl.modules.critic import CriticModule
from vagentrl.modules.sharded_checkpoint import (
    SavedWeights,
    Snapshot,
    is_sharded_checkpoint,
    load_model,
    load_optimizer,
)
from vagentrl.modules.unused_weights import with_zero_gradients


class FSDP2(ModelParallelStrategy):
    """Fully sharded data parallelism over all ranks.

    Args:
        process_group_backend: ``nccl`` or ``gloo``; None chooses by the device.
        timeout_s: Seconds after which a collective call that another rank has not joined fails.
    """

    def __init__(self, process_group_backend: str | None = None, timeout_s: float = 1800.0) -> None:
        super().__init__(
            tensor_parallel_size=1,
            process_group_backend=process_group_backend,
            timeout=timedelta(seconds=timeout_s),
        )
        self._line: ranks.Line | None = None
        save_whole_folders(self, self._save_in_background)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        if not is_sharded_checkpoint(checkpoint_path):
            raise ConfigError(
                f"{checkpoint_path} was not saved by FSDP2, which reads its own checkpoints alone; "
                "set trainer.strategy as in the run that saved it, or write it as a model with "
                "`vagentrl export` and start from that with model.policy"
            )
        agent: Any = self.lightning_module
        load_model(agent, checkpoint_path, agent.frozen_names())
        for optimizer in self.optimizers:  # none in an evaluation
            load_optimizer(agent, optimizer, checkpoint_path)
        return SavedWeights(checkpoint_path).others(weights_only=weights_only)

    def _save_in_background(
        self, writing: BackgroundWrite, path: str | Path, checkpoint: dict[str, Any]
    ) -> None:
        """Copy what this rank holds, and write it while training goes on."""
        line = self._line = self._line or ranks.Line()
        snapshot = Snapshot(checkpoint)

        def write() -> None:
            with line.taken(), atomic_folder(path) as folder:
                snapshot.write(folder)

        writing.start(write)

    def teardown(self) -> None:
        self.checkpoint_io.teardown()  # Lightning's strategy leaves this out
        if self._line is not None:
            self._line.close()
            self._line = None
        super().teardown()

    @property
    def mesh(self) -> DeviceMesh:
        """The ranks that share the weights."""
        return self.device_mesh["data_parallel"]


StrategyRegistry.register("fsdp2", FSDP2, description=FSDP2.__doc__)


def shard(module: ActorModule | CriticModule, mesh: DeviceMesh) -> None:
    """Spread a model over the ranks; a model that is spread already stays as it is.

    Args:
        module: The model: whole on rank 0, and there or on the meta device on the other ranks.
        mesh: The ranks.
    """
    if isinstance(module, FSDPModule):
        return
    whole: dict[str, Any] = {name: weight.detach() for name, weight in module.state_dict().items()}
    backbone = _backbone_of(module)
    if backbone is not None:
        for layer in _decoder_layers(backbone):
            fully_shard(layer, mesh=mesh)
        backbone.register_forward_hook(_touch_unused_vision, with_kwargs=True)
    if isinstance(module, CriticModule):  # a type of its own, and FSDP2 wants one type in a group
        fully_shard(module.value_head, mesh=mesh)
    fully_shard(module, mesh=mesh, reshard_after_forward=True)
    if isinstance(module, ActorModule):
        _gather_for_methods(module)
    _fill(module, whole, mesh)


def _backbone_of(module: ActorModule | CriticModule) -> PreTrainedModel | None:
    if isinstance(module, CriticModule):
        return module.backbone
    return module.policy.base_model  # pyright: ignore


def _decoder_layers(backbone: PreTrainedModel) -> list[nn.Module]:
    """The language model's layers.

    A vision tower's are left out: a rank whose rows show no image would not run them, and the
    others would wait for it.
    """
    return [
        layer
        for name, layer in backbone.named_modules()
        if isinstance(layer, GradientCheckpointingLayer) and "visual" not in name.split(".")
    ]


def _gather_for_methods(actor: ActorModule) -> None:
    """Gather the weights also where `forward` is not what is called."""
    for name in ("states", "logprobs"):
        register_fsdp_forward_method(actor, name)
    # An engine calls the policy itself to compare log-probs with its own.
    policy: Any = actor.policy
    actor.run_policy = policy.forward  # pyright: ignore
    register_fsdp_forward_method(actor, "run_policy")
    policy.forward = actor.run_policy


def _fill(module: nn.Module, whole: dict[str, Any], mesh: DeviceMesh) -> None:
    """Put rank 0's weights into the model of every rank."""
    if mesh.size() == 1:
        return
    empty = any(parameter.is_meta for parameter in module.parameters())
    if empty:
        cuda = mesh.device_type == "cuda"
        module.to_empty(device=torch.cuda.current_device() if cuda else mesh.device_type)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(module, whole if ranks.rank() == 0 else {}, options=options)
    for buffer in module.buffers():  # those of the position embeddings are in no state dict
        distributed.broadcast(buffer, src=0)
    for name, tower in module.named_modules():
        learns = any(parameter.requires_grad for parameter in tower.parameters())
        if empty and name.endswith("visual") and not learns:
            remember_images(tower)  # as `load_model` does where there are weights


def _touch_unused_vision(backbone: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
    """Give a vision tower that encoded nothing zero gradients: all ranks reduce the same ones."""
    tower = getattr(backbone, "visual", None)
    if tower is not None and "pixel_values" not in kwargs and torch.is_grad_enabled():
        learning = [p for p in tower.parameters() if p.requires_grad]
        output.last_hidden_state = with_zero_gradients(output.last_hidden_state, learning)
    return output
