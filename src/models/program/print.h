// Programs as text for readers.
#pragma once

#include <string>

#include "models/program/program.h"

namespace espalier::program {

// "qkv[:, 0:64]", or the name alone where the operand is the whole buffer.
std::string to_string(const Program& program, const Operand& operand);
// "tokens", "8 * wanted".
std::string to_string(const Rows& rows);
// What the attributes say beyond operands and weights: "top_k=2 experts=8"; may be empty.
std::string attributes_text(const Op& op);
// "matmul qkv = normed, qkv, qkv_bias": one line without its index.
std::string to_string(const Program& program, const Op& op);
// Buffers, then operations, one a line.
std::string to_string(const Program& program);

}  // namespace espalier::program
