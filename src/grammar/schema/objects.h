// Objects of the schema compiler.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "grammar/schema/compiler.h"

namespace espalier::grammar {

class ObjectCompiler : private CompilerPart {
 public:
  using CompilerPart::CompilerPart;

  Result<ExprId> lower(const Conjunction& elements, const Constraints& constraints);

  // Returns what the value of the property must satisfy.
  Result<Conjunction> property_conjunction(const Conjunction& elements, const std::string& name);

  // Returns the names in declared order; required undeclared ones follow.
  std::vector<std::string> declared_names(const Conjunction& elements,
                                          const Constraints& constraints) const;

  // Bounds the bytes of long names. kResourceExhausted beyond.
  Status bound_names(const Element& element, const std::vector<std::string>& names) const;

  // Returns a rule for what is an automaton already, so that it is called and not copied.
  ExprId own_rule(ExprId expr, const char* name);

 private:
  // Undeclared keys and what their values match.
  struct ExtraKeys {
    ExprId key, value;
  };
  struct Property {
    ExprId pair;  // key, colon and value
    bool required;
  };
  struct PropertyList {
    std::vector<std::string> names;  // in declared order; required undeclared ones follow
    std::vector<Property> properties;
    bool possible = true;  // false: a required property cannot exist
  };
  struct Counts {
    int64_t min = 0, max = kUnbounded;
    bool bounded() const { return max != kUnbounded; }
  };
  Status declare_finite_names(const Conjunction& elements, const Constraints& constraints,
                              std::vector<std::string>& names);
  Result<PropertyList> list_properties(const Conjunction& elements, const Constraints& constraints);
  Result<Counts> counts_of(const Conjunction& elements, const Constraints& constraints,
                           size_t num_declared, bool has_extra);
  ExprId assemble(const PropertyList& list, const std::vector<ExtraKeys>& extra,
                  const Counts& counts, bool any_required);
  Result<std::vector<ExtraKeys>> extra_keys(const Conjunction& elements,
                                            const std::vector<std::string>& names);
  Result<std::vector<ExtraKeys>> classified_keys(const Conjunction& elements,
                                                 const std::vector<std::string>& patterns,
                                                 const std::vector<std::string>& literals);
  Result<ExprId> undeclared_keys(const Conjunction& elements,
                                 const std::vector<std::string>& literals);
  Result<ExprId> key_language(const Conjunction& elements);
  Ir::Graph graph(std::span<const Property> list, const std::vector<ExtraKeys>& extra, bool begun);
  Ir::Graph counted_graph(const std::vector<Property>& list, const std::vector<ExtraKeys>& extra,
                          const Counts& counts, int64_t cap);
  ExprId any_order(std::vector<ExprId> pairs, const std::vector<ExtraKeys>& extra,
                   const Constraints& constraints);
};

}  // namespace espalier::grammar
