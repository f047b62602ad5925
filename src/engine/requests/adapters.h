// The LoRA adapters of an engine by name: loaded and unloaded while requests run.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "models/model.h"
#include "seams/forward_batch.h"

namespace espalier {

class Executor;
class AdapterRegistry;

// An adapter that a request uses: it is not unloaded before the lease has ended. Move-only.
class AdapterLease {
 public:
  AdapterLease() = default;  // of no adapter
  AdapterLease(AdapterLease&& from) noexcept
      : registry_(std::exchange(from.registry_, nullptr)),
        id_(std::exchange(from.id_, kNoAdapter)) {}
  AdapterLease& operator=(AdapterLease&& from) noexcept {
    std::swap(registry_, from.registry_);
    std::swap(id_, from.id_);
    return *this;
  }
  ~AdapterLease();

  AdapterId id() const { return id_; }

 private:
  friend class AdapterRegistry;
  AdapterLease(AdapterRegistry& registry, AdapterId id) : registry_(&registry), id_(id) {}

  AdapterRegistry* registry_ = nullptr;
  AdapterId id_ = kNoAdapter;
};

struct LoadedAdapter {
  std::string name;
  std::filesystem::path path;
  AdapterInfo info;
  int32_t num_requests = 0;  // that use it now
};

// Thread-safe. Outlives its leases; the executor outlives it.
class AdapterRegistry {
 public:
  struct Limits {
    int32_t rank_max = 0;        // of an adapter; 0: any
    int32_t num_loaded_max = 0;  // adapters; 0: any number
    int64_t bytes_max = 0;       // of all adapters together; 0: any number
  };
  AdapterRegistry(Executor& executor, const Limits& limits)
      : executor_(executor), limits_(limits) {}

  // Reads the folder on the caller's thread. kAlreadyExists for a name in use, kInvalidArgument for
  // a name that no request could state, kResourceExhausted beyond num_loaded_max or bytes_max and
  // where there is no memory; else what the model says of the files.
  Result<AdapterInfo> load(const std::string& name, const std::filesystem::path& path);

  // New requests find it no more; waits for those that use it. kNotFound for an unknown name;
  // kUnavailable when they do not end within `timeout`: it then is in service again.
  Status unload(const std::string& name, Duration timeout);

  // kInvalidArgument, with the names that there are, where there is none of this name.
  Result<AdapterLease> acquire(std::string_view name);

  std::vector<LoadedAdapter> list() const;  // sorted by name
  // Empty where there is none of this number, or no more.
  std::string name_of(AdapterId id) const;

 private:
  friend class AdapterLease;
  enum class State { kLoading, kServing, kLeaving };
  struct Entry {
    AdapterId id = kNoAdapter;
    State state = State::kLoading;
    LoadedAdapter adapter;
  };

  void release(AdapterId id);
  // Takes the name, and the bytes of the file until the adapter's own are known.
  Result<AdapterId> reserve(const std::string& name, const std::filesystem::path& path);
  Status check_bytes(int64_t more) const;  // REQUIRES: mutex_ is locked

  Executor& executor_;
  const Limits limits_;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::map<std::string, Entry, std::less<>> by_name_;
  AdapterId last_id_ = kNoAdapter;
};

// A cache key that only requests with this adapter have: keys and values depend on the weights.
// kNoAdapter: the key itself, but for one that would look like an adapter's.
std::string namespace_of_adapter(AdapterId id, std::string_view cache_namespace);
// Its parts again; of a key without an adapter's mark kNoAdapter and the key as it is.
struct AdapterNamespace {
  AdapterId id = kNoAdapter;
  std::string_view cache_namespace;
};
AdapterNamespace adapter_of_namespace(std::string_view marked);

}  // namespace espalier
