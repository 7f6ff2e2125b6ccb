"""``vagentrl view``: trajectories in a browser."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vagentrl.cli.parser import run_function


def view(run: str, port: int = 8765, host: str = "127.0.0.1", export: str | None = None) -> None:
    """Show the trajectories that a run has stored, in a browser.

    Args:
        run: The run's folder, such as runs/sokoban_vlm/version_0.
        port: Port of the page; 0 takes any that is free.
        host: Address to listen on. Whoever reaches another one than 127.0.0.1 can read everything.
        export: Write the page instead of serving it: a folder, or a file that ends in .html.
    """
    from vagentrl.viewer.export import export as write
    from vagentrl.viewer.reading import read_run
    from vagentrl.viewer.server import ViewerServer
    from vagentrl.viewer.site import Site

    site = Site(read_run(run))
    for problem in site.problems:
        print(f"vagentrl: {problem}", file=sys.stderr)
    count = f"{site.trajectories:,} trajectories of {site.run.name}"
    if export is not None:
        page = write(site, Path(export).expanduser())
        print(f"{count}; open {page.resolve().as_uri()}")
        return
    with ViewerServer(lambda: Site(read_run(run)), port, host) as server:
        print(f"{count} at {server.address} (Ctrl-C ends)", flush=True)
        server.serve_forever()


def run_view(arguments: Sequence[str]) -> None:
    """``vagentrl view``."""
    run_function(view, "view", arguments, as_positional=True)
