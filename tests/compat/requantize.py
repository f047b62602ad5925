"""Writes a GGUF again with its matrices in another storage format, by the package gguf:

    python tests/compat/requantize.py IN.gguf OUT.gguf F32|F16|BF16|Q8_0|Q5_1|Q5_0|Q4_1|Q4_0|MXFP4

Vectors stay as they are, and so does a matrix whose rows are no whole number of blocks. What the first quantisation
lost stays lost, so the answers of the results differ: they are compared engine by engine, not with each other.
"""
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type


def copy_fields(reader, writer):
    for field in reader.fields.values():
        # The writer makes these itself.
        if field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE:
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, element)


def converted(tensor, wanted):
    """The tensor's values in the wanted format, and that format."""
    if len(tensor.shape) < 2 or int(tensor.shape[0]) % gguf.GGML_QUANT_SIZES[wanted][0] != 0:
        return tensor.data, tensor.tensor_type
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    return gguf.quants.quantize(values, wanted), wanted


def requantize(source, target, wanted):
    reader = gguf.GGUFReader(source)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    writer = gguf.GGUFWriter(target, architecture)
    copy_fields(reader, writer)
    for tensor in reader.tensors:
        data, kind = converted(tensor, wanted)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[3] not in Type.__members__:
        sys.exit(__doc__)
    requantize(sys.argv[1], sys.argv[2], Type[sys.argv[3]])
