"""``vagentrl view``: trajectories in a browser."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vagentrl.cli.parser import run_function


def view(
    run: str,
    port: int = 8765,
    host: str = "127.0.0.1",
    export: str | None = None,
    recipe: str | None = None,
    policy: str | None = None,
) -> None:
    """Show the trajectories that a run, an evaluation or a person has stored, in a browser.

    Args:
        run: The folder, such as runs/sokoban_vlm/version_0.
        port: Port of the page; 0 takes any that is free.
        host: Address to listen on. Whoever reaches another one than 127.0.0.1 can read everything;
            nothing can be played there.
        export: Write the page instead of serving it: a folder, or a file that ends in .html.
        recipe: A file or a recipe that says what was played; null for config.yaml in the folder.
        policy: A checkpoint, a run or a model that may be asked to play on, beside those that the
            folder names.
    """
    if export is None:
        from vagentrl.cli.live import serve
        from vagentrl.cli.recipes import find_config

        found = None if recipe is None else str(find_config(recipe))
        serve(run, port, host, recipe=found, policy=policy)
        return
    from vagentrl.viewer.export import export as write
    from vagentrl.viewer.reading import read_run
    from vagentrl.viewer.site import Site

    site = Site(read_run(run))
    for problem in site.problems:
        print(f"vagentrl: {problem}", file=sys.stderr)
    page = write(site, Path(export).expanduser())
    print(f"{site.trajectories:,} trajectories of {site.run.name}; open {page.resolve().as_uri()}")


def run_view(arguments: Sequence[str]) -> None:
    """``vagentrl view``."""
    run_function(view, "view", arguments, as_positional=True)
