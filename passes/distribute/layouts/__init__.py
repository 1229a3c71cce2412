"""Where the elements of tiles are: maps between numbered places (`maps.py`), tiles in registers (`registers.py`) and in
shared memory (`shared.py`), the banks that an access meets there (`banks.py`), and ways from one register layout to
another (`conversion.py`). Plain data: nothing here emits code."""
