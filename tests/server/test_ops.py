"""Metrics are answered while the threads that serve requests are all taken."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx


async def test_a_scrape_does_not_wait_behind_edits_that_wait_for_a_lock(
    client: httpx.AsyncClient,
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    unlocked = threading.Event()
    edit = loop.run_in_executor(None, unlocked.wait, 10)
    try:
        async with asyncio.timeout(5):
            assert (await client.get("/metrics")).status_code == 200
        assert not edit.done()
    finally:
        unlocked.set()
        await edit
