"""How many launches a decoding step has: each costs about a microsecond, whatever it does."""

from __future__ import annotations

import pytest

from mlirc.driver.compilation import Compilation
from mlirc.generate.export import exported, open_generator
from mlirc.runtime.plan import CopyStep, KernelLaunch, Plan
from mlirc.targets import DEFAULT_TARGET, get_target
from support.generation import tiny


def decoding(slots: int) -> Plan:
    """The plan of a decoding step of a Llama of two layers, which takes the most probable token."""
    model = tiny("LlamaForCausalLM", num_hidden_layers=2)
    generator = open_generator(model, slots=slots, context=40, page_size=8, chunks=(1,))
    job = Compilation("llama", get_target(DEFAULT_TARGET), (), None)
    job.import_source(exported(generator, "decode"))
    job.lower("ptx")
    return job.plan


@pytest.mark.parametrize("slots, more", [(1, 0), (3, 1)])
def test_launches_of_a_layer(slots: int, more: int) -> None:
    """A layer's: norm, q with k and v, one that rotates q and k and writes k and v, attention, o, norm, gate and up, down.
    Norms of one row are no launches: the products that read them compute them; nor are the rotation and the writes of
    one row: the product computes them."""
    plan = decoding(slots)
    launches = [step for step in plan.steps if isinstance(step, KernelLaunch)]
    where = [i for i, step in enumerate(launches) if step.kernel.startswith("attention")]
    assert len(where) == 2
    assert where[1] - where[0] == 5 + 3 * more, [step.kernel for step in launches]
    behind = launches[where[0] : where[1]]
    assert sum(step.kernel.startswith("reduction") for step in behind) == 2 * more
    first = next(i for i, step in enumerate(launches) if step.kernel.startswith(("matmul", "reduction")))
    # Embedding, pages, lengths, positions and angles of all slots are one launch; a first norm of several rows, too.
    assert first == 1 - more, [step.kernel for step in launches]
    copies = [step.source.size for step in plan.steps if isinstance(step, CopyStep)]
    assert max(copies, default=0) < 1000, "the cache is written in place"
