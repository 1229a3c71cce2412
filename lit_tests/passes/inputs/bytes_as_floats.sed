s/i8/f8E5M2/g
s/i32/f32/g
s/constant 0 : f32/constant 0.0 : f32/
s/arith.ext[us]i/arith.extf/
s/arith.muli/arith.mulf/
s/arith.addi/arith.addf/
