#include "engine/requests/adapters.h"

#include <charconv>
#include <new>
#include <system_error>

#include "base/log.h"
#include "engine/executor/executor.h"

namespace espalier {
namespace {

// The size of an adapter's file; 0 where there is none, which loading it reports.
int64_t file_bytes(const std::filesystem::path& folder) {
  std::error_code problem;
  const auto bytes = std::filesystem::file_size(folder / "adapter_model.safetensors", problem);
  return problem ? 0 : static_cast<int64_t>(bytes);
}

Result<AdapterInfo> load_into(Executor& executor, AdapterId id, const std::filesystem::path& path,
                              int32_t rank_max) {
  try {
    return executor.load_adapter(id, path, rank_max);
  } catch (const std::bad_alloc&) {
    return fail(error(StatusCode::kResourceExhausted, "there is no memory for it"));
  }
}

}  // namespace

AdapterLease::~AdapterLease() {
  if (registry_ != nullptr) registry_->release(id_);
}

Result<AdapterId> AdapterRegistry::reserve(const std::string& name,
                                           const std::filesystem::path& path) {
  if (name.empty() || name.find(':') != std::string::npos)
    return fail(invalid_argument(
        "'{}' is no name of an adapter: it must have a letter and no colon, which stands between "
        "the model's name and the adapter's",
        name));
  const std::lock_guard lock(mutex_);
  if (limits_.num_loaded_max > 0 && std::ssize(by_name_) >= limits_.num_loaded_max)
    return fail(error(StatusCode::kResourceExhausted,
                      "{} adapters are loaded, as many as --max-loaded-loras allows: unload one",
                      by_name_.size()));
  if (by_name_.contains(name))
    return fail(error(StatusCode::kAlreadyExists,
                      "an adapter '{}' is loaded: unload it, or give this one another name", name));
  const int64_t bytes = file_bytes(path);
  if (const Status fits = check_bytes(bytes); !fits.ok())
    return fail(fits.with_context("adapter '" + name + "'"));
  Entry& entry = by_name_[name];
  entry.id = ++last_id_;
  entry.adapter = {.name = name, .path = path, .info = {.size_bytes = bytes}};
  return last_id_;
}

Status AdapterRegistry::check_bytes(int64_t more) const {
  int64_t used = 0;
  for (const auto& [name, entry] : by_name_) used += entry.adapter.info.size_bytes;
  if (limits_.bytes_max == 0 || more <= limits_.bytes_max - used) return {};
  return error(
      StatusCode::kResourceExhausted,
      "it needs {} bytes, and the adapters have {} of the {} that --max-lora-bytes allows: "
      "unload one",
      more, used, limits_.bytes_max);
}

Result<AdapterInfo> AdapterRegistry::load(const std::string& name,
                                          const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(const AdapterId id, reserve(name, path));
  auto info = load_into(executor_, id, path, limits_.rank_max);
  const std::lock_guard lock(mutex_);
  const auto entry = by_name_.find(name);
  Status fits = info ? Status() : info.error();
  entry->second.adapter.info.size_bytes = 0;
  if (fits.ok()) fits = check_bytes(info->size_bytes);
  if (!fits.ok()) {
    if (info) executor_.unload_adapter(id);
    by_name_.erase(entry);
    return fail(fits.with_context("adapter '" + name + "'"));
  }
  entry->second.adapter.info = *info;
  entry->second.state = State::kServing;
  log_info("adapter loaded name={} rank={} modules={} bytes={}", name, info->rank,
           info->num_modules, info->size_bytes);
  return *info;
}

Status AdapterRegistry::unload(const std::string& name, Duration timeout) {
  std::unique_lock lock(mutex_);
  const auto entry = by_name_.find(name);
  if (entry == by_name_.end() || entry->second.state != State::kServing)
    return error(StatusCode::kNotFound, "no adapter '{}' is loaded", name);
  entry->second.state = State::kLeaving;
  const LoadedAdapter& adapter = entry->second.adapter;
  if (!released_.wait_for(lock, timeout, [&] { return adapter.num_requests == 0; })) {
    entry->second.state = State::kServing;
    return error(StatusCode::kUnavailable,
                 "{} requests use the adapter '{}': abort them, or try again later",
                 adapter.num_requests, name);
  }
  executor_.unload_adapter(entry->second.id);
  by_name_.erase(entry);
  log_info("adapter unloaded name={}", name);
  return {};
}

Result<AdapterLease> AdapterRegistry::acquire(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto entry = by_name_.find(name);
  if (entry == by_name_.end() || entry->second.state != State::kServing) {
    std::string names;
    for (const auto& [other, each] : by_name_)
      if (each.state == State::kServing) names += (names.empty() ? "" : ", ") + other;
    // SGLang's clients look for the words "never been loaded".
    return fail(
        invalid_argument("lora_path or model: no adapter '{}' is loaded: it has never been "
                         "loaded, or was unloaded; there {}",
                         name, names.empty() ? "are none" : "is " + names));
  }
  ++entry->second.adapter.num_requests;
  return AdapterLease(*this, entry->second.id);
}

void AdapterRegistry::release(AdapterId id) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [name, entry] : by_name_)
      if (entry.id == id) --entry.adapter.num_requests;
  }
  released_.notify_all();
}

std::vector<LoadedAdapter> AdapterRegistry::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<LoadedAdapter> out;
  for (const auto& [name, entry] : by_name_)
    if (entry.state != State::kLoading) out.push_back(entry.adapter);
  return out;
}

std::string AdapterRegistry::name_of(AdapterId id) const {
  if (id == kNoAdapter) return {};
  const std::lock_guard lock(mutex_);
  for (const auto& [name, entry] : by_name_)
    if (entry.id == id) return name;
  return {};
}

// A zero byte in front, which is escaped by another where a key has one.
std::string namespace_of_adapter(AdapterId id, std::string_view cache_namespace) {
  const std::string mark(1, '\0');
  if (id != kNoAdapter) return mark + std::to_string(id) + mark + std::string(cache_namespace);
  return (cache_namespace.starts_with('\0') ? mark : "") + std::string(cache_namespace);
}

AdapterNamespace adapter_of_namespace(std::string_view marked) {
  AdapterNamespace out{kNoAdapter, marked};
  const size_t end = marked.starts_with('\0') ? marked.find('\0', 1) : std::string_view::npos;
  if (end == std::string_view::npos || end == 1) return out;  // a key that is escaped
  const auto [at, failed] = std::from_chars(marked.data() + 1, marked.data() + end, out.id);
  if (failed == std::errc() && at == marked.data() + end)
    out.cache_namespace = marked.substr(end + 1);
  return out;
}

}  // namespace espalier
