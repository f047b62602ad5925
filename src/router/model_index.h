// Which workers list which names in /v1/models. Every request is looked up here under the
// dispatcher's lock, so a look-up does not depend on the number of workers or adapters.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cache/shadow/worker_set.h"

namespace espalier::router {

// What a request's `model` and `lora_path` mean. Views point into the request's.
struct ModelName {
  std::string_view model;    // "": none is named
  std::string_view adapter;  // a LoRA adapter's name; "": none
};

// Not thread-safe.
class ModelIndex {
 public:
  // The worker lists `models`; of them, `adapters` are LoRA adapters. REQUIRES that it lists
  // nothing yet.
  void insert(WorkerSlot slot, std::span<const std::string> models,
              std::span<const std::string> adapters);
  // REQUIRES what insert() got.
  void erase(WorkerSlot slot, std::span<const std::string> models,
             std::span<const std::string> adapters);

  // Those that list `name`; null: none does.
  const WorkerSet* workers_of(std::string_view name) const;
  bool is_adapter(std::string_view name) const;  // of some worker

  // `adapter`: as a request states it beside its model; "": it does not. Then `model` may be an
  // adapter's name, or MODEL:ADAPTER where ADAPTER is one and no worker lists all of it.
  ModelName read(std::string_view model, std::string_view adapter) const;

  size_t size() const { return listed_.size(); }  // names

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };
  struct Listing {
    WorkerSet workers;
    uint32_t num_as_adapter = 0;  // workers to which it is an adapter
  };
  using Listings = std::unordered_map<std::string, Listing, Hash, std::equal_to<>>;
  void erase_if_empty(Listings::iterator listed);

  Listings listed_;
};

}  // namespace espalier::router
