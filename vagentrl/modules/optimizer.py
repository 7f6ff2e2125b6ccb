"""The optimizer: one AdamW for actor and critic, with a learning rate for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from vagentrl.errors import ConfigError
from vagentrl.modules.checks import check_at_least_0


@dataclass(frozen=True)
class AdamW:
    """One optimizer with two parameter groups (DeepSpeed allows no second optimizer).

    Args:
        actor_lr: Learning rate of the actor.
        critic_lr: Learning rate of the critic.
        warmup_iterations: Iterations over which the actor's rate rises linearly from 0.
        final_lr_scale: Both rates fall linearly, in the last iteration to this share of their
            initial values.
        betas: Decay rates of the two moments.
        eps: Added to the square root of the second moment. 1e-5 suits a tiny model, where near-zero
            gradients (of tokens that are almost certain) would otherwise cause steps of full size.
            In models with billions of parameters ordinary gradients are about that small, so 1e-5
            would shrink their steps.
        weight_decay: Decoupled weight decay.
        fused: Step all weights by one kernel; it rounds otherwise than several. None: on a GPU,
            unless the trainer's precision is 16-mixed. Optimizer states that DeepSpeed offloads are
            stepped by DeepSpeed's own kernel instead.
    """

    actor_lr: float = 1e-6
    critic_lr: float = 1e-5
    warmup_iterations: int = 0
    final_lr_scale: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    fused: bool | None = None

    def __post_init__(self) -> None:
        for name in ("actor_lr", "critic_lr", "warmup_iterations", "weight_decay"):
            check_at_least_0(f"optimizer.{name}", getattr(self, name))
        if not 0 <= self.final_lr_scale <= 1:
            raise ConfigError(
                f"model.optimizer.final_lr_scale is {self.final_lr_scale}; give a share of the "
                "rates from 0 to 1 (1 keeps them)"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(
                f"model.optimizer.betas is {self.betas}; give two numbers from 0 to below 1 "
                "(0.9 and 0.999 are usual)"
            )
        if not 0 < self.eps < math.inf:
            raise ConfigError(
                f"model.optimizer.eps is {self.eps}; give a small number above 0 (a weight without "
                "gradient would otherwise be divided by 0)"
            )

    def is_fused(self, device: torch.device, precision: str) -> bool:
        """Whether one kernel steps the weights of a trainer.

        Args:
            device: The device of the weights.
            precision: ``trainer.precision``.

        Raises:
            ConfigError: When `fused` is set and the precision is 16-mixed.
        """
        # A fused optimizer unscales float16's gradients within its step, after they were clipped.
        unscales = precision == "16-mixed"
        if self.fused and unscales:
            raise ConfigError(
                "model.optimizer.fused is true and trainer.precision 16-mixed: the gradients would "
                "be clipped before they are unscaled; leave fused out, or set the precision to "
                "bf16-mixed"
            )
        return device.type == "cuda" and not unscales if self.fused is None else self.fused

    def build(
        self,
        modules: Mapping[str, nn.Module],
        *,
        fused: bool = False,
        kind: Callable[..., torch.optim.Optimizer] | None = None,
    ) -> torch.optim.Optimizer:
        """The optimizer, with one parameter group for each module's trainable weights.

        Args:
            modules: The modules by the name of their group, ``actor`` and ``critic``.
            fused: Whether one kernel steps all weights; see `is_fused`.
            kind: Another class of AdamW than torch's.
        """
        rates = {"actor": self.actor_lr, "critic": self.critic_lr}
        groups = [
            {
                "name": name,
                "params": [p for p in module.parameters() if p.requires_grad],
                "lr": rates[name],
            }
            for name, module in modules.items()
        ]
        settings = {"betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}
        if kind is not None:
            return kind(groups, **settings)
        # None, not False: torch then chooses the fastest of its other ways.
        return torch.optim.AdamW(groups, **settings, fused=fused or None)

    def rates(self, iteration: int, critic_only: int, iterations: int) -> dict[str, float]:
        """Learning rates in an iteration, by the name of their parameter group.

        Args:
            iteration: Number of the iteration, from 0.
            critic_only: Number of iterations at the start in which only the critic learns.
            iterations: Number of iterations in the whole run.
        """
        progress = min(iteration / max(iterations - 1, 1), 1)
        decay = 1 - (1 - self.final_lr_scale) * progress
        trained = iteration - critic_only + 1
        warmup = min(trained / (self.warmup_iterations + 1), 1) if trained > 0 else 0.0
        return {"actor": self.actor_lr * warmup * decay, "critic": self.critic_lr * decay}
