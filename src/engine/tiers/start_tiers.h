// The tiers that an engine's settings name.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "cache/page_name.h"
#include "engine/config.h"
#include "engine/executor/executor.h"
#include "engine/tiers/kv_tiers.h"
#include "models/model.h"

namespace espalier {

// What hicache settings contradict or lack.
Status check_tier_settings(const EngineConfig& config);

// What decides the bits of computed keys and values besides model and layout: the order of sums
// depends on the instruction set or the GPU, and on ranks.
std::string computing_name(const EngineConfig& config, const PageCopier& copier);

// Opens the stores; null without enable_hierarchical_cache. kUnimplemented where the executor's
// pages cannot be copied; else the stores' errors. `config` is effective; executor and clock
// outlive the tiers.
Result<std::unique_ptr<KvTiers>> start_tiers(const EngineConfig& config, const ModelInfo& info,
                                             const PageNameScope& name_scope, Executor& executor,
                                             const Clock& clock);

}  // namespace espalier
