"""Cached: verdicts that were given before, from a folder."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.errors import ConfigError, JudgeError

log = logging.getLogger(__name__)


class Cached(Judge):
    """Asks a judge only for what it has not judged before.

    A verdict is kept in a file of its own, under the hash of the judge's identity (its prompt,
    model and settings) and of all that is in the claim. Files appear whole or not at all, so any
    number of processes and machines may share the folder; one that is damaged is not believed,
    and written anew. The same claim is not asked twice at a time within a process. Only verdicts
    are kept, no failures. The oldest ones may be deleted at any time.

    Args:
        judge: Who is asked.
        folder: Where verdicts are kept; it is made when the first one comes.
    """

    def __init__(self, judge: Judge, folder: str) -> None:
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise ConfigError(f"folder is {folder!r}, which is a file; name a folder, or nothing")
        self.inner = judge
        self.folder = Path(folder)
        self.hits = 0
        self.misses = 0
        self.unwritten = 0
        self._asked: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[Verdict]] = {}

    def identity(self) -> str:
        return self.inner.identity()

    def metrics(self) -> Mapping[str, float]:
        own = {"hits": self.hits, "misses": self.misses, "unwritten": self.unwritten}
        return {**self.inner.metrics(), **own}

    async def judge(self, claim: Claim) -> Verdict:
        name = content_hash(self.inner.identity(), claim)
        key = (asyncio.get_running_loop(), name)
        task = self._asked.get(key)
        if task is not None:
            self.hits += 1
        else:
            task = asyncio.create_task(self._find(claim, self.folder / name[:2] / name))
            self._asked[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        # Who is cancelled takes nobody along: others may be waiting for the same verdict.
        return await asyncio.shield(task)

    async def _find(self, claim: Claim, file: Path) -> Verdict:
        verdict = await asyncio.to_thread(read, file)
        if verdict is not None:
            self.hits += 1
            return verdict
        self.misses += 1
        verdict = await self.inner(claim)
        try:
            await asyncio.to_thread(write, file, verdict)
        except OSError as error:
            if self.unwritten == 0:
                log.warning("verdicts are not kept: %s", error)
            self.unwritten += 1
        return verdict

    def _forget(
        self, key: tuple[asyncio.AbstractEventLoop, str], done: asyncio.Task[Verdict]
    ) -> None:
        del self._asked[key]
        if not done.cancelled():
            done.exception()  # looked at, in case that nobody waits any more


def content_hash(identity: str, claim: Claim) -> str:
    """The same for the same claim to the same judge, in every process."""
    content = json.dumps([1, identity, asdict(claim)], sort_keys=True)  # 1: of this way to hash
    return hashlib.sha256(content.encode()).hexdigest()


def read(file: Path) -> Verdict | None:
    """The verdict in a file; None when there is none, or none that can be believed."""
    try:
        kept = json.loads(file.read_bytes())
        return Verdict(score=float(kept["score"]), reason=str(kept["reason"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError, RecursionError, JudgeError) as error:
        log.warning("the verdict %s cannot be read and is given anew: %r", file, error)
        return None


def write(file: Path, verdict: Verdict) -> None:
    """Write a verdict so that it is there whole, or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".", delete=False) as part:
        try:
            json.dump(asdict(verdict), part)
            part.close()
            os.replace(part.name, file)
        except BaseException:
            os.unlink(part.name)
            raise
