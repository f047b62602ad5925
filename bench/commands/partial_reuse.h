// Prefix caches that reuse less than they store: the ablations of espalier_bench workloads.
// Stateless functions; a cache is as thread-safe as PrefixCache.
#pragma once

#include "cache/prefix_cache.h"

namespace espalier::bench {

struct PartialReuse {
  double match_share = 1;           // the leading share of each match that may be used
  bool whole_prompts_only = false;  // a match that is not of the whole prompt counts as none
};

// Makes the engine's own cache where `reuse` restricts nothing or the configuration disables the
// radix cache.
MakePrefixCache make_partial_reuse_cache(const PartialReuse& reuse);

}  // namespace espalier::bench
