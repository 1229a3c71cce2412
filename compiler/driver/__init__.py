"""Takes models down the ladder: the steps in order (`compilation`), the part that is one kernel's (`kernel_build`) in
helper processes (`workers`) from when it is scheduled on (`building`), what was compiled before (`kernel_cache`,
`reschedule`), and models in memory (`live`)."""
