"""A compilation's kernels on their way to PTX: each one's way starts as soon as it is scheduled."""

from __future__ import annotations

from types import TracebackType

from mlirc.driver.kernel_build import KernelBuild, KernelJob
from mlirc.driver.kernel_cache import KernelCache
from mlirc.driver.reschedule import Earlier
from mlirc.driver.workers import Helpers, Pool
from mlirc.timing import Timer


class Building:
    """Kernels down to `until`: a kernel that is added is taken from an earlier compilation or the cache, or handed to
    the helper processes, which work while the next one is scheduled. A context manager, whose end ends the helpers.

    `helpers`, `fork`, `waiting`: as of `mlirc.driver.workers.Pool`. `jobs` are the kernels added so far, by name, in
    order.
    """

    def __init__(
        self,
        until: str,
        cache: KernelCache | None,
        earlier: Earlier,
        helpers: int | None = None,
        *,
        fork: bool = False,
        waiting: Helpers | None = None,
    ) -> None:
        self.until = until
        self.jobs: dict[str, KernelJob] = {}
        self._cache = cache if until == "ptx" else None
        self._earlier = earlier
        self._built: dict[str, KernelBuild] = {}
        self._pool = Pool(helpers, fork=fork, waiting=waiting)

    def __enter__(self) -> Building:
        self._pool.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.__exit__(kind, error, trace)

    def add(self, job: KernelJob) -> None:
        """Takes one kernel, which must not be there yet."""
        self.jobs[job.name] = job
        known = self._known(job)
        if known:
            self._built[job.name] = known
        else:
            self._pool.add(job)

    def _known(self, job: KernelJob) -> KernelBuild | None:
        if job.files:  # nothing vouches for a user's pass
            return None
        return self._earlier.build(job) or (self._cache.get(job) if self._cache else None)

    def finish(self, timer: Timer) -> dict[str, KernelBuild]:
        """Every kernel that was added, by name, in order. Raises the first error."""
        built = self._built
        timer.advance(len(built), len(self.jobs))
        for build in self._pool.results():
            built[build.name] = build
            timer.add_helper_time(build.seconds)
            timer.advance(len(built), len(self.jobs))
            if self._cache and not self.jobs[build.name].files:
                self._cache.put(self.jobs[build.name], build)
        return {name: built[name] for name in self.jobs}
