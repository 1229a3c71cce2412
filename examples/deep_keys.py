"""A pass that makes the `async` level in place of mlirc's, and a script that asks for it: the keys of attention come
through a ring that has one slot more than that of the values."""

from mlirc.dialects import rings
from mlirc.mlir import ir, nested
from mlirc.passes import get_pass
from mlirc.passes import register as register_pass
from mlirc.schedule import register
from mlirc.schedule.verbs import annotate
from mlirc.scripts.attention import attention, is_attention


@register_pass("mlirc-deep-keys")
def deep_keys(module, target):
    """What mlirc makes, with another depth for the first ring of every kernel."""
    get_pass("mlirc-async")(module, target)
    for function in module.body.operations:
        made = [op for op in nested(function.operation) if op.name == rings.MAKE_RING]
        for op in made[:1]:
            deeper = rings.RingSpec.of(op).depth + 1
            op.attributes["depth"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), deeper)


@register(matches=is_attention)
def deep_attention(kernel, target, *, block_kv: int = 64):
    """mlirc's script for attention, whose kernels take the pass above."""
    module = attention(kernel, target, block_kv=block_kv)
    main = module.body.operations[0]
    with ir.InsertionPoint.at_block_terminator(main.body):
        annotate(main.bodyTarget, to_async="deep-keys")
    return module
