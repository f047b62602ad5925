// Tokens arranged as a trie in depth-first order, so that a walk is a scan and a rejected prefix is
// a jump, with the runs of white space and of digits that a walk need not visit byte by byte.
//
// Thread safety: immutable after build_trie_walk(). Ownership: everything is held by value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "seams/vocab_view.h"

namespace espalier::grammar {

struct TokenRun;

// Bytes that grammars often repeat without bound: JSON's white space, and the digits 0 to 9.
enum class RunKind : uint8_t { kSpace, kDigits };
inline constexpr size_t kNumRunKinds = 2;
std::string_view bytes_of(RunKind kind);

struct TrieWalk {
  // Nodes in depth-first order, without the root.
  struct Node {
    uint32_t skip = 0;          // index behind the subtree of this node
    uint32_t tokens_begin = 0;  // index into token_ids; the next node's value is the end
    uint16_t depth = 0;         // number of bytes before this node's byte
    uint8_t byte = 0;
  };
  std::vector<Node> nodes;         // and one sentinel behind the last
  std::vector<TokenId> token_ids;  // tokens by the node of their last byte
  int32_t depth_max = 0;           // length of the longest token, bytes
  // The children of each row: row 0 is the root, row i + 1 is node i. Their bytes, sorted, and
  // their node numbers.
  std::vector<uint32_t> children_begin;  // [row], and one more
  std::vector<uint8_t> child_bytes;
  std::vector<uint32_t> children;
  // The runs that begin below a row near the root: 1 + index into `runs`, or 0. Rows beyond the end
  // of the list have none.
  std::array<std::vector<uint8_t>, kNumRunKinds> runs_at;
  std::vector<TokenRun> runs;

  // The bytes of ASCII that begin very many tokens, but for quotes, digits and white space.
  std::vector<uint8_t> frequent_bytes;

  const TokenRun* run_at(RunKind kind, uint32_t row) const;
};

// The tokens below a row whose next bytes are of one kind. From a position that those bytes leave
// unchanged, all tokens of these bytes alone lead on, and the others do as their rests do.
struct TokenRun {
  std::vector<uint32_t> whole;     // tokens of these bytes alone, as indices of the walk's tokens
  std::vector<TokenId> whole_ids;  // the same as token ids
  TrieWalk rests;                  // the other tokens, from their first byte of another kind on
  std::vector<uint32_t> rests_of;  // [rests.token_ids] indices of the walk's tokens
};

inline const TokenRun* TrieWalk::run_at(RunKind kind, uint32_t row) const {
  const std::vector<uint8_t>& at = runs_at[static_cast<size_t>(kind)];
  return row < at.size() && at[row] != 0 ? &runs[at[row] - 1u] : nullptr;
}

// Arranges tokens by the bytes that `text_of` returns for them, which outlive the call. The second
// function finds no runs.
TrieWalk build_trie_walk(std::vector<TokenId> ids,
                         const std::function<std::string_view(TokenId)>& text_of);
TrieWalk build_plain_walk(std::vector<TokenId> ids,
                          const std::function<std::string_view(TokenId)>& text_of);

}  // namespace espalier::grammar
