// How pages get their stable names, which KV events carry and which any other process can compute.
//
// A name is the first 128 bits of a SHA-256 digest, chained from page to page:
//
//   root        = H("espalier.page.1", model fingerprint, KV layout, adapter, namespace)
//   first page  = H(root,   tokens)
//   later page  = H(parent, tokens)     parent: the name of the page before
//
// H of the root hashes each text after its length (8 bytes, little-endian), so that no two lists of
// texts give the same bytes. H of a page hashes the 16 bytes of the parent and 4 bytes,
// little-endian, for each token.
//
// The hash is cryptographic because a tenant chooses its own tokens: with a weaker hash it could
// construct a prompt whose pages bear the names of another tenant's, and read or replace them
// wherever pages are looked up by name. Finding a collision takes about 2^64 digests.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "seams/page_name.h"
#include "seams/vocab_view.h"

namespace espalier {

// What decides the contents of a page besides its tokens, the same for all pages of a cache.
struct PageNameScope {
  std::string model_fingerprint;  // equal exactly where the weights are
  std::string kv_layout;          // element type, page size and shape of each layer's memory
};

// The parent of a prefix's first page. `adapter` is the name of the adapter whose weights computed
// the pages; empty: none.
PageName root_page_name(const PageNameScope& scope, std::string_view adapter,
                        std::string_view cache_namespace);

// The name of the page of `tokens` (a whole page) behind the page `parent`.
PageName page_name(const PageName& parent, std::span<const TokenId> tokens);

}  // namespace espalier
