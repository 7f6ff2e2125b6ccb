"""Ends a run soon after one of its processes has died, and says which."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from datetime import timedelta

from lightning import Callback, LightningModule, Trainer
from torch.distributed import DistError, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from vagentrl import ranks
from vagentrl.errors import ConfigError

log = logging.getLogger(__name__)

LEFT, FAILED = "left", "failed: "
"""What a rank that has finished, or has raised an error, writes in place of its heartbeat."""

_LOST = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")
"""What an error says that gloo raises as a plain RuntimeError when another process is gone."""


class RankWatch(Callback):
    """Ends all processes of a run soon after one of them has died, and says which.

    The others would wait for the dead one, for example in the next gradient, until torch gives up:
    after 30 minutes with Lightning's defaults, and without a word about who died. Here a thread of
    each process gives a sign of life every few seconds and looks for those of the others. A process
    that still runs but makes no progress counts as alive. With one process nothing happens.

    If the dead one's connections break, the others fail at once, with an error that does not say
    whose connection it was. They then wait up to 50 s to find out, less with a small ``silence_s``.

    Args:
        silence_s: Seconds without a sign of life after which a process counts as dead. A process
            may be busy for that long in a library that lets no other Python thread run.
    """

    def __init__(self, silence_s: float = 120.0) -> None:
        if silence_s <= 0:
            raise ConfigError(f"silence_s is {silence_s}; give a number of seconds above 0")
        self.silence_s = silence_s
        self._watch: _Watch | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if ranks.world_size() > 1 and self._watch is None:
            self._watch = _Watch(self.silence_s)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._watch is not None:
            self._watch.leave(LEFT)
            self._watch = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        if self._watch is not None:
            if _is_lost_connection(exception):
                self._watch.find_the_lost()
            self._watch.leave(f"{FAILED}{exception!r}")
            self._watch = None


def _is_lost_connection(exception: BaseException) -> bool:
    words = str(exception)
    return isinstance(exception, DistError) or any(lost in words for lost in _LOST)


class _Watch:
    """The signs of life of all ranks, in a store that rank 0 serves. All ranks make one together.

    One thread talks to the store, which may block it for ever if rank 0's machine is gone. Another
    judges by what the first one saw last.

    Attributes:
        names: Rank, process and machine of each rank, for messages.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._interval_s = min(silence_s / 4, 10.0)
        # A rank may raise what all ranks are about to raise, so the others get some time.
        self._failure_s = 2 * self._interval_s
        self._rank = ranks.rank()
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        served = self._connect(host, 0) if self._rank == 0 else None
        name = f"rank {self._rank} (process {os.getpid()} on {platform.node()})"
        found = ranks.gather([(name, served.port if served is not None else 0)])
        self.names = [name for name, _ in found]
        self._store = served or self._connect(host, found[0][1])
        self._say("0")
        ranks.gather([None])  # every rank has now given its first sign of life
        self._said = ["0"] * len(self.names)
        self._changed = [time.monotonic()] * len(self.names)
        self._ended, self._last_word = threading.Event(), LEFT
        self._talking = threading.Thread(target=self._talk, name="rank watch", daemon=True)
        self._talking.start()
        self._judging = threading.Thread(target=self._judge_others, name="rank judge", daemon=True)
        self._judging.start()

    def _connect(self, host: str, port: int) -> TCPStore:
        timeout = timedelta(seconds=max(self._silence_s, 1.0))
        return TCPStore(
            host, port, is_master=self._rank == 0, wait_for_workers=False, timeout=timeout
        )

    def leave(self, why: str) -> None:
        """Stop to watch, and tell the other ranks why there are no further signs of life."""
        self._last_word = why
        self._ended.set()
        self._talking.join(self._silence_s)

    def find_the_lost(self) -> None:
        """Give a rank whose connection broke some time to be found silent, which ends this process.

        It returns if all ranks still give signs of life.
        """
        self._silence_s = min(self._silence_s, 3 * self._interval_s)
        self._failure_s = 0.0
        if self._ended.wait(5 * self._interval_s):
            self._judging.join()  # it tells the others, and ends this process

    # ----------------------------------------------------------------- the thread that talks

    def _talk(self) -> None:
        try:
            count = 0
            while not self._ended.wait(self._interval_s):
                count += 1
                self._say(str(count))
                self._listen()
            self._say(self._last_word)
            # Rank 0 serves the store, so it goes last.
            while self._rank == 0 and self._last_word == LEFT and not self._is_alone():
                time.sleep(min(0.1, self._interval_s))
        except DistError:
            pass  # rank 0 has ended: it is silent from now on

    def _say(self, word: str) -> None:
        self._store.set(str(self._rank), word)

    def _listen(self) -> None:
        found = self._store.multi_get([str(rank) for rank in range(len(self.names))])
        now = time.monotonic()
        for rank, word in enumerate(each.decode() for each in found):
            if word != self._said[rank]:
                self._said[rank], self._changed[rank] = word, now

    def _is_alone(self) -> bool:
        self._listen()
        return all(word.startswith((LEFT, FAILED)) for word in self._said)

    # ---------------------------------------------------------------- the thread that judges

    def _judge_others(self) -> None:
        while not self._ended.wait(self._interval_s):
            now = time.monotonic()
            silent_s = [now - then for then in self._changed]
            if self._said[0] == LEFT:
                return  # it goes last
            # All signs come by way of rank 0, so nobody else is judged while it is silent.
            for rank in range(len(silent_s)) if silent_s[0] < 3 * self._interval_s else [0]:
                if rank != self._rank:
                    self._judge(rank, silent_s[rank])

    def _judge(self, rank: int, silent_s: float) -> None:
        word = self._said[rank]
        if word.startswith(FAILED) and silent_s >= self._failure_s:
            self._end(f"{self.names[rank]} has {word}")
        elif word != LEFT and silent_s >= self._silence_s:
            self._end(
                f"{self.names[rank]} has given no sign of life for {silent_s:.0f} s, so it or its "
                "machine has died"
            )

    def _end(self, why: str) -> None:
        if self._ended.is_set():
            return
        log.critical(
            "%s; this process (%s) ends too. Resume the run from its last checkpoint "
            "with --resume, or in a new folder with --ckpt_path last",
            why,
            self.names[self._rank],
        )
        # The others hear whom this rank blames, or they would blame this rank.
        self._last_word = f"{FAILED}{why}"
        self._ended.set()
        self._talking.join(self._interval_s)
        if self._rank == 0:
            time.sleep(2 * self._interval_s)  # it serves the store from which they read
        logging.shutdown()
        os._exit(1)  # the main thread may wait for the dead rank in a library, and never return
