#include "grammar/frontends/free_text.h"

#include <array>
#include <deque>
#include <map>
#include <tuple>

#include "grammar/automata/unicode.h"

namespace espalier::grammar {
namespace {

using NodeIndex = uint32_t;

constexpr size_t kTriggerBytesMax = 1 << 16;  // each byte is a node of one kilobyte

// The Aho-Corasick automaton of the triggers: delta is total, and `fires` lists what ends at a
// node, shorter triggers included.
struct TriggerAutomaton {
  struct Node {
    std::array<NodeIndex, 256> next{};  // while building, 0 is the root or no node yet
    std::vector<size_t> fires;
  };
  std::vector<Node> nodes = std::vector<Node>(1);

  explicit TriggerAutomaton(const std::vector<TextTrigger>& triggers) {
    for (size_t i = 0; i < triggers.size(); ++i) {
      NodeIndex at = 0;
      for (const char c : triggers[i].text) {
        const auto byte = static_cast<uint8_t>(c);
        if (nodes[at].next[byte] == 0) {
          nodes[at].next[byte] = static_cast<NodeIndex>(nodes.size());
          nodes.emplace_back();
        }
        at = nodes[at].next[byte];
      }
      nodes[at].fires.push_back(i);
    }
    std::vector<NodeIndex> fallback(nodes.size(), 0);
    std::deque<NodeIndex> work;
    for (const NodeIndex child : nodes[0].next)
      if (child != 0) work.push_back(child);
    while (!work.empty()) {
      const NodeIndex at = work.front();
      work.pop_front();
      const auto& shorter = nodes[fallback[at]].fires;
      nodes[at].fires.insert(nodes[at].fires.end(), shorter.begin(), shorter.end());
      for (size_t byte = 0; byte < 256; ++byte) {
        const NodeIndex other = nodes[fallback[at]].next[byte];
        NodeIndex& child = nodes[at].next[byte];
        if (child == 0) {
          child = other;
        } else {
          fallback[child] = other;
          work.push_back(child);
        }
      }
    }
  }
};

// The state within a UTF-8 character: the number of bytes still needed and the range of the next
// one.
enum Utf8State : uint8_t {
  kStart,
  kOne,
  kTwo,
  kThree,
  kAfterE0,
  kAfterEd,
  kAfterF0,
  kAfterF4,
  kNone
};

Utf8State utf8_next(Utf8State state, int byte) {
  const auto within = [&](int low, int high, Utf8State next) {
    return byte >= low && byte <= high ? next : kNone;
  };
  switch (state) {
    case kStart:
      if (byte < 0x80) return kStart;
      if (byte >= 0xc2 && byte <= 0xdf) return kOne;
      if (byte == 0xe0) return kAfterE0;
      if (byte == 0xed) return kAfterEd;
      if (byte >= 0xe1 && byte <= 0xef) return kTwo;
      if (byte == 0xf0) return kAfterF0;
      if (byte >= 0xf1 && byte <= 0xf3) return kThree;
      return byte == 0xf4 ? kAfterF4 : kNone;
    case kOne:
      return within(0x80, 0xbf, kStart);
    case kTwo:
      return within(0x80, 0xbf, kOne);
    case kThree:
      return within(0x80, 0xbf, kTwo);
    case kAfterE0:
      return within(0xa0, 0xbf, kOne);
    case kAfterEd:
      return within(0x80, 0x9f, kOne);
    case kAfterF0:
      return within(0x90, 0xbf, kTwo);
    case kAfterF4:
      return within(0x80, 0x8f, kTwo);
    case kNone:
      break;
  }
  return kNone;
}

class TextBuilder {
 public:
  TextBuilder(Ir& ir, const std::vector<TextTrigger>& triggers, const FreeTextOptions& options)
      : ir_(ir), triggers_(triggers), options_(options), automaton_(triggers) {}

  ExprId build() {
    state_of({0, kStart});
    for (size_t i = 0; i < places_.size(); ++i) {
      const Place place = places_[i];  // a copy, since add_edges() adds places
      add_edges(static_cast<uint32_t>(i), place);
    }
    graph_.num_states = static_cast<uint32_t>(places_.size());
    if (end_used_) {  // its number is reserved
      for (Ir::GraphEdge& edge : graph_.edges)
        if (edge.to == kEnd) edge.to = graph_.num_states;
      graph_.finals.push_back(graph_.num_states++);
    }
    return ir_.graph(std::move(graph_));
  }

 private:
  struct Place {
    NodeIndex node;
    Utf8State utf8;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  static constexpr uint32_t kEnd = ~0u;

  uint32_t state_of(const Place& place) {
    const auto [it, added] = numbers_.try_emplace(place, static_cast<uint32_t>(places_.size()));
    if (added) {
      places_.push_back(place);
      if (options_.may_end && place.utf8 == kStart) graph_.finals.push_back(it->second);
    }
    return it->second;
  }

  void add_edges(uint32_t from, const Place& place) {
    std::map<Place, ByteSet> text;
    for (int byte = 0; byte < 256; ++byte) {
      const Utf8State utf8 = utf8_next(place.utf8, byte);
      if (utf8 == kNone) continue;
      const NodeIndex node = automaton_.nodes[place.node].next[static_cast<size_t>(byte)];
      const std::vector<size_t>& fires = automaton_.nodes[node].fires;
      if (fires.empty()) {
        text[{node, utf8}].set(static_cast<size_t>(byte));
      } else {
        fire(from, static_cast<uint8_t>(byte), fires);
      }
    }
    for (const auto& [to, bytes] : text)
      graph_.edges.push_back({from, ir_.bytes(bytes), state_of(to)});
  }

  void fire(uint32_t from, uint8_t byte, const std::vector<size_t>& fires) {
    for (const size_t i : fires)
      if (triggers_[i].after == TextTrigger::After::kForbidden) return;
    for (const size_t i : fires) {
      const TextTrigger& trigger = triggers_[i];
      const bool ends = trigger.after == TextTrigger::After::kEnds;
      end_used_ |= ends;
      const ExprId expr = ir_.sequence({ir_.byte(byte), trigger.then});
      graph_.edges.push_back({from, expr, ends ? kEnd : state_of({0, kStart})});
    }
  }

  Ir& ir_;
  const std::vector<TextTrigger>& triggers_;
  const FreeTextOptions options_;
  const TriggerAutomaton automaton_;
  std::vector<Place> places_;
  std::map<Place, uint32_t> numbers_;
  Ir::Graph graph_;
  bool end_used_ = false;
};

}  // namespace

Result<ExprId> free_text(Ir& ir, const std::vector<TextTrigger>& triggers,
                         const FreeTextOptions& options) {
  size_t bytes = 0;
  for (const TextTrigger& trigger : triggers) {
    bytes += trigger.text.size();
    if (bytes > kTriggerBytesMax) {
      return fail(error(StatusCode::kResourceExhausted,
                        "triggers and ends are longer than {} bytes together; shorten them",
                        kTriggerBytesMax));
    }
    if (trigger.text.empty()) return fail(invalid_argument("a trigger or end is empty"));
    if (!valid_utf8(trigger.text))
      return fail(invalid_argument("the trigger or end '{}' is no valid UTF-8", trigger.text));
  }
  return TextBuilder(ir, triggers, options).build();
}

}  // namespace espalier::grammar
