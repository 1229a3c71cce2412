"""What happens before what, and so which accesses race: in shared memory (races.py, clocks.py, lanes.py) and in global
memory across the blocks of a launch (global_order.py, launch_order.py, stamps.py)."""
