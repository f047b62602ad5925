// Objects and arrays whose choices combine (oneOf of overlapping ones, negations): what must hold
// is one boolean formula over the properties or items, and a state of the graph is the residual
// formula after some of them. From each state that is kept an end can be reached.
#pragma once

#include <cstdint>

#include "grammar/schema/compiler.h"

namespace espalier::grammar {

class FormulaCompiler {
 public:
  enum class Of : uint8_t { kObjects, kArrays };
  FormulaCompiler(SchemaCompiler& compiler, Of of) : compiler_(compiler), of_(of) {}

  // Returns the objects, or arrays, that satisfy all elements. kUnimplemented or kResourceExhausted
  // when a formula is not practical.
  Result<ExprId> lower(const Conjunction& elements);

 private:
  class Impl;
  SchemaCompiler& compiler_;
  const Of of_;
};

}  // namespace espalier::grammar
