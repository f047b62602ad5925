#include "engine/replicas/replicas.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/rng.h"
#include "engine/replicas/join_on_replica.h"

namespace espalier {
namespace {

// The first failure; the others do it nevertheless.
template <typename Do>
Status on_each(const std::vector<std::unique_ptr<Engine>>& engines, Do&& act) {
  Status failed;
  for (const auto& engine : engines)
    if (Status status = act(*engine); failed.ok() && !status.ok()) failed = std::move(status);
  return failed;
}

// What replicas were given of what is stated for all of them.
EngineConfig totals(const std::vector<std::unique_ptr<Engine>>& engines) {
  EngineConfig out = engines.front()->config();
  out.compute.dp_size = static_cast<int32_t>(engines.size());
  for (size_t i = 1; i < engines.size(); ++i) {
    const EngineConfig& c = engines[i]->config();
    out.compute.num_threads += c.compute.num_threads;
    out.schedule.max_running_requests += c.schedule.max_running_requests;
    out.schedule.max_queued_requests += c.schedule.max_queued_requests;
    out.cache.max_total_tokens = std::min(out.cache.max_total_tokens, c.cache.max_total_tokens);
    out.cache.max_session_bytes += c.cache.max_session_bytes;
    out.tiers.hicache_size_gb += c.tiers.hicache_size_gb;
    out.images.image_cache_bytes += c.images.image_cache_bytes;
    out.grammar.grammar_cache_bytes += c.grammar.grammar_cache_bytes;
    out.lora.max_lora_bytes += c.lora.max_lora_bytes;
  }
  return out;
}

}  // namespace

Replicas::Replicas(std::vector<std::unique_ptr<Engine>> engines, LoadBalance method)
    : config_(totals(engines)),
      context_length_(engines.front()->context_length()),
      placement_(method, static_cast<int32_t>(engines.size())),
      engines_(std::move(engines)) {
  for (const auto& engine : engines_)
    context_length_ = std::min(context_length_, engine->context_length());
}

Replicas::~Replicas() = default;

// Requests.

Result<std::string> Replicas::submit(GenerateRequest request, EventSink sink) {
  if (request.rid.empty()) request.rid = rids_.next();
  if (!request.sampling.sampling_seed)
    request.sampling.sampling_seed = mix64(config_.sampling.random_seed) + mix64(num_seeds_++);
  const int32_t num_samples = request.embed ? 1 : std::max(1, request.sampling.n);
  ESP_ASSIGN_OR_RETURN(const int32_t replica, placement_.place(request, num_samples));
  const std::string rid = request.rid;
  auto submitted = at(replica).submit(
      std::move(request), [this, rid, replica, sink = std::move(sink)](TokenEvent&& event) {
        event.stats.dp_rank = replica;
        // Before the last event, so that the id can be used again when that is seen.
        if (event.finish) placement_.on_end(rid, *event.finish);
        sink(std::move(event));
      });
  if (!submitted) placement_.withdraw(rid);
  return submitted;
}

void Replicas::abort(std::string_view rid, AbortScope scope) {
  for (const auto& engine : engines_) engine->abort(rid, scope);
}

Result<GrammarReport> Replicas::compile_grammar(const SamplingParams& params, size_t drawn_states) {
  ESP_ASSIGN_OR_RETURN(GrammarReport report,
                       engines_.front()->compile_grammar(params, drawn_states));
  if (drawn_states > 0) return report;  // a picture is kept by none
  for (size_t i = 1; i < engines_.size(); ++i) {
    ESP_ASSIGN_OR_RETURN(const GrammarReport other, engines_[i]->compile_grammar(params, 0));
    report.seconds += other.seconds;
  }
  return report;
}

// Joined branches.

void Replicas::join_branches(JoinRequest request, JoinDone done) {
  if (Status valid = check_join(request); !valid.ok()) return done(fail(std::move(valid)));
  const int32_t replica = placement_.choose_for_join(request);
  join_on_replica(at(replica), std::move(request),
                  [this, replica, done = std::move(done)](Result<JoinedPrompt> joined) {
                    if (joined) placement_.on_joined(replica, *joined);
                    done(std::move(joined));
                  });
}

// Sessions.

Result<std::string> Replicas::open_session(const SessionOptions& options) {
  SessionOptions own = options;
  if (own.id.empty()) {
    // An id of the replica with the fewest sessions.
    const auto fewest = std::ranges::min_element(
        engines_, {}, [](const auto& engine) { return engine->stats().sessions.num_open; });
    const auto replica = static_cast<int32_t>(fewest - engines_.begin());
    do {
      own.id = rids_.next();
    } while (placement_.replica_of_session(own.id) != replica);
  }
  return at(placement_.replica_of_session(own.id)).open_session(own);
}

Status Replicas::close_session(std::string_view id) {
  return at(placement_.replica_of_session(id)).close_session(id);
}

Result<std::vector<TokenId>> Replicas::session_prompt(const SessionParams& params,
                                                      std::vector<TokenId> ids) {
  return at(placement_.replica_of_session(params.id)).session_prompt(params, std::move(ids));
}

// Adapters.

Result<AdapterInfo> Replicas::load_adapter(const std::string& name,
                                           const std::filesystem::path& path) {
  AdapterInfo sum;
  for (size_t i = 0; i < engines_.size(); ++i) {
    auto loaded = engines_[i]->load_adapter(name, path);
    if (!loaded) {
      for (size_t j = 0; j < i; ++j) static_cast<void>(engines_[j]->unload_adapter(name));
      return loaded;
    }
    loaded->size_bytes += sum.size_bytes;
    sum = *loaded;
  }
  return sum;
}

// Where one replica's requests use the adapter for too long it is in service again on all.
Status Replicas::unload_adapter(const std::string& name) {
  const std::vector<LoadedAdapter> loaded = adapters();
  Status failed;
  size_t num_unloaded = 0;
  for (; num_unloaded < engines_.size() && failed.ok(); num_unloaded += failed.ok() ? 1 : 0)
    failed = engines_[num_unloaded]->unload_adapter(name);
  const auto was = std::ranges::find(loaded, name, &LoadedAdapter::name);
  if (failed.ok() || was == loaded.end()) return failed;
  for (size_t i = 0; i < num_unloaded; ++i)
    if (const auto again = engines_[i]->load_adapter(name, was->path); !again)
      return again.error().with_context(failed.message());
  return failed;
}

std::vector<LoadedAdapter> Replicas::adapters() const {
  std::vector<LoadedAdapter> out = first().adapters();
  for (size_t i = 1; i < engines_.size(); ++i)
    for (const LoadedAdapter& other : engines_[i]->adapters()) {
      const auto same = std::ranges::find(out, other.name, &LoadedAdapter::name);
      if (same == out.end()) continue;  // it is being loaded, or unloaded
      same->info.size_bytes += other.info.size_bytes;
      same->num_requests += other.num_requests;
    }
  return out;
}

// All replicas.

Status Replicas::flush_cache() {
  const Status status = on_each(engines_, [](Engine& engine) { return engine.flush_cache(); });
  if (status.ok()) placement_.forget_prefixes();
  return status;
}

// Each replica has connections and counts of its own; the last one's report stands for all.
Result<std::vector<StorageReport>> Replicas::storage(const StorageRequest& request) {
  if (request.action == StorageRequest::Action::kExport && engines_.size() > 1)
    return fail(error(StatusCode::kUnimplemented,
                      "pages of several replicas are not exported (--dp-size): import takes a file "
                      "of a server without"));
  std::vector<StorageReport> reports;
  ESP_RETURN_IF_ERROR(on_each(engines_, [&](Engine& engine) -> Status {
    ESP_ASSIGN_OR_RETURN(reports, engine.storage(request));
    return {};
  }));
  return reports;
}

Status Replicas::pause_generation(PauseMode mode) {
  return on_each(engines_, [mode](Engine& engine) { return engine.pause_generation(mode); });
}

Status Replicas::continue_generation() {
  return on_each(engines_, [](Engine& engine) { return engine.continue_generation(); });
}

void Replicas::drain(Duration timeout) {
  std::vector<std::thread> threads;
  for (const auto& engine : engines_)
    threads.emplace_back([&engine, timeout] { engine->drain(timeout); });
  for (std::thread& thread : threads) thread.join();
}

// What an observer reads.

Result<CacheEvents> Replicas::read_cache(uint64_t from, size_t num_events_max) const {
  return first().read_cache(from, num_events_max);
}

void Replicas::read_cache(const CacheNodesQuery& query, CacheNodesDone done) {
  engines_.front()->read_cache(query, std::move(done));
}

std::vector<const Engine*> Replicas::replicas() const {
  std::vector<const Engine*> out;
  for (const auto& engine : engines_) out.push_back(engine.get());
  return out;
}

EngineStats Replicas::stats() const {
  std::vector<EngineStats> of_each;
  for (const auto& engine : engines_) of_each.push_back(engine->stats());
  return sum_of(of_each);
}

}  // namespace espalier
