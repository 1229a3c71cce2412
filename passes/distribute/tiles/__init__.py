"""Values that are tiles: what they are in registers, and what is computed of them there: elementwise, by reductions, in
another layout, as accumulators of products, from iteration to iteration of a loop."""
