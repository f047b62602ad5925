// Prefill and decode on different servers, as an engine's loop sees it: one object with the role of
// this engine. docs/disaggregation.md describes the whole.
//
//   prefill  scheduler --on_prefilled--> PrefillSide --> rooms --> transfer::PageServer --> TCP
//   decode   TCP --> transfer::PageFetch --> DecodeSide (a KvLoader) --poll--> scheduler
//
// For the loop's thread, unless a method states another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "cache/page_copier.h"
#include "cache/page_name.h"
#include "engine/config.h"
#include "engine/disaggregation/stats.h"
#include "engine/requests/request.h"
#include "engine/scheduler/kv_loader.h"
#include "engine/scheduler/scheduler.h"
#include "seams/forward_batch.h"

namespace espalier {

class Disaggregation {
 public:
  virtual ~Disaggregation() = default;

  virtual Handoff handoff() const = 0;

  // One sample of a request with a room, before the scheduler has it; on_finish() follows if it
  // takes it. Failures refuse the sample.
  struct Prompt {
    SequenceId id = 0;
    const Bootstrap& bootstrap;
    int32_t index = 0;  // of the request's samples
    std::string_view cache_namespace;
    std::span<const TokenId> tokens;
  };
  virtual Status begin(const Prompt& prompt) = 0;
  // The batch is launched next.
  virtual void on_launch(const ForwardBatch&) {}
  virtual void on_prefilled(SequenceId, const PrefillProgress&) {}
  // Any sequence ends; those without a room are not known.
  virtual void on_finish(SequenceId id, const FinishReason& reason) = 0;

  virtual KvLoader* loader() { return nullptr; }  // null: the role loads nothing
  // Called on any thread when a load has ended. Null: not.
  virtual void notify(std::function<void()>) {}

  // Waits until what was computed here has been fetched, or `timeout` has passed. Thread-safe.
  virtual void drain(Duration) {}
  virtual DisaggregationStats stats() const = 0;  // thread-safe
};

// What the settings contradict or lack.
Status check_disaggregation(const EngineConfig& config);

// Whether a request with or without a room is for an engine with these settings.
Status check_bootstrap(const EngineConfig& config, const GenerateRequest& request);

// Null with mode "null". kUnimplemented where the executor's pages cannot be copied; else the
// errors of the bootstrap port. `config` is effective; executor, clock and `tiers` (a loader for
// sequences without a room; null: none) outlive it.
Result<std::unique_ptr<Disaggregation>> start_disaggregation(const EngineConfig& config,
                                                             const ModelInfo& info,
                                                             const PageNameScope& name_scope,
                                                             PageCopier* copier, const Clock& clock,
                                                             KvLoader* tiers);

}  // namespace espalier
