#include "grammar/schema/formula.h"

#include <algorithm>
#include <utility>

namespace espalier::grammar {

Formulas::Formulas() { nodes_.resize(2); }

bool Formulas::mentions(Id f, uint32_t atom) const {
  return std::ranges::binary_search(nodes_[f].atoms, atom);
}

bool Formulas::only_wants(Id f, uint32_t atom) const {
  return !std::ranges::binary_search(nodes_[f].wary, atom);
}

Formulas::Id Formulas::intern(Op op, std::vector<uint32_t> parts) {
  const auto [it, added] = index_.try_emplace({op, parts}, static_cast<Id>(nodes_.size()));
  if (!added) return it->second;
  Node node{.op = op, .parts = std::move(parts), .atoms = {}, .wary = {}};
  if (op == Op::kAtom) {
    node.atoms = node.parts;
  } else {
    for (const Id part : node.parts) {
      const Node& inner = nodes_[part];
      node.atoms.insert(node.atoms.end(), inner.atoms.begin(), inner.atoms.end());
      const auto& wary = op == Op::kNot || op == Op::kOne ? inner.atoms : inner.wary;
      node.wary.insert(node.wary.end(), wary.begin(), wary.end());
    }
    for (std::vector<uint32_t>* list : {&node.atoms, &node.wary}) {
      std::ranges::sort(*list);
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
  }
  nodes_.push_back(std::move(node));
  return it->second;
}

Formulas::Id Formulas::atom(uint32_t number) { return intern(Op::kAtom, {number}); }

Formulas::Id Formulas::negated(Id f) {
  if (f <= kTrue) return f == kTrue ? kFalse : kTrue;
  const Op op = nodes_[f].op;
  if (op == Op::kNot) return nodes_[f].parts[0];
  if (op != Op::kAll && op != Op::kAny) return intern(Op::kNot, {f});
  std::vector<Id> parts = nodes_[f].parts;
  for (Id& part : parts) part = negated(part);
  return junction(op == Op::kAll ? Op::kAny : Op::kAll, std::move(parts));
}

Formulas::Id Formulas::all(std::vector<Id> parts) { return junction(Op::kAll, std::move(parts)); }
Formulas::Id Formulas::any(std::vector<Id> parts) { return junction(Op::kAny, std::move(parts)); }

Formulas::Id Formulas::junction(Op op, std::vector<Id> parts) {
  const Id neutral = op == Op::kAll ? kTrue : kFalse, decisive = 1 - neutral;
  std::vector<Id> flat;
  for (const Id part : parts) {
    if (part == decisive) return decisive;
    if (part == neutral) continue;
    if (nodes_[part].op == op) {
      flat.insert(flat.end(), nodes_[part].parts.begin(), nodes_[part].parts.end());
    } else {
      flat.push_back(part);
    }
  }
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  for (const Id part : flat) {
    if (nodes_[part].op == Op::kNot && std::ranges::binary_search(flat, nodes_[part].parts[0]))
      return decisive;
  }
  if (flat.empty()) return neutral;
  return flat.size() == 1 ? flat[0] : intern(op, std::move(flat));
}

Formulas::Id Formulas::one(std::vector<Id> parts) {
  std::erase(parts, kFalse);
  std::ranges::sort(parts);
  // An operand that occurs twice, or that is constantly true, excludes all different ones.
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool twice = i + 1 < parts.size() && parts[i] == parts[i + 1];
    if (parts[i] != kTrue && !twice) continue;
    if (twice && parts[i] == kTrue) return kFalse;
    const Id part = parts[i];
    std::erase(parts, part);
    if (twice) return all({negated(part), one(std::move(parts))});
    for (Id& other : parts) other = negated(other);
    return all(std::move(parts));
  }
  if (parts.empty()) return kFalse;
  return parts.size() == 1 ? parts[0] : intern(Op::kOne, std::move(parts));
}

Formulas::Id Formulas::settled(Id f, uint32_t atom, bool value) {
  if (!mentions(f, atom)) return f;
  const auto known = settled_.find({f, atom, value});
  if (known != settled_.end()) return known->second;
  const Op op = nodes_[f].op;
  Id made = value ? kTrue : kFalse;
  if (op != Op::kAtom) {
    std::vector<Id> parts = nodes_[f].parts;
    for (Id& part : parts) part = settled(part, atom, value);
    made = op == Op::kNot   ? negated(parts[0])
           : op == Op::kOne ? one(std::move(parts))
                            : junction(op, std::move(parts));
  }
  settled_.emplace(std::tuple(f, atom, value), made);
  return made;
}

}  // namespace espalier::grammar
