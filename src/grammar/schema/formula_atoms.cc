#include "grammar/schema/formula_atoms.h"

#include <algorithm>
#include <boost/json.hpp>

#include "grammar/schema/formula_names.h"

namespace espalier::grammar {

namespace json = boost::json;

void FormulaAtoms::start(size_t num_names) {
  formulas_ = Formulas();
  num_atoms_ = 0;
  for (size_t name = 0; name < num_names; ++name) presents_.push_back(new_atom());
}

FormulaAtoms::Id FormulaAtoms::at_least(int64_t count) {
  const auto it = counts_.find(count);
  if (it != counts_.end()) return formulas_.atom(it->second);
  return formulas_.atom(counts_[count] = new_atom());
}

FormulaAtoms::Id FormulaAtoms::value(size_t name, Element schema) {
  schema.schema = c_.document().meant(schema.schema);
  if (says_nothing(*schema.schema)) return Formulas::kTrue;
  if (schema.schema->is_bool()) return formulas_.negated(present(name));
  // Equal texts are equal schemas, unless they refer to others.
  std::string text = json::serialize(*schema.schema);
  if (text.find("\"$") != std::string::npos || text.find("\"id\"") != std::string::npos ||
      text.find("\\u0001") != std::string::npos) {
    text = std::to_string(reinterpret_cast<uintptr_t>(schema.schema)) + " " +
           std::to_string(schema.scope);
  }
  const auto [it, added] = value_index_.try_emplace({name, text}, num_atoms_);
  if (added) values_.emplace(new_atom(), Value{name, schema});
  return formulas_.atom(it->second);
}

FormulaAtoms::Id FormulaAtoms::rest(Rest rest) {
  const auto empty = [](const Conjunction& c) { return c.empty(); };
  if (!rest.some && std::ranges::all_of(rest.said, empty)) return Formulas::kTrue;
  for (Conjunction& conjunction : rest.said) std::ranges::sort(conjunction);
  const auto [it, added] = rest_index_.try_emplace(rest, num_atoms_);
  if (added) rests_.emplace(new_atom(), std::move(rest));
  return formulas_.atom(it->second);
}

}  // namespace espalier::grammar
