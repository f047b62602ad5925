#include "engine/disaggregation/decode_side.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace espalier {
namespace {

// What a client can do nothing about is the servers' fault: 503, and another pair may answer.
Status advised(const Status& status) {
  const bool is_clients = status.code() == StatusCode::kInvalidArgument;
  const bool is_temporary = status.code() == StatusCode::kResourceExhausted ||
                            status.code() == StatusCode::kDeadlineExceeded;
  return {is_clients || is_temporary ? status.code() : StatusCode::kUnavailable,
          status.message() + (is_clients ? ""
                                         : "; send the request again, to this or another pair "
                                           "of servers")};
}

}  // namespace

// One transfer and its thread's side of it.
class DecodeSide::Fetch {
 public:
  Fetch(SequenceId id, transfer::PageFetchConfig config, transfer::Hello hello,
        const LoadRequest& request, PageCopier& copier, StagingMaps& maps, TimePoint started)
      : id_(id),
        num_tokens_(static_cast<int32_t>(request.tokens.size())),
        num_cached_(request.num_cached),
        started_(started),
        pages_(request.pages.begin(), request.pages.end()),
        copier_(copier),
        maps_(maps),
        page_bytes_(static_cast<size_t>(hello.shape.page_bytes)),
        fetch_(std::move(config), std::move(hello)) {}

  SequenceId id() const { return id_; }
  int32_t num_tokens() const { return num_tokens_; }
  int32_t num_cached() const { return num_cached_; }
  TimePoint started() const { return started_; }
  bool has_ended() const { return has_ended_; }
  bool is_done() const { return is_done_; }
  // REQUIRE has_ended(), or fail_start().
  Result<transfer::Fetched>& result() { return result_; }
  double copy_seconds() const { return copy_seconds_; }

  void run(Signal& signal) {
    set_thread_name("fetch-pages");
    try {
      result_ = fetch_.run(
          [this](uint32_t first, std::span<const std::byte> bytes) { return take(first, bytes); },
          staging());
    } catch (const std::exception&) {
      result_ = fail(Status(StatusCode::kResourceExhausted, "no memory for the transfer"));
    }
    if (!result_ && staging_ != nullptr) maps_.forget(handle_);
    staging_.reset();
    has_ended_ = true;
    {
      const std::lock_guard lock(signal.mutex);
      if (signal.notify) signal.notify();
    }
    is_done_ = true;
  }
  void fail_start(Status status) {
    result_ = fail(std::move(status));
    has_ended_ = is_done_ = true;
  }
  // No page is written any more once it has returned.
  void cancel() {
    fetch_.cancel();
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
  }

 private:
  transfer::PageFetch::Staging staging() {
    const std::string kind = copier_.staging_kind();
    if (kind.empty()) return {};
    return {.kind = kind,
            .map =
                [this](const StagingHandle& handle) {
                  handle_ = handle;
                  staging_ = maps_.map(handle);
                  return staging_ != nullptr;
                },
            .take = [this](const transfer::StagedView& staged) { return take(staged); }};
  }
  bool has(uint64_t first, uint64_t count) const { return first + count <= pages_.size(); }

  // Transfers of all pages run at the same time.
  bool take(uint32_t first, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    const size_t count = bytes.size() / page_bytes_;
    if (is_cancelled_ || !has(first, count)) return false;
    std::vector<PageCopier::Transfer> transfers(count);
    for (size_t i = 0; i < count; ++i)
      transfers[i] =
          copier_.begin_write(pages_[first + i], bytes.subspan(i * page_bytes_, page_bytes_));
    bool ok = true;
    for (const PageCopier::Transfer transfer : transfers) ok &= copier_.finish(transfer).ok();
    return ok;
  }
  bool take(const transfer::StagedView& staged) {
    const std::lock_guard lock(mutex_);
    if (is_cancelled_ || staging_ == nullptr || !has(staged.first, staged.num_pages()))
      return false;
    const auto pages = std::span(pages_).subspan(staged.first, staged.num_pages());
    const TimePoint start = SteadyClock().now();
    const Status status = staging_->take(staged.parts, staged.planes, pages);
    copy_seconds_ += to_seconds(SteadyClock().now() - start);
    if (!status.ok()) log_error("staged pages cannot be copied error=\"{}\"", status.message());
    return status.ok();
  }

  const SequenceId id_;
  const int32_t num_tokens_, num_cached_;
  const TimePoint started_;
  const std::vector<PageId> pages_;
  PageCopier& copier_;
  StagingMaps& maps_;
  const size_t page_bytes_;
  transfer::PageFetch fetch_;
  StagingHandle handle_;                    // of what was mapped
  std::shared_ptr<MappedStaging> staging_;  // shared with other fetches; null: bytes come
  double copy_seconds_ = 0;                 // from staging memory
  Result<transfer::Fetched> result_;
  std::atomic<bool> has_ended_ = false;  // result_ is there
  std::atomic<bool> is_done_ = false;    // its thread touches nothing any more
  std::mutex mutex_;
  bool is_cancelled_ = false;
};

DecodeSide::DecodeSide(const DecodeSideConfig& config, PageCopier& copier, const Clock& clock,
                       KvLoader* tiers)
    : config_(config),
      copier_(copier),
      clock_(clock),
      tiers_(tiers),
      signal_(std::make_shared<Signal>()),
      maps_(copier),
      stats_({.mode = "decode"}) {}

DecodeSide::~DecodeSide() {
  notify(nullptr);
  for (Running& running : running_) running.fetch->cancel();
  ended_.splice(ended_.end(), running_);
  reap(/*all=*/true);
}

void DecodeSide::notify(std::function<void()> load_ended) {
  const std::lock_guard lock(signal_->mutex);
  signal_->notify = std::move(load_ended);
}

Status DecodeSide::begin(const Prompt& prompt) {
  expected_[prompt.id] = {
      .host = prompt.bootstrap.host,
      .port = prompt.bootstrap.port,
      .hello = {.key = {prompt.bootstrap.room, static_cast<uint32_t>(prompt.index)},
                .shape = config_.shape,
                .prompt = page_name(root_page_name(config_.name_scope, "", prompt.cache_namespace),
                                    prompt.tokens),
                .num_tokens = static_cast<uint32_t>(prompt.tokens.size())}};
  return {};
}

void DecodeSide::on_finish(SequenceId id, const FinishReason&) { expected_.erase(id); }

// Tiers are not searched for a prompt that a prefill server computes.
void DecodeSide::prefetch(const LoadRequest& request) {
  if (tiers_ != nullptr && !expected_.contains(request.id)) tiers_->prefetch(request);
}

void DecodeSide::forget(SequenceId id) {
  if (tiers_ != nullptr) tiers_->forget(id);
}

int32_t DecodeSide::num_available(const LoadRequest& request) {
  if (expected_.contains(request.id)) return static_cast<int32_t>(request.tokens.size());
  return tiers_ != nullptr ? tiers_->num_available(request) : request.num_cached;
}

void DecodeSide::start(const LoadRequest& request) {
  const auto found = expected_.find(request.id);
  if (found == expected_.end()) return tiers_->start(request);
  Expected expected = std::move(found->second);
  expected_.erase(found);
  expected.hello.num_cached = static_cast<uint32_t>(request.num_cached) / config_.shape.page_size;
  auto fetch =
      std::make_shared<Fetch>(request.id,
                              transfer::PageFetchConfig{
                                  .host = std::move(expected.host),
                                  .port = expected.port,
                                  .token = config_.token,
                                  .connect_timeout = config_.connect_timeout,
                                  .silence_max = config_.silence_max,
                              },
                              std::move(expected.hello), request, copier_, maps_, clock_.now());
  Running& running = running_.emplace_back(Running{.fetch = std::move(fetch)});
  {
    const std::lock_guard lock(stats_mutex_);
    ++stats_.num_waiting;
  }
  if (ended_.size() >= config_.num_ending_max)
    return running.fetch->fail_start(
        error(StatusCode::kResourceExhausted,
              "{} cancelled transfers still connect to hosts that do not answer", ended_.size()));
  try {
    running.thread =
        std::thread([fetch = running.fetch, signal = signal_] { fetch->run(*signal); });
  } catch (const std::system_error&) {
    running.fetch->fail_start(
        error(StatusCode::kResourceExhausted, "the system gives no thread for the transfer"));
  }
}

// Before its start: it will not be fetched.
void DecodeSide::cancel(SequenceId id) {
  if (expected_.erase(id) > 0) return;
  const auto found = std::ranges::find_if(
      running_, [id](const Running& running) { return running.fetch->id() == id; });
  if (found != running_.end())
    found->is_cancelled = true;
  else if (tiers_ != nullptr)
    tiers_->cancel(id);
}

Status DecodeSide::check_tokens(const transfer::Fetched& fetched) const {
  const auto known = [&](const std::pair<TokenId, float>& token) {
    return token.first >= 0 && token.first < config_.vocab_size;
  };
  const auto all_known = [&](const TokenLogprobs& logprobs) {
    return std::ranges::all_of(logprobs.top, known) && std::ranges::all_of(logprobs.wanted, known);
  };
  const bool ok = known({fetched.first.token, 0.f}) && all_known(fetched.first.logprobs) &&
                  std::ranges::all_of(fetched.logprobs, [&](const transfer::InputLogprobs& part) {
                    return std::ranges::all_of(part.logprobs, all_known);
                  });
  return ok ? Status()
            : error(StatusCode::kUnavailable,
                    "the prefill server sent tokens that the vocabulary does not have");
}

LoadResult DecodeSide::result_of(Fetch& fetch) {
  LoadResult result{.id = fetch.id(), .num_tokens = fetch.num_cached()};
  Result<transfer::Fetched>& fetched = fetch.result();
  if (!fetched)
    result.status = advised(fetched.error());
  else if (static_cast<int32_t>(fetched->first.num_tokens) != fetch.num_tokens())
    result.status = advised(error(StatusCode::kUnavailable,
                                  "the prefill server computed {} tokens, and {} were expected",
                                  fetched->first.num_tokens, fetch.num_tokens()));
  else if (Status status = check_tokens(*fetched); !status.ok())
    result.status = advised(status);
  if (!result.status.ok()) return result;
  result.num_tokens = fetch.num_tokens();
  result.prefill = std::make_unique<RemotePrefill>();
  result.prefill->token = fetched->first.token;
  result.prefill->logprobs = std::move(fetched->first.logprobs);
  result.prefill->cached_tokens = static_cast<int32_t>(fetched->first.cached_tokens);
  for (transfer::InputLogprobs& part : fetched->logprobs)
    result.prefill->input_logprobs.push_back(
        {static_cast<int32_t>(part.first), std::move(part.logprobs)});
  return result;
}

// A load that was cancelled gives what was cached before it.
void DecodeSide::end(Running& running, std::vector<LoadResult>& ended) {
  Fetch& fetch = *running.fetch;
  if (running.is_cancelled) fetch.cancel();
  LoadResult result = running.is_cancelled
                          ? LoadResult{.id = fetch.id(), .num_tokens = fetch.num_cached()}
                          : result_of(fetch);
  {
    const std::lock_guard lock(stats_mutex_);
    const bool ok = result.prefill != nullptr;
    --stats_.num_waiting;
    if (!running.is_cancelled) ++(ok ? stats_.num_transfers : stats_.num_failed);
    if (ok) {
      stats_.num_bytes += fetch.result()->num_bytes;
      stats_.num_staged_bytes += fetch.result()->num_staged_bytes;
      stats_.copy_seconds += fetch.copy_seconds();
      stats_.seconds += to_seconds(clock_.now() - fetch.started());
    }
  }
  ended.push_back(std::move(result));
}

void DecodeSide::poll(std::vector<LoadResult>& ended) {
  if (tiers_ != nullptr) tiers_->poll(ended);
  for (auto it = running_.begin(); it != running_.end();) {
    const auto at = it++;
    if (!at->is_cancelled && !at->fetch->has_ended()) continue;
    end(*at, ended);
    ended_.splice(ended_.end(), running_, at);
  }
  if (!ended_.empty()) reap(/*all=*/false);
}

void DecodeSide::reap(bool all) {
  std::erase_if(ended_, [all](Running& running) {
    if (!all && !running.fetch->is_done()) return false;
    if (running.thread.joinable()) running.thread.join();
    return true;
  });
}

DisaggregationStats DecodeSide::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

}  // namespace espalier
