// The prefixes that a cache has, from the nodes of its radix tree as an observer reads them. Pure.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "seams/cache_nodes.h"
#include "seams/vocab_view.h"

namespace espalier {

// Which prefixes are meant; by default all.
struct PrefixFilter {
  std::optional<std::string> extra_key;  // of requests; "": of those without one
  std::vector<TokenId> tokens;           // with which they begin
};

// Calls `visit` for each longest prefix (from a root to a leaf) that the filter selects, with the
// cache's namespace and all tokens. What only this process can use is left out: prefixes of
// adapters, and what stands behind a picture's first row. `nodes` have all their tokens; one whose
// parent is missing, because the tree changed while it was read, is left out.
using VisitPrefix =
    std::function<void(std::string_view cache_namespace, std::span<const TokenId> tokens)>;
void for_each_prefix(std::span<const CacheNode> nodes, const PrefixFilter& filter,
                     const VisitPrefix& visit);

}  // namespace espalier
