// Arrays of the schema compiler.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "grammar/schema/compiler.h"

namespace espalier::grammar {

class ArrayCompiler : private CompilerPart {
 public:
  using CompilerPart::CompilerPart;

  Result<ExprId> lower(const Conjunction& elements, const Constraints& constraints);

  // Returns what the item at `index` must satisfy; index = prefix_length() for all further items.
  Conjunction item_conjunction(const Conjunction& elements, size_t index);

  // Bounds on the number of items that satisfy `contains`.
  struct Contains {
    Element schema;
    int64_t min = 1, max = kUnbounded;
  };

 private:
  Result<std::vector<Contains>> contained(const Conjunction& elements) const;
  Result<std::optional<ExprId>> lower_listed(const Conjunction& elements, Constraints& constraints,
                                             const std::vector<Contains>& contains);
  Result<ExprId> lower_states(const Conjunction& elements, const Constraints& constraints,
                              const std::vector<Contains>& contains);
  Result<Ir::Graph> item_graph(const Conjunction& elements, int64_t count, bool bounded,
                               int64_t items_min, const std::optional<Contains>& contains);
  Result<ExprId> lower_counted(const Conjunction& elements, const Constraints& constraints);
  Result<std::optional<ExprId>> lower_distinct(const Conjunction& elements,
                                               Constraints& constraints);
  // The distinct values of a small finite set of items, each with all its spellings; nothing for
  // other items.
  Result<std::optional<std::vector<ExprId>>> distinct_values(const Conjunction& item);
  ExprId distinct_graph(const std::vector<ExprId>& values, const Constraints& constraints);
  ExprId with_brackets(ExprId items, bool may_be_empty);

  // Returns whether some item may be a number.
  Result<bool> may_hold_numbers(const Conjunction& elements);
  Result<ExprId> compile_item(Conjunction item);

  bool distinct_ = false;  // items are compared with those before them
  // By the schema of an element: `contains` or `unevaluatedItems`, as one schema.
  std::map<const boost::json::value*, const boost::json::value*> derived_;
};

}  // namespace espalier::grammar
