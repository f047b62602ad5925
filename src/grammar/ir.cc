#include "grammar/ir.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "grammar/automata/held_bytes.h"

namespace espalier::grammar {
namespace {

constexpr size_t kLiteralsWrittenOut = 32;  // larger choices become a graph

// A length of UTF-8: code points up to `high` take `length` bytes, the first of which has the bits
// of `lead`.
struct Utf8Length {
  uint32_t low, high;
  int length;
  uint8_t lead;
};
constexpr std::array<Utf8Length, 4> kUtf8Lengths = {{{0x0, 0x7f, 1, 0x00},
                                                     {0x80, 0x7ff, 2, 0xc0},
                                                     {0x800, 0xffff, 3, 0xe0},
                                                     {0x10000, kMaxCodePoint, 4, 0xf0}}};

ByteSet byte_range(uint32_t low, uint32_t high) {
  ByteSet set;
  for (uint32_t b = low; b <= high; ++b) set.set(b);
  return set;
}

// Encodes code points low..high that all take `length` bytes, split where the trailing bytes do not
// cover their whole range.
ExprId encode_range(Ir& ir, uint32_t low, uint32_t high, int length, uint8_t lead) {
  if (length == 1) return ir.bytes(byte_range(lead | low, lead | high));
  const int shift = 6 * (length - 1);
  const uint32_t mask = (1u << shift) - 1;
  const uint32_t first_low = low >> shift, first_high = high >> shift;
  const auto tail = [&](uint32_t from, uint32_t to) {
    return encode_range(ir, from, to, length - 1, 0x80);
  };
  if (first_low == first_high) {
    return ir.sequence(
        {ir.byte(static_cast<uint8_t>(lead | first_low)), tail(low & mask, high & mask)});
  }
  std::vector<ExprId> parts;
  uint32_t from = first_low, to = first_high;
  if ((low & mask) != 0) {
    parts.push_back(
        ir.sequence({ir.byte(static_cast<uint8_t>(lead | from)), tail(low & mask, mask)}));
    ++from;
  }
  if ((high & mask) != mask) {
    parts.push_back(ir.sequence({ir.byte(static_cast<uint8_t>(lead | to)), tail(0, high & mask)}));
    --to;
  }
  if (from <= to) {
    parts.push_back(ir.sequence({ir.bytes(byte_range(lead | from, lead | to)), tail(0, mask)}));
  }
  return ir.choice(parts);
}

ExprId literal_trie(Ir& ir, std::span<const std::string> sorted, size_t depth) {
  std::vector<ExprId> parts;
  size_t begin = 0;
  while (begin < sorted.size() && sorted[begin].size() == depth) ++begin;
  if (begin > 0) parts.push_back(ir.empty());
  while (begin < sorted.size()) {
    // [begin, end): the texts that share their next byte; then as many further bytes as all of them
    // share.
    size_t end = begin;
    while (end < sorted.size() && sorted[end][depth] == sorted[begin][depth]) ++end;
    const std::string& first = sorted[begin];
    const std::string& last = sorted[end - 1];
    size_t common = depth;
    while (common < first.size() && common < last.size() && first[common] == last[common]) ++common;
    const auto prefix = ir.literal(std::string_view(first).substr(depth, common - depth));
    parts.push_back(
        ir.sequence({prefix, literal_trie(ir, sorted.subspan(begin, end - begin), common)}));
    begin = end;
  }
  return ir.choice(parts);
}

// Builds the same language as a deterministic graph: suffixes with nothing after them share one
// final state.
Ir::Graph literal_graph(std::span<const std::string> sorted) {
  struct Place {  // texts [begin, end) share `depth` bytes
    size_t begin, end, depth;
    uint32_t id;
  };
  Ir::Graph graph{.num_states = 2, .edges = {}, .finals = {1}, .deterministic = true};
  std::vector<Place> work = {{0, sorted.size(), 0, 0}};
  for (size_t i = 0; i < work.size(); ++i) {
    Place place = work[i];
    if (sorted[place.begin].size() == place.depth) {
      graph.finals.push_back(place.id);
      ++place.begin;
    }
    while (place.begin < place.end) {
      const char byte = sorted[place.begin][place.depth];
      size_t end = place.begin;
      while (end < place.end && sorted[end][place.depth] == byte) ++end;
      const bool leaf = end - place.begin == 1 && sorted[place.begin].size() == place.depth + 1;
      const uint32_t to = leaf ? 1 : graph.num_states++;
      if (!leaf) work.push_back({place.begin, end, place.depth + 1, to});
      graph.arcs.push_back({place.id, to, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte)});
      place.begin = end;
    }
  }
  return graph;
}

}  // namespace

std::vector<CodeRange> normalized(std::vector<CodeRange> ranges) {
  std::vector<CodeRange> split;
  for (CodeRange r : ranges) {
    r.high = std::min(r.high, kMaxCodePoint);
    if (r.low > r.high) continue;
    if (r.low < 0xd800 && r.high >= 0xd800) split.push_back({r.low, 0xd7ff});
    if (r.high > 0xdfff && r.low <= 0xdfff) split.push_back({0xe000, r.high});
    if (r.high < 0xd800 || r.low > 0xdfff) split.push_back(r);
  }
  std::sort(split.begin(), split.end(),
            [](const CodeRange& a, const CodeRange& b) { return a.low < b.low; });
  std::vector<CodeRange> merged;
  for (const CodeRange& r : split) {
    if (!merged.empty() && r.low <= merged.back().high + 1) {
      merged.back().high = std::max(merged.back().high, r.high);
    } else {
      merged.push_back(r);
    }
  }
  return merged;
}

std::vector<CodeRange> complement(const std::vector<CodeRange>& normalized_ranges) {
  std::vector<CodeRange> rest;
  uint32_t next = 0;
  for (const CodeRange& r : normalized_ranges) {
    if (r.low > next) rest.push_back({next, r.low - 1});
    next = r.high + 1;
  }
  if (next <= kMaxCodePoint) rest.push_back({next, kMaxCodePoint});
  return normalized(std::move(rest));
}

void FlatIndex::put(Slot slot) {
  const size_t mask = slots_.size() - 1;
  size_t at = slot.tag & mask;
  while (slots_[at].id != kNone) at = (at + 1) & mask;
  slots_[at] = slot;
}

void FlatIndex::add(uint64_t hash, uint32_t id) {
  if (2 * ++count_ > slots_.size()) {
    const size_t size = std::max<size_t>(128, 2 * slots_.size());
    for (const Slot& slot : std::exchange(slots_, std::vector<Slot>(size))) {
      if (slot.id != kNone) put(slot);
    }
  }
  put({tag_of(hash), id});
}

Ir::Ir() {
  nodes_.push_back({.op = Op::kNever});
  nodes_.push_back({.op = Op::kEmpty});
}

ExprId Ir::intern(Op op, std::span<const ExprId> parts, uint32_t payload, int32_t min,
                  int32_t max) {
  uint64_t hash = mix64(static_cast<uint64_t>(op) | uint64_t{payload} << 8);
  hash = mix64(hash ^ (uint64_t{static_cast<uint32_t>(min)} << 32 | static_cast<uint32_t>(max)));
  for (ExprId part : parts) hash = mix64(hash ^ part);
  const bool leaf = op == Op::kBytes || op == Op::kRule;
  const uint32_t known = index_.find(hash, [&](ExprId id) {
    const Node& other = nodes_[id];
    if (other.op != op || other.min != min || other.max != max) return false;
    return leaf ? other.first == payload : std::ranges::equal(children(id), parts);
  });
  if (known != FlatIndex::kNone) return known;
  Node made{.op = op, .first = payload, .count = 0, .min = min, .max = max};
  if (!parts.empty()) {
    made.first = static_cast<uint32_t>(children_.size());
    made.count = static_cast<uint32_t>(parts.size());
    children_.insert(children_.end(), parts.begin(), parts.end());
  }
  const auto id = static_cast<ExprId>(nodes_.size());
  nodes_.push_back(made);
  index_.add(hash, id);
  return id;
}

ExprId Ir::bytes(const ByteSet& set) {
  if (set.none()) return never();
  uint64_t hash = 0;
  for (const uint64_t word : std::bit_cast<std::array<uint64_t, 4>>(set)) hash = mix64(hash ^ word);
  uint32_t index = set_index_.find(hash, [&](uint32_t id) { return sets_[id] == set; });
  if (index == FlatIndex::kNone) {
    index = static_cast<uint32_t>(sets_.size());
    sets_.push_back(set);
    set_index_.add(hash, index);
  }
  return intern(Op::kBytes, {}, index, 0, 0);
}

ExprId Ir::byte(uint8_t value) {
  ExprId& known = single_bytes_[value];
  if (known == never()) {
    ByteSet set;
    set.set(value);
    known = bytes(set);
  }
  return known;
}

ExprId Ir::literal(std::string_view text) {
  flat_.clear();
  for (char c : text) flat_.push_back(byte(static_cast<uint8_t>(c)));
  return flat_sequence();
}

// A sequence of the parts in flat_.
ExprId Ir::flat_sequence() {
  if (flat_.empty()) return empty();
  return flat_.size() == 1 ? flat_[0] : intern(Op::kSequence, flat_, 0, 0, 0);
}

ExprId Ir::sequence(std::span<const ExprId> parts) {
  constexpr uint32_t kFlattenedMax = 4096;
  flat_.clear();
  for (ExprId part : parts) {
    if (part == never()) return never();
    if (part == empty()) continue;
    // Long sequences inside long sequences stay nested: flattening would copy them once for each
    // depth.
    if (node(part).op == Op::kSequence && node(part).count <= kFlattenedMax) {
      const auto inner = children(part);
      flat_.insert(flat_.end(), inner.begin(), inner.end());
    } else {
      flat_.push_back(part);
    }
  }
  return flat_sequence();
}

ExprId Ir::choice(std::span<const ExprId> parts) {
  flat_.clear();
  seen_.resize(nodes_.size(), 0);
  ++choices_;
  ByteSet merged;
  const auto add = [&](ExprId part) {
    if (part == never()) return;
    if (node(part).op == Op::kBytes) {
      merged |= byte_set(part);
    } else if (std::exchange(seen_[part], choices_) != choices_) {
      flat_.push_back(part);
    }
  };
  for (ExprId part : parts) {
    if (node(part).op == Op::kChoice) {
      for (ExprId child : children(part)) add(child);
    } else {
      add(part);
    }
  }
  if (merged.any()) flat_.push_back(bytes(merged));
  if (flat_.empty()) return never();
  if (flat_.size() == 1) return flat_[0];
  return intern(Op::kChoice, flat_, 0, 0, 0);
}

ExprId Ir::repeat(ExprId part, int32_t min, int32_t max) {
  ESP_CHECK(min >= 0 && (max == kUnbounded || max >= min), "{{{}, {}}}", min, max);
  if (max == 0 || part == empty()) return empty();
  if (part == never()) return min == 0 ? empty() : never();
  if (min == 1 && max == 1) return part;
  // An optional part repeated many times becomes a graph: written out, every position could skip to
  // every later one.
  const Node inner = nodes_[part];
  if (inner.op == Op::kRepeat && inner.min == 0 && (inner.max == 1 || inner.max == kUnbounded)) {
    return repeat(children(part)[0], 0, inner.max == kUnbounded ? kUnbounded : max);
  }
  return intern(Op::kRepeat, {&part, 1}, 0, min, max);
}

ExprId Ir::graph(Graph graph) {
  std::vector<ExprId> parts;
  for (const GraphEdge& edge : graph.edges) parts.push_back(edge.expr);
  if (graph.num_states == 0 || graph.finals.empty()) return never();
  if (parts.empty() && graph.arcs.empty())
    return std::ranges::count(graph.finals, 0u) > 0 ? empty() : never();
  // Graphs are not compared for equality; the caller keeps the id.
  const auto index = static_cast<uint32_t>(graphs_.size());
  graphs_.push_back(std::move(graph));
  const ExprId id = intern(Op::kGraph, parts, 0, static_cast<int32_t>(index), 0);
  nodes_[id].graph = index;
  return id;
}

ExprId Ir::chars(std::vector<CodeRange> ranges) {
  std::vector<ExprId> parts;
  for (const CodeRange& r : normalized(std::move(ranges))) {
    for (const Utf8Length& l : kUtf8Lengths) {
      const uint32_t low = std::max(r.low, l.low), high = std::min(r.high, l.high);
      if (low <= high) parts.push_back(encode_range(*this, low, high, l.length, l.lead));
    }
  }
  return choice(parts);
}

ExprId Ir::literals(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  if (texts.size() > kLiteralsWrittenOut) return graph(literal_graph(texts));
  return literal_trie(*this, texts, 0);
}

RuleId IrRules::add(std::string name) {
  rules_.push_back({std::move(name)});
  return static_cast<RuleId>(rules_.size() - 1);
}

void IrRules::set_body(RuleId rule, ExprId body) {
  ESP_CHECK(rule < rules_.size());
  rules_[rule].body = body;
}

void IrRules::set_counter(RuleId rule, Counter counter) {
  ESP_CHECK(rule < rules_.size() && counter.min <= counter.max);
  rules_[rule].counter = static_cast<int32_t>(counters_.size());
  counters_.push_back(counter);
}

void IrRules::set_check(RuleId rule, Check check) {
  ESP_CHECK(rule < rules_.size());
  rules_[rule].check = static_cast<int32_t>(checks_.size());
  checks_.push_back(std::move(check));
}

ExprId Ir::rule(RuleId rule) { return intern(Op::kRule, {}, rule, 0, 0); }

size_t IrRules::num_bytes() const {
  size_t bytes = held_bytes(rules_) + held_bytes(counters_) + held_bytes(checks_);
  for (const Rule& rule : rules_) bytes += rule.name.capacity() > 15 ? rule.name.capacity() : 0;
  std::vector<const ValueChecker*> counted;
  for (const Check& check : checks_) {
    if (std::ranges::find(counted, check.checker.get()) != counted.end()) continue;
    counted.push_back(check.checker.get());
    bytes += check.checker->num_bytes();
  }
  return bytes;
}

size_t Ir::num_bytes() const {
  size_t bytes = held_bytes(nodes_) + held_bytes(children_) + held_bytes(sets_) +
                 held_bytes(graphs_) + held_bytes(flat_) + held_bytes(seen_) +
                 set_index_.num_bytes() + index_.num_bytes() + rules_.num_bytes();
  for (const Graph& graph : graphs_) {
    bytes += held_bytes(graph.edges) + held_bytes(graph.finals) + held_bytes(graph.arcs) +
             held_bytes(graph.tags);
  }
  return bytes;
}

}  // namespace espalier::grammar
