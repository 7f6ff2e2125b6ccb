"""Watches a run for the echo trap: the collapse of multi-turn RL into repeated replies."""

from vagentrl.callbacks.echo_trap.monitor import EchoTrapMonitor

__all__ = ["EchoTrapMonitor"]
