"""The KV cache as vLLM keeps it: a pool of blocks, and prompt prefixes that requests share.

A prefix that no running request uses counts as free, stays readable, and is given up,
longest unused first, when its blocks are needed.
"""

from __future__ import annotations


class KvPool:
    """Blocks of the KV cache.

    Args:
        blocks: blocks in the pool; one of them is vLLM's null block, which nobody gets.
        block_tokens: tokens per block.

    `free` counts blocks that can be had, idle prefixes included.
    """

    def __init__(self, blocks: int, block_tokens: int = 16) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.usable = blocks - 1
        self.free = self.usable
        self._size: dict[int, int] = {}
        self._users: dict[int, int] = {}
        self._idle: dict[int, int] = {}
        self._idle_blocks = 0

    @property
    def used(self) -> int:
        """Blocks in use by running requests."""
        return self.usable - self.free

    @property
    def usage(self) -> float:
        """Share of the pool in use, 0–1."""
        return self.used / self.usable

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)

    def take(self, count: int) -> bool:
        """Takes `count` private blocks, giving up idle prefixes if need be; False if there are too few."""
        if count > self.free:
            return False
        while count > self.free - self._idle_blocks:
            oldest = next(iter(self._idle))
            self._idle_blocks -= self._idle.pop(oldest)
            del self._size[oldest], self._users[oldest]
        self.free -= count
        return True

    def give(self, count: int) -> None:
        """Gives `count` private blocks back."""
        self.free += count

    def cached(self, prefix: int | None) -> int:
        """Blocks of the prefix that are in the cache."""
        return 0 if prefix is None else self._size.get(prefix, 0)

    def revival(self, prefix: int | None) -> int:
        """Free blocks that using the prefix would take: its own, if it is idle."""
        return 0 if prefix is None else self._idle.get(prefix, 0)

    def hold(self, prefix: int) -> None:
        """One more request uses a cached prefix; `revival` must fit into `free`."""
        if self._users[prefix] == 0:
            blocks = self._idle.pop(prefix)
            self._idle_blocks -= blocks
            self.free -= blocks
        self._users[prefix] += 1

    def release(self, prefix: int) -> None:
        """One request less uses the prefix."""
        self._users[prefix] -= 1
        if self._users[prefix] == 0:
            self._idle[prefix] = self._size[prefix]
            self._idle_blocks += self._size[prefix]
            self.free += self._size[prefix]

    def publish(self, prefix: int, blocks: int) -> None:
        """Makes `blocks` private blocks of a request a shared prefix, used by that request."""
        self._size[prefix] = blocks
        self._users[prefix] = 1
