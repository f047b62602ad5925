#include "grammar/masks/trie_walk.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace espalier::grammar {
namespace {

using TextOf = std::function<std::string_view(TokenId)>;

// Runs are recorded below the root and below nodes of up to this depth, where they have at least
// kRunNodesMin nodes and at most kRunRestsMax other tokens. A run with more rests is found again
// below the first byte of the run.
constexpr uint16_t kRunDepthMax = 2;
constexpr size_t kRunNodesMin = 8;
constexpr size_t kRunRestsMax = 4096;
constexpr size_t kRunsMax = 255;  // of one walk

void list_children(TrieWalk& walk) {
  const auto count = static_cast<uint32_t>(walk.nodes.size() - 1);
  walk.children_begin.reserve(count + 2);
  walk.child_bytes.reserve(count);
  walk.children.reserve(count);
  const auto list = [&](uint32_t first, uint32_t end) {
    walk.children_begin.push_back(static_cast<uint32_t>(walk.children.size()));
    for (uint32_t child = first; child < end; child = walk.nodes[child].skip) {
      walk.child_bytes.push_back(walk.nodes[child].byte);
      walk.children.push_back(child);
    }
  };
  list(0, count);
  for (uint32_t i = 0; i < count; ++i) list(i + 1, walk.nodes[i].skip);
  walk.children_begin.push_back(static_cast<uint32_t>(walk.children.size()));
}

void list_frequent_bytes(TrieWalk& walk) {
  constexpr uint32_t kManyNodes = 1500;
  for (uint32_t i = 0; i + 1 < walk.nodes.size(); i = walk.nodes[i].skip) {
    const uint8_t byte = walk.nodes[i].byte;
    const bool common = byte == '"' || byte <= ' ' || ('0' <= byte && byte <= '9');
    if (!common && byte < 0x80 && walk.nodes[i].skip - i > kManyNodes)
      walk.frequent_bytes.push_back(byte);
  }
}

// Finds the runs of one kind below the rows of a walk.
class RunFinder {
 public:
  RunFinder(TrieWalk& walk, RunKind kind, const TextOf& text_of)
      : walk_(walk), kind_(kind), text_of_(text_of) {}

  void find() {
    try_row(0);
    for (uint32_t i = 0; i + 1 < walk_.nodes.size(); ++i) {
      if (walk_.nodes[i].depth < kRunDepthMax) try_row(i + 1);
    }
  }

 private:
  bool in_kind(uint8_t byte) const {
    return bytes_of(kind_).find(static_cast<char>(byte)) != std::string_view::npos;
  }

  void try_row(uint32_t row) {
    run_ = {};
    rests_.clear();
    num_nodes_ = 0;
    if (walk_.runs.size() == kRunsMax || !collect(row) || num_nodes_ < kRunNodesMin) return;
    for (const uint32_t t : run_.whole) run_.whole_ids.push_back(walk_.token_ids[t]);
    add_rests();
    std::vector<uint8_t>& at = walk_.runs_at[static_cast<size_t>(kind_)];
    at.resize(row + 1, 0);
    walk_.runs.push_back(std::move(run_));
    at[row] = static_cast<uint8_t>(walk_.runs.size());
  }

  // Visits the children of the row that are of the kind, and what is below them. Returns false
  // where there are too many rests.
  bool collect(uint32_t row) {
    for (uint32_t c = walk_.children_begin[row]; c < walk_.children_begin[row + 1]; ++c) {
      const uint32_t child = walk_.children[c];
      const bool inside = in_kind(walk_.child_bytes[c]);
      if (inside) {
        ++num_nodes_;
        for (uint32_t t = walk_.nodes[child].tokens_begin; t < walk_.nodes[child + 1].tokens_begin;
             ++t)
          run_.whole.push_back(t);
        ++depth_;
        const bool fits = collect(child + 1);
        --depth_;
        if (!fits) return false;
      } else if (depth_ > 0) {
        const TrieWalk::Node& node = walk_.nodes[child];
        const uint32_t end = walk_.nodes[node.skip].tokens_begin;
        for (uint32_t t = node.tokens_begin; t < end; ++t) rests_.emplace_back(t, node.depth);
        if (rests_.size() > kRunRestsMax) return false;
      }
    }
    return true;
  }

  void add_rests() {
    std::unordered_map<TokenId, std::pair<uint32_t, uint16_t>> by_id;
    std::vector<TokenId> ids;
    for (const auto& [t, skip] : rests_) {
      ids.push_back(walk_.token_ids[t]);
      by_id[ids.back()] = {t, skip};
    }
    run_.rests = build_plain_walk(
        std::move(ids), [&](TokenId id) { return text_of_(id).substr(by_id.at(id).second); });
    for (const TokenId id : run_.rests.token_ids) run_.rests_of.push_back(by_id.at(id).first);
  }

  TrieWalk& walk_;
  const RunKind kind_;
  const TextOf& text_of_;
  // Of one row.
  TokenRun run_;
  std::vector<std::pair<uint32_t, uint16_t>> rests_;  // tokens, and the bytes before their rest
  size_t num_nodes_ = 0, depth_ = 0;
};

}  // namespace

std::string_view bytes_of(RunKind kind) {
  return kind == RunKind::kSpace ? std::string_view(" \t\n\r") : std::string_view("0123456789");
}

TrieWalk build_plain_walk(std::vector<TokenId> ids, const TextOf& text_of) {
  std::sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) {
    const auto x = text_of(a), y = text_of(b);
    return x != y ? x < y : a < b;
  });
  TrieWalk walk;
  std::vector<uint32_t> open;  // nodes on the path to the last token
  const auto close = [&](size_t keep) {
    for (; open.size() > keep; open.pop_back())
      walk.nodes[open.back()].skip = static_cast<uint32_t>(walk.nodes.size());
  };
  std::string_view last;
  for (TokenId id : ids) {
    const std::string_view text = text_of(id);
    size_t common = 0;
    while (common < last.size() && common < text.size() && last[common] == text[common]) ++common;
    close(common);
    for (size_t depth = common; depth < text.size(); ++depth) {
      open.push_back(static_cast<uint32_t>(walk.nodes.size()));
      walk.nodes.push_back({.tokens_begin = static_cast<uint32_t>(walk.token_ids.size()),
                            .depth = static_cast<uint16_t>(depth),
                            .byte = static_cast<uint8_t>(text[depth])});
    }
    walk.token_ids.push_back(id);
    walk.depth_max = std::max(walk.depth_max, static_cast<int32_t>(text.size()));
    last = text;
  }
  close(0);
  walk.nodes.push_back({.skip = static_cast<uint32_t>(walk.nodes.size()),
                        .tokens_begin = static_cast<uint32_t>(walk.token_ids.size())});
  list_children(walk);
  return walk;
}

TrieWalk build_trie_walk(std::vector<TokenId> ids, const TextOf& text_of) {
  TrieWalk walk = build_plain_walk(std::move(ids), text_of);
  for (const RunKind kind : {RunKind::kSpace, RunKind::kDigits})
    RunFinder(walk, kind, text_of).find();
  list_frequent_bytes(walk);
  return walk;
}

}  // namespace espalier::grammar
