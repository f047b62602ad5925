// Arrays of items out of few values, or with few values that satisfy `contains`, exactly: a state
// for what `uniqueItems`, `contains` and the bounds on the number of items depend on. States
// without a way to the end are left out, so an array that has begun can always be completed. Not
// thread-safe. Borrows the compiler.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "grammar/schema/arrays.h"
#include "grammar/schema/compiler.h"

namespace espalier::grammar {

class ListedArrays : private CompilerPart {
 public:
  using CompilerPart::CompilerPart;

  // Returns the items between the brackets as a graph whose start is state 0 and is not final;
  // nothing where the values are too many or cannot be listed. REQUIRES: items are not numbers, or
  // need not be unique, or are few.
  Result<std::optional<Ir::Graph>> items(const Conjunction& elements,
                                         const Constraints& constraints,
                                         const std::vector<ArrayCompiler::Contains>& contains);

  // After items(): the number of values that an item may have, where all are listed.
  std::optional<int64_t> num_values() const { return num_values_; }

 private:
  // The items so far.
  struct State {
    int64_t items = 0;          // up to the largest number that matters
    uint64_t values = 0;        // with uniqueItems: the set of values
    std::vector<int64_t> hits;  // [contains] items that satisfy it, up to the largest that matters
    friend auto operator<=>(const State&, const State&) = default;
  };
  // One value at one position, or all that have the same effect.
  struct Choice {
    ExprId expr = 0;
    uint64_t value = 0;      // with uniqueItems: its bit
    std::vector<bool> hits;  // [contains]
  };
  using Choices = std::vector<Choice>;

  // What the item at a position may be.
  struct Position {
    Conjunction item;
    bool others = false;  // there are more values than the listed ones
  };
  Result<bool> list_choices(const Conjunction& elements, bool unique);
  Result<bool> list_values(Position& position, std::vector<boost::json::value>& all);
  Result<Choices> choices_at(const Position& position, bool unique,
                             const std::vector<boost::json::value>& values);
  Result<ExprId> other_values(const Conjunction& item, bool unique,
                              const std::vector<boost::json::value>& values);
  Result<ExprId> value_expr(const Conjunction& item, const boost::json::value& value);
  std::optional<State> after(const State& from, const Choice& choice) const;
  bool may_end(const State& state) const;
  bool add_states();
  void keep_ending_states(Ir::Graph& graph) const;

  const Constraints* constraints_ = nullptr;
  std::span<const ArrayCompiler::Contains> contains_;
  std::vector<Choices> choices_;  // [position, the last for all further ones]
  std::optional<int64_t> num_values_;
  int64_t items_cap_ = 0;
  std::map<State, uint32_t> index_;
  std::vector<State> states_;
  struct Step {
    uint32_t from, to;
    ExprId expr;
  };
  std::vector<Step> steps_;
};

}  // namespace espalier::grammar
