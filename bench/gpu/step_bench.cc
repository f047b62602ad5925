#include "step_bench.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "engine/executor/slot_lengths.h"
#include "kernels/kv_append/cuda.h"
#include "kernels/random/cuda.h"
#include "models/load_draft_head.h"
#include "models/model_plan.h"

namespace espalier::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

constexpr TokenId kRightToken = 17;  // of answers that draft tokens are compared with
constexpr int32_t kChainMost = 16;
constexpr int kWarmSteps = 6;  // the first of a size records its graph

// Keys and values of e4m3 as a step writes them, 8,192 rows at a time. REQUIRES: planes without
// gaps.
Status fill_e4m3(const KvView& kv, const cuda::Stream& stream) {
  namespace kc = kernels::cuda;
  constexpr int32_t kRows = 8192;
  const KvView::Layer& first = kv.layer(0);
  const int64_t width = first.token_stride;
  ESP_ASSIGN_OR_RETURN(const auto drawn,
                       cuda::DeviceBuffer::allocate(2 * kRows * width * 2, "drawn keys"));
  ESP_ASSIGN_OR_RETURN(const auto rows, cuda::DeviceBuffer::allocate(kRows * 4, "rows"));
  ESP_RETURN_IF_ERROR(kc::draw({.out = drawn.data(), .count = 2 * kRows * width, .key = 1},
                               {.stream = stream.get()}));
  std::vector<int32_t> order(kRows);
  std::iota(order.begin(), order.end(), 0);
  ESP_RETURN_IF_ERROR(cuda::copy_to_device(rows.data(), order.data(), kRows * 4, stream));
  const auto* k = reinterpret_cast<const uint16_t*>(drawn.data());
  for (const KvView::Layer& layer : kv.layers) {
    const int64_t all = int64_t{layer.num_pages} * kv.page_size;
    for (int64_t at = 0; at < all; at += kRows)
      ESP_RETURN_IF_ERROR(
          kc::qk_rope_append({.k = k,
                              .k_stride = 2 * width,
                              .v = k + width,
                              .v_stride = 2 * width,
                              .tokens = static_cast<int32_t>(std::min<int64_t>(kRows, all - at)),
                              .kv = {.type = layer.type,
                                     .k = static_cast<std::byte*>(layer.k) + at * width,
                                     .v = static_cast<std::byte*>(layer.v) + at * width,
                                     .num_kv_heads = layer.num_kv_heads,
                                     .head_dim = layer.head_dim,
                                     .page_stride = width,
                                     .token_stride = width,
                                     .head_stride = layer.head_stride},
                              .kv_rows = reinterpret_cast<const int32_t*>(rows.data())},
                             {.stream = stream.get()}));
  }
  return stream.synchronize();
}

CudaExecutorConfig executor_config(const StepBench::Limits& limits) {
  return {.max_slots = limits.max_entries,
          .max_draft_samples = limits.max_draft_samples,
          .chain_max = kChainMost,
          .max_tokens = limits.prefill_chunk + limits.max_entries + limits.max_draft_samples,
          .context_length = limits.context_length,
          .page_size = limits.page_size,
          .graphs = limits.graphs,
          .cascade = limits.cascade,
          .allow_pdl = limits.allow_pdl,
          .megakernel = limits.megakernel,
          .deterministic = limits.deterministic,
          .adapter_bytes = limits.adapter_bytes};
}

}  // namespace

Result<std::unique_ptr<StepBench>> StepBench::create(const ModelLoadOptions& model,
                                                     const Limits& limits) {
  std::unique_ptr<StepBench> bench(new StepBench);
  bench->limits_ = limits;
  ESP_RETURN_IF_ERROR(limits.pp > 1   ? bench->start_stages(model)
                      : limits.tp > 1 ? bench->start_ranks(model)
                                      : bench->start_one(model));
  bench->shuffled_.resize(static_cast<size_t>(bench->num_pages_));
  std::iota(bench->shuffled_.begin(), bench->shuffled_.end(), 0);
  Rng rng(1);
  std::shuffle(bench->shuffled_.begin(), bench->shuffled_.end(), rng);
  return bench;
}

Status StepBench::start_one(const ModelLoadOptions& model) {
  ESP_ASSIGN_OR_RETURN(ModelPlan plan, plan_model(model));
  ESP_ASSIGN_OR_RETURN(const auto head_spec, plan_draft_head(model, plan.spec));
  ESP_ASSIGN_OR_RETURN(auto decoder, CudaDecoder::load(std::move(plan), model));
  info_ = decoder->info();
  if (limits_.kv_e4m3) ESP_RETURN_IF_ERROR(decoder->set_kv_type(KvType::kFloat8E4M3));
  std::unique_ptr<CudaDraftHead> head;
  if (head_spec) {
    ESP_ASSIGN_OR_RETURN(head, CudaDraftHead::load(*head_spec, model, *decoder));
    info_.draft_kv = head->kv_info();
  }
  const KvType type = decoder->kv_type();
  if (decoder->adapted_matrices() != nullptr)
    modules_ = decoder->adapted_matrices()->modules().by_name();
  ESP_ASSIGN_OR_RETURN(
      auto executor,
      CudaExecutor::create(std::move(decoder), executor_config(limits_), std::move(head)));
  ESP_RETURN_IF_ERROR(allocate_kv(*executor, type));
  ESP_RETURN_IF_ERROR(fill_kv(executor->kv()));
  executor_ = std::move(executor);
  return Status();
}

KvType StepBench::kv_type_of(const ModelPlan& plan) const {
  if (limits_.kv_e4m3) return KvType::kFloat8E4M3;
  return plan.type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
}

Status StepBench::start_ranks(const ModelLoadOptions& model) {
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(model));
  std::vector<int32_t> devices(static_cast<size_t>(limits_.tp));
  std::iota(devices.begin(), devices.end(), 0);
  ESP_ASSIGN_OR_RETURN(auto ranks, CudaRanks::begin_load(plan, model, devices));
  info_ = ranks->rank_info();
  const KvType type = kv_type_of(plan);
  ESP_RETURN_IF_ERROR(ranks->set_kv_type(type));
  ESP_RETURN_IF_ERROR(ranks->reserve(executor_config(limits_)));
  ESP_RETURN_IF_ERROR(allocate_kv(*ranks, type));
  ESP_RETURN_IF_ERROR(ranks->finish_loading());
  ESP_RETURN_IF_ERROR(
      ranks->each("fill pages", [&](int32_t rank) { return fill_kv(ranks->executor(rank).kv()); }));
  executor_ = std::move(ranks);
  return Status();
}

Status StepBench::start_stages(const ModelLoadOptions& model) {
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(model));
  CudaStagesConfig config{.micro_batch_tokens = limits_.micro_batch};
  for (int32_t i = 0; i < limits_.pp; ++i) {
    std::vector<int32_t>& devices = config.devices.emplace_back(limits_.tp);
    std::iota(devices.begin(), devices.end(), i * limits_.tp);
  }
  ESP_ASSIGN_OR_RETURN(auto stages, CudaStages::begin_load(plan, model, config));
  info_ = stages->info();
  const KvType type = kv_type_of(plan);
  ESP_RETURN_IF_ERROR(stages->set_kv_type(type));
  ESP_RETURN_IF_ERROR(stages->reserve(executor_config(limits_)));
  ESP_RETURN_IF_ERROR(allocate_kv(*stages, type));
  ESP_RETURN_IF_ERROR(stages->finish_loading());
  for (int32_t i = 0; i < limits_.pp; ++i) {
    CudaRanks& stage = stages->stage(i);
    ESP_RETURN_IF_ERROR(
        stage.each("fill pages", [&](int32_t rank) { return fill_kv(stage.executor(rank).kv()); }));
  }
  executor_ = std::move(stages);
  return Status();
}

// The stage with room for the fewest pages decides.
Status StepBench::allocate_kv(CudaStages& stages, KvType type) {
  num_pages_ = std::numeric_limits<int32_t>::max();
  std::vector<KvPoolConfig> pools;
  for (int32_t i = 0; i < stages.num_stages(); ++i) {
    const ModelInfo& info = stages.stage_info(i);
    ESP_ASSIGN_OR_RETURN(const int64_t budget, stages.stage(i).kv_budget_bytes());
    num_pages_ = std::min(num_pages_, budget / (info.kv_bytes_per_token(type) * limits_.page_size));
    pools.push_back({.num_layers = info.num_layers,
                     .num_kv_heads = info.num_kv_heads,
                     .head_dim = info.head_dim,
                     .type = type,
                     .page_size = limits_.page_size,
                     .num_planes = info.kv_planes});
  }
  for (KvPoolConfig& pool : pools) pool.num_pages = static_cast<int32_t>(num_pages_);
  return stages.allocate_kv(pools);
}

template <typename AnyExecutor>
Status StepBench::allocate_kv(AnyExecutor& executor, KvType type) {
  ESP_ASSIGN_OR_RETURN(const int64_t budget, executor.kv_budget_bytes());
  num_pages_ = budget / (info_.kv_bytes_per_token(type) * limits_.page_size);
  KvPoolConfig pool{.num_layers = info_.num_layers,
                    .num_kv_heads = info_.num_kv_heads,
                    .head_dim = info_.head_dim,
                    .type = type,
                    .page_size = limits_.page_size,
                    .num_planes = info_.kv_planes};
  if (info_.draft_kv) {
    num_pages_ -= CudaDraftChains::num_pages(limits_.max_entries, kChainMost, limits_.page_size);
    pool.layer_shapes.assign(static_cast<size_t>(pool.num_layers++), pool.shape_of(0));
    pool.layer_shapes.push_back({info_.draft_kv->num_kv_heads, info_.draft_kv->head_dim, type});
  }
  pool.num_pages = static_cast<int32_t>(num_pages_ * (limits_.dp_attention ? limits_.tp : 1));
  return executor.allocate_kv(pool);
}

Status StepBench::fill_kv(const KvView& kv) {
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  if (kv.layer(0).type == KvType::kFloat8E4M3) return fill_e4m3(kv, stream);
  uint64_t key = 1;
  for (const KvView::Layer& layer : kv.layers) {
    for (void* plane : {layer.k, layer.v}) {
      ESP_RETURN_IF_ERROR(kernels::cuda::draw(
          {.type = layer.type == KvType::kFloat32 ? DType::kFloat32 : DType::kBFloat16,
           .out = plane,
           .count = layer.page_stride * layer.num_pages,
           .key = key++},
          {.stream = stream.get()}));
    }
  }
  return stream.synchronize();
}

void StepBench::take_pages(int64_t first, int64_t count, std::vector<PageId>& out) const {
  const auto begin = shuffled_.begin() + first;
  out.insert(out.end(), begin, begin + count);
}

namespace {

// Entries [first, last) of a batch as a batch of their own.
void take_entries(const ForwardBatch& batch, size_t first, size_t last, ForwardBatch& part) {
  const bool is_new = part.entries.empty();
  part.entries.clear();
  part.token_ids.clear();
  part.positions.clear();
  part.slot_inits.clear();
  int32_t page_begin = 0;
  for (size_t i = first; i < last; ++i) {
    const auto slot = static_cast<SlotId>(i - first);
    BatchEntry& entry = part.entries.emplace_back(batch.entries[i]);
    if (is_new) {
      const auto begin = batch.page_tables.begin() + entry.page_begin;
      const auto end = i + 1 < batch.entries.size()
                           ? batch.page_tables.begin() + batch.entries[i + 1].page_begin
                           : batch.page_tables.end();
      part.page_tables.insert(part.page_tables.end(), begin, end);
    }
    if (i > first) page_begin += batch.entries[i].page_begin - batch.entries[i - 1].page_begin;
    entry.slot = entry.query_begin = slot;
    entry.page_begin = page_begin;
    part.token_ids.push_back(batch.token_ids[i]);
    part.positions.push_back(batch.positions[i]);
    if (!batch.slot_inits.empty()) part.slot_inits.emplace_back(batch.slot_inits[i]).slot = slot;
  }
}

}  // namespace

// Neighbours go together, so that results come in the order of the entries.
void StepBench::divide_among_ranks(ForwardBatch& batch) const {
  const auto num_ranks = static_cast<size_t>(limits_.tp);
  batch.ranks.resize(num_ranks);
  const size_t count = batch.entries.size();
  for (size_t rank = 0; rank < num_ranks; ++rank)
    take_entries(batch, count * rank / num_ranks, count * (rank + 1) / num_ranks,
                 batch.ranks[rank]);
}

bool StepBench::begins_part(size_t entry, size_t count) const {
  const auto num_ranks = static_cast<size_t>(limits_.dp_attention ? limits_.tp : 1);
  for (size_t rank = 1; rank < num_ranks; ++rank)
    if (entry == count * rank / num_ranks) return true;
  return false;
}

Status StepBench::check(const StepResult& result) const {
  for (const EntryResult& entry : result.entries) {
    if (!entry.status.ok()) return entry.status;
    if (entry.token < 0 || entry.token >= info_.vocab_size) {
      return error(StatusCode::kInternal, "an entry drew the token {}", entry.token);
    }
  }
  return Status();
}

Result<StepTimes> StepBench::decode(const std::vector<int32_t>& contexts, int steps,
                                    const std::vector<AdapterId>& adapters) {
  const int all_steps = steps + kWarmSteps;
  ForwardBatch batches[2];
  auto sampling = std::make_shared<SamplingSpec>();
  sampling->seed = 3;
  ++table_version_;
  for (ForwardBatch& batch : batches) {
    int64_t first_page = 0;
    for (size_t i = 0; i < contexts.size(); ++i) {
      const int32_t pages = pages_for(contexts[i] + all_steps);
      if (begins_part(i, contexts.size())) first_page = 0;
      BatchEntry entry{.slot = static_cast<SlotId>(i),
                       .num_query_tokens = 1,
                       .prefix_len = contexts[i],
                       .query_begin = static_cast<int32_t>(i),
                       .page_begin = static_cast<int32_t>(batch.page_tables.size()),
                       .table_version = table_version_,
                       .sample = true,
                       .adapter = adapters.empty() ? kNoAdapter : adapters[i]};
      if (first_page + pages > num_pages_) {
        return fail(invalid_argument("{} entries of {} tokens do not fit into {} pages",
                                     contexts.size(), contexts[i], num_pages_));
      }
      take_pages(first_page, pages, batch.page_tables);
      first_page += pages;
      batch.entries.push_back(std::move(entry));
      batch.token_ids.push_back(kTokenFromSlot);
      batch.positions.push_back(contexts[i]);
    }
  }
  for (size_t i = 0; i < contexts.size(); ++i) {
    batches[0].slot_inits.push_back({.slot = static_cast<SlotId>(i), .sampling = sampling});
    batches[0].token_ids[i] =
        static_cast<TokenId>(mix64(i) % static_cast<uint64_t>(info_.vocab_size));
  }
  std::vector<double> times, device, launches;
  Clock::time_point last{};
  double total = 0, busy = 0;
  const auto launch = [&](int index) {
    ForwardBatch& batch = batches[index % 2];
    if (index > 1) batch.slot_inits.clear();
    if (index == 2) batch.token_ids.assign(contexts.size(), kTokenFromSlot);
    batch.step = ++step_;
    for (size_t i = 0; i < batch.entries.size(); ++i) {
      BatchEntry& entry = batch.entries[i];
      entry.prefix_len = contexts[i] + index;
      entry.num_pages = pages_for(entry.prefix_len + 1);
      entry.output_index = index;
      batch.positions[i] = entry.prefix_len;
    }
    if (limits_.dp_attention) divide_among_ranks(batch);
    const Clock::time_point start = Clock::now();
    executor_->launch(batch);
    return seconds(Clock::now() - start);
  };
  double launched = launch(0);
  for (int index = 0; index < all_steps; ++index) {
    const double next = index + 1 < all_steps ? launch(index + 1) : 0;
    const StepResult& result = executor_->wait(batches[index % 2].step);
    const Clock::time_point now = Clock::now();
    ESP_RETURN_IF_ERROR(check(result));
    if (index >= kWarmSteps) {
      times.push_back(seconds(now - last));
      total += times.back();
      busy += result.forward_seconds;
      device.push_back(result.forward_seconds);
      launches.push_back(launched);
    }
    launched = next;
    last = now;
  }
  return StepTimes{.step_seconds = median(times),
                   .device_seconds = median(device),
                   .launch_seconds = median(launches),
                   .idle = std::max(0.0, 1 - busy / total),
                   .gap_seconds = std::max(0.0, total - busy) / steps};
}

// An entry of a known token and draft tokens for each context, with pages for all its steps.
Result<ForwardBatch> StepBench::speculative_batch(const std::vector<int32_t>& contexts,
                                                  int32_t num_draft_tokens, int steps) {
  auto sampling = std::make_shared<SamplingSpec>();
  sampling->temperature = 0;
  sampling->logit_bias = {{kRightToken, 1e9f}};
  ++table_version_;
  ForwardBatch batch;
  int64_t first_page = 0;
  for (size_t i = 0; i < contexts.size(); ++i) {
    const auto slot = static_cast<SlotId>(i);
    batch.slot_inits.push_back({.slot = slot, .sampling = sampling});
    batch.entries.push_back(
        {.slot = slot,
         .num_query_tokens = 1 + num_draft_tokens,
         .prefix_len = contexts[i],
         .query_begin = slot * (1 + num_draft_tokens),
         .page_begin = static_cast<int32_t>(batch.page_tables.size()),
         .table_version = table_version_,
         .sample = true,
         .num_draft_tokens = num_draft_tokens,
         .draft_samples_begin = slot * num_draft_tokens,
         .num_draft_samples = num_draft_tokens,
         .chain_length = info_.draft_kv ? num_draft_tokens : BatchEntry::kNoChain});
    const int32_t pages = pages_for(contexts[i] + steps * (1 + num_draft_tokens));
    if (first_page + pages > num_pages_)
      return fail(
          invalid_argument("{} entries do not fit into {} pages", contexts.size(), num_pages_));
    take_pages(first_page, pages, batch.page_tables);
    first_page += pages;
    for (int32_t k = 0; k < num_draft_tokens; ++k) batch.draft_samples.push_back(k);
  }
  return batch;
}

// Lengthens the entries by what was accepted; the tokens of all of them.
Result<int64_t> StepBench::accept(const StepResult& result, ForwardBatch& batch) const {
  ESP_RETURN_IF_ERROR(check(result));
  int64_t tokens = 0;
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const AcceptedDraft accepted = accept_draft(batch, batch.entries[i], result.entries[i]);
    if (accepted.next != kRightToken)
      return fail(error(StatusCode::kInternal, "a biased draw gave {}", accepted.next));
    batch.entries[i].prefix_len += 1 + accepted.num_tokens;
    tokens += 1 + accepted.num_tokens;
  }
  return tokens;
}

Result<SpeculationTimes> StepBench::speculate(const std::vector<int32_t>& contexts,
                                              int32_t num_draft_tokens, double acceptance,
                                              int steps) {
  ESP_ASSIGN_OR_RETURN(ForwardBatch batch,
                       speculative_batch(contexts, num_draft_tokens, steps + kWarmSteps));
  Rng rng(5);
  std::vector<double> times, device, head;
  int64_t tokens = 0;
  double all = 0;
  for (int index = 0; index < steps + kWarmSteps; ++index) {
    const Clock::time_point start = Clock::now();
    batch.step = ++step_;
    batch.token_ids.clear();
    for (BatchEntry& entry : batch.entries) {
      entry.num_pages = pages_for(entry.prefix_len + 1 + num_draft_tokens);
      entry.output_index = entry.prefix_len;
      batch.token_ids.push_back(kRightToken);
      for (int32_t k = 0; k < num_draft_tokens; ++k)
        batch.token_ids.push_back(rng.uniform() < acceptance ? kRightToken : kRightToken + 1);
    }
    executor_->launch(batch);
    const StepResult& result = executor_->wait(batch.step);
    batch.slot_inits.clear();
    ESP_ASSIGN_OR_RETURN(const int64_t accepted, accept(result, batch));
    if (index < kWarmSteps) continue;
    tokens += accepted;
    times.push_back(seconds(Clock::now() - start));
    all += times.back();
    device.push_back(result.forward_seconds);
    head.push_back(result.draft_seconds);
  }
  const auto entry_steps = static_cast<double>(contexts.size()) * steps;
  return SpeculationTimes{.step_seconds = median(times),
                          .device_seconds = median(device),
                          .head_seconds = median(head),
                          .tokens_per_entry = static_cast<double>(tokens) / entry_steps,
                          .tokens_per_second = static_cast<double>(tokens) / all};
}

// Few distinct tokens choose few experts.
TokenId StepBench::prompt_token(int32_t position) const {
  uint64_t key = mix64(static_cast<uint64_t>(position));
  if (limits_.distinct_tokens > 0)
    key = mix64(key % static_cast<uint64_t>(limits_.distinct_tokens));
  return static_cast<TokenId>(key % static_cast<uint64_t>(info_.vocab_size));
}

Result<double> StepBench::prefill(int32_t tokens, int repeats, AdapterId adapter) {
  auto sampling = std::make_shared<SamplingSpec>();
  std::vector<double> times;
  for (int repeat = 0; repeat <= repeats; ++repeat) {  // the first one warms
    ++table_version_;
    std::vector<ForwardBatch> batches;
    for (int32_t begin = 0; begin < tokens; begin += limits_.prefill_chunk) {
      const int32_t end = std::min(tokens, begin + limits_.prefill_chunk);
      ForwardBatch& batch = batches.emplace_back();
      if (begin == 0) batch.slot_inits.push_back({.slot = 0, .sampling = sampling});
      batch.step = ++step_;
      batch.entries.push_back({.slot = 0,
                               .num_query_tokens = end - begin,
                               .prefix_len = begin,
                               .num_pages = (end + limits_.page_size - 1) / limits_.page_size,
                               .table_version = table_version_,
                               .sample = end == tokens,
                               .adapter = adapter});
      take_pages(0, batch.entries[0].num_pages, batch.page_tables);
      for (int32_t i = begin; i < end; ++i) {
        batch.positions.push_back(i);
        batch.token_ids.push_back(prompt_token(i));
      }
    }
    const Clock::time_point start = Clock::now();
    for (size_t i = 0; i < batches.size(); ++i) {
      executor_->launch(batches[i]);
      if (i > 0) executor_->wait(batches[i - 1].step);
    }
    ESP_RETURN_IF_ERROR(check(executor_->wait(batches.back().step)));
    if (repeat > 0) times.push_back(seconds(Clock::now() - start));
  }
  return median(times);
}

}  // namespace espalier::bench
