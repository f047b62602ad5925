#include "nodes/step_codec.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/check.h"
#include "nodes/bytes.h"

namespace espalier::nodes {
namespace {

constexpr int32_t kIntMax = std::numeric_limits<int32_t>::max();
constexpr size_t kEntryBytes = 64;  // of the fields of one entry, tables and lists aside

enum EntryFlag : uint8_t { kSamples = 1, kPooledEnd = 2, kAllFlags = 3 };

// Pages of `table` from `first` on.
void append_pages(std::string& out, const std::vector<PageId>& tables, const BatchEntry& entry,
                  int32_t first) {
  append_ints(out, std::span(tables).subspan(static_cast<size_t>(entry.page_begin + first),
                                             static_cast<size_t>(entry.num_pages - first)));
}

}  // namespace

std::string_view StepEncoder::encode(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                                     const PageCopies& copies) {
  ESP_CHECK(batch.embedding_spans.empty() && batch.rotary_spans.empty() &&
            batch.cross_spans.empty());
  out_.clear();
  append_big_endian(out_, batch.step, 8);
  append_ints(out_, copies.from);
  append_ints(out_, copies.to);
  append_ints(out_, token_ids);
  append_ints(out_, batch.positions);
  out_ += static_cast<char>(batch.window_page_tables.empty() ? 0 : 1);
  append_big_endian(out_, batch.entries.size(), 4);
  for (const BatchEntry& entry : batch.entries) append_entry(batch, entry);
  return out_;
}

void StepEncoder::append_entry(const ForwardBatch& batch, const BatchEntry& entry) {
  ESP_CHECK(entry.prefix_len >= 0 && entry.adapter == kNoAdapter && entry.hidden_begin < 0);
  const auto slot = static_cast<size_t>(entry.slot);
  if (slot >= sent_.size()) sent_.resize(slot + 1);
  SentTable& sent = sent_[slot];
  const bool is_known = entry.table_version != 0 && sent.version == entry.table_version;
  const int32_t kept = is_known ? std::min(sent.num_pages, entry.num_pages) : 0;
  append_int(out_, entry.slot);
  append_int(out_, entry.num_query_tokens);
  append_int(out_, entry.prefix_len);
  out_ += static_cast<char>((entry.sample ? kSamples : 0) | (entry.pooled_end ? kPooledEnd : 0));
  append_int(out_, entry.num_draft_tokens);
  append_int(out_, entry.input_logprob_begin);
  append_int(out_, entry.pooled_begin);
  append_ints(out_, std::span(batch.draft_samples)
                        .subspan(static_cast<size_t>(entry.draft_samples_begin),
                                 static_cast<size_t>(entry.num_draft_samples)));
  append_ints(out_, entry.input_logprob_targets);
  append_int(out_, kept);
  append_pages(out_, batch.page_tables, entry, kept);
  // All of them: what the window has passed may be other pages than before.
  if (!batch.window_page_tables.empty()) append_pages(out_, batch.window_page_tables, entry, 0);
  sent = {entry.table_version, entry.num_pages};
}

size_t StepLimits::bytes_max() const {
  const auto pages = static_cast<size_t>(pages_of(context_length)) + 1;
  const auto entries = static_cast<size_t>(max_slots), tokens = static_cast<size_t>(max_tokens);
  return 256 + entries * (kEntryBytes + 8 * pages) + 16 * tokens +
         8 * static_cast<size_t>(num_pages);
}

StepDecoder::StepDecoder(const StepLimits& limits)
    : limits_(limits), tables_(static_cast<size_t>(limits.max_slots)) {}

Status StepDecoder::decode(std::string_view payload) {
  ByteReader reader(payload);
  batch_.clear();
  copies_.from.clear();
  copies_.to.clear();
  batch_.step = reader.number<uint64_t>();
  const auto max_tokens = static_cast<size_t>(limits_.max_tokens);
  const auto num_pages = static_cast<size_t>(limits_.num_pages);
  reader.append_ints(copies_.from, num_pages, 0, limits_.num_pages - 1);
  reader.append_ints(copies_.to, num_pages, 0, limits_.num_pages - 1);
  reader.append_ints(batch_.token_ids, max_tokens, limits_.tokens_from_slots ? kTokenFromSlot : 0,
                     limits_.vocab_size - 1);
  reader.append_ints(batch_.positions, max_tokens, 0, limits_.context_length - 1);
  const bool has_window = reader.flag();
  if (has_window != (limits_.num_window_pages > 0)) reader.refuse();
  const size_t num_entries = reader.count(1, static_cast<size_t>(limits_.max_slots));
  int64_t query_end = 0;
  for (size_t i = 0; i < num_entries && reader.ok(); ++i) {
    read_entry(reader);
    BatchEntry& entry = batch_.entries.back();
    entry.query_begin = static_cast<int32_t>(std::min<int64_t>(query_end, kIntMax));
    query_end += entry.num_query_tokens;
  }
  if (!reader.complete() || copies_.from.size() != copies_.to.size() ||
      batch_.positions.size() != batch_.token_ids.size() || query_end != batch_.num_tokens() ||
      batch_.entries.empty())
    return error(StatusCode::kDataLoss,
                 "the leader sent a step that is malformed or beyond this node's limits: start all "
                 "nodes with the same version, model and settings");
  return {};
}

void StepDecoder::read_entry(ByteReader& reader) {
  BatchEntry& entry = batch_.entries.emplace_back();
  entry.slot = reader.number_in(0, limits_.max_slots - 1);
  read_counts(reader, entry);
  read_draft_samples(reader, entry);
  const auto num_tokens = static_cast<size_t>(entry.num_query_tokens);
  reader.append_ints(entry.input_logprob_targets, num_tokens, 0, limits_.vocab_size - 1);
  const int32_t first = entry.input_logprob_begin;
  const auto num_targets = static_cast<int32_t>(entry.input_logprob_targets.size());
  if (first < 0 ? num_targets > 0 : num_targets > entry.num_query_tokens - first) reader.refuse();
  read_tables(reader, entry);
}

void StepDecoder::read_counts(ByteReader& reader, BatchEntry& entry) const {
  entry.num_query_tokens = reader.number_in(1, limits_.max_tokens);
  entry.prefix_len = reader.number_in(0, limits_.context_length);
  if (int64_t{entry.prefix_len} + entry.num_query_tokens > limits_.context_length) reader.refuse();
  entry.prefix_len_max = entry.prefix_len;
  const auto flags = reader.number<uint8_t>();
  if (flags > kAllFlags) reader.refuse();
  entry.sample = (flags & kSamples) != 0;
  entry.pooled_end = (flags & kPooledEnd) != 0;
  const int32_t last = entry.num_query_tokens - 1;
  entry.num_draft_tokens = reader.number_in(0, std::max(last, 0));
  entry.input_logprob_begin = reader.number_in(-1, std::max(last, 0));
  entry.pooled_begin = reader.number_in(-1, std::max(last, 0));
}

void StepDecoder::read_draft_samples(ByteReader& reader, BatchEntry& entry) {
  entry.draft_samples_begin = static_cast<int32_t>(batch_.draft_samples.size());
  reader.append_ints(batch_.draft_samples, static_cast<size_t>(entry.num_draft_tokens), 0,
                     std::max(entry.num_draft_tokens - 1, 0));
  entry.num_draft_samples =
      static_cast<int32_t>(batch_.draft_samples.size()) - entry.draft_samples_begin;
  const auto begin = batch_.draft_samples.begin() + entry.draft_samples_begin;
  const bool rises = std::adjacent_find(begin, batch_.draft_samples.end(),
                                        std::greater_equal<>()) == batch_.draft_samples.end();
  if (!rises) reader.refuse();
}

void StepDecoder::read_tables(ByteReader& reader, BatchEntry& entry) {
  const int32_t wanted = limits_.pages_of(int64_t{entry.prefix_len} + entry.num_query_tokens);
  const auto pages_max = static_cast<size_t>(std::max(wanted, 0));
  Table& table = tables_[static_cast<size_t>(entry.slot)];
  const int32_t kept = reader.number_in(0, static_cast<int32_t>(table.pages.size()));
  table.pages.resize(static_cast<size_t>(kept));
  reader.append_ints(table.pages, pages_max, 0, limits_.num_pages - 1);
  if (table.pages.size() != pages_max) reader.refuse();
  if (kept == 0) ++table.version;
  entry.table_version = table.version;
  entry.num_pages = wanted;
  entry.page_begin = static_cast<int32_t>(batch_.page_tables.size());
  batch_.page_tables.insert(batch_.page_tables.end(), table.pages.begin(), table.pages.end());
  if (limits_.num_window_pages == 0) return;
  // Those that the window has passed are undefined, so one that is out of bounds is no fault: it is
  // not read, and stands as page 0.
  table.window_pages.clear();
  reader.append_ints(table.window_pages, pages_max, std::numeric_limits<int32_t>::min(), kIntMax);
  if (table.window_pages.size() != pages_max) reader.refuse();
  for (PageId& page : table.window_pages)
    if (page < 0 || page >= limits_.num_window_pages) page = 0;
  batch_.window_page_tables.insert(batch_.window_page_tables.end(), table.window_pages.begin(),
                                   table.window_pages.end());
}

}  // namespace espalier::nodes
