// Boolean formulas over numbered atoms that are assigned one by one. Equal formulas have one id, so
// the residual formula identifies a state of an automaton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace espalier::grammar {

// An arena of hash-consed formulas. Not thread-safe.
class Formulas {
 public:
  using Id = uint32_t;
  static constexpr Id kFalse = 0, kTrue = 1;

  Formulas();
  Id atom(uint32_t number);
  Id negated(Id f);
  Id all(std::vector<Id> parts);
  Id any(std::vector<Id> parts);
  Id one(std::vector<Id> parts);  // exactly one of the parts holds
  Id settled(Id f, uint32_t atom, bool value);

  // The atoms that the formula depends on, sorted.
  const std::vector<uint32_t>& atoms(Id f) const { return nodes_[f].atoms; }
  bool mentions(Id f, uint32_t atom) const;
  // Returns whether the formula is monotone in the atom: it occurs under no negation and no one().
  bool only_wants(Id f, uint32_t atom) const;
  size_t size() const { return nodes_.size(); }

 private:
  enum class Op : uint8_t { kConstant, kAtom, kNot, kAll, kAny, kOne };
  struct Node {
    Op op = Op::kConstant;
    std::vector<uint32_t> parts;        // operands; of an atom its number
    std::vector<uint32_t> atoms, wary;  // sorted; the atoms in which the formula is not monotone
  };
  Id intern(Op op, std::vector<uint32_t> parts);
  Id junction(Op op, std::vector<Id> parts);

  std::vector<Node> nodes_;
  std::map<std::pair<Op, std::vector<uint32_t>>, Id> index_;
  std::map<std::tuple<Id, uint32_t, bool>, Id> settled_;
};

}  // namespace espalier::grammar
