#include "grammar/automata/earley.h"

#include <algorithm>

namespace espalier::grammar {

EarleyRecogniser::EarleyRecogniser(const Network& network, const GrammarLimits& limits,
                                   uint32_t reach, NetworkBuilder* builder)
    : network_(network),
      reach_(reach),
      sets_(static_cast<size_t>(network.num_classes())),
      closure_(network, limits, builder, sets_) {
  kernel_ = {{network_.starts[0], ReturnStates::kRoot}};
  bool needs_text = false;
  start_ = closure_.intern(kernel_, nullptr, needs_text);
}

// One byte ticks at most once, so counts that are farther than `reach_` from both bounds behave
// alike.
uint32_t EarleyRecogniser::canonical_count(const EarleyItem& item) const {
  const int32_t number = network_.nodes[item.node].counter;
  if (number < 0) return item.count;
  const IrRules::Counter& counter = network_.counters[static_cast<size_t>(number)];
  const uint64_t margin = uint64_t{reach_} + network_.room_max[static_cast<size_t>(number)] + 1;
  const bool far_from_max = counter.max == IrRules::kNoMax || item.count + margin < counter.max;
  if (!far_from_max) return item.count;
  if (item.count >= counter.min) return counter.min;
  return item.count + margin < counter.min ? 0 : item.count;
}

EarleyRecogniser::Inside EarleyRecogniser::inside(SetId set) const {
  const std::span<const EarleyItem> kernel = sets_.kernel(set);
  if (kernel.size() != 1) return {};
  const EarleyItem& item = kernel[0];
  const Network::Node& node = network_.nodes[item.node];
  if (node.tag == 0 || node.counter < 0) return {node.tag};
  const IrRules::Counter& counter = network_.counters[static_cast<size_t>(node.counter)];
  return {node.tag, counter.min - std::min(counter.min, item.count),
          counter.max == IrRules::kNoMax ? IrRules::kNoMax : counter.max - item.count};
}

std::optional<NodeId> EarleyRecogniser::only_node(SetId set) const {
  const std::span<const EarleyItem> kernel = sets_.kernel(set);
  if (kernel.size() != 1) return std::nullopt;
  return kernel[0].node;
}

SetId EarleyRecogniser::part(SetId set, size_t index) {
  const EarleyItem item = sets_.kernel(set)[index];
  return closure_.intern_settled({&item, 1});
}

SetId EarleyRecogniser::opened(SetId set) {
  const std::span<const EarleyItem> kernel = sets_.kernel(set);
  if (kernel.size() != 1 || kernel[0].return_id == ReturnStates::kUnknown ||
      !network_.nodes[kernel[0].node].closed || network_.only_final(kernel[0].node)) {
    return kDead;
  }
  const EarleyItem item{kernel[0].node, ReturnStates::kUnknown, kernel[0].count};
  return closure_.intern_settled({&item, 1});
}

SetId EarleyRecogniser::opened_at(NodeId node) {
  if (!network_.nodes[node].closed || network_.only_final(node)) return kDead;
  const EarleyItem item{node, ReturnStates::kUnknown};
  return closure_.intern_settled({&item, 1});
}

SetId EarleyRecogniser::after_lexeme(SetId set) {
  const EarleyItem item = sets_.kernel(set)[0];
  kernel_ = {{network_.nodes[item.node].end, item.return_id, item.count}};
  bool needs_text = false;
  return closure_.intern(kernel_, nullptr, needs_text);
}

SetId EarleyRecogniser::canonical(SetId set) {
  if (network_.counters.empty() || set == kDead) return set;
  if (const SetId known = sets_.canonical(set); known != kUnknown) return known;
  const std::span<const EarleyItem> own = sets_.kernel(set);
  std::vector<EarleyItem> kernel(own.begin(), own.end());
  ReturnStates& returns = closure_.returns();
  for (EarleyItem& item : kernel) {
    item.count = canonical_count(item);
    if (item.return_id <= ReturnStates::kUnknown) continue;
    const ReturnStates::State origin = returns[item.return_id];
    item.return_id = returns.id_of(canonical(origin.set), origin.rule);
  }
  std::sort(kernel.begin(), kernel.end());
  kernel.erase(std::unique(kernel.begin(), kernel.end()), kernel.end());
  const bool same = std::ranges::equal(kernel, sets_.kernel(set));
  const SetId representative = same ? set : closure_.intern_settled(kernel);
  sets_.set_canonical(set, exhausted() ? set : representative);
  return sets_.canonical(set);
}

SetId EarleyRecogniser::step_slow(SetId from, uint8_t byte, const std::string_view* text) {
  // An exhausted recogniser still follows known text along known sets, but explores no further
  // tokens.
  if (exhausted() && text == nullptr) return kDead;
  // Many items often lead to the same targets where parts are optional; duplicates are dropped
  // early then.
  constexpr size_t kMany = 1000;
  const std::span<const EarleyItem> items = sets_.scanning(from);
  const bool many = items.size() > kMany;
  closure_.spend(items.size());
  kernel_.clear();
  if (many) seen_.clear();
  for (const EarleyItem& item : items) {
    for (const Network::ByteEdge& edge : network_.bytes_of(item.node)) {
      if (byte < edge.low || edge.high < byte || !network_.has_room(edge.target, item.count))
        continue;
      const EarleyItem next{edge.target, item.return_id, item.count};
      if (!many || seen_.insert(next)) kernel_.push_back(next);
    }
  }
  if (kernel_.size() > 1) {
    std::sort(kernel_.begin(), kernel_.end());
    kernel_.erase(std::unique(kernel_.begin(), kernel_.end()), kernel_.end());
  }
  bool needs_text = false;
  SetId to = kDead;
  if (!kernel_.empty()) {
    const EarleyClosure::Text read{text == nullptr ? std::string_view() : *text, byte};
    to = closure_.intern(kernel_, text == nullptr ? nullptr : &read, needs_text);
  }
  if (!exhausted()) {
    sets_.set_next(from, network_.byte_class[byte], needs_text ? kNeedsText : to);
  }
  return to;
}

}  // namespace espalier::grammar
