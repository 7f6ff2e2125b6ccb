"""The command line. Only the chosen command's libraries are imported: ``--help`` is instant."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from vagentrl import __version__
from vagentrl.cli.interrupts import orderly_exit
from vagentrl.errors import VagentError

COMMANDS = (
    "fit",
    "validate",
    "test",
    "check",
    "check-env",
    "judge-agreement",
    "recipes",
    "evaluate",
    "export",
    "view",
    "play",
    "warmstart",
    "doctor",
    "serve",
)

HELP = f"""vagentrl {__version__}: train language and vision-language models to act over many turns

usage: vagentrl COMMAND [options]

commands:
  fit         train a policy                        vagentrl fit --config sokoban_vlm
  validate    evaluate it on held-out episodes      vagentrl validate --config … --ckpt_path best
  test        evaluate it at the end, once          vagentrl test --config … --ckpt_path best
  evaluate    compare policies on environments      vagentrl evaluate A B --config … --output …
  check       dry run: build everything but the weights, and say how large it is
  check-env   can an environment be trained on      vagentrl check-env FrozenLake
  judge-agreement                    vagentrl judge-agreement --judge RelationF1 --env Sokoban
              how often a judge agrees with the exact one
  recipes     list the configurations that ship     vagentrl recipes sokoban_vlm > mine.yaml
  export      write a checkpoint's policy as a Hugging Face model
                                                    vagentrl export CHECKPOINT FOLDER
  view        trajectories in a browser             vagentrl view runs/sokoban_vlm/version_0
  play        take the agent's seat                 vagentrl play FrozenLake
  warmstart   make a tiny model from nothing        vagentrl warmstart --config warmstart/…
  doctor      what works on this machine            vagentrl doctor [--model tiny-sokoban-vlm]
  serve       a vLLM server for a run elsewhere     vagentrl serve --config … --port 8000

  vagentrl COMMAND --help           all options of a command
  vagentrl COMMAND --print_config   all settings with their values, as YAML
  --config takes a path or the name of a recipe, and any setting can be overridden:
  --data.groups 32 --model.optimizer.actor_lr 1e-4
"""


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; errors of vagentrl end it with one message instead of a traceback."""
    arguments = list(sys.argv[1:] if args is None else args)
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(HELP)
        return
    if arguments[0] == "--version":
        print(__version__)
        return
    command, *rest = arguments
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        guess = f" (did you mean {close[0]}?)" if close else ""
        raise SystemExit(f"vagentrl: there is no command {command!r}{guess}; see vagentrl --help")
    try:
        with orderly_exit():
            _run(command, rest)
    except (VagentError, ValueError) as error:
        own = _own(error)
        if own is None:
            raise
        raise SystemExit(f"vagentrl: {type(own).__name__}: {own}") from error


def _own(error: BaseException | None) -> VagentError | None:
    """The error of ours that led to this one: the parser buries those of parts in a list."""
    while error is not None and not isinstance(error, VagentError):
        error = error.__cause__
    return error


def _run(command: str, arguments: Sequence[str]) -> None:
    # Each command's module is imported when it is chosen: the libraries take seconds.
    match command:
        case "recipes":
            from vagentrl.cli.recipes import run_recipes

            return run_recipes(arguments)
        case "export":
            from vagentrl.cli.export import run_export

            return run_export(arguments)
        case "view":
            from vagentrl.cli.view import run_view

            return run_view(arguments)
    from vagentrl.cli.config_files import resolve_configs

    arguments = resolve_configs(arguments)
    match command:
        case "check":
            from vagentrl.cli.check import run_check

            run_check(arguments)
        case "check-env":
            from vagentrl.cli.check_env import run_check_env

            run_check_env(arguments)
        case "judge-agreement":
            from vagentrl.cli.judge_agreement import run_judge_agreement

            run_judge_agreement(arguments)
        case "evaluate":
            from vagentrl.cli.evaluate import run_evaluate

            run_evaluate(arguments)
        case "play":
            from vagentrl.cli.play import run_play

            run_play(arguments)
        case "doctor":
            from vagentrl.cli.doctor import run_doctor

            run_doctor(arguments)
        case "serve":
            from vagentrl.cli.serve import run_serve

            run_serve(arguments)
        case "warmstart":
            from vagentrl.cli.warmstart import run_warmstart

            run_warmstart(arguments)
        case _:
            from vagentrl.cli.trainer import run_trainer

            run_trainer([command, *arguments])
