#include "text/regex/program.h"

#include <algorithm>
#include <map>

namespace espalier {

namespace {

// Emits states from the end of an expression to its beginning: each node receives the state that
// follows it.
class ProgramBuilder {
 public:
  Status add(const std::string& pattern, uint32_t index) {
    ESP_ASSIGN_OR_RETURN(tree_, parse_regex_syntax(pattern));
    const uint32_t match = emit({.op = Op::kMatch, .pattern = index});
    const auto root = static_cast<int32_t>(tree_.nodes.size()) - 1;
    program_.starts.push_back(emit_node(root, match));
    if (program_.states.size() <= kProgramStatesMax) return {};
    return invalid_argument(
        "the regular expression '{}' is too large: the expressions of a request may have {} states "
        "together",
        pattern, kProgramStatesMax);
  }

  RegexProgram finish() {
    program_.alphabet = Alphabet(sets_);
    const Alphabet& alphabet = program_.alphabet;
    for (const CharSet& set : sets_) {
      std::vector<bool>& members = program_.members.emplace_back(alphabet.size());
      for (uint32_t c = 0; c < alphabet.size(); ++c) members[c] = set.contains(alphabet.sample(c));
    }
    return std::move(program_);
  }

 private:
  using Op = RegexProgram::Op;
  using Kind = RegexTree::Kind;

  bool full() const { return program_.states.size() > kProgramStatesMax; }
  uint32_t emit(RegexProgram::State state) {
    program_.states.push_back(state);
    return static_cast<uint32_t>(program_.states.size()) - 1;
  }
  uint32_t emit_node(int32_t index, uint32_t next);
  uint32_t emit_repeat(const RegexTree::Node& node, uint32_t next);
  uint32_t set_index(const CharSet& set);

  RegexTree tree_;
  RegexProgram program_;
  std::vector<CharSet> sets_;
  std::map<CharSet, uint32_t> known_sets_;  // index into sets_
};

uint32_t ProgramBuilder::set_index(const CharSet& set) {
  const auto [place, added] = known_sets_.try_emplace(set, static_cast<uint32_t>(sets_.size()));
  if (added) sets_.push_back(set);
  return place->second;
}

uint32_t ProgramBuilder::emit_node(int32_t index, uint32_t next) {
  if (full()) return next;
  const RegexTree::Node& node = tree_.nodes[static_cast<size_t>(index)];
  switch (node.kind) {
    case Kind::kEmpty:
      return next;
    case Kind::kChar:
      return emit({.op = Op::kChar, .set = set_index(node.set), .next = next});
    case Kind::kAssertion:
      return emit({.op = Op::kAssertion, .assertion = node.assertion, .next = next});
    case Kind::kSequence:
      for (auto child = node.children.rbegin(); child != node.children.rend(); ++child)
        next = emit_node(*child, next);
      return next;
    case Kind::kAlternatives: {
      uint32_t begin = emit_node(node.children.back(), next);
      for (size_t i = node.children.size() - 1; i-- > 0;)
        begin = emit({.op = Op::kSplit, .next = emit_node(node.children[i], next), .other = begin});
      return begin;
    }
    case Kind::kRepeat:
      return emit_repeat(node, next);
  }
  return next;
}

uint32_t ProgramBuilder::emit_repeat(const RegexTree::Node& node, uint32_t next) {
  const int32_t child = node.children[0];
  uint32_t begin = next;
  if (node.repeat_max == RegexTree::kUnbounded) {
    begin = emit({.op = Op::kSplit, .other = next});
    const uint32_t body = emit_node(child, begin);
    program_.states[begin].next = body;
  }
  for (int32_t i = node.repeat_min; i < node.repeat_max && !full(); ++i)
    begin = emit({.op = Op::kSplit, .next = emit_node(child, begin), .other = next});
  for (int32_t i = 0; i < node.repeat_min && !full(); ++i) begin = emit_node(child, begin);
  return begin;
}

}  // namespace

Alphabet::Alphabet(std::span<const CharSet> sets) {
  // Which sets change their mind at each code point.
  std::map<uint32_t, std::vector<uint32_t>> changes;
  changes[0];
  const auto note = [&](const CharSet& set, uint32_t index) {
    for (const CodePointRange& range : set.ranges()) {
      changes[range.first].push_back(index);
      if (range.last < kMaxCodePoint) changes[range.last + 1].push_back(index);
    }
  };
  for (uint32_t i = 0; i < sets.size(); ++i) note(sets[i], i + 2);
  note({{'\n', '\n'}}, 0);
  note(*perl_class('w'), 1);
  std::map<std::vector<bool>, uint32_t> known;
  std::vector<bool> members(sets.size() + 2);
  for (const auto& [start, flipped] : changes) {
    for (const uint32_t set : flipped) members[set].flip();
    const auto [place, added] = known.try_emplace(members, num_classes_);
    if (added) {
      samples_.push_back(start);
      ++num_classes_;
    }
    starts_.push_back(start);
    classes_.push_back(place->second);
  }
  for (uint32_t code = 0; code < ascii_.size(); ++code) ascii_[code] = find(code);
}

uint32_t Alphabet::find(uint32_t code) const {
  const auto after = std::ranges::upper_bound(starts_, code);
  return classes_[static_cast<size_t>(after - starts_.begin()) - 1];
}

Result<RegexProgram> compile_program(std::span<const std::string> patterns) {
  ProgramBuilder builder;
  for (uint32_t i = 0; i < patterns.size(); ++i) ESP_RETURN_IF_ERROR(builder.add(patterns[i], i));
  return builder.finish();
}

}  // namespace espalier
