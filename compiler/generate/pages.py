"""Which sequence has which pages of the cache's pool, and which full pages sequences with equal beginnings share.

A page that is full never changes again, so that every sequence that begins with the same tokens can read it. Such
pages are the nodes of a trie, keyed by the page in front and the page's own tokens (the tokens themselves: nothing
rests on a hash). They stay when their sequences end, and are given away, least recently used first, when the pool has
no free page.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

_ROOT = 0


@dataclass
class Lease:
    """The pages of one sequence, in the order of its tokens. Only `PagePool` changes it."""

    pages: list[int] = field(default_factory=list)
    shared: int = 0  # how many of them, in front, were full already when the lease began: nobody may write to them
    _node: int = _ROOT  # the node of the last page that is in the trie
    _kept: int = 0  # how many pages in front are in the trie
    _apart: bool = False  # another sequence's page has this one's place in the trie: no later page can have one


class PagePool:
    """Pages 1 to `pages` - 1 of a pool, each of `page_size` tokens; page 0 is the idle slots' and never given out."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.size = pages - 1  # pages that sequences can have
        self._free = list(range(pages - 1, 0, -1))  # the last is given first
        self._references: dict[int, int] = {}  # of the pages that leases have
        self._idle: OrderedDict[int, None] = OrderedDict()  # full pages that no lease has, least recently used first
        self._children: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # (node, tokens) -> (page, its node)
        self._keys: dict[int, tuple[int, tuple[int, ...]]] = {}  # of the pages in the trie
        self._nodes = _ROOT  # the last node's number: none is used twice

    @property
    def available(self) -> int:
        """How many pages can be given out now."""
        return len(self._free) + len(self._idle)

    def pages_for(self, tokens: int) -> int:
        """How many pages hold so many tokens."""
        return -(-tokens // self.page_size)

    def open(self, tokens: Sequence[int], pages: int) -> Lease | None:
        """A lease of at least `pages` pages for a sequence that begins with `tokens`, or None, and nothing changed,
        where there are not so many.

        Those in front that are known to hold the sequence's beginning are shared, but never all of its tokens: the
        model has to read the last one to say what comes next.
        """
        lease = Lease()
        for i in range((len(tokens) - 1) // self.page_size):
            found = self._children.get((lease._node, self._tokens(tokens, i)))
            if found is None:
                break
            page, lease._node = found
            self._hold(page)
            lease.pages.append(page)
        lease.shared = lease._kept = len(lease.pages)
        if not self.grow(lease, pages):
            self.close(lease)
            return None
        return lease

    def grow(self, lease: Lease, pages: int) -> bool:
        """Gives a lease more pages until it has `pages`; False, and nothing changed, where there are not so many."""
        wanted = pages - len(lease.pages)
        if wanted > self.available:
            return False
        for _ in range(wanted):
            page = self._free.pop() if self._free else self._evict()
            self._hold(page)
            lease.pages.append(page)
        return True

    def keep(self, lease: Lease, tokens: Sequence[int], written: int) -> None:
        """Notes that the cache holds the first `written` tokens of a sequence, so that others can share the pages that
        are full."""
        for i in range(lease._kept, written // self.page_size):
            if lease._apart:
                return
            key = (lease._node, self._tokens(tokens, i))
            if key in self._children:
                # A sequence beside this one made the same page. A later page of this one's must not hang on that page,
                # which this lease does not hold.
                lease._apart = True
                return
            self._nodes += 1
            page = lease.pages[i]
            self._children[key] = (page, self._nodes)
            self._keys[page] = key
            lease._node, lease._kept = self._nodes, i + 1

    def close(self, lease: Lease) -> None:
        """Ends a lease; closing it again does nothing. The last pages go first, so that in the order of use a page
        comes behind all that hang on it in the trie: who gives away the first of that order never leaves orphans."""
        while lease.pages:
            page = lease.pages.pop()
            self._references[page] -= 1
            if self._references[page]:
                continue
            del self._references[page]
            if page in self._keys:
                self._idle[page] = None
            else:
                self._free.append(page)

    def _tokens(self, tokens: Sequence[int], page: int) -> tuple[int, ...]:
        return tuple(tokens[page * self.page_size : (page + 1) * self.page_size])

    def _hold(self, page: int) -> None:
        self._references[page] = self._references.get(page, 0) + 1
        self._idle.pop(page, None)

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        del self._children[self._keys.pop(page)]
        return page
