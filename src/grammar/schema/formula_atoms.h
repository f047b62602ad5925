// The atoms of one formula: what each numbered atom says of the properties or items.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "grammar/schema/compiler.h"
#include "grammar/schema/formula.h"

namespace espalier::grammar {

// Interns atoms: equal statements share one. Not thread-safe. Borrows the compiler.
class FormulaAtoms {
 public:
  using Id = Formulas::Id;
  // The value of a name satisfies the schema.
  struct Value {
    size_t name = 0;
    Element schema;
  };
  // What is said of the items or properties that have no name: all satisfy it, or some does.
  struct Rest {
    bool some = false;
    std::vector<Conjunction> said;  // [class of keys]
    friend auto operator<=>(const Rest&, const Rest&) = default;
  };

  explicit FormulaAtoms(SchemaCompiler& compiler) : c_(compiler) {}

  // Starts again with an atom for the presence of each of the names.
  void start(size_t num_names);

  Formulas& formulas() { return formulas_; }
  const Formulas& formulas() const { return formulas_; }

  Id present(size_t name) { return formulas_.atom(presents_[name]); }
  Id any() { return formulas_.atom(new_atom()); }  // an atom without a meaning
  // At least that many properties or items are present.
  Id at_least(int64_t count);
  // The name is absent, or its value satisfies the schema.
  Id value(size_t name, Element schema);
  Id rest(Rest rest);

  // By atom.
  const std::map<uint32_t, Value>& values() const { return values_; }
  const std::map<uint32_t, Rest>& rests() const { return rests_; }
  const std::map<int64_t, uint32_t>& counts() const { return counts_; }  // by count: the atom
  uint32_t present_atom(size_t name) const { return presents_[name]; }

 private:
  uint32_t new_atom() { return num_atoms_++; }

  SchemaCompiler& c_;
  Formulas formulas_;
  uint32_t num_atoms_ = 0;
  std::vector<uint32_t> presents_;  // [name] its atom
  std::map<uint32_t, Value> values_;
  std::map<std::pair<size_t, std::string>, uint32_t> value_index_;  // by name and text
  std::map<uint32_t, Rest> rests_;
  std::map<Rest, uint32_t> rest_index_;
  std::map<int64_t, uint32_t> counts_;
};

}  // namespace espalier::grammar
