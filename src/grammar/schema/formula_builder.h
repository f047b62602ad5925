// Builds the boolean formula that a conjunction of schemas states over the properties of an object
// or the items of an array.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/schema/compiler.h"
#include "grammar/schema/formula_atoms.h"
#include "grammar/schema/formula_names.h"

namespace espalier::grammar {

// One pass over the schemas; FormulaNames says what the first and the second pass are. Not
// thread-safe. Borrows everything.
class FormulaBuilder {
 public:
  using Id = Formulas::Id;
  FormulaBuilder(SchemaCompiler& compiler, bool objects, FormulaNames& names, FormulaAtoms& atoms)
      : c_(compiler), objects_(objects), names_(names), atoms_(atoms) {}

  // Returns what all elements state; meaningless in the first pass. kUnimplemented or
  // kResourceExhausted when a formula is not practical.
  Result<Id> build_all(const Conjunction& elements, int depth = 0);

 private:
  using Ids = std::vector<Id>;
  Result<Id> build(Element element, int depth);
  Result<Id> build_new(const Element& element, int depth);
  Result<Ids> build_list(const Element& element, std::string_view key, int depth);
  Status build_references(const Element& element, int depth, Ids& parts, bool& alone);
  Status build_applicators(const Element& element, int depth, Ids& parts);
  Status build_dependencies(const Element& element, int depth, Ids& parts);
  Result<bool> build_assertions(const Element& element, Ids& parts);
  Status build_required(const Element& element, Ids& parts);
  Status build_bounds(const Element& element, Ids& parts);
  Status build_members(const Element& element, Ids& parts);
  Status build_items(const Element& element, Ids& parts);
  Status build_names(const Element& element, const boost::json::value& names, Ids& parts);
  Status build_values(const Element& element, Ids& parts);
  Status build_among(const Element& element, const boost::json::array& values, bool excluded,
                     Ids& parts);
  Id equal_to(const boost::json::object& object);
  Id present(const std::string& name);
  Id at_least(int64_t count);
  Status too_large(const Element& element) const;
  Formulas& formulas() { return atoms_.formulas(); }

  SchemaCompiler& c_;
  const bool objects_;
  FormulaNames& names_;
  FormulaAtoms& atoms_;
  std::map<Element, Id> built_;  // references may lead to one element several times
};

}  // namespace espalier::grammar
