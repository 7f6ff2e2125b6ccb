"""Cached: keeps verdicts in a folder and reuses them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.errors import ConfigError, JudgeError
from vagentrl.pictures import digest

log = logging.getLogger(__name__)


class Cached(Judge):
    """Asks a judge only about claims that it has not judged before.

    Every verdict is kept in its own file, named by a hash of the judge's identity (prompt, model
    and settings) and of the claim's whole content. Files are written atomically, so several
    processes and machines can share the folder. A damaged file is ignored and written again.
    Within a process, concurrent requests with the same claim ask the judge once. Failures are not
    kept. Old files may be deleted at any time.

    Args:
        judge: The judge to ask.
        folder: Folder for the verdicts; it is created with the first verdict.
    """

    def __init__(self, judge: Judge, folder: str) -> None:
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise ConfigError(f"folder is {folder!r}, which is a file; give a folder or a new path")
        self.inner = judge
        self.folder = Path(folder)
        self.hits = 0
        self.misses = 0
        self.unwritten = 0
        self._pending: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[Verdict]] = {}

    @property
    def sees_images(self) -> bool:
        return self.inner.sees_images

    def identity(self) -> str:
        return self.inner.identity()

    def metrics(self) -> Mapping[str, float]:
        own = {"hits": self.hits, "misses": self.misses, "unwritten": self.unwritten}
        return {**self.inner.metrics(), **own}

    async def probe(self) -> None:
        await self.inner.probe()

    async def close(self) -> None:
        await self.inner.close()

    async def judge(self, claim: Claim) -> Verdict:
        seen = claim if self.inner.sees_images else replace(claim, images=())
        name = content_hash(self.inner.identity(), seen)
        key = (asyncio.get_running_loop(), name)
        task = self._pending.get(key)
        if task is not None:
            self.hits += 1
        else:
            task = asyncio.create_task(self._find(claim, self.folder / name[:2] / name))
            self._pending[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        # Cancelling one request must not cancel others that wait for the same verdict.
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
        del self._pending[key]
        if not done.cancelled():
            done.exception()  # retrieved, because asyncio warns if nobody waits any more


def content_hash(identity: str, claim: Claim) -> str:
    """Return a hash of the judge's identity and the claim, the same in every process."""
    told = asdict(replace(claim, images=()))
    del told["images"]
    content = json.dumps([1, identity, told], sort_keys=True)  # 1 is a format version
    hashed = hashlib.sha256(content.encode())
    for image in claim.images:
        hashed.update(digest(image))
    return hashed.hexdigest()


def read(file: Path) -> Verdict | None:
    """Return the verdict in a file; None if the file is missing or damaged."""
    try:
        kept = json.loads(file.read_bytes())
        return Verdict(score=float(kept["score"]), reason=str(kept["reason"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError, RecursionError, JudgeError) as error:
        log.warning("the verdict in %s cannot be read, so the judge is asked: %r", file, error)
        return None


def write(file: Path, verdict: Verdict) -> None:
    """Write a verdict atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".", delete=False) as part:
        try:
            json.dump(asdict(verdict), part)
            part.close()
            os.replace(part.name, file)
        except BaseException:
            os.unlink(part.name)
            raise
