#include "engine/executor/cuda/cuda_draft_chains.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/executor/slot_lengths.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

// First passes come in many pairs of tokens and chains; beyond these they run without a graph, so
// that graphs do not take what the device has left.
constexpr size_t kFirstGraphsMost = 256;

// Draft samples that follow the known token one by one: what a head's draft tokens have.
int32_t chained_samples(const ForwardBatch& batch, const BatchEntry& entry) {
  int32_t count = 0;
  while (count < entry.num_draft_samples &&
         batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin + count)] == count) {
    ++count;
  }
  return count;
}

// The token behind each token of an entry.
void fill_next_ids(const ForwardBatch& rows, const BatchEntry& entry, int32_t row, int32_t* out) {
  const int32_t end = entry.query_begin + entry.num_query_tokens;
  for (int32_t i = entry.query_begin; i + 1 < end; ++i)
    out[i] = rows.token_ids[static_cast<size_t>(i + 1)];
  out[end - 1] = std::max(entry.next_token, 0);
  if (entry.sample) out[entry.query_begin + entry.last_known()] = -1 - row;
}

}  // namespace

void CudaDraftChains::Inputs::lay_out(cuda::Arena& arena, const Config& config) {
  const int64_t slots = config.limits.max_slots;
  num_chains = arena.take<int32_t>(1);
  starts = arena.take<kc::ChainStart>(slots);
  next_ids = arena.take<int32_t>(config.limits.max_tokens);
  runs = arena.take<kc::PageTableRun>(slots);
  pages = arena.take<int32_t>(
      CudaDraftChains::num_pages(config.limits.max_slots, config.chain_max, config.page_size));
}

Result<std::unique_ptr<CudaDraftChains>> CudaDraftChains::create(
    std::unique_ptr<CudaDraftHead> head, const Config& config, const cuda::Stream& stream) {
  ESP_RETURN_IF_ERROR(head->reserve({.max_tokens = config.limits.max_tokens,
                                     .max_entries = config.limits.max_entries,
                                     .max_chains = config.limits.max_slots,
                                     .page_size = config.page_size,
                                     .deterministic_context = config.deterministic_context}));
  std::unique_ptr<CudaDraftChains> out(new CudaDraftChains(std::move(head), config, stream));
  ESP_ASSIGN_OR_RETURN(out->shares_, out->head_->shares_attention(config.page_size));
  cuda::Arena measured;
  out->lay_out(measured);
  ESP_ASSIGN_OR_RETURN(out->block_,
                       cuda::DeviceBuffer::allocate(measured.used_bytes(), "draft tokens"));
  cuda::Arena arena(out->block_.data());
  out->lay_out(arena);
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(out->block_.data(), 0, out->block_.size_bytes(), stream));
  ESP_RETURN_IF_ERROR(out->head_->tune(out->logits_, stream));
  return out;
}

void CudaDraftChains::lay_out(cuda::Arena& arena) {
  const int64_t slots = config_.limits.max_slots;
  device_.lay_out(arena, config_);
  input_bytes_ = arena.used_bytes();
  arrays_ = {.num_chains = device_.num_chains,
             .starts = device_.starts,
             .max_chains = config_.limits.max_slots,
             .chain_max = config_.chain_max,
             .drafted = arena.take<int32_t>(slots * config_.chain_max),
             .counts = arena.take<int32_t>(slots),
             .ids = arena.take<int32_t>(slots),
             .query_begin = arena.take<int32_t>(slots + 1),
             .prefix_len = arena.take<int32_t>(slots),
             .page_begin = arena.take<int32_t>(slots)};
  ids_ = arena.take<int32_t>(config_.limits.max_tokens);
  wanted_ = arena.take<int32_t>(slots);
  logits_ = arena.take<float>(slots * head_->logits_stride());
}

Status CudaDraftChains::Step::allocate(const Config& config, int64_t input_bytes) {
  ESP_ASSIGN_OR_RETURN(inputs, cuda::PinnedBuffer::allocate(input_bytes, "starts of chains"));
  ESP_ASSIGN_OR_RETURN(
      outputs, cuda::PinnedBuffer::allocate(4ll * config.limits.max_slots * config.chain_max,
                                            "draft tokens"));
  ESP_ASSIGN_OR_RETURN(begun, cuda::Event::create(true));
  entries.reserve(static_cast<size_t>(config.limits.max_slots));
  lengths.reserve(static_cast<size_t>(config.limits.max_slots));
  return Status();
}

Status CudaDraftChains::allocate(Step& step) const { return step.allocate(config_, input_bytes_); }

void CudaDraftChains::pack(const ForwardBatch& batch, const ForwardBatch& rows,
                           const PackedStep& packed, Step& step) const {
  step.num_chains = step.num_passes = step.num_runs = step.num_pages = 0;
  step.entries.clear();
  step.lengths.clear();
  step.reads = std::ranges::any_of(batch.entries, [](const BatchEntry& entry) {
    return entry.chain_length != BatchEntry::kNoChain;
  });
  if (!step.reads) return;
  Inputs to;
  cuda::Arena arena(step.inputs.data());
  to.lay_out(arena, config_);
  int32_t row = 0;
  for (const BatchEntry& entry : rows.entries) {
    fill_next_ids(rows, entry, row, to.next_ids);
    row += entry.sample ? 1 : 0;
  }
  std::fill(to.next_ids + rows.num_tokens(), to.next_ids + packed.num_tokens, 0);
  int32_t first_row = 0;
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    if (!entry.sample) continue;
    if (entry.chain_length > 0) pack_chain(batch, i, first_row, to, step);
    first_row += 1 + entry.num_draft_samples;
  }
  *to.num_chains = step.num_chains;
}

// The page table gets pages for all that the chain may write, wherever it starts.
void CudaDraftChains::pack_chain(const ForwardBatch& batch, size_t index, int32_t first_row,
                                 const Inputs& to, Step& step) const {
  const BatchEntry& entry = batch.entries[index];
  const int32_t page_size = config_.page_size;
  const int32_t own_pages = num_pages(1, config_.chain_max, page_size);
  const int32_t length = std::min(entry.chain_length, config_.chain_max);
  const int32_t num_rows = 1 + chained_samples(batch, entry);
  const int32_t position = entry.prefix_len_bound() + entry.last_known();
  const int32_t last = position + num_rows - 1 + length - 1;
  const int32_t count =
      std::clamp(std::min(last / page_size + 1, config_.limits.max_table_pages) - entry.num_pages,
                 0, own_pages);
  const int32_t table = entry.slot * config_.limits.max_table_pages;
  to.starts[step.num_chains++] = {.row = first_row,
                                  .num_rows = num_rows,
                                  .token = entry.query_begin + entry.last_known(),
                                  .position = position,
                                  .position_max = (entry.num_pages + count) * page_size - 1,
                                  .page_begin = table,
                                  .length = length};
  step.entries.push_back(static_cast<int32_t>(index));
  step.lengths.push_back(length);
  step.num_passes = std::max(step.num_passes, length);
  if (count == 0) return;
  to.runs[step.num_runs++] = {
      .begin = int64_t{table} + entry.num_pages, .source = step.num_pages, .count = count};
  for (int32_t i = 0; i < count; ++i)
    to.pages[step.num_pages++] = first_page_ + entry.slot * own_pages + i;
}

Status CudaDraftChains::bring(const Step& step, const PackedStep& packed,
                              const int32_t* tables) const {
  Inputs from;
  cuda::Arena arena(step.inputs.data());
  from.lay_out(arena, config_);
  kc::BringInputsArgs args{.host = from.num_chains,
                           .device = device_.num_chains,
                           .runs = from.runs,
                           .num_runs = step.num_runs,
                           .pages = from.pages,
                           .num_pages = step.num_pages,
                           .tables = const_cast<int32_t*>(tables)};
  const auto take = [&](const auto* array, int64_t count) {
    constexpr auto kUnit = int64_t{16};
    const int64_t begin = reinterpret_cast<const std::byte*>(array) -
                          reinterpret_cast<const std::byte*>(from.num_chains);
    const int64_t bytes = count * static_cast<int64_t>(sizeof(*array));
    args.ranges[args.num_ranges++] = {.begin = static_cast<int32_t>(begin / kUnit),
                                      .count = static_cast<int32_t>((bytes + kUnit - 1) / kUnit)};
  };
  take(from.num_chains, 1);
  if (step.num_chains > 0) take(from.starts, step.num_chains);
  take(from.next_ids, packed.num_tokens);
  return kc::bring_inputs(args, {.stream = stream_.get()});
}

kc::ChainArrays CudaDraftChains::chains(int32_t count) const {
  kc::ChainArrays out = arrays_;
  out.max_chains = count;
  return out;
}

// Each chain's last token as an entry of its own.
CudaStep CudaDraftChains::next_step(const CudaStep& of, int32_t count) const {
  return {.ids = arrays_.ids,
          .entries = {.query_begin = arrays_.query_begin,
                      .prefix_len = arrays_.prefix_len,
                      .page_begin = arrays_.page_begin,
                      .page_tables = of.entries.page_tables,
                      .num_entries = count,
                      .num_tokens = count,
                      .max_query_tokens = 1},
          .num_rows = count};
}

Status CudaDraftChains::extend(int32_t count) {
  return kc::extend_chains({.chains = chains(count),
                            .logits = logits_,
                            .logits_stride = head_->logits_stride(),
                            .draft_ids = head_->draft_ids(),
                            .draft_vocab_size = head_->info().draft_vocab_size},
                           {.stream = stream_.get()});
}

// Of all rows of the step.
Status CudaDraftChains::first_pass(const PackedStep& packed, const CudaStep& of,
                                   const int32_t* sampled, const KvView& kv, int32_t count) {
  ESP_RETURN_IF_ERROR(kc::begin_chains({.chains = chains(count),
                                        .sampled = sampled,
                                        .step_ids = of.ids,
                                        .next_ids = device_.next_ids,
                                        .tokens = packed.num_tokens,
                                        .ids = ids_,
                                        .wanted = wanted_},
                                       {.stream = stream_.get()}));
  CudaStep own = of;
  own.ids = ids_;
  if (!shares_) own.entries.shared = {};
  own.rows = wanted_;
  own.num_rows = count;
  ESP_RETURN_IF_ERROR(head_->draft(own, kv, logits_, stream_));
  return count > 0 ? extend(count) : Status();
}

Status CudaDraftChains::run(Step& step, const PackedStep& packed, const CudaStep& of,
                            const int32_t* sampled, const KvView& kv, GraphUse& graph_use) {
  if (!step.reads || packed.num_tokens == 0) return Status();
  ESP_RETURN_IF_ERROR(step.begun.record(stream_));
  ESP_RETURN_IF_ERROR(bring(step, packed, of.entries.page_tables));
  const int32_t count = StepPacker::graph_rows(step.num_chains, config_.limits.max_slots);
  const auto first = [this, &packed, of, sampled, &kv, count] {
    return first_pass(packed, of, sampled, kv, count);
  };
  const auto next = [this, of, &kv, count]() -> Status {
    ESP_RETURN_IF_ERROR(head_->draft_next(next_step(of, count), kv, logits_, stream_));
    return extend(count);
  };
  const FirstKey key{packed.num_tokens, count, packed.cascade, !packed.adapters.empty(),
                     packed.fresh_positions};
  const bool graphs =
      config_.graphs && packed.decode && (first_.size() < kFirstGraphsMost || first_.contains(key));
  ESP_RETURN_IF_ERROR(graphs ? first_.run(key, stream_, first, graph_use) : first());
  for (int32_t pass = 1; pass < step.num_passes; ++pass)
    ESP_RETURN_IF_ERROR(config_.graphs ? next_.run(count, stream_, next, graph_use) : next());
  return cuda::copy_to_host(step.outputs.data(), arrays_.drafted,
                            4ll * step.num_chains * config_.chain_max, stream_);
}

Status CudaDraftChains::record_graphs() {
  ESP_RETURN_IF_ERROR(first_.record(stream_));
  return next_.record(stream_);
}

void CudaDraftChains::read(const ForwardBatch& batch, const Step& step, const cuda::Event& done,
                           StepResult& result) const {
  result.draft_seconds = 0;
  if (!step.reads) return;
  if (const auto seconds = done.seconds_since(step.begun)) result.draft_seconds = *seconds;
  const auto* drafted = reinterpret_cast<const int32_t*>(step.outputs.data());
  for (size_t chain = 0; chain < step.entries.size(); ++chain) {
    const auto at = static_cast<size_t>(step.entries[chain]);
    const BatchEntry& entry = batch.entries[at];
    EntryResult& out = result.entries[at];
    if (!out.status.ok()) continue;
    const AcceptedDraft accepted = accept_draft(batch, entry, out);
    out.length = entry.prefix_len + entry.last_known() + 1 + accepted.num_tokens;
    const int32_t* first = drafted + static_cast<int64_t>(chain) * config_.chain_max;
    out.chain.assign(first, first + step.lengths[chain]);
  }
}

}  // namespace espalier
