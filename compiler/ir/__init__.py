"""What the levels are as IR: their names, the modules and functions of each, loops over time steps, text that a user
gives. (`mlirc.mlir` has the bindings.)"""
