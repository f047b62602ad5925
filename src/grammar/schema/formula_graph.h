// The graph of a formula: a state is the residual formula after some properties or items, and from
// each state that is kept an end can be reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "grammar/schema/compiler.h"
#include "grammar/schema/formula_atoms.h"
#include "grammar/schema/formula_names.h"

namespace espalier::grammar {

// Makes one graph. Not thread-safe. Borrows everything. REQUIRES: names.known().
class FormulaGraph {
 public:
  using Id = Formulas::Id;
  FormulaGraph(SchemaCompiler& compiler, bool objects, const FormulaNames& names,
               FormulaAtoms& atoms)
      : c_(compiler), objects_(objects), names_(names), atoms_(atoms) {}

  // Returns the texts between the brackets that satisfy the formula. kUnimplemented or
  // kResourceExhausted when the graph is not practical.
  Result<ExprId> make(Id whole);

 private:
  // After the names before `name`.
  struct State {
    size_t name = 0;
    bool any = false;   // whether a property or item has come
    int64_t count = 0;  // of them; 0 where no atom counts
    Id left = 0;        // the residual formula
    friend auto operator<=>(const State&, const State&) = default;
  };
  static constexpr uint32_t kNowhere = ~uint32_t{0};

  Status add_states(Id whole);
  Status add_edges(uint32_t at);
  Id absent(Id left, size_t name);
  Id without(Id left, size_t name);
  bool holds_of_rest(Id left);
  uint32_t state(State s);
  uint32_t behind(const State& from, size_t name, Id left);
  Status take(uint32_t at, Id left, Conjunction value);
  Status take_other(uint32_t at, size_t k, Id left, std::vector<uint32_t> open,
                    const Conjunction& value);
  template <typename Then>
  Status possible(const Conjunction& value, Then then);
  ExprId key_of(size_t name);
  Status add_edge(uint32_t at, ExprId key, Conjunction value, uint32_t to);
  ExprId comma();
  Formulas& formulas() { return atoms_.formulas(); }

  SchemaCompiler& c_;
  const bool objects_;
  const FormulaNames& names_;
  FormulaAtoms& atoms_;
  std::map<State, uint32_t> index_;
  std::vector<State> states_;
  Ir::Graph graph_;
  bool checked_ = false;  // a check of the value may refuse its end
  bool repeats_ = false;  // a key that is not declared may come again
};

}  // namespace espalier::grammar
