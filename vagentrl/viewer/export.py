"""Writes the viewer's page with its data, to be opened from a disk."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from tqdm import tqdm

from vagentrl.errors import ConfigError
from vagentrl.viewer.site import PAGE, Site, resources


def export(site: Site, target: Path) -> Path:
    """Write the page of a run.

    Args:
        site: What to write.
        target: A folder, which must be new or hold an earlier export, or a file that ends in
            ``.html``, which then holds all data and images itself.

    Returns:
        The page to open in a browser.

    Raises:
        ConfigError: When the folder holds other files.
    """
    if target.suffix == ".html":
        return _write_file(site, target)
    if target.exists() and (not target.is_dir() or not _may_write(target)):
        raise ConfigError(
            f"{target} exists and is no earlier export; give another folder, or a file that ends "
            "in .html"
        )
    for path, content in _progress(resources(site).items()):
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content())
    return target / PAGE


def _may_write(folder: Path) -> bool:
    return not any(folder.iterdir()) or (folder / "data" / "index.js").is_file()


def _write_file(site: Site, target: Path) -> Path:
    names = {name: partial_data for name, partial_data in _inline(site)}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(site.page(names))
    return target


def _inline(site: Site) -> list[tuple[str, str]]:
    data = [(name, site.data(name)) for name in _progress(site.names)]
    images = {
        name: f"data:image/png;base64,{base64.b64encode(site.image(name)).decode()}"
        for name in site.images()
    }
    return [*data, ("images", json.dumps(images))]


def _progress(items: object) -> tqdm:
    return tqdm(items, desc="export", unit="file", file=sys.stderr, leave=False)  # pyright: ignore
