// Literals, numbers and strings of the schema compiler.
#pragma once

#include "grammar/schema/compiler.h"

namespace espalier::grammar {

class ScalarCompiler : private CompilerPart {
 public:
  using CompilerPart::CompilerPart;

  // Returns the value as serialisers write it, with the white space that the policy allows.
  ExprId literal(const boost::json::value& value);
  // Returns the integer also with a point and zeros, where these are integers.
  ExprId with_whole_fraction(ExprId integer);
  Result<ExprId> number(const Constraints& constraints);
  Result<ExprId> string(const Constraints& constraints);

 private:
  Result<ExprId> string_exactly(const Constraints& constraints);
  Result<std::optional<ExprId>> counted_string(const Constraints& constraints);
};

}  // namespace espalier::grammar
