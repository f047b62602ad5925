// Lowers a conjunction without choices: a choice of the types that remain, or of the values that
// enums and constants list.
#pragma once

#include <boost/json.hpp>
#include <vector>

#include "grammar/schema/compiler.h"

namespace espalier::grammar {

// A part of the schema compiler, which it borrows. Not thread-safe.
class ValueCompiler : private CompilerPart {
 public:
  explicit ValueCompiler(SchemaCompiler& compiler) : CompilerPart(compiler) {}

  // Returns the texts of the values that satisfy the constraints. REQUIRES: `constraints` are those
  // of `elements`, which have no anyOf and no oneOf left.
  Result<ExprId> lower(const Conjunction& elements, const Constraints& constraints);

 private:
  Result<ExprId> lower_listed(const Conjunction& elements,
                              const std::vector<const boost::json::value*>& values,
                              const Constraints& constraints);
};

}  // namespace espalier::grammar
