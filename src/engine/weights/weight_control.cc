#include "engine/weights/weight_control.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <random>
#include <utility>

#include "base/log.h"
#include "engine/startup/model_fingerprint.h"

namespace espalier {
namespace {

constexpr std::chrono::minutes kHoldTimeout{10};
constexpr size_t kVersionsKept = 4096;

Status update_under_way() {
  return error(StatusCode::kUnavailable, "weights are being replaced: try again when they are");
}

// A name that no other weights have.
std::string unique_name() {
  std::random_device random;
  const uint64_t high = random(), low = random();
  return fmt::format("{:08x}{:08x}", high, low);
}

bool stores_beyond(const EngineConfig& config) {
  return config.tiers.hicache_storage_backend != "none" ||
         config.disaggregation.disaggregation_mode != "null";
}

// Equal for equal checkpoints where keys and values are stored beyond the engine, so that servers
// that were updated alike share them. Successive checkpoints may differ anywhere, so files are
// hashed whole.
Result<std::string> cache_name(EngineConfig config, const WeightUpdate& update) {
  const bool of_files = !update.some && !update.random && update.shared.empty();
  if (!of_files || !stores_beyond(config)) return unique_name();
  config.model.model_path = update.path;
  return model_fingerprint(config, HashedBytes::kAll);
}

ReleasableMemory* releasable(ModelWeights* weights) {
  return dynamic_cast<ReleasableMemory*>(weights);
}

// However an update ends, what was prepared ends with it.
class PreparedScope {
 public:
  explicit PreparedScope(ModelWeights& weights) : weights_(weights) {}
  PreparedScope(const PreparedScope&) = delete;
  PreparedScope& operator=(const PreparedScope&) = delete;
  ~PreparedScope() { weights_.drop(); }

 private:
  ModelWeights& weights_;
};

}  // namespace

WeightControl::WeightControl(Parts parts)
    : parts_(std::move(parts)),
      memory_(parts_.kv_cache, releasable(parts_.weights), parts_.memory_stays) {}

// What was computed by other weights than its name says must not leave the engine.
Status WeightControl::check_cache_use(const WeightUpdate& update, const RequestsLeft& left) const {
  if (!stores_beyond(parts_.engine.config())) return Status();
  if (!update.flush_cache)
    return error(StatusCode::kFailedPrecondition,
                 "flush_cache is false, but keys and values are stored beyond this server, where "
                 "those of old and new weights would be mixed: leave it out");
  if (left.any)
    return error(StatusCode::kFailedPrecondition,
                 "the engine is paused with requests that have started, and keys and values are "
                 "stored beyond this server, where those of old and new weights would be mixed: "
                 "continue, or pause with mode abort");
  return Status();
}

Result<RequestsLeft> WeightControl::hold(bool abort_requests) {
  HoldMessage message{.abort_all = abort_requests};
  std::future<RequestsLeft> done = message.done.get_future();
  parts_.push(std::move(message));
  if (done.wait_for(kHoldTimeout) == std::future_status::ready) return done.get();
  release(refusal_);
  return fail(error(StatusCode::kUnavailable,
                    "requests that have started did not end within {} minutes, and the weights "
                    "stay as they are: give abort_all_requests, or pause before",
                    kHoldTimeout.count()));
}

void WeightControl::release(Status refusal) {
  refusal_ = std::move(refusal);
  parts_.push(ReleaseMessage{current_, memory_.any() ? memory_.refusal() : refusal_});
}

void WeightControl::name_version(std::string name) {
  const std::lock_guard lock(mutex_);
  versions_.push_back({current_.epoch, std::move(name)});
  if (versions_.size() > kVersionsKept) versions_.pop_front();
}

Status WeightControl::prepare(const WeightUpdate& update) {
  if (update.random) {
    ESP_ASSIGN_OR_RETURN(CheckableWeights * checkable, checkable_weights());
    return checkable->prepare_random(std::random_device()());
  }
  if (!parts_.weights->is_whole() && (update.some || !update.shared.empty()))
    return error(StatusCode::kFailedPrecondition,
                 "the weights are a mixture since an update failed half way: give a whole "
                 "checkpoint to /update_weights_from_disk");
  if (!update.shared.empty()) return parts_.weights->prepare_shared(update.shared);
  return update.some ? parts_.weights->prepare_some(update.path)
                     : parts_.weights->prepare(update.path);
}

// Between hold() and release(). What fails before the first byte is written changes nothing.
Status WeightControl::replace(const WeightUpdate& update, const RequestsLeft& left,
                              const std::string& name, WeightUpdateReport& report) {
  ESP_RETURN_IF_ERROR(check_cache_use(update, left));
  const TimePoint start = clock_.now();
  ESP_RETURN_IF_ERROR(parts_.weights->commit());
  report.seconds = to_seconds(clock_.now() - start);
  ++current_.epoch;
  if (update.flush_cache) {
    current_.cache_prefix = cache_prefix_of_weights(left.any ? unique_name() : name);
    report.cache_flushed = parts_.engine.flush_cache().ok();
  }
  name_version(update.version.value_or(version()));
  if (update.keep_pause)
    ESP_RETURN_IF_ERROR(parts_.engine.pause_generation(Engine::PauseMode::kInPlace));
  return Status();
}

Status WeightControl::check_present() const {
  if (!memory_.is_released(MemoryPart::kWeights)) return Status();
  return error(StatusCode::kFailedPrecondition,
               "the weights' memory is released: POST /resume_memory_occupation with "
               "\"tags\": [\"weights\"] before");
}

Result<WeightUpdateReport> WeightControl::update(const WeightUpdate& update) {
  const std::unique_lock lock(changing_, std::try_to_lock);
  if (!lock.owns_lock()) return fail(update_under_way());
  if (parts_.weights == nullptr) return fail(parts_.unsupported);
  ESP_RETURN_IF_ERROR(check_present());
  ESP_RETURN_IF_ERROR(check_cache_use(update, {}));
  const PreparedScope prepared(*parts_.weights);
  ESP_RETURN_IF_ERROR(prepare(update));
  ESP_ASSIGN_OR_RETURN(const std::string name, cache_name(parts_.engine.config(), update));
  WeightUpdateReport report;
  ESP_ASSIGN_OR_RETURN(const RequestsLeft left, hold(update.abort_requests));
  if (left.any) report.num_paused_requests = left.num_running;
  Status status;
  try {
    status = replace(update, left, name, report);
  } catch (const std::exception& problem) {  // bad_alloc; requests do not wait for ever
    status = error(StatusCode::kUnavailable, "the update ended early: {}", problem.what());
  }
  if (parts_.weights->is_whole()) {
    release();
  } else {
    if (!status.ok()) status = Status(StatusCode::kInternal, status.message());
    release(error(StatusCode::kUnavailable,
                  "the weights are a mixture since an update failed half way ({}): POST "
                  "/update_weights_from_disk with a checkpoint that can be read",
                  status.message()));
  }
  if (!status.ok()) {
    log_error("weights not replaced path={} reason=\"{}\"", update.path.string(), status.message());
    return fail(std::move(status));
  }
  log_info("weights replaced path={} version={} epoch={} seconds={:.3f}", update.path.string(),
           version(), current_.epoch, report.seconds);
  return report;
}

Result<std::vector<float>> WeightControl::read(const std::string& name, int64_t num_max) {
  const std::unique_lock lock(changing_, std::try_to_lock);
  if (!lock.owns_lock()) return fail(update_under_way());
  if (parts_.weights == nullptr) return fail(parts_.unsupported);
  ESP_RETURN_IF_ERROR(check_present());
  return parts_.weights->read(name, num_max);
}

void WeightControl::name_first(std::string name) {
  const std::lock_guard lock(mutex_);
  versions_.front().name = std::move(name);
}

Status WeightControl::set_version(std::string name, bool abort_requests) {
  const std::unique_lock lock(changing_, std::try_to_lock);
  if (!lock.owns_lock()) return update_under_way();
  if (abort_requests) parts_.engine.abort({}, Engine::AbortScope::kAll);
  ++current_.epoch;
  name_version(std::move(name));
  release(refusal_);
  return Status();
}

Result<CheckableWeights*> WeightControl::checkable_weights() const {
  if (parts_.weights == nullptr) return fail(parts_.unsupported);
  ESP_RETURN_IF_ERROR(check_present());
  if (auto* const checkable = dynamic_cast<CheckableWeights*>(parts_.weights)) return checkable;
  return fail(
      error(StatusCode::kUnimplemented,
            "tensors of this engine are not compared; POST /get_weights_by_name reads values "
            "of one"));
}

Result<std::vector<TensorDigest>> WeightControl::digests() {
  const std::unique_lock lock(changing_, std::try_to_lock);
  if (!lock.owns_lock()) return fail(update_under_way());
  ESP_ASSIGN_OR_RETURN(CheckableWeights * checkable, checkable_weights());
  return checkable->digests();
}

Status WeightControl::take_snapshot() {
  const std::unique_lock lock(changing_, std::try_to_lock);
  if (!lock.owns_lock()) return update_under_way();
  ESP_ASSIGN_OR_RETURN(CheckableWeights * checkable, checkable_weights());
  ESP_ASSIGN_OR_RETURN(snapshot_, checkable->digests());
  return Status();
}

Result<std::vector<std::string>> WeightControl::compare() {
  const std::unique_lock lock(changing_, std::try_to_lock);
  if (!lock.owns_lock()) return fail(update_under_way());
  ESP_ASSIGN_OR_RETURN(CheckableWeights * checkable, checkable_weights());
  if (snapshot_.empty())
    return fail(error(StatusCode::kFailedPrecondition,
                      "there is nothing to compare with: give the action snapshot before"));
  ESP_ASSIGN_OR_RETURN(const std::vector<TensorDigest> now, checkable->digests());
  std::vector<std::string> out;
  for (const TensorDigest& before : snapshot_)
    if (std::ranges::find(now, before) == now.end()) out.push_back(before.name);
  return out;
}

// Those of a paused engine hold keys and values, or will use the weights.
Status WeightControl::check_idle() const {
  const EngineStats stats = parts_.engine.stats();
  const int64_t num_requests = int64_t{stats.requests.num_running} + stats.requests.num_waiting;
  if (num_requests == 0) return Status();
  return error(
      StatusCode::kFailedPrecondition,
      "{} requests are in the engine, and memory is released when there are none: wait for "
      "their end, or POST /pause_generation with mode abort",
      num_requests);
}

// REQUIRES: no step runs.
Status WeightControl::change_memory(std::span<const MemoryPart> parts, bool release) {
  Status status;
  if (release && std::ranges::find(parts, MemoryPart::kKvCache) != parts.end())
    status = parts_.engine.flush_cache();
  try {
    if (status.ok()) status = release ? memory_.release(parts) : memory_.restore(parts);
  } catch (const std::exception& problem) {  // bad_alloc
    status =
        error(StatusCode::kResourceExhausted, "the system gives no memory: {}", problem.what());
  }
  const std::lock_guard lock(mutex_);
  released_ = memory_.report();
  return status;
}

Result<MemoryReport> WeightControl::release_memory(std::span<const MemoryPart> parts) {
  const std::unique_lock lock(changing_, std::try_to_lock);
  if (!lock.owns_lock()) return fail(update_under_way());
  ESP_RETURN_IF_ERROR(memory_.check(parts));
  ESP_RETURN_IF_ERROR(check_idle());
  ESP_ASSIGN_OR_RETURN(const RequestsLeft left, hold(/*abort_requests=*/false));
  const TimePoint start = clock_.now();
  const Status status = left.any ? check_idle() : change_memory(parts, /*release=*/true);
  MemoryReport report = released_memory();
  report.seconds = to_seconds(clock_.now() - start);
  release(refusal_);
  ESP_RETURN_IF_ERROR(status);
  log_info("memory released bytes={} seconds={:.3f}", report.released_bytes, report.seconds);
  return report;
}

// No step runs while any of the memory is released.
Result<MemoryReport> WeightControl::resume_memory(std::span<const MemoryPart> parts) {
  const std::unique_lock lock(changing_, std::try_to_lock);
  if (!lock.owns_lock()) return fail(update_under_way());
  const TimePoint start = clock_.now();
  const Status status = change_memory(parts, /*release=*/false);
  MemoryReport report = released_memory();
  report.seconds = to_seconds(clock_.now() - start);
  release(refusal_);
  if (!status.ok())
    return fail(status.with_context("the memory stays released, and can be resumed again"));
  log_info("memory resumed released_bytes={} seconds={:.3f}", report.released_bytes,
           report.seconds);
  return report;
}

MemoryReport WeightControl::released_memory() const {
  const std::lock_guard lock(mutex_);
  return released_;
}

std::string WeightControl::version() const {
  const std::lock_guard lock(mutex_);
  return versions_.back().name;
}

std::string WeightControl::version_of(int32_t epoch) const {
  const std::lock_guard lock(mutex_);
  for (auto it = versions_.rbegin(); it != versions_.rend(); ++it)
    if (it->epoch <= epoch) return it->name;
  return versions_.front().name;
}

}  // namespace espalier
