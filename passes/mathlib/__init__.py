"""The arithmetic behind `mlirc-expand-math`: one function per math op, in f32 and in f64."""
