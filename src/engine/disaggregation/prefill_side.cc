#include "engine/disaggregation/prefill_side.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"

namespace espalier {

Result<std::unique_ptr<PrefillSide>> PrefillSide::start(const PrefillSideConfig& config,
                                                        PageCopier& copier, const Clock& clock) {
  std::unique_ptr<PrefillSide> side(new PrefillSide(config, copier, clock));
  ESP_ASSIGN_OR_RETURN(side->server_, transfer::PageServer::start(config.server, side->rooms_));
  log_info("decode servers are served host={} port={}", config.server.host, side->server_->port());
  return side;
}

PrefillSide::PrefillSide(const PrefillSideConfig& config, PageCopier& copier, const Clock& clock)
    : config_(config),
      copier_(copier),
      rooms_(config.bytes_max, config.server.room_timeout, clock) {}

Status PrefillSide::begin(const Prompt& prompt) {
  const auto num_tokens = static_cast<uint32_t>(prompt.tokens.size());
  const uint32_t page_size = config_.server.shape.page_size;
  const transfer::RoomKey key{prompt.bootstrap.room, static_cast<uint32_t>(prompt.index)};
  ESP_ASSIGN_OR_RETURN(
      auto room,
      rooms_.open(key,
                  {.name = page_name(root_page_name(config_.name_scope, "", prompt.cache_namespace),
                                     prompt.tokens),
                   .num_tokens = num_tokens,
                   .page_bytes = config_.server.shape.page_bytes},
                  (num_tokens + page_size - 1) / page_size));
  exports_.emplace(prompt.id, Export{.key = key, .room = std::move(room)});
  return {};
}

void PrefillSide::on_prefilled(SequenceId id, const PrefillProgress& progress) {
  const auto found = exports_.find(id);
  if (found == exports_.end()) return;
  Export& prompt = found->second;
  add_pages(prompt, progress);
  add_logprobs(prompt, progress);
  if (!progress.has_token || std::exchange(prompt.has_token, true)) return;
  prompt.room->end({.token = progress.token,
                    .num_tokens = static_cast<uint32_t>(progress.num_tokens),
                    .cached_tokens = static_cast<uint32_t>(progress.cached_tokens),
                    .logprobs = *progress.token_logprobs});
}

// What fits into staging memory is copied while the step computes it, in whole pages of the prompt:
// tokens that a grammar forces may still come into its last page. on_prefilled() adds the rest.
void PrefillSide::on_launch(const ForwardBatch& batch) {
  if (config_.staging == nullptr || exports_.empty()) return;
  const auto page_size = static_cast<int32_t>(config_.server.shape.page_size);
  for (const BatchEntry& entry : batch.entries) {
    const auto found = exports_.find(entry.sequence);
    if (found == exports_.end() || entry.prefix_len < 0) continue;
    Export& prompt = found->second;
    const int32_t num_computed = entry.prefix_len + entry.last_known() + 1;
    const int32_t end =
        std::min(num_computed, static_cast<int32_t>(prompt.room->prompt().num_tokens)) / page_size;
    const int32_t first = first_wanted(prompt);
    if (first >= end) continue;
    auto staged =
        config_.staging->stage_next_step(std::span(batch.page_tables)
                                             .subspan(static_cast<size_t>(entry.page_begin + first),
                                                      static_cast<size_t>(end - first)));
    if (staged != nullptr) add_staged(prompt, first, std::move(staged));
  }
}

int32_t PrefillSide::first_wanted(const Export& prompt) {
  return std::max(prompt.num_pages, static_cast<int32_t>(prompt.room->first_wanted()));
}

void PrefillSide::add_staged(Export& prompt, int32_t first, std::unique_ptr<StagedPages> staged) {
  prompt.num_pages = first + staged->num_pages();
  prompt.room->add_staged(static_cast<uint32_t>(first), std::move(staged));
}

// The last page may be filled in part, so it waits for the last token.
void PrefillSide::add_pages(Export& prompt, const PrefillProgress& progress) const {
  const auto page_size = static_cast<int32_t>(config_.server.shape.page_size);
  const bool is_complete = progress.num_computed >= progress.num_tokens;
  const int32_t end =
      (is_complete ? progress.num_tokens + page_size - 1 : progress.num_computed) / page_size;
  while (config_.staging != nullptr && first_wanted(prompt) < end) {
    const int32_t first = first_wanted(prompt);
    auto staged = config_.staging->stage(
        progress.pages.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)));
    if (staged == nullptr) break;
    add_staged(prompt, first, std::move(staged));
  }
  const int32_t first = first_wanted(prompt);
  if (first >= end) return;
  const auto page_bytes = static_cast<size_t>(config_.server.shape.page_bytes);
  const auto fill = [&](uint32_t page, std::span<std::byte> to) {
    std::vector<PageCopier::Transfer> transfers;
    for (; !to.empty(); ++page, to = to.subspan(page_bytes))
      transfers.push_back(copier_.begin_read(progress.pages[page], to.first(page_bytes)));
    bool ok = true;
    for (const PageCopier::Transfer transfer : transfers) ok &= copier_.finish(transfer).ok();
    return ok;
  };
  prompt.room->add_pages(static_cast<uint32_t>(first), static_cast<uint32_t>(end), fill);
  prompt.num_pages = end;
}

// After a retraction some are computed again.
void PrefillSide::add_logprobs(Export& prompt, const PrefillProgress& progress) {
  if (progress.logprobs.empty()) return;
  const int32_t end = progress.first_logprob + static_cast<int32_t>(progress.logprobs.size());
  const int32_t first = std::max(progress.first_logprob, prompt.next_logprob);
  if (first >= end) return;
  const auto added = progress.logprobs.subspan(static_cast<size_t>(first - progress.first_logprob));
  prompt.room->add_logprobs(
      {.first = static_cast<uint32_t>(first), .logprobs = {added.begin(), added.end()}});
  prompt.next_logprob = end;
}

// Where a grammar forced all of the answer nothing was computed, and no decode server connects.
void PrefillSide::on_finish(SequenceId id, const FinishReason& reason) {
  const auto found = exports_.find(id);
  if (found == exports_.end()) return;
  const Export prompt = std::move(found->second);
  exports_.erase(found);
  if (prompt.has_token) return;
  if (!reason.status.ok()) return rooms_.end_failed(prompt.key, prompt.room, reason.status);
  rooms_.remove(prompt.key, prompt.room);
}

void PrefillSide::drain(Duration timeout) { rooms_.wait_empty(timeout); }

DisaggregationStats PrefillSide::stats() const {
  const transfer::TransferStats transfers = server_->stats();
  return {.mode = "prefill",
          .bootstrap_port = server_->port(),
          .num_transfers = transfers.num_transfers,
          .num_failed = transfers.num_failed,
          .num_bytes = transfers.num_bytes,
          .num_staged_bytes = transfers.num_staged_bytes,
          .seconds = transfers.seconds,
          .exposed_seconds = transfers.exposed_seconds,
          .num_waiting = static_cast<int64_t>(rooms_.num_rooms()),
          .waiting_bytes = rooms_.num_bytes()};
}

}  // namespace espalier
