"""Features of a vision model, such as DINOv2, for scores. The one module here that needs torch."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from vagentrl.errors import ConfigError
from vagentrl_envs.svg.score import Features

_MEAN, _SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the pictures that the DINO models were trained on."""


@lru_cache(maxsize=2)
def load_features(folder: str, side: int = 224) -> Features:
    """The features of a model in a folder, as Transformers writes it (DINO, DINOv2, ViT).

    A model is loaded once in a process. Its features are the last state of its first token.

    Args:
        folder: Holds the model's configuration and weights; nothing is downloaded.
        side: Pixels to which pictures are scaled.

    Raises:
        ConfigError: When there is no such model.
    """
    if not (Path(folder) / "config.json").is_file():
        raise ConfigError(f"features is {folder!r}; name a folder with a model's config.json")
    import torch
    from transformers import AutoModel

    try:
        model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    except (OSError, ValueError) as error:
        raise ConfigError(f"features: no model can be read from {folder!r} ({error})") from error

    def features(picture: np.ndarray) -> np.ndarray:
        pixels = torch.tensor(picture, dtype=torch.float32).permute(2, 0, 1)[None]
        pixels = torch.nn.functional.interpolate(pixels, (side, side), mode="bilinear")
        mean, spread = (torch.tensor(each).view(1, 3, 1, 1) for each in (_MEAN, _SPREAD))
        with torch.no_grad():
            out = model(pixel_values=(pixels - mean) / spread)
        return out.last_hidden_state[0, 0].numpy()

    return features
