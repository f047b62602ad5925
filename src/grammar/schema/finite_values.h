// Lists the values of schemas that few values satisfy: enums, small ranges of integers, and arrays
// and objects of such values. Not thread-safe. Borrows the compiler.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "grammar/schema/compiler.h"

namespace espalier::grammar {

class FiniteValues : private CompilerPart {
 public:
  using Values = std::vector<boost::json::value>;
  using CompilerPart::CompilerPart;

  // Returns the distinct values that satisfy all elements, properties in declared order; nothing
  // where these are more than `values_max`, or may be infinitely many.
  Result<std::optional<Values>> of(const Conjunction& elements, size_t values_max);

 private:
  // The functions below return a superset of the values, of at most kCandidatesMax; the validator
  // chooses among them.
  Result<std::optional<Values>> candidates(Conjunction elements, int depth);
  Result<std::optional<Values>> candidates_of_branches(const Conjunction& elements, size_t index,
                                                       bool one, int depth);
  Result<std::optional<Values>> candidates_by_type(const Conjunction& elements,
                                                   const Constraints& constraints, int depth);
  Result<std::optional<Values>> arrays(const Conjunction& elements, const Constraints& constraints,
                                       int depth);
  Result<std::optional<Values>> objects(const Conjunction& elements, const Constraints& constraints,
                                        int depth);
  Result<std::optional<std::vector<std::string>>> names(const Conjunction& elements,
                                                        const Constraints& constraints, int depth);
};

}  // namespace espalier::grammar
