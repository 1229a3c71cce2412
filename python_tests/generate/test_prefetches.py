"""Weights that come while a decoding step attends to its cache: in the plan, and on the host device."""

from __future__ import annotations

import numpy as np

from mlirc.generate.compilation import compile_generation
from mlirc.generate.engine import Sampling
from mlirc.runtime.plan import KernelLaunch
from support.generation import tiny


def test_the_launch_in_front_of_attention_brings_the_weights_behind_it():
    """Of a layer of 256: o (256 x 256), gate and up and down (256 x 200), f32; the next layer's q, but not its k and v,
    of 32 KiB each. Computed by the host device, whose rule is that a prefetch stays inside of its tensor."""
    sizes = dict(hidden_size=256, intermediate_size=200, num_hidden_layers=2, num_attention_heads=4)
    model = tiny("LlamaForCausalLM", **sizes, num_key_value_heads=1, head_dim=64)
    made, brought = {}, {}
    for schedule in ((), ("graph:prefetch=false",)):
        compiled = compile_generation(
            model, slots=1, context=16, page_size=8, chunks=(1,), schedule=schedule, cache=False
        )
        plan = compiled.jobs["decode-greedy"].plan
        launches = [s for s in plan.steps if isinstance(s, KernelLaunch) and s.kernel.startswith("bundle")]
        brought[schedule] = [len(launch.args) for launch in launches]
        engine = compiled.engine("host")
        engine.assign(0, [1, 2], Sampling(), [5])
        made[schedule] = [engine.prefill(0, [5], 0), *(int(engine.decode()[0]) for _ in range(2))]
    assert np.array_equal(*made.values())
    with_, without = brought.values()
    assert max(a - b for a, b in zip(with_, without, strict=True)) >= 4, brought
