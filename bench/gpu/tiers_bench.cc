#include "tiers_bench.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/executor/cuda/cuda_page_copier.h"
#include "engine/executor/cuda/device_planes.h"
#include "tensor/cuda/memory.h"

namespace espalier::bench {
namespace {

constexpr double kBytesPerGb = 1e9;
constexpr int32_t kRequests = 64;  // of decode

using Tokens = std::vector<TokenId>;
// Seconds from one token of a request to the next, by token: the median of all requests.
using Steps = std::vector<double>;

double middle_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

// Of the same tokens, in per cent. Contexts grow, so a median over all tokens would also move where
// few of them take longer.
double longer_percent(const Steps& steps, const Steps& base) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(steps.size(), base.size()); ++i)
    ratios.push_back(steps[i] / base[i]);
  return (middle_of(ratios) - 1) * 100;
}
double sum_of(const Steps& steps) { return std::accumulate(steps.begin(), steps.end(), 0.0); }

double seconds_since(TimePoint start) { return to_seconds(SteadyClock().now() - start); }

// One request: its tokens' times, and what it ended with.
class Timed {
 public:
  EventSink sink() {
    return [this](TokenEvent&& event) {
      const std::lock_guard lock(mutex_);
      if (!event.ids.empty()) times_.push_back(SteadyClock().now());
      ids_.insert(ids_.end(), event.ids.begin(), event.ids.end());
      if (!event.finish) return;
      stats_ = event.stats;
      status_ = event.finish->status;
      is_done_ = true;
      done_.notify_all();
    };
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return is_done_; });
    return status_;
  }
  // REQUIRE that wait() has returned.
  const RequestStats& stats() const { return stats_; }
  const Tokens& ids() const { return ids_; }
  double first_token_seconds() const { return to_seconds(stats_.first_token - stats_.arrived); }
  void append_intervals(std::vector<std::vector<double>>& by_token) const {
    by_token.resize(std::max(by_token.size(), times_.size() - 1));
    for (size_t i = 1; i < times_.size(); ++i)
      by_token[i - 1].push_back(to_seconds(times_[i] - times_[i - 1]));
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<TimePoint> times_;
  Tokens ids_;
  RequestStats stats_;
  Status status_;
  bool is_done_ = false;
};

GenerateRequest request_of(const Tokens& prompt, int32_t max_new_tokens) {
  GenerateRequest request{.input_ids = prompt};
  request.sampling.max_new_tokens = max_new_tokens;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  return request;
}

class TiersBench {
 public:
  explicit TiersBench(const TiersOptions& options) : options_(options) {}

  Result<std::vector<TiersRow>> run() {
    if (wants("first token")) ESP_RETURN_IF_ERROR(first_tokens());
    if (wants("copies")) ESP_RETURN_IF_ERROR(copies());
    if (wants("decode")) ESP_RETURN_IF_ERROR(decode());
    if (wants("beside")) ESP_RETURN_IF_ERROR(decode_beside_copies());
    if (wants("talks")) ESP_RETURN_IF_ERROR(talks());
    return std::move(rows_);
  }

 private:
  bool wants(const std::string& part) const {
    return part.find(options_.only) != std::string::npos;
  }
  void add(std::string name, double value, std::string unit) {
    rows_.push_back({std::move(name), value, std::move(unit)});
  }
  Tokens draw(int32_t count) {
    Tokens tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(rng_.below(32000)));
    return tokens;
  }

  // An engine whose host tier, if it has one, is pinned.
  Result<std::unique_ptr<Engine>> start(int32_t pool_tokens, double host_gb, int32_t max_running) {
    EngineConfig config{.model = {.model_path = options_.config,
                                  .load_format = LoadFormat::kDummy,
                                  .skip_tokenizer_init = true,
                                  .context_length = 40960},
                        .compute = {.device = "cuda"},
                        .cache = {.max_total_tokens = pool_tokens, .page_size = options_.page_size},
                        .schedule = {.max_running_requests = max_running},
                        .sampling = {.random_seed = options_.seed}};
    config.tiers.enable_hierarchical_cache = host_gb > 0;
    config.tiers.hicache_size_gb = host_gb;
    ESP_ASSIGN_OR_RETURN(auto engine, Engine::create(config));
    // The first steps load kernels and capture graphs.
    Timed warm;
    ESP_RETURN_IF_ERROR(ask(*engine, draw(600), 8, warm));
    if (host_gb > 0) wait_until_pinned(*engine);
    return engine;
  }
  void wait_until_pinned(Engine& engine) {
    const TimePoint begin = SteadyClock().now();
    double pinned = 0;
    while (pinned < 1 && seconds_since(begin) < 30) {
      const KvTiersStats tiers = engine.stats().tiers;
      const TierStats& host = tiers.stores.at(0);
      pinned = static_cast<double>(tiers.pinned_bytes) /
               static_cast<double>(host.store.num_pages_max * host.page_bytes);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    add("host tier, pinned", pinned * 100, "%");
    add("host tier, pinned after the first request", seconds_since(begin), "s");
  }
  static Status ask(Engine& engine, const Tokens& prompt, int32_t max_new_tokens, Timed& timed) {
    const auto rid = engine.submit(request_of(prompt, max_new_tokens), timed.sink());
    if (!rid) return rid.error();
    return timed.wait();
  }
  // Until the pages of a prompt that was computed last are in the host's memory.
  static void wait_for_saves(Engine& engine) {
    const auto stored = [&] { return engine.stats().tiers.stores.at(0).store.stored; };
    int64_t last = -1;
    for (int64_t now = stored(); now != last; now = stored()) {
      last = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  // Prompts that together exceed the pool, one after the other: the first round computes them, and
  // in the later ones each has been evicted by those behind it. The pool holds little more than one
  // long prompt, or the first pages of the other would be there still.
  Status first_tokens() {
    ESP_ASSIGN_OR_RETURN(auto engine, start(32768 + 128, 20, 4));
    struct Case {
      int32_t tokens = 0, prompts = 0;
    };
    for (const Case& c : {Case{8192, 6}, Case{32768, 2}}) {
      std::vector<Tokens> prompts;
      for (int32_t i = 0; i < c.prompts; ++i) prompts.push_back(draw(c.tokens + 1));
      std::vector<double> computed, loaded;
      std::vector<TokenId> tokens;
      const double loads_before = engine->stats().tiers.load_seconds;
      int64_t num_loaded = 0, num_other = 0;
      for (int round = 0; round < (options_.quick ? 2 : 3); ++round)
        for (size_t i = 0; i < prompts.size(); ++i) {
          Timed timed;
          ESP_RETURN_IF_ERROR(ask(*engine, prompts[i], 1, timed));
          (round == 0 ? computed : loaded).push_back(timed.first_token_seconds());
          if (round == 0) {
            tokens.push_back(timed.ids().at(0));
            wait_for_saves(*engine);
            continue;
          }
          const int32_t host = timed.stats().cached_tokens_host;
          if (host < c.tokens - 8 * options_.page_size)
            return error(StatusCode::kInternal, "{} of {} tokens came from the host", host,
                         c.tokens);
          num_loaded += host;
          num_other += timed.ids().at(0) != tokens[i] ? 1 : 0;
        }
      const std::string name = "first token of " + std::to_string(c.tokens) + " tokens, ";
      const double own = middle_of(computed), host = middle_of(loaded);
      add(name + "computed", own * 1e3, "ms");
      add(name + "from the host", host * 1e3, "ms");
      add(name + "less", (1 - host / own) * 100, "%");
      const double seconds = engine->stats().tiers.load_seconds - loads_before;
      const auto& store = engine->stats().tiers.stores.at(0);
      add(name + "rate of whole loads",
          static_cast<double>(num_loaded / options_.page_size * store.page_bytes) / kBytesPerGb /
              seconds,
          "GB/s");
      add(name + "answers with another first token", static_cast<double>(num_other), "requests");
    }
    return {};
  }

  // What one page at a time, several, and one long copy reach, with the shapes of the model.
  Status copies() {
    ESP_ASSIGN_OR_RETURN(const auto engine, start(4096, 0, 4));
    ESP_ASSIGN_OR_RETURN(const KvType type,
                         resolve_kv_type(engine->config(), engine->model_info()));
    KvPoolConfig pool_config = kv_pool_config(engine->config(), engine->model_info(), type);
    pool_config.num_pages = 32768 / options_.page_size;
    ESP_ASSIGN_OR_RETURN(const KvPool pool, KvPool::create(pool_config, allocate_device_planes));
    ESP_ASSIGN_OR_RETURN(const auto copier, CudaPageCopier::create(pool.view()));
    const int64_t page_bytes = copier->page_bytes();
    const int64_t num_pages = std::min<int64_t>(pool_config.num_pages, (2ll << 30) / page_bytes);
    ESP_ASSIGN_OR_RETURN(const cuda::PinnedBuffer host,
                         cuda::PinnedBuffer::allocate(num_pages * page_bytes, "pages"));
    std::vector<PageId> scattered(static_cast<size_t>(num_pages));
    for (PageId i = 0; i < num_pages; ++i) scattered[static_cast<size_t>(i)] = i;
    for (size_t i = scattered.size(); i-- > 1;)
      std::swap(scattered[i], scattered[rng_.below(i + 1)]);
    for (const bool loads : {true, false})
      for (const size_t depth : {size_t{1}, size_t{4}}) {
        std::vector<double> rates;
        for (int repeat = 0; repeat < 4; ++repeat) {
          const TimePoint begin = SteadyClock().now();
          ESP_RETURN_IF_ERROR(copy_all(*copier, scattered, host, loads, depth));
          rates.push_back(static_cast<double>(num_pages * page_bytes) / kBytesPerGb /
                          seconds_since(begin));
        }
        add(std::string("copies, ") + (loads ? "loads, " : "saves, ") + std::to_string(depth) +
                " pages at a time",
            middle_of(rates), "GB/s");
      }
    return whole_copies(pool, host);
  }
  static Status copy_all(PageCopier& copier, const std::vector<PageId>& pages,
                         const cuda::PinnedBuffer& host, bool loads, size_t depth) {
    const auto page_bytes = static_cast<size_t>(copier.page_bytes());
    std::vector<PageCopier::Transfer> transfers(pages.size());
    for (size_t i = 0; i < pages.size() + depth; ++i) {
      if (i >= depth) ESP_RETURN_IF_ERROR(copier.finish(transfers[i - depth]));
      if (i >= pages.size()) continue;
      const std::span<std::byte> bytes(host.data() + i * page_bytes, page_bytes);
      transfers[i] =
          loads ? copier.begin_write(pages[i], bytes) : copier.begin_read(pages[i], bytes);
    }
    return {};
  }
  // The ceiling: the same bytes in one copy.
  Status whole_copies(const KvPool& pool, const cuda::PinnedBuffer& host) {
    ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
    auto* const device = static_cast<std::byte*>(pool.view().layers.front().k);
    const int64_t bytes = std::min(host.size_bytes(), pool.bytes() - (4 << 20));
    for (const bool loads : {true, false}) {
      std::vector<double> rates;
      for (int repeat = 0; repeat < 4; ++repeat) {
        const TimePoint begin = SteadyClock().now();
        ESP_RETURN_IF_ERROR(loads ? cuda::copy_to_device(device, host.data(), bytes, stream)
                                  : cuda::copy_to_host(host.data(), device, bytes, stream));
        ESP_RETURN_IF_ERROR(stream.synchronize());
        rates.push_back(static_cast<double>(bytes) / kBytesPerGb / seconds_since(begin));
      }
      add(std::string("copies, ") + (loads ? "loads" : "saves") + ", all in one (ceiling)",
          middle_of(rates), "GB/s");
    }
    return {};
  }

  // 64 requests of 1,024 tokens in, 512 out, without a tier, with one, and with one that is busy.
  Status decode() {
    constexpr int32_t kPool = kRequests * (1024 + 512 + 64) + 32768;
    const std::string name = "decode of 64 x 1,024/512, ";
    Steps plain;
    for (const double host_gb : {0.0, 20.0}) {
      ESP_ASSIGN_OR_RETURN(auto engine, start(kPool, host_gb, kRequests + 1));
      int64_t num_loads = 0;
      ESP_ASSIGN_OR_RETURN(const Steps steps, decode_once(*engine, {}, num_loads));
      if (host_gb == 0) plain = steps;
      add(name + (host_gb > 0 ? "a tier" : "no tier"), middle_of(steps) * 1e3, "ms/step");
      if (host_gb == 0) continue;
      add(name + "a tier, longer", longer_percent(steps, plain), "%");
      ESP_RETURN_IF_ERROR(engine->flush_cache());
      std::vector<Tokens> others;
      for (int i = 0; i < 6; ++i) {
        Timed other;
        ESP_RETURN_IF_ERROR(ask(*engine, others.emplace_back(draw(8192 + 1)), 1, other));
      }
      const KvTiersStats before = engine->stats().tiers;
      ESP_ASSIGN_OR_RETURN(const Steps busy, decode_once(*engine, others, num_loads));
      add(name + "a busy tier", middle_of(busy) * 1e3, "ms/step");
      // The same cache without loads: its pages have no order by now, as in no new engine.
      int64_t none = 0;
      ESP_ASSIGN_OR_RETURN(const Steps after, decode_once(*engine, {}, none));
      add(name + "the tier when it is quiet again", middle_of(after) * 1e3, "ms/step");
      add(name + "a busy tier, a token longer than then", longer_percent(busy, after), "%");
      add(name + "a busy tier, a token longer than without", longer_percent(busy, plain), "%");
      add(name + "a busy tier, all tokens longer than then",
          (sum_of(busy) / sum_of(after) - 1) * 100, "%");
      const KvTiersStats tiers = engine->stats().tiers;
      add(name + "a busy tier, time of a load",
          (tiers.load_seconds - before.load_seconds) /
              static_cast<double>(std::max<int64_t>(1, tiers.loads - before.loads)) * 1e3,
          "ms");
      add(name + "a busy tier, prefixes loaded meanwhile", static_cast<double>(num_loads),
          "requests");
    }
    return {};
  }
  // Another client's prefixes are asked
  // for in turn meanwhile; where the pool has no room for all, each has been evicted by then.
  Result<Steps> decode_once(Engine& engine, const std::vector<Tokens>& others, int64_t& num_loads) {
    // Shared with the sinks, because a failed submission returns before the others have ended.
    std::vector<std::shared_ptr<Timed>> all;
    for (int32_t i = 0; i < kRequests; ++i) {
      const auto timed = all.emplace_back(std::make_shared<Timed>());
      const auto rid = engine.submit(
          request_of(draw(1024), options_.quick ? 128 : 512),
          [timed, sink = timed->sink()](TokenEvent&& event) { sink(std::move(event)); });
      if (!rid) return fail(rid.error());
    }
    std::atomic<bool> ends = false;
    std::atomic<int64_t> loaded = 0;
    std::thread other([&] {
      for (size_t i = 0; !ends && !others.empty(); ++i) {
        Timed one;
        if (!ask(engine, others[i % others.size()], 1, one).ok()) return;
        loaded += one.stats().cached_tokens_host > 0 ? 1 : 0;
      }
    });
    Status status;
    std::vector<std::vector<double>> by_token;
    for (const auto& timed : all) {
      if (const Status ended = timed->wait(); !ended.ok()) status = ended;
      if (status.ok()) timed->append_intervals(by_token);
    }
    ends = true;
    other.join();
    ESP_RETURN_IF_ERROR(status);
    num_loads = loaded;
    Steps steps;
    for (std::vector<double>& intervals : by_token) steps.push_back(middle_of(intervals));
    return steps;
  }

  // What copies alone cost the same steps: another thread copies a cache of its own meanwhile.
  Status decode_beside_copies() {
    ESP_ASSIGN_OR_RETURN(auto engine, start(kRequests * (1024 + 512 + 64), 0, kRequests + 1));
    ESP_ASSIGN_OR_RETURN(const KvType type,
                         resolve_kv_type(engine->config(), engine->model_info()));
    KvPoolConfig pool_config = kv_pool_config(engine->config(), engine->model_info(), type);
    pool_config.num_pages = 16384 / options_.page_size;
    ESP_ASSIGN_OR_RETURN(const KvPool pool, KvPool::create(pool_config, allocate_device_planes));
    ESP_ASSIGN_OR_RETURN(const auto copier, CudaPageCopier::create(pool.view()));
    ESP_ASSIGN_OR_RETURN(
        const cuda::PinnedBuffer host,
        cuda::PinnedBuffer::allocate(pool_config.num_pages * copier->page_bytes(), "pages"));
    std::vector<PageId> pages(static_cast<size_t>(pool_config.num_pages));
    for (PageId i = 0; i < pool_config.num_pages; ++i) pages[static_cast<size_t>(i)] = i;
    int64_t none = 0;
    ESP_ASSIGN_OR_RETURN(const Steps plain, decode_once(*engine, {}, none));
    const std::string name = "decode beside ";
    add(name + "nothing", middle_of(plain) * 1e3, "ms/step");
    struct Case {
      const char* what;
      bool loads, whole;
      std::chrono::microseconds pause;  // behind each 8 pages, or 16 MiB
    };
    using std::chrono::microseconds;
    for (const Case& c : {Case{"loads of pages", true, false, microseconds(0)},
                          {"loads in one piece", true, true, microseconds(0)},
                          {"saves of pages", false, false, microseconds(0)},
                          {"loads of pages with pauses", true, false, microseconds(600)}}) {
      std::atomic<bool> ends = false;
      int64_t num_pages = 0;
      Status copied;
      const TimePoint begin = SteadyClock().now();
      std::thread copies([&] {
        for (size_t at = 0; !ends && copied.ok(); at = (at + 8) % pages.size(), num_pages += 8) {
          copied = c.whole ? copy_whole(pool, host, at * 2 << 20, 16 << 20)
                           : copy_all(*copier,
                                      {pages.begin() + static_cast<std::ptrdiff_t>(at),
                                       pages.begin() + static_cast<std::ptrdiff_t>(at + 8)},
                                      host, c.loads, 4);
          if (c.pause.count() > 0) std::this_thread::sleep_for(c.pause);
        }
      });
      const auto steps = decode_once(*engine, {}, none);
      const double seconds = seconds_since(begin);
      ends = true;
      copies.join();
      ESP_RETURN_IF_ERROR(copied);
      if (!steps) return steps.error();
      add(name + c.what + ", longer", longer_percent(*steps, plain), "%");
      add(name + c.what + ", rate of the copies",
          static_cast<double>(num_pages * copier->page_bytes()) / kBytesPerGb / seconds, "GB/s");
    }
    return {};
  }
  static Status copy_whole(const KvPool& pool, const cuda::PinnedBuffer& host, size_t at,
                           int64_t bytes) {
    thread_local const auto stream = cuda::Stream::create();
    if (!stream) return stream.error();
    auto* const device = static_cast<std::byte*>(pool.view().layers.front().k);
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(device + at, host.data() + at, bytes, *stream));
    return stream->synchronize();
  }

  // Talks whose histories grow by 2,000 tokens a turn to 8,000, all talks' turns in rounds.
  Status talks() {
    const int32_t num_talks = options_.quick ? 12 : 24;
    constexpr int32_t kTurns = 4, kNew = 1984, kOut = 16, kAtOnce = 4;
    const int32_t all = num_talks * kTurns * (kNew + kOut + options_.page_size);
    const int32_t capped = kAtOnce * kTurns * (kNew + kOut) * 5 / 4;
    const double host_gb = options_.quick ? 14 : 28;  // of all talks, at 131,072 bytes a token
    struct Case {
      const char* name;
      int32_t pool;
      double host_gb;
    };
    double uncapped = 0;
    for (const Case& c : {Case{"uncapped", all, 0}, Case{"capped, with a tier", capped, host_gb},
                          Case{"capped, without", capped, 0}}) {
      const int32_t pool = c.pool / options_.page_size * options_.page_size;
      ESP_ASSIGN_OR_RETURN(auto engine, start(pool, c.host_gb, kAtOnce));
      rng_ = Rng(options_.seed);
      std::vector<Tokens> histories(static_cast<size_t>(num_talks));
      double prompts = 0, cached = 0;
      const TimePoint begin = SteadyClock().now();
      for (int32_t turn = 0; turn < kTurns; ++turn)
        ESP_RETURN_IF_ERROR(take_turn(*engine, histories, kNew, kOut, kAtOnce, prompts, cached));
      const double seconds = seconds_since(begin);
      const std::string name =
          "talks (" + std::to_string(num_talks) + " to 8,000 tokens), " + c.name;
      if (uncapped == 0) uncapped = seconds;
      add(name + ", pool", pool, "tokens");
      add(name, seconds, "s");
      add(name + ", throughput of the uncapped", uncapped / seconds * 100, "%");
      add(name + ", cached", cached / prompts * 100, "%");
    }
    return {};
  }
  // As many talks at a time as `at_once`, each by a client of its own.
  Status take_turn(Engine& engine, std::vector<Tokens>& histories, int32_t num_new, int32_t num_out,
                   int32_t at_once, double& prompts, double& cached) {
    for (Tokens& history : histories) {
      const Tokens more = draw(num_new);
      history.insert(history.end(), more.begin(), more.end());
    }
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    Status status;
    std::vector<std::thread> clients;
    for (int32_t i = 0; i < at_once; ++i)
      clients.emplace_back([&] {
        for (size_t at = next++; at < histories.size(); at = next++) {
          Timed timed;
          const Status ended = ask(engine, histories[at], num_out, timed);
          histories[at].insert(histories[at].end(), timed.ids().begin(), timed.ids().end());
          const std::lock_guard lock(mutex);
          if (!ended.ok()) status = ended;
          prompts += timed.stats().prompt_tokens;
          cached += timed.stats().cached_tokens;
        }
      });
    for (std::thread& client : clients) client.join();
    return status;
  }

  const TiersOptions options_;
  Rng rng_{17};
  std::vector<TiersRow> rows_;
};

}  // namespace

Result<std::vector<TiersRow>> run_tiers(const TiersOptions& options) {
  return TiersBench(options).run();
}

}  // namespace espalier::bench
