#include "engine/executor/cuda/step_block.h"

#include <algorithm>
#include <limits>

#include "models/rotary_places.h"

namespace espalier {
namespace {

// Entries of page tables: most steps bring one an entry, a prefill some thousands; a long cached
// prefix up to a whole context. 4 MiB.
constexpr int64_t kPageCapacity = 1 << 20;

// Two rows take GEMV kernels, which start late (CudaDecoder's kPdlTokens): of an 8 B shape 4.89 ms
// a step, and 4.62 with four.
constexpr int32_t kDraftRowsLeast = 4;

// A graph is captured with its number of fresh positions, so two values serve all: this one, and
// all positions, of which none is then read early.
constexpr int32_t kFreshFew = 32, kFreshAny = std::numeric_limits<int32_t>::max();

// How far below an entry's prefix_len the same step writes keys, for the rows of draft tokens.
int32_t fresh_positions(const ForwardBatch& rows) {
  int32_t most = 0, first_prefix = 0;
  for (size_t i = 0; i < rows.entries.size(); ++i) {
    const int32_t prefix_len = rows.entries[i].prefix_len_bound();
    if (i == 0 || rows.entries[i].slot != rows.entries[i - 1].slot) first_prefix = prefix_len;
    most = std::max(most, prefix_len - first_prefix);
  }
  return most == 0 ? 0 : most <= kFreshFew ? kFreshFew : kFreshAny;
}

}  // namespace

int64_t StepLimits::page_capacity() const {
  return std::max<int64_t>(kPageCapacity, (window_pages ? 2 : 1) * int64_t{max_table_pages});
}

void StepArrays::lay_out(cuda::Arena& arena, const StepLimits& limits) {
  const int64_t entries = limits.max_entries, tokens = limits.max_tokens;
  query_begin = arena.take<int32_t>(entries + 1);
  prefix_len = arena.take<int32_t>(entries);
  page_begin = arena.take<int32_t>(entries);
  row_slots = arena.take<int32_t>(entries);
  output_indices = arena.take<int32_t>(entries);
  has_mask = arena.take<uint8_t>(entries);
  num_shared_segments = arena.take<int32_t>(1);
  shared_segments = arena.take<kernels::cuda::SharedSegment>(entries);
  shared_members = arena.take<int32_t>(entries * kernels::cuda::kSegmentsPerEntry);
  shared_places = arena.take<int32_t>(entries * kernels::cuda::kSegmentsPerEntry * 2);
  own_begins = arena.take<int32_t>(entries);
  if (limits.adapters)
    adapter_tiles = arena.take<kernels::cuda::LoraTile>(
        AdapterTiles::capacity(limits.max_entries, limits.max_tokens));
  runs = arena.take<kernels::cuda::PageTableRun>((limits.window_pages ? 2 : 1) * entries);
  ids = arena.take<int32_t>(tokens);
  token_slots = arena.take<int32_t>(tokens);
  if (limits.places) places = arena.take<int32_t>(3 * tokens);
  if (limits.last_seen) last_seen = arena.take<int32_t>(tokens);
  rows = arena.take<int32_t>(entries + tokens);
  targets = arena.take<int32_t>(tokens);
  pages = arena.take<int32_t>(limits.page_capacity());
}

Result<StepPacker> StepPacker::create(const StepLimits& limits, const SharedReads& reads,
                                      const cuda::Stream& stream) {
  const int64_t entries =
      (limits.window_pages ? 2 : 1) * int64_t{limits.max_slots} * limits.max_table_pages;
  if (entries > std::numeric_limits<int32_t>::max()) {
    return fail(invalid_argument(
        "{} requests at once with {} pages each need more page table entries than 32 bits count; "
        "lower max_running_requests or context_length, or raise page_size",
        limits.max_slots, limits.max_table_pages));
  }
  StepPacker packer(limits, reads, stream);
  cuda::Arena measured;
  packer.device_.lay_out(measured, limits);
  packer.block_bytes_ = measured.used_bytes();
  ESP_ASSIGN_OR_RETURN(packer.block_,
                       cuda::DeviceBuffer::allocate(packer.block_bytes_, "a step's inputs"));
  cuda::Arena arena(packer.block_.data());
  packer.device_.lay_out(arena, limits);
  ESP_ASSIGN_OR_RETURN(
      packer.tables_,
      cuda::DeviceBuffer::allocate(entries * static_cast<int64_t>(sizeof(int32_t)), "page tables"));
  packer.known_.resize(static_cast<size_t>(limits.max_slots));
  // Entries of padding are looked at before anything was written for them.
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(packer.block_.data(), 0, packer.block_bytes_, stream));
  return packer;
}

int32_t StepPacker::graph_rows(int32_t rows, int32_t max_rows) {
  int32_t rounded = rows;
  if (rows > 4) {
    const int32_t step = rows <= 16 ? 4 : rows <= 64 ? 8 : rows <= 256 ? 16 : 32;
    rounded = (rows + step - 1) / step * step;
  }
  return std::min(rounded, max_rows);
}

Result<PackedStep> StepPacker::pack(const ForwardBatch& batch, const ForwardBatch& rows,
                                    const StepArrays& host, const Options& options) {
  PackedStep packed{.num_tokens = rows.num_tokens(),
                    .decode = batch.embedding_spans.empty() && options.may_decode};
  num_runs_ = 0;
  num_pages_ = 0;
  for (const BatchEntry& entry : batch.entries) ESP_RETURN_IF_ERROR(pack_table(batch, entry, host));
  if (reads_.cascade) {
    cascade_.choose(rows, *reads_.cascade);
    packed.cascade = !cascade_.empty();
  }
  if (&rows != &batch) {
    packed.fresh_positions = fresh_positions(rows);
    packed.decode_tokens = packed.max_query_tokens = reads_.draft_rows;
  }
  pack_entries(rows, host, packed);
  pack_rows(rows, host, packed);
  // Decode steps too, so that their graphs serve texts and what follows pictures alike.
  if (limits_.places) write_rotary_places(batch, {.token = 3, .component = 1}, host.places);
  if (limits_.last_seen && !packed.decode) write_last_seen(batch, host.last_seen);
  if (packed.cascade) pack_cascade(host);
  if (adapters_ != nullptr) pack_adapters(rows, host, packed);
  if (packed.decode && options.pad_for_graphs) {
    const int32_t least =
        std::max(options.rows_min, packed.fresh_positions > 0 ? kDraftRowsLeast : 1);
    const int32_t most = std::min(limits_.max_entries, limits_.max_tokens);
    pad(graph_rows(std::max(packed.num_tokens, least), most), host, packed);
  }
  ESP_RETURN_IF_ERROR(bring(host, &packed));
  return packed;
}

// Only what is new since the slot's last entry, unless its entries changed.
Status StepPacker::pack_table(const ForwardBatch& batch, const BatchEntry& entry,
                              const StepArrays& host) {
  Table& table = known_[static_cast<size_t>(entry.slot)];
  const bool same = entry.table_version != 0 && table.version == entry.table_version;
  const int32_t first = same ? std::min(table.num_pages, entry.num_pages) : 0;
  table = {entry.table_version, entry.num_pages};
  const int32_t count = entry.num_pages - first;
  if (count == 0) return Status();
  const int32_t kinds = window_pages_ ? 2 : 1;
  if (num_pages_ + kinds * count > limits_.page_capacity()) {
    ESP_RETURN_IF_ERROR(flush_tables(host));
  }
  const int64_t begin = int64_t{entry.slot} * limits_.max_table_pages + first;
  const int32_t from = entry.page_begin + first;
  pack_pages(batch.page_tables.data() + from, count, begin, host);
  if (window_pages_) {
    pack_pages(batch.window_page_tables.data() + from, count, table_entries() + begin, host);
  }
  return Status();
}

void StepPacker::pack_pages(const PageId* pages, int32_t count, int64_t begin,
                            const StepArrays& host) {
  std::copy_n(pages, count, host.pages + num_pages_);
  host.runs[num_runs_++] = {
      .begin = begin, .source = static_cast<int32_t>(num_pages_), .count = count};
  num_pages_ += count;
}

// A row becomes an entry of attention, or joins the one of the row before it: of the same slot its
// tokens stand behind that row's. Members of shared segments are entries of one row.
void StepPacker::pack_entries(const ForwardBatch& rows, const StepArrays& host,
                              PackedStep& packed) {
  entry_of_row_.clear();
  SlotId slot = -1;  // of the row before, if others may join it
  for (size_t row = 0; row < rows.entries.size(); ++row) {
    const BatchEntry& entry = rows.entries[row];
    // plan_logprobs() refuses a length that only the device knows; what the entry writes at the
    // most that it can be lies in its own pages.
    const int32_t prefix_len = entry.prefix_len_bound();
    const int32_t end = entry.query_begin + entry.num_query_tokens;
    const int32_t last = packed.num_entries - 1;
    const bool is_member = packed.cascade && cascade_.own_begins()[row] > 0;
    if (is_member || entry.slot != slot || end - host.query_begin[last] > packed.decode_tokens) {
      host.query_begin[packed.num_entries] = entry.query_begin;
      host.prefix_len[packed.num_entries] = prefix_len;
      host.page_begin[packed.num_entries] = entry.slot * limits_.max_table_pages;
      ++packed.num_entries;
    }
    entry_of_row_.push_back(packed.num_entries - 1);
    slot = is_member ? -1 : entry.slot;
    for (int32_t i = entry.query_begin; i < end; ++i) {
      host.ids[i] = rows.token_ids[static_cast<size_t>(i)];
      host.token_slots[i] = entry.slot;
    }
    packed.max_query_tokens = std::max(packed.max_query_tokens, entry.num_query_tokens);
    packed.max_prefix_len = std::max(packed.max_prefix_len, prefix_len);
    packed.expanded.add(prefix_len, entry.num_query_tokens);
    packed.decode &=
        entry.num_query_tokens == 1 && entry.sample && entry.input_logprob_targets.empty();
  }
  host.query_begin[packed.num_entries] = packed.num_tokens;
}

void StepPacker::pack_rows(const ForwardBatch& batch, const StepArrays& host,
                           PackedStep& packed) const {
  for (const BatchEntry& entry : batch.entries) {
    if (!entry.sample) continue;
    const int32_t row = packed.num_samples++;
    host.rows[row] = entry.query_begin + entry.last_known();
    host.row_slots[row] = entry.slot;
    host.output_indices[row] = entry.output_index;
    host.has_mask[row] = entry.has_mask ? 1 : 0;
    packed.num_masked += entry.has_mask ? 1 : 0;
  }
  for (const BatchEntry& entry : batch.entries) {
    for (size_t i = 0; i < entry.input_logprob_targets.size(); ++i) {
      const int32_t row = packed.num_input_rows++;
      host.rows[packed.num_samples + row] =
          entry.query_begin + entry.input_logprob_begin + static_cast<int32_t>(i);
      host.targets[row] = entry.input_logprob_targets[i];
    }
  }
}

void StepPacker::pack_cascade(const StepArrays& host) const {
  const auto entry_of = [&](int32_t row) { return entry_of_row_[static_cast<size_t>(row)]; };
  *host.num_shared_segments = static_cast<int32_t>(cascade_.segments().size());
  for (size_t i = 0; i < cascade_.segments().size(); ++i) {
    host.shared_segments[i] = cascade_.segments()[i];
    host.shared_segments[i].page_begin =
        host.page_begin[entry_of(cascade_.segments()[i].page_begin)];
  }
  std::ranges::transform(cascade_.members(), host.shared_members, entry_of);
  // Rows of one entry are members of nothing, so it does not matter which of them is copied last.
  constexpr int32_t kPlaces = kernels::cuda::kSegmentsPerEntry * 2;
  for (size_t row = 0; row < entry_of_row_.size(); ++row) {
    const int32_t entry = entry_of_row_[row];
    std::copy_n(cascade_.places().begin() + static_cast<std::ptrdiff_t>(row) * kPlaces, kPlaces,
                host.shared_places + entry * kPlaces);
    host.own_begins[entry] = cascade_.own_begins()[row];
  }
}

// In a step without adapters a look at each entry.
void StepPacker::pack_adapters(const ForwardBatch& rows, const StepArrays& host,
                               PackedStep& packed) {
  const auto adapted = [](const BatchEntry& entry) { return entry.adapter != kNoAdapter; };
  if (std::ranges::none_of(rows.entries, adapted)) return;
  adapter_ids_.clear();
  for (const BatchEntry& entry : rows.entries) adapter_ids_.push_back(entry.adapter);
  adapter_parts_.assign(adapter_ids_.size(), nullptr);
  adapters_->find(adapter_ids_, adapter_parts_);
  packed.adapters = tiles_.arrange(rows, adapter_parts_, !packed.decode, host.adapter_tiles);
}

// The grids of a decode step's graph cover a tile for each row; the device has their number.
StepAdapters StepPacker::step_adapters(const PackedStep& packed) const {
  StepAdapters out{.tokens = rows_of(packed.adapters.tokens, device_.adapter_tiles),
                   .wanted = rows_of(packed.adapters.wanted, device_.adapter_tiles)};
  if (packed.decode && out.any()) out.tokens.max_tiles = out.tokens.max_rows = packed.num_tokens;
  return out;
}

void StepPacker::pad(int32_t rows, const StepArrays& host, PackedStep& packed) const {
  for (int32_t i = packed.num_entries; i < rows; ++i) {
    host.query_begin[i + 1] = packed.num_tokens;
    host.prefix_len[i] = 0;
    host.page_begin[i] = 0;
    host.own_begins[i] = 0;
    std::fill_n(host.shared_places + i * kernels::cuda::kSegmentsPerEntry * 2,
                kernels::cuda::kSegmentsPerEntry * 2, -1);
  }
  for (int32_t i = packed.num_tokens; i < rows; ++i) {
    host.ids[i] = 0;
    host.token_slots[i] = 0;
    if (limits_.places) std::fill_n(host.places + 3 * i, 3, 0);
    host.row_slots[i] = -1;
    host.output_indices[i] = 0;
    host.has_mask[i] = 0;
  }
  packed.num_entries = packed.num_tokens = packed.num_samples = rows;
  packed.max_query_tokens = std::max(packed.max_query_tokens, 1);  // a rank may have no entries
}

Status StepPacker::bring(const StepArrays& host, const PackedStep* packed) const {
  kernels::cuda::BringInputsArgs args{.host = host.query_begin,
                                      .device = device_.query_begin,
                                      .runs = host.runs,
                                      .num_runs = num_runs_,
                                      .pages = host.pages,
                                      .num_pages = static_cast<int32_t>(num_pages_),
                                      .tables = reinterpret_cast<int32_t*>(tables_.data())};
  const auto take = [&](const auto* array, int64_t count) {
    constexpr auto kUnit = int64_t{16};
    const int64_t begin = reinterpret_cast<const std::byte*>(array) -
                          reinterpret_cast<const std::byte*>(host.query_begin);
    const int64_t bytes = count * static_cast<int64_t>(sizeof(*array));
    args.ranges[args.num_ranges++] = {.begin = static_cast<int32_t>(begin / kUnit),
                                      .count = static_cast<int32_t>((bytes + kUnit - 1) / kUnit)};
  };
  if (packed != nullptr) {
    const int32_t entries = packed->num_entries, samples = packed->num_samples;
    take(host.query_begin, entries + 1);
    take(host.prefix_len, entries);
    take(host.page_begin, entries);
    take(host.row_slots, samples);
    take(host.output_indices, samples);
    take(host.has_mask, samples);
    take(host.ids, packed->num_tokens);
    take(host.token_slots, packed->num_tokens);
    if (limits_.places) take(host.places, int64_t{3} * packed->num_tokens);
    if (limits_.last_seen && !packed->decode) take(host.last_seen, packed->num_tokens);
    if (!packed->decode) take(host.rows, samples + packed->num_input_rows);
    if (packed->num_input_rows > 0) take(host.targets, packed->num_input_rows);
    if (!packed->adapters.empty()) take(host.adapter_tiles, packed->adapters.size);
    if (packed->cascade) {
      take(host.num_shared_segments, 1);
      take(host.shared_segments, std::ssize(cascade_.segments()));
      take(host.shared_members, std::ssize(cascade_.members()));
      take(host.shared_places, int64_t{entries} * kernels::cuda::kSegmentsPerEntry * 2);
      take(host.own_begins, entries);
    }
  }
  return kernels::cuda::bring_inputs(args, {.stream = stream_->get(), .pdl = true});
}

Status StepPacker::flush_tables(const StepArrays& host) {
  ESP_RETURN_IF_ERROR(bring(host, nullptr));
  ESP_RETURN_IF_ERROR(stream_->synchronize());
  num_runs_ = 0;
  num_pages_ = 0;
  return Status();
}

CudaStep StepPacker::step(const PackedStep& packed, const int32_t* slot_tokens) const {
  kernels::cuda::SharedSegments shared;
  if (packed.cascade) {
    shared = {.num_segments = device_.num_shared_segments,
              .segments = device_.shared_segments,
              .members = device_.shared_members,
              .memberships = device_.shared_places,
              .own_begin = device_.own_begins};
  }
  // Of a padded decode step the grids cover every row; its last entries have no tokens.
  CudaStep step{.ids = device_.ids,
                .token_slots = device_.token_slots,
                .slot_tokens = slot_tokens,
                .entries = {.query_begin = device_.query_begin,
                            .prefix_len = device_.prefix_len,
                            .page_begin = device_.page_begin,
                            .page_tables = reinterpret_cast<const int32_t*>(tables_.data()),
                            .num_entries = packed.num_entries,
                            .num_tokens = packed.num_tokens,
                            .max_query_tokens = packed.max_query_tokens,
                            .shared = shared},
                .rank_tokens = packed.rank_tokens,
                .rows = packed.decode ? nullptr : device_.rows,
                .num_rows = packed.num_samples + packed.num_input_rows,
                .max_prefix_len = packed.max_prefix_len,
                .fresh_positions = packed.fresh_positions,
                .decode_tokens = packed.decode_tokens,
                .expanded = packed.expanded,
                .places = device_.places,
                .last_seen = packed.decode ? nullptr : device_.last_seen,
                .adapters = step_adapters(packed),
                .slot_controls = packed.has_controls ? controls_ : nullptr,
                .keeps_states = packed.keeps_states,
                .returns_states = packed.returns_states};
  if (window_pages_) {
    step.window_entries = step.entries;
    step.window_entries.page_tables += table_entries();
    step.window_entries.shared = {};
  }
  return step;
}

}  // namespace espalier
