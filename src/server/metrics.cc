#include "server/metrics.h"

#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "engine/weights/weight_control.h"
#include "server/vllm_metrics.h"

namespace espalier::server {

namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

// Seconds. Tokens of a small model on a CPU come every millisecond, a long prompt takes minutes.
const Buckets kFirstTokenBuckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2,
                                    0.4,   0.6,    0.8,   1,    2,     4,    6,   8,
                                    10,    20,     40,    60,   80,    100,  200, 400};
const Buckets kInterTokenBuckets = {0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02,
                                    0.025,  0.03,  0.035, 0.04,  0.06,  0.08,  0.1,  0.2,   0.4,
                                    0.6,    0.8,   1,     2,     4,     6,     8};
const Buckets kLatencyBuckets = {0.01, 0.025, 0.05, 0.1, 0.2,  0.4,  0.6, 0.8, 1,
                                 2,    4,     6,    8,   10,   20,   40,  60,  80,
                                 100,  200,   400,  600, 1200, 1800, 2400};
const Buckets kTokenBuckets = {1,    10,   50,    100,   200,   500,    1000,  2000,
                               4000, 8000, 16000, 32000, 64000, 128000, 256000};

}  // namespace

struct Metrics::Impl {
  // The histograms of one priority, or of all requests.
  struct Series {
    prometheus::Histogram* first_token = nullptr;
    prometheus::Histogram* inter_token = nullptr;
    prometheus::Histogram* e2e = nullptr;
    prometheus::Histogram* queue_time = nullptr;
    prometheus::Histogram* prompt_tokens = nullptr;
    prometheus::Histogram* generation_tokens = nullptr;
  };

  prometheus::Registry registry;
  prometheus::Labels labels;
  bool by_priority = false;
  std::shared_mutex mutex;  // of the two below; a series stays where it is
  std::map<int32_t, Series> series;
  Series others;  // of all requests without by_priority; null where none was observed

  Series& of(int32_t priority);
  Series made(const prometheus::Labels& all);
};

// Registering a family that is there gives the one that is there.
Metrics::Impl::Series Metrics::Impl::made(const prometheus::Labels& all) {
  const auto histogram = [&](const char* name, const char* help, const Buckets& buckets) {
    return &prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(all, buckets);
  };
  return {
      .first_token = histogram("sglang:time_to_first_token_seconds",
                               "Time from acceptance to the first token.", kFirstTokenBuckets),
      .inter_token = histogram("sglang:inter_token_latency_seconds",
                               "Time between two tokens of one answer.", kInterTokenBuckets),
      .e2e = histogram("sglang:e2e_request_latency_seconds",
                       "Time from acceptance to the last token.", kLatencyBuckets),
      .queue_time = histogram("sglang:queue_time_seconds",
                              "Time from acceptance to the first step.", kFirstTokenBuckets),
      .prompt_tokens =
          histogram("sglang:prompt_tokens_histogram", "Tokens of prompts.", kTokenBuckets),
      .generation_tokens =
          histogram("sglang:generation_tokens_histogram", "Tokens of answers.", kTokenBuckets),
  };
}

Metrics::Impl::Series& Metrics::Impl::of(int32_t priority) {
  if (!by_priority) return others;
  {
    const std::shared_lock lock(mutex);
    if (const auto found = series.find(priority); found != series.end()) return found->second;
    if (series.size() >= kPrioritiesMax && others.e2e != nullptr) return others;
  }
  const std::lock_guard lock(mutex);
  if (const auto found = series.find(priority); found != series.end()) return found->second;
  prometheus::Labels all = labels;
  if (series.size() < kPrioritiesMax) {
    all["priority"] = std::to_string(priority);
    return series.emplace(priority, made(all)).first->second;
  }
  all["priority"] = "other";
  if (others.e2e == nullptr) others = made(all);
  return others;
}

Metrics::Metrics(const std::string& model_name, bool by_priority)
    : impl_(std::make_unique<Impl>()) {
  if (!model_name.empty()) impl_->labels = {{"model_name", model_name}};
  impl_->by_priority = by_priority;
  if (!by_priority) impl_->others = impl_->made(impl_->labels);
}

Metrics::~Metrics() = default;

void Metrics::observe_first_token(double seconds, int32_t priority) {
  impl_->of(priority).first_token->Observe(seconds);
}

void Metrics::observe_inter_token(double seconds, int count, int32_t priority) {
  prometheus::Histogram& histogram = *impl_->of(priority).inter_token;
  for (int i = 0; i < count; ++i) histogram.Observe(seconds);
}

void Metrics::observe_finish(const RequestStats& stats, int32_t priority) {
  Impl::Series& series = impl_->of(priority);
  if (stats.finished > stats.arrived) {
    series.e2e->Observe(to_seconds(stats.finished - stats.arrived));
  }
  if (stats.scheduled >= stats.arrived && stats.scheduled != TimePoint{}) {
    series.queue_time->Observe(to_seconds(stats.scheduled - stats.arrived));
  }
  series.prompt_tokens->Observe(stats.prompt_tokens);
  series.generation_tokens->Observe(stats.completion_tokens);
}

namespace {

// Families of one value each, with the labels of every series.
class Figures {
 public:
  Figures(std::vector<prometheus::MetricFamily> families, const prometheus::Labels& labels)
      : families_(std::move(families)), labels_(labels) {}

  template <typename T>
  void gauge(const std::string& name, const char* help, T value) {
    add(name, help, prometheus::MetricType::Gauge, static_cast<double>(value));
  }
  template <typename T>
  void counter(const std::string& name, const char* help, T value) {
    add(name, help, prometheus::MetricType::Counter, static_cast<double>(value));
  }
  // One series for each value of a label.
  void counters(const std::string& name, const char* help, const char* label,
                const std::vector<std::pair<std::string, int64_t>>& values) {
    std::vector<Labelled> series;
    for (const auto& [value_of_label, value] : values)
      series.push_back({{{label, value_of_label}}, value});
    family(name, help, prometheus::MetricType::Counter, series);
  }
  struct Labelled {
    std::vector<prometheus::ClientMetric::Label> labels;
    int64_t value = 0;
  };
  void family(const std::string& name, const char* help, prometheus::MetricType type,
              const std::vector<Labelled>& series) {
    prometheus::MetricFamily family{name, help, type, {}};
    for (const auto& [labels, value] : series) {
      prometheus::ClientMetric metric = labelled();
      metric.label.insert(metric.label.end(), labels.begin(), labels.end());
      value_of(metric, type) = static_cast<double>(value);
      family.metric.push_back(std::move(metric));
    }
    families_.push_back(std::move(family));
  }
  // One series for each GPU that reports the figure.
  template <typename Get>
  void gpus(const std::string& name, const char* help, const std::vector<cuda::GpuFigures>& gpus,
            Get get) {
    prometheus::MetricFamily family{name, help, prometheus::MetricType::Gauge, {}};
    for (const cuda::GpuFigures& gpu : gpus) {
      const std::optional<double> value = get(gpu);
      if (!value) continue;
      prometheus::ClientMetric metric = labelled();
      metric.label.push_back({"gpu", std::to_string(gpu.index)});
      metric.label.push_back({"gpu_name", gpu.name});
      metric.gauge.value = *value;
      family.metric.push_back(std::move(metric));
    }
    if (!family.metric.empty()) families_.push_back(std::move(family));
  }
  // One series for each drafter; `fill` sets the value of its metric.
  template <typename Fill>
  void drafters(const std::string& name, const char* help, prometheus::MetricType type,
                const std::vector<DraftCounts>& by_drafter, Fill fill) {
    prometheus::MetricFamily family{name, help, type, {}};
    for (size_t i = 0; i < by_drafter.size(); ++i) {
      prometheus::ClientMetric& metric = family.metric.emplace_back(labelled());
      metric.label.push_back({"drafter", std::string(drafter_name(static_cast<Drafter>(i)))});
      fill(metric, by_drafter[i]);
    }
    if (!family.metric.empty()) families_.push_back(std::move(family));
  }
  void add_vllm_names(const VllmCacheShape& cache) {
    const auto model = labels_.find("model_name");
    append_vllm_names(families_, model == labels_.end() ? "" : model->second, cache);
  }
  std::string text() const { return prometheus::TextSerializer().Serialize(families_); }
  std::vector<prometheus::MetricFamily> take() { return std::move(families_); }
  // A name stands once, with the series of all.
  void merge(std::vector<prometheus::MetricFamily> others) {
    for (prometheus::MetricFamily& other : others) {
      const auto same = std::ranges::find(families_, other.name, &prometheus::MetricFamily::name);
      if (same == families_.end())
        families_.push_back(std::move(other));
      else
        std::ranges::move(other.metric, std::back_inserter(same->metric));
    }
  }

 private:
  prometheus::ClientMetric labelled() const {
    prometheus::ClientMetric metric;
    for (const auto& [key, label] : labels_) metric.label.push_back({key, label});
    return metric;
  }
  static double& value_of(prometheus::ClientMetric& metric, prometheus::MetricType type) {
    return type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
  }
  void add(const std::string& name, const char* help, prometheus::MetricType type, double value) {
    prometheus::ClientMetric metric = labelled();
    value_of(metric, type) = value;
    families_.push_back({name, help, type, {std::move(metric)}});
  }

  std::vector<prometheus::MetricFamily> families_;
  const prometheus::Labels& labels_;
};

void add_memory(Figures& f, const MemoryAccount& account) {
  const std::string name = "espalier:memory_" + account.name();
  f.gauge(name + "_bytes", "Bytes that all requests hold of it.", account.used());
  f.gauge(name + "_bytes_limit", "Bytes that they may hold.", account.limit());
  f.counter(name + "_refused_total", "Requests refused for want of it.", account.refused_total());
}

void add_adapters(Figures& f, const Engine& engine) {
  if (!engine.config().lora.enable_lora) return;
  int64_t bytes = 0;
  for (const LoadedAdapter& adapter : engine.adapters()) bytes += adapter.info.size_bytes;
  f.gauge("espalier:lora_adapter_bytes", "Memory that LoRA adapters hold.", bytes);
  f.gauge("espalier:lora_adapter_bytes_limit", "Memory that they may hold.",
          engine.config().lora.max_lora_bytes);
}

// Under the names of SGLang's middleware.
void add_http(Figures& f, const Metrics::Http& http) {
  std::vector<Figures::Labelled> started, active, answers;
  for (const HttpCounts::Figures& row : http.routes) {
    const Figures::Labelled one{{{"endpoint", row.endpoint}, {"method", row.method}}, row.started};
    started.push_back(one);
    active.push_back({one.labels, row.active});
    for (const auto& [status, count] : row.answers) {
      answers.push_back({one.labels, count});
      answers.back().labels.push_back({"status_code", std::to_string(status)});
    }
  }
  f.family("sglang:http_requests_total", "Requests so far, by route.",
           prometheus::MetricType::Counter, started);
  f.family("sglang:http_responses_total", "Answers begun so far, by route and status.",
           prometheus::MetricType::Counter, answers);
  f.family("sglang:http_requests_active", "Requests whose answer is not complete, by route.",
           prometheus::MetricType::Gauge, active);
  f.gauge("sglang:routing_keys_active", "Values of x-smg-routing-key of requests in progress.",
          http.num_routing_keys);
  f.gauge("espalier:http_connections", "Connections that are open.", http.connections_open);
  f.counter("espalier:http_dropped_slow_total", "Clients dropped because they did not read.",
            http.dropped_slow_total);
}

void add_load(Figures& f, const Engine& engine, const EngineStats& s) {
  f.gauge("sglang:num_running_reqs", "Requests in the batch.", s.requests.num_running);
  f.gauge("sglang:num_queue_reqs", "Requests that wait.", s.requests.num_waiting);
  for (const char* name : {"sglang:num_used_tokens", "sglang:kv_used_tokens"})
    f.gauge(name, "KV tokens of running requests.", s.memory.kv_tokens_running);
  f.gauge("sglang:kv_evictable_tokens", "KV tokens of cached prefixes.", s.memory.kv_tokens_cached);
  f.gauge("sglang:kv_available_tokens", "KV tokens that are free.",
          std::max(0, s.memory.kv_tokens - s.memory.kv_tokens_running - s.memory.kv_tokens_cached));
  f.gauge("sglang:max_total_num_tokens", "KV tokens of the pool.", s.memory.kv_tokens);
  for (const char* name : {"sglang:token_usage", "sglang:full_token_usage"})
    f.gauge(name, "Share of the pool that running requests use.",
            s.memory.kv_tokens == 0
                ? 0.0
                : static_cast<double>(s.memory.kv_tokens_running) / s.memory.kv_tokens);
  f.gauge("sglang:cache_hit_rate", "Share of prompt tokens that came from the cache.",
          s.cache_hit_rate());
  f.gauge("sglang:gen_throughput", "Output tokens a second.", s.tokens.generated_per_second);
  f.gauge("sglang:context_len", "Tokens that prompt and answer share.", engine.context_length());
  f.gauge("sglang:page_size", "Tokens of a page.", engine.config().cache.page_size);
  f.gauge("sglang:num_pages", "Pages of the pool.",
          s.memory.kv_tokens / engine.config().cache.page_size);
  f.gauge("sglang:num_streaming_sessions", "Sessions that are open.", s.sessions.num_open);
}

// Of all tokens since the start; 1 is even.
void add_experts(Figures& f, const EngineStats& s) {
  if (s.experts.tokens.empty()) return;
  const ExpertBalance balance = balance_of(s.experts);
  f.gauge("espalier:expert_busiest_over_mean", "Tokens of the busiest expert over the mean.",
          balance.over_experts);
  f.gauge("espalier:expert_rank_busiest_over_mean",
          "Tokens of the busiest group of ranks (--ep-size) over the mean.", balance.over_groups);
  f.counter("espalier:expert_moves_total",
            "Experts that were copied to another group or slot (--enable-eplb).",
            s.experts.num_moved);
}

void add_memory_of_model(Figures& f, const EngineStats& s) {
  constexpr double kGigabyte = 1e9;
  f.gauge("sglang:weight_memory_usage_gb", "Memory of the weights.",
          s.memory.weight_bytes / kGigabyte);
  f.gauge("sglang:kv_cache_memory_usage_gb", "Memory of the pool.", s.memory.kv_bytes / kGigabyte);
  f.gauge("sglang:graph_memory_usage_gb", "Memory reserved for graphs of a GPU.",
          s.memory.graph_bytes / kGigabyte);
}

void add_requests(Figures& f, const EngineStats& s) {
  f.counter("sglang:prompt_tokens_total", "Prompt tokens so far.", s.tokens.prompt);
  f.counter("sglang:generation_tokens_total", "Output tokens so far.", s.tokens.generated);
  f.counter("sglang:cached_tokens_total", "Prompt tokens that came from the cache so far.",
            s.tokens.cached);
  f.counters("sglang:realtime_tokens_total", "Tokens so far, by what was done for them.", "mode",
             {{"prefill_compute", s.tokens.prompt - s.tokens.cached},
              {"prefill_cache", s.tokens.cached},
              {"decode", s.tokens.generated}});
  f.counter("sglang:num_requests_total", "Requests so far.", s.requests.num_total);
  f.counter("sglang:num_aborted_requests_total", "Requests aborted so far.",
            s.requests.num_aborted);
  f.counter("espalier:failed_requests_total", "Requests that ended with an error so far.",
            s.requests.num_failed);
  f.counter("espalier:not_finite_total", "Of them, those whose logits contained NaN or infinity.",
            s.requests.num_not_finite);
  f.counter("sglang:num_retracted_requests_total", "Retractions so far.",
            s.requests.num_retractions);
}

// One series of each counter for each tier, labelled "tier".
void add_tiers(Figures& f, const EngineStats& s) {
  const KvTiersStats& tiers = s.tiers;
  if (tiers.stores.empty()) return;
  const auto add = [&](const char* name, const char* help, auto value_of) {
    std::vector<std::pair<std::string, int64_t>> values;
    for (const TierStats& tier : tiers.stores) values.emplace_back(tier.kind, value_of(tier));
    f.counters(name, help, "tier", values);
  };
  add("espalier:tier_pages_found_total", "Pages that were read from a tier.",
      [](const TierStats& t) { return t.store.found; });
  add("espalier:tier_pages_stored_total", "Pages that were stored in a tier.",
      [](const TierStats& t) { return t.store.stored; });
  add("espalier:tier_pages_evicted_total", "Pages that gave way to others in a tier.",
      [](const TierStats& t) { return t.store.evicted; });
  add("espalier:tier_pages_refused_total", "Pages that a tier did not take.",
      [](const TierStats& t) { return t.store.refused; });
  add("espalier:tier_errors_total", "Reads and writes that failed, and pages that were damaged.",
      [](const TierStats& t) { return t.store.errors + t.store.corrupt; });
  add("espalier:tier_cut_offs_total", "Times that a remote tier was cut off after a failure.",
      [](const TierStats& t) { return t.store.cut_offs; });
  add("espalier:tier_read_bytes_total", "Bytes read from a tier.",
      [](const TierStats& t) { return t.store.bytes_read; });
  add("espalier:tier_written_bytes_total", "Bytes written to a tier.",
      [](const TierStats& t) { return t.store.bytes_written; });
  f.counter("espalier:tier_cached_tokens_host_total",
            "Cached tokens that were loaded from the host's memory.", s.tokens.cached_host);
  f.counter("espalier:tier_cached_tokens_storage_total",
            "Cached tokens that were loaded from storage.", s.tokens.cached_storage);
  f.counter("espalier:tier_loads_total", "Prefixes that were loaded from tiers.", tiers.loads);
  f.counter("espalier:tier_loads_late_total", "Of them, those given up because they were late.",
            tiers.loads_late);
  f.counter("espalier:tier_load_seconds_total", "Time of all loads.", tiers.load_seconds);
  f.counter("espalier:tier_prefetch_requests_total",
            "Requests whose pages were looked for while they waited.", tiers.prefetch.requests);
  f.counter("espalier:tier_prefetch_pages_started_total",
            "Pages of storage that were asked for while their request waited.",
            tiers.prefetch.pages_started);
  f.counter("espalier:tier_prefetch_pages_total", "Of them, those that came to the host's memory.",
            tiers.prefetch.pages_fetched);
  f.gauge("espalier:tier_pinned_bytes", "Bytes of the host tier that are pinned for a GPU.",
          tiers.pinned_bytes);
}

void add_disaggregation(Figures& f, const EngineStats& s) {
  const DisaggregationStats& d = s.disaggregation;
  if (d.mode == "null") return;
  f.counter("espalier:disaggregation_transfers_total",
            "Prompts that went from a prefill server to a decode server.", d.num_transfers);
  f.counter("espalier:disaggregation_failures_total", "Prompts whose transfer failed.",
            d.num_failed);
  f.counter("espalier:disaggregation_bytes_total", "Bytes of pages sent or received.", d.num_bytes);
  f.counter("espalier:disaggregation_staged_bytes_total",
            "Of these bytes, those read from staging memory that both servers map.",
            d.num_staged_bytes);
  f.counter("espalier:disaggregation_seconds_total", "Time of the transfers that ended well.",
            d.seconds);
  if (d.mode == "prefill")
    f.counter("espalier:disaggregation_exposed_seconds_total",
              "Of this time, what lies behind the first token: no prefill hides it.",
              d.exposed_seconds);
  else
    f.counter("espalier:disaggregation_copy_seconds_total",
              "Time in which pages were copied from staging memory.", d.copy_seconds);
  f.gauge("espalier:disaggregation_waiting", "Prompts whose transfer is under way.", d.num_waiting);
  f.gauge("espalier:disaggregation_waiting_bytes", "Bytes of pages that wait to be sent.",
          d.waiting_bytes);
}

double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

void fill_accepted_lengths(prometheus::ClientMetric& metric, const DraftCounts& counts) {
  auto& histogram = metric.histogram;
  histogram.sample_sum = static_cast<double>(counts.accepted_tokens);
  const auto& entries = counts.accepted_lengths.entries;
  for (size_t n = 0; n < entries.size(); ++n) {
    histogram.sample_count += static_cast<uint64_t>(entries[n]);
    const bool is_last = n + 1 == entries.size();  // that many and more
    histogram.bucket.push_back(
        {histogram.sample_count,
         is_last ? std::numeric_limits<double>::infinity() : static_cast<double>(n)});
  }
}

void add_drafters(Figures& f, const EngineStats& s) {
  using Metric = prometheus::ClientMetric;
  using Type = prometheus::MetricType;
  f.drafters("espalier:spec_drafted_tokens_total", "Draft tokens proposed, by drafter.",
             Type::Counter, s.speculation.by_drafter, [](Metric& metric, const DraftCounts& c) {
               metric.counter.value = static_cast<double>(c.drafted_tokens);
             });
  f.drafters("espalier:spec_accepted_tokens_total", "Draft tokens accepted, by drafter.",
             Type::Counter, s.speculation.by_drafter, [](Metric& metric, const DraftCounts& c) {
               metric.counter.value = static_cast<double>(c.accepted_tokens);
             });
  f.drafters("espalier:spec_verify_ct_total",
             "Batch entries that verified draft tokens, by drafter.", Type::Counter,
             s.speculation.by_drafter, [](Metric& metric, const DraftCounts& c) {
               metric.counter.value = static_cast<double>(c.verify_steps);
             });
  f.drafters("espalier:spec_accept_rate", "Draft tokens accepted, of those proposed, by drafter.",
             Type::Gauge, s.speculation.by_drafter, [](Metric& metric, const DraftCounts& c) {
               metric.gauge.value = ratio(c.accepted_tokens, c.drafted_tokens);
             });
  f.drafters("espalier:spec_accept_length",
             "Tokens of an entry that verified draft tokens, its own too, by drafter.", Type::Gauge,
             s.speculation.by_drafter, [](Metric& metric, const DraftCounts& c) {
               metric.gauge.value =
                   c.verify_steps == 0 ? 0.0 : 1 + ratio(c.accepted_tokens, c.verify_steps);
             });
  f.drafters("espalier:spec_accepted_tokens",
             "Draft tokens that an entry which verified some accepted, by drafter.",
             Type::Histogram, s.speculation.by_drafter, fill_accepted_lengths);
}

void add_steps(Figures& f, const EngineStats& s) {
  f.counter("sglang:forward_execution_seconds_total", "Time in forward passes.",
            s.steps.forward_seconds);
  f.counter("espalier:steps_total", "Steps of the scheduler.", s.steps.num_steps);
  for (const char* name : {"espalier:batch_entries_total", "espalier:lanes_total"})
    f.counter(name, "Batch entries of all steps; over steps: the average batch.",
              s.steps.num_entries);
  f.counter("espalier:drafted_tokens_total", "Draft tokens proposed.",
            s.speculation.drafted_tokens);
  f.counter("espalier:accepted_drafts_total", "Draft tokens accepted.",
            s.speculation.accepted_tokens);
  f.counter("sglang:spec_verify_calls_total", "Batch entries that verified draft tokens.",
            s.speculation.num_verified);
  f.gauge("sglang:spec_accept_rate", "Draft tokens accepted, of those proposed.",
          ratio(s.speculation.accepted_tokens, s.speculation.drafted_tokens));
  f.gauge("sglang:spec_accept_length",
          "Tokens of an entry that verified draft tokens, its own too.",
          s.speculation.accept_length());
  add_drafters(f, s);
  f.counter("espalier:host_seconds_total", "Scheduling work of all steps.", s.steps.host_seconds);
  f.counter("espalier:slow_steps_total", "Steps longer than --soft-watchdog-timeout.",
            s.steps.num_slow);
  f.counter("espalier:very_slow_steps_total", "Steps longer than --watchdog-timeout.",
            s.steps.num_very_slow);
  f.counter("espalier:cache_events_total", "Events of the cache so far (--kv-events-config).",
            s.cache_events.num_total);
  f.counter("espalier:cache_events_overwritten_total", "Of them, those that are kept no more.",
            s.cache_events.num_overwritten);
}

void add_gpus(Figures& f, const std::vector<cuda::GpuFigures>& gpus) {
  using Gpu = cuda::GpuFigures;
  f.gpus("espalier:gpu_memory_used_bytes", "Memory of the GPU that programs hold.", gpus,
         [](const Gpu& gpu) { return static_cast<double>(gpu.memory_used_bytes); });
  f.gpus("espalier:gpu_memory_total_bytes", "Memory of the GPU.", gpus,
         [](const Gpu& gpu) { return static_cast<double>(gpu.memory_total_bytes); });
  f.gpus("espalier:gpu_utilization", "Share of the time in which a kernel ran.", gpus,
         [](const Gpu& gpu) { return gpu.utilisation; });
  f.gpus("espalier:gpu_temperature_celsius", "Temperature of the GPU.", gpus,
         [](const Gpu& gpu) { return gpu.temperature_celsius; });
  f.gpus("espalier:gpu_power_watts", "Power that the GPU draws.", gpus,
         [](const Gpu& gpu) { return gpu.power_watts; });
  f.gpus("espalier:gpu_power_limit_watts", "Power that it may draw.", gpus,
         [](const Gpu& gpu) { return gpu.power_limit_watts; });
}

void add_images(Figures& f, const EngineStats& s) {
  f.counter("espalier:images_total", "Pictures that requests brought.", s.images.num_total);
  f.counter("espalier:images_encoded_total",
            "Of them, those that were encoded; what the encoder made of the others was kept.",
            s.images.num_encoded);
  f.counter("espalier:image_encode_seconds_total", "Time in encoding pictures.",
            s.images.encode_seconds);
  f.gauge("espalier:image_row_bytes", "Memory of encoded pictures, in use and kept.",
          s.images.row_bytes);
}

void add_grammars(Figures& f, const EngineStats& s) {
  f.counter("sglang:num_grammar_total", "Requests with a grammar so far.",
            s.grammars.num_requested);
  f.counter("sglang:num_grammar_cache_hit_total", "Of them, those whose grammar was known.",
            s.grammars.num_cache_hits);
  f.counter("sglang:num_grammar_aborted_total",
            "Grammars that were wanted no more before they were compiled.",
            s.grammars.num_cancelled);
  f.gauge("sglang:num_grammar_queue_reqs", "Grammars that wait or are compiled.",
          s.grammars.num_waiting);
  f.gauge("espalier:num_grammars_kept", "Compiled grammars that are kept.", s.grammars.num_kept);
  f.gauge("espalier:session_bytes", "Memory that open sessions hold.", s.sessions.bytes);
  f.gauge("espalier:grammar_cache_bytes", "Memory that these hold.", s.grammars.kept_bytes);
  f.counter("espalier:grammars_compiled_total", "Grammars compiled so far.",
            s.grammars.num_compiled);
  f.counter("espalier:grammar_compile_seconds_total", "Time in compiling grammars.",
            s.grammars.compile_seconds);
  f.counter("espalier:masks_total", "Masks of constrained entries.", s.steps.num_masks);
  f.counter("espalier:mask_seconds_total", "The scheduler's time in filling masks.",
            s.steps.mask_seconds);
  f.counter("espalier:forced_tokens_total", "Output tokens that a grammar forced.",
            s.speculation.forced_tokens);
  f.counter("espalier:forwards_saved_total", "Entries that forced tokens have saved.",
            s.speculation.forwards_saved);
}

// Of each replica, under names of their own: a sum over series of the others stays true.
void add_replicas(Figures& f, const std::vector<const Engine*>& replicas) {
  if (replicas.size() < 2) return;
  std::vector<EngineStats> stats;
  for (const Engine* replica : replicas) stats.push_back(replica->stats());
  using Type = prometheus::MetricType;
  const auto add = [&](const char* name, const char* help, Type type, auto read) {
    std::vector<Figures::Labelled> series;
    for (size_t i = 0; i < stats.size(); ++i)
      series.push_back({{{"dp_rank", std::to_string(i)}}, int64_t{read(stats[i])}});
    f.family(std::string("espalier:replica_") + name, help, type, series);
  };
  using S = EngineStats;
  add("running_reqs", "Requests in the batch of a replica.", Type::Gauge,
      [](const S& s) { return s.requests.num_running; });
  add("queue_reqs", "Requests that wait there.", Type::Gauge,
      [](const S& s) { return s.requests.num_waiting; });
  add("kv_tokens", "KV tokens of its pool.", Type::Gauge,
      [](const S& s) { return s.memory.kv_tokens; });
  add("kv_used_tokens", "Of them, those of running requests.", Type::Gauge,
      [](const S& s) { return s.memory.kv_tokens_running; });
  add("kv_cached_tokens", "Of them, those of cached prefixes.", Type::Gauge,
      [](const S& s) { return s.memory.kv_tokens_cached; });
  add("requests_total", "Requests that it got so far.", Type::Counter,
      [](const S& s) { return s.requests.num_total; });
  add("failed_requests_total", "Of them, those that ended with an error.", Type::Counter,
      [](const S& s) { return s.requests.num_failed; });
  add("prompt_tokens_total", "Prompt tokens so far.", Type::Counter,
      [](const S& s) { return s.tokens.prompt; });
  add("cached_tokens_total", "Of them, those that came from its cache.", Type::Counter,
      [](const S& s) { return s.tokens.cached; });
  add("generation_tokens_total", "Output tokens so far.", Type::Counter,
      [](const S& s) { return s.tokens.generated; });
}

}  // namespace

namespace {

void add_model(Figures& f, Engine& engine) {
  const EngineStats s = engine.stats();
  add_load(f, engine, s);
  add_memory_of_model(f, s);
  add_experts(f, s);
  add_requests(f, s);
  add_steps(f, s);
  add_images(f, s);
  add_grammars(f, s);
  add_tiers(f, s);
  add_disaggregation(f, s);
  add_replicas(f, engine.replicas());
  add_adapters(f, engine);
  const WeightControl* const weights = engine.weights();
  f.gauge("espalier:released_memory_bytes",
          "Memory of weights and cache that is given back until /resume_memory_occupation.",
          weights == nullptr ? int64_t{0} : weights->released_memory().released_bytes);
  const int32_t page_size = engine.config().cache.page_size;
  f.add_vllm_names({.block_size = page_size, .num_blocks = s.memory.kv_tokens / page_size});
}

void add_server(Figures& f, const Metrics::Http& http) {
  add_gpus(f, http.gpus);
  for (const auto& account : http.accounts) add_memory(f, *account);
  add_http(f, http);
  if (!http.num_refused.empty())
    f.counters("espalier:rate_limited_total", "Calls refused by the limits of their key.", "tenant",
               http.num_refused);
}

}  // namespace

std::string Metrics::scrape(Engine& engine, const Http& http) const {
  Figures f(impl_->registry.Collect(), impl_->labels);
  add_model(f, engine);
  add_server(f, http);
  return f.text();
}

std::string Metrics::scrape(const std::vector<Source>& models, const Http& http) const {
  Figures all({}, impl_->labels);
  for (const Source& model : models) {
    const Impl& impl = *model.metrics->impl_;
    Figures f(impl.registry.Collect(), impl.labels);
    add_model(f, *model.engine);
    all.merge(f.take());
  }
  add_server(all, http);
  return all.text();
}

}  // namespace espalier::server
