"""The processor's prefetch instruction, for compiled kernels that read in an order known to them alone."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


def _prefetch(_: Any, values: Any, row: Any, head: Any, i: Any) -> Any:  # noqa: ARG001 -- numba counts them
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = arguments[1]
        for axis in (1, 2):
            extent = builder.extract_value(array.shape, axis)
            place = builder.add(builder.mul(place, extent), arguments[1 + axis])
        address = builder.bitcast(builder.gep(array.data, [place]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        read, keep_in_all_caches, data = number(0), number(3), number(1)
        builder.call(function, [address, read, keep_in_all_caches, data])
        return context.get_dummy_value()

    return types.void(values, types.intp, types.intp, types.intp), generate


prefetch: Any = intrinsic(_prefetch)
"""prefetch(values, row, head, i): ask for the cache line of values[row, head, i], a contiguous array.

A hint: nothing is read, so it cannot fail. https://llvm.org/docs/LangRef.html#llvm-prefetch-intrinsic
"""
