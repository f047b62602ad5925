#include "engine/disaggregation/prefill_side.h"

#include <algorithm>
#include <utility>

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

// The last page may be filled in part, so it waits for the last token.
void PrefillSide::add_pages(Export& prompt, const PrefillProgress& progress) const {
  const auto page_size = static_cast<int32_t>(config_.server.shape.page_size);
  const bool is_complete = progress.num_computed >= progress.num_tokens;
  const int32_t num_pages =
      (is_complete ? progress.num_tokens + page_size - 1 : progress.num_computed) / page_size;
  if (num_pages <= prompt.num_pages) return;
  const auto page_bytes = static_cast<size_t>(config_.server.shape.page_bytes);
  const auto fill = [&](uint32_t first, std::span<std::byte> to) {
    for (size_t page = first; !to.empty(); ++page, to = to.subspan(page_bytes))
      if (!copier_.read_page(progress.pages[page], to.first(page_bytes)).ok()) return false;
    return true;
  };
  prompt.room->add_pages(static_cast<uint32_t>(std::exchange(prompt.num_pages, num_pages)),
                         static_cast<uint32_t>(num_pages), fill);
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
          .seconds = transfers.seconds,
          .num_waiting = static_cast<int64_t>(rooms_.num_rooms()),
          .waiting_bytes = rooms_.num_bytes()};
}

}  // namespace espalier
