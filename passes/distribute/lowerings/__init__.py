"""What lowers each op of a tile program: those of the block, loops, and the roles of its warps."""
