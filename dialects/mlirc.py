"""Empty: the bindings look for a Python module of every op's dialect, and anew for each op where there is none."""
