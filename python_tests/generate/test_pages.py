"""The pool's pages: each is free, kept for its tokens, or held by those that may read it; none is ever two of these."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from mlirc.generate.pages import PagePool

PAGE = 2
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class Pool(RuleBasedStateMachine):
    """Sequences that write what they say into the pages that they have, and look at it all the time."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(8, PAGE)
        self.content: dict[int, list[int | None]] = {}
        self.live: list[list] = []  # [lease, tokens, how many are written]

    @rule(target=leases, tokens=TOKENS, more=st.integers(0, 1))
    def begin(self, tokens, more):
        before = self.pool.available
        lease = self.pool.open(tokens, self.pool.pages_for(len(tokens) + more))
        if lease is None:
            assert self.pool.available == before
            return multiple()
        assert len(lease.pages) >= self.pool.pages_for(len(tokens) + more)
        assert lease.shared * PAGE < len(tokens), "the last token has to be read"
        for page in lease.pages[lease.shared :]:
            self.content[page] = [None] * PAGE
        entry = [lease, tokens, lease.shared * PAGE]
        self.live.append(entry)
        return entry

    @rule(entry=leases, tokens=TOKENS)
    def write(self, entry, tokens):
        lease, known, written = entry
        known += tokens
        if not self.pool.grow(lease, self.pool.pages_for(len(known))):
            del known[len(known) - len(tokens) :]
        for page in lease.pages[self.pool.pages_for(written) :]:
            self.content[page] = [None] * PAGE
        for i in range(written, len(known)):
            page = lease.pages[i // PAGE]
            assert sum(page in other.pages for other, *_ in self.live) == 1, "another sequence reads what is written"
            self.content[page][i % PAGE] = known[i]
        entry[2] = len(known)
        self.pool.keep(lease, known, len(known))

    @rule(entry=consumes(leases), twice=st.booleans())
    def end(self, entry, twice):
        self.pool.close(entry[0])
        if twice:
            self.pool.close(entry[0])
        self.live.remove(entry)

    @precondition(lambda self: not self.live)
    @rule()
    def all_can_be_given(self):
        lease = self.pool.open([9], 7)
        assert sorted(lease.pages) == list(range(1, 8)) and lease.shared == 0
        self.pool.close(lease)
        assert self.pool.available == 7

    @invariant()
    def no_page_is_lost_and_all_hold_what_was_written(self):
        held = {page for lease, *_ in self.live for page in lease.pages}
        assert 0 not in held and len(held) + self.pool.available == 7
        for lease, tokens, written in self.live:
            assert len(set(lease.pages)) == len(lease.pages)
            found = [t for page in lease.pages for t in self.content[page]]
            assert found[:written] == tokens[:written]


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)


def test_equal_beginnings_share_full_pages():
    pool = PagePool(9, PAGE)
    a = pool.open([1, 2, 3, 4, 5], 3)
    pool.keep(a, [1, 2, 3, 4, 5], 5)
    b = pool.open([1, 2, 3, 9, 5], 3)
    assert b.pages[0] == a.pages[0] and b.shared == 1 and b.pages[1] != a.pages[1]
    pool.close(a)
    c = pool.open([1, 2, 3, 4], 2)
    assert c.shared == 1, "the last token of four is read again, and its page is another's"


def test_pages_that_nobody_used_for_longest_go_first():
    pool = PagePool(5, PAGE)
    for tokens in ([1, 1, 1], [2, 2, 2]):
        lease = pool.open(tokens, 2)
        pool.keep(lease, tokens, 3)
        pool.close(lease)
    pool.close(pool.open([1, 1, 1], 2))  # used again
    pool.close(pool.open([3], 3))
    assert pool.open([1, 1, 1], 1).shared == 1
    assert pool.open([2, 2, 2], 1).shared == 0


def test_a_page_made_twice_is_kept_once():
    pool = PagePool(9, PAGE)
    first, second = pool.open([1, 2, 3], 2), pool.open([1, 2, 3], 2)
    for lease in (first, second):
        pool.keep(lease, [1, 2, 3, 4], 4)
    pool.close(first)
    third = pool.open([1, 2, 3, 4, 5], 3)
    assert third.shared == 2 and not set(third.pages[:2]) & set(second.pages)
    pool.close(second)
    pool.close(third)
    assert pool.available == 8
