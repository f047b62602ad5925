#include "engine/executor/cuda/cuda_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/executor/cuda/device_planes.h"
#include "kernels/kv_layer.h"
#include "kernels/page_copy/cuda.h"
#include "kernels/sampling/cuda.h"
#include "models/rotary_places.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/range.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

// Graphs are made as sizes come up: some tens of them, each with a node for every kernel of a pass.
// What CUDA keeps for one was measured at under 4 MiB for 32 layers.
constexpr int64_t kBytesPerGraphLayer = 128 << 10;
constexpr int64_t kBytesPerGraph = 1 << 20;
// What the driver and libraries take after start: kernels loaded at first use.
constexpr int64_t kLaterBytes = int64_t{512} << 20;

// Null: pages are not staged.
CudaPageStaging* staging_of(const CudaPageCopier* copier) {
  return copier != nullptr ? copier->staging() : nullptr;
}

// Rows of pictures, of the decoder's type, by the order of the step's tokens.
void find_spans(const ForwardBatch& batch, DType type, std::vector<StepSpan>& out) {
  out.clear();
  for (const EmbeddingSpan& span : batch.embedding_spans) {
    const EncodedRows& rows = *span.rows;
    ESP_CHECK(rows.elements != nullptr && span.first_row + span.count <= rows.num_rows,
              "rows {} to {} of {}, which must be a GPU's", span.first_row,
              span.first_row + span.count, rows.num_rows);
    const int64_t row_bytes = rows.width * static_cast<int64_t>(dtype_size(type));
    out.push_back({.token_begin = span.token_begin,
                   .count = span.count,
                   .rows = rows.elements.get() + span.first_row * row_bytes});
  }
}

// Rows of draft tokens that one entry of decode attention takes, of the model and of its draft head
// alike.
Result<int32_t> rows_together(const kc::AttentionShape& shape, const CudaDraftHead* head,
                              int32_t page_size) {
  const int32_t rows = draft_rows_of(shape.num_heads, shape.num_kv_heads);
  if (head == nullptr) return rows;
  ESP_ASSIGN_OR_RETURN(const bool shares, head->shares_attention(page_size));
  if (!shares) return 1;
  const kc::AttentionShape own = head->attention_shape(page_size);
  return std::min(rows, draft_rows_of(own.num_heads, own.num_kv_heads));
}

int32_t most_of(const std::vector<int32_t>& tokens) {
  return tokens.empty() ? 0 : std::ranges::max(tokens);
}

int64_t num_graph_sizes(int32_t max_entries) {
  int64_t count = 0;
  for (int32_t entries = 1; entries <= max_entries; ++count)
    entries = StepPacker::graph_rows(entries, max_entries) + 1;
  return count;
}

}  // namespace

CudaExecutor::CudaExecutor(std::unique_ptr<CudaDecoder> model, const CudaExecutorConfig& config)
    : config_(config),
      model_(std::move(model)),
      samples_((config.collective == nullptr || config.own_rows ||
                config.collective->ranks().rank == 0) &&
               model_->placed_weights().spec.stage.samples),
      limits_{
          .max_slots = config.max_slots,
          .max_entries = config.max_slots + config.max_draft_samples,
          .max_tokens = config.max_tokens,
          .max_table_pages = (config.context_length + config.page_size - 1) / config.page_size + 1,
          .window_pages = model_->info().sliding_window > 0,
          .adapters = model_->adapted_matrices() != nullptr,
          .places = has_sections(model_->placed_weights().spec),
          .last_seen = model_->info().images && model_->info().images->bidirectional},
      arrays_{.mask_words = (model_->info().vocab_size + 31) / 32},
      places_(static_cast<size_t>(config.max_in_flight) + 1) {}

// What is in flight still writes to the buffers.
CudaExecutor::~CudaExecutor() { static_cast<void>(stream_.synchronize()); }

Result<std::unique_ptr<CudaExecutor>> CudaExecutor::create(std::unique_ptr<CudaDecoder> model,
                                                           const CudaExecutorConfig& config,
                                                           std::unique_ptr<CudaDraftHead> head) {
  ESP_CHECK(head == nullptr || config.collective == nullptr, "draft heads are not divided");
  std::unique_ptr<CudaExecutor> executor(new CudaExecutor(std::move(model), config));
  ESP_RETURN_IF_ERROR(executor->allocate(std::move(head)));
  return executor;
}

namespace {

// An estimate. kinds: of steps of one size, which have graphs of their own.
int64_t graph_bytes(const CudaExecutorConfig& config, const StepLimits& limits, bool has_head,
                    int64_t num_layers, int64_t kinds) {
  if (!config.graphs) return 0;
  int64_t num_sizes = num_graph_sizes(config.max_slots);
  // A head's graphs are small, and as many.
  if (has_head) num_sizes += num_graph_sizes(config.max_slots);
  // With draft tokens twice: with few fresh positions and with any number of them.
  if (config.max_draft_samples > 0) num_sizes += 2 * num_graph_sizes(limits.max_entries);
  return (num_sizes * (config.cascade ? 2 : 1) * kinds + 1) *
         (kBytesPerGraph + num_layers * kBytesPerGraphLayer);
}

CudaDraftChains::Config chains_config(const CudaExecutorConfig& config, const StepLimits& limits) {
  return {.limits = limits,
          .chain_max = config.chain_max,
          .page_size = config.page_size,
          .deterministic_context = config.deterministic ? config.context_length : 0,
          .graphs = config.graphs};
}

}  // namespace

Status CudaExecutor::allocate(std::unique_ptr<CudaDraftHead> head) {
  model_->set_pdl(config_.allow_pdl);
  model_->set_megakernel(config_.megakernel);
  if (config_.deterministic) model_->set_deterministic(config_.context_length);
  ESP_RETURN_IF_ERROR(model_->reserve(config_.max_tokens, limits_.max_entries, config_.page_size));
  ESP_ASSIGN_OR_RETURN(stream_, cuda::Stream::create(true));
  ESP_ASSIGN_OR_RETURN(const std::optional<kc::AttentionShape> shared,
                       model_->shared_attention(config_.page_size));
  SharedReads reads;
  if (shared) {
    ESP_ASSIGN_OR_RETURN(reads.draft_rows, rows_together(*shared, head.get(), config_.page_size));
  }
  if (shared && config_.cascade)
    reads.cascade = CascadeCosts::of(shared->num_heads, shared->num_kv_heads, shared->head_dim);
  ESP_ASSIGN_OR_RETURN(StepPacker packer, StepPacker::create(limits_, reads, stream_));
  packer_ = std::make_unique<StepPacker>(std::move(packer));
  if (const AdaptedMatrices* matrices = model_->adapted_matrices()) {
    ESP_ASSIGN_OR_RETURN(
        adapters_, CudaAdapterStore::create(*matrices, model_->type(), config_.adapter_bytes));
    packer_->set_adapters(adapters_.get());
  }
  const int32_t vocab_size = model_->info().vocab_size;
  ESP_ASSIGN_OR_RETURN(SlotTable slots, SlotTable::create(config_.max_slots, vocab_size));
  slots_ = std::make_unique<SlotTable>(std::move(slots));
  if (config_.stage_link != nullptr)
    stage_ = std::make_unique<StageExchange>(*config_.stage_link, *model_, slots_->tokens(),
                                             config_.max_slots);
  ESP_ASSIGN_OR_RETURN(controls_, SlotControls::create(model_->info(), config_.max_slots));
  if (controls_) packer_->set_controls(controls_->device());
  ESP_ASSIGN_OR_RETURN(const size_t workspace,
                       kc::sample_workspace_bytes(limits_.max_entries, vocab_size));
  arrays_.workspace_bytes = static_cast<int64_t>(workspace);
  cuda::Arena measured;
  const int64_t logits_stride = samples_ ? model_->logits_stride() : 0;
  arrays_.lay_out(measured, limits_, logits_stride);
  ESP_ASSIGN_OR_RETURN(block_,
                       cuda::DeviceBuffer::allocate(measured.used_bytes(), "logits and results"));
  cuda::Arena arena(block_.data());
  arrays_.lay_out(arena, limits_, logits_stride);
  if (!samples_) arrays_.logits = nullptr;
  ESP_RETURN_IF_ERROR(model_->tune(arrays_.logits, stream_));
  if (head != nullptr) {
    ESP_ASSIGN_OR_RETURN(chains_, CudaDraftChains::create(
                                      std::move(head), chains_config(config_, limits_), stream_));
  }
  ESP_RETURN_IF_ERROR(through_host_.allocate(config_, limits_, *model_));
  for (Place& place : places_) {
    ESP_RETURN_IF_ERROR(place.allocate(limits_, packer_->block_bytes(),
                                       !stage_ || stage_->is_last() ? arrays_.mask_words : 0));
    if (samples_) ESP_RETURN_IF_ERROR(through_host_.sampling->allocate(place.host_samples));
    if (chains_) ESP_RETURN_IF_ERROR(chains_->allocate(place.chains));
  }
  ESP_RETURN_IF_ERROR(stream_.synchronize());
  memory_.weights = model_->info().weight_bytes;
  memory_.encoder = config_.encoder_bytes;
  memory_.adapters = adapters_ ? adapters_->size_bytes() : 0;
  memory_.scratch = model_->scratch_bytes() + (chains_ ? chains_->device_bytes() : 0);
  memory_.steps = packer_->device_bytes() + slots_->device_bytes() + block_.size_bytes();
  if (through_host_.states) memory_.steps += through_host_.states->device_bytes();
  if (config_.stage_link != nullptr) memory_.steps += config_.stage_link->device_bytes();
  memory_.graphs = graph_bytes(config_, limits_, chains_ != nullptr, model_->info().num_layers,
                               (adapters_ ? 2 : 1) * (controls_ ? 2 : 1));
  return Status();
}

Status CudaExecutor::ThroughHost::allocate(const CudaExecutorConfig& config,
                                           const StepLimits& limits, CudaDecoder& model) {
  if (config.collective == nullptr || config.own_rows || config.collective->ranks().rank == 0) {
    ESP_ASSIGN_OR_RETURN(sampling, HostSampling::create({.max_slots = config.max_slots,
                                                         .max_rows = limits.max_entries,
                                                         .vocab_size = model.info().vocab_size,
                                                         .num_threads = config.num_host_threads,
                                                         .first_cpu = config.first_cpu}));
  }
  if (model.info().returns_hidden_states || model.info().pooled) {
    ESP_ASSIGN_OR_RETURN(states, HiddenReader::create(model, config.max_slots));
  }
  return Status();
}

Status CudaExecutor::ThroughHost::forward(CudaDecoder& model, CudaStep step,
                                          HiddenReader::Step& of_step, const KvView& kv,
                                          const cuda::Stream& stream) const {
  const std::function<Status(int32_t, const void*)> take = [&](int32_t index, const void* rows) {
    return states->take(of_step, index, rows, stream);
  };
  if (step.returns_states) step.on_states = &take;
  return model.forward(step, kv, stream);
}

Status CudaExecutor::Place::allocate(const StepLimits& limits, int64_t input_bytes,
                                     int64_t mask_words) {
  ESP_ASSIGN_OR_RETURN(inputs, cuda::PinnedBuffer::allocate(input_bytes, "a step's inputs"));
  cuda::Arena input_arena(inputs.data());
  host.lay_out(input_arena, limits);
  cuda::Arena measured;
  results.lay_out(measured, limits);
  ESP_ASSIGN_OR_RETURN(outputs,
                       cuda::PinnedBuffer::allocate(measured.used_bytes(), "a step's results"));
  cuda::Arena output_arena(outputs.data());
  results.lay_out(output_arena, limits);
  ESP_ASSIGN_OR_RETURN(
      masks, cuda::PinnedBuffer::allocate(4ll * limits.max_entries * mask_words, "grammar masks"));
  ESP_ASSIGN_OR_RETURN(started, cuda::Event::create(true));
  ESP_ASSIGN_OR_RETURN(done, cuda::Event::create(true));
  return Status();
}

Result<int64_t> CudaExecutor::kv_budget_bytes() const {
  ESP_ASSIGN_OR_RETURN(const cuda::DeviceMemory memory, cuda::read_device_memory());
  return std::max<int64_t>(0, memory.free_bytes - memory_.graphs - kLaterBytes);
}

Status CudaExecutor::allocate_kv(const KvPoolConfig& cache) {
  KvPoolConfig config = cache;
  if (chains_) {
    chains_->set_first_page(cache.num_pages);
    config.num_pages +=
        CudaDraftChains::num_pages(config_.max_slots, config_.chain_max, config_.page_size);
  }
  const auto allocate = [&](int64_t bytes) -> Result<std::unique_ptr<KvPlanes>> {
    ESP_ASSIGN_OR_RETURN(auto planes, DevicePlanes::allocate(bytes));
    ESP_RETURN_IF_ERROR(cuda::fill_bytes(planes->data(), 0, bytes, stream_));
    planes_ = planes.get();
    return planes;
  };
  ESP_ASSIGN_OR_RETURN(KvPool kv, KvPool::create(config, allocate));
  ESP_RETURN_IF_ERROR(kernels::check_kv_view(kv.view(), kernels::KvKernels::kCuda));
  memory_.kv = kv.bytes();
  packer_->set_window_pages(!config.window_layers.empty());
  pages_.pool = std::make_unique<KvPool>(std::move(kv));
  return Status();
}

Status CudaExecutor::warm_up() {
  return run_warm_up_steps(*this, config_, !model_->info().pooled, pages_.pool->config(),
                           [this] { return lost_; });
}

Status run_warm_up_steps(Executor& executor, const CudaExecutorConfig& config, bool samples,
                         const KvPoolConfig& kv, const std::function<Status()>& lost) {
  const bool window_pages = !kv.window_layers.empty();
  const int32_t pages = window_pages ? kv.num_window_pages : kv.num_pages;
  const int32_t most =
      std::min({256, config.max_tokens, config.context_length, pages * config.page_size});
  const int32_t chain_max = executor.chain_max();
  const auto sampling = std::make_shared<const SamplingSpec>();
  uint64_t step = 0;
  for (const int32_t tokens : {most, 2, 1, 1, 1}) {
    if (tokens > most) continue;
    ForwardBatch batch;
    batch.step = ++step;
    batch.slot_inits.push_back({.slot = 0, .sampling = sampling});
    batch.entries.push_back({.slot = 0,
                             .num_query_tokens = tokens,
                             .num_pages = (tokens + config.page_size - 1) / config.page_size,
                             .sample = samples,
                             .chain_length = chain_max > 0 && step < 5 ? std::min(2, chain_max)
                                                                       : BatchEntry::kNoChain});
    batch.token_ids.assign(static_cast<size_t>(tokens), 0);
    for (int32_t i = 0; i < tokens; ++i) batch.positions.push_back(i);
    for (int32_t i = 0; i < batch.entries[0].num_pages; ++i) batch.page_tables.push_back(i);
    if (window_pages) batch.window_page_tables = batch.page_tables;
    executor.launch(batch);
    executor.wait(step);  // half-loaded weights may give logits that are not finite: no matter
    ESP_RETURN_IF_ERROR(lost());
  }
  return Status();
}

void CudaExecutor::launch(const ForwardBatch& batch, uint64_t step, const RankStep& ranks) {
  const cuda::Range range("launch a step");
  Place& p = place_of(step);
  p.batch = &batch;
  p.step = step;
  p.ranks = ranks;
  if (adapters_) adapters_->begin_step();
  p.status = lost_.ok() ? enqueue(p) : lost_;
  if (CudaPageStaging* const staging = staging_of(pages_.copier.get()))
    p.status = staging->end_step(p.status, stream_);
  if (!p.status.ok()) p.status = lose_device(p.status);
}

Status CudaExecutor::enqueue(Place& p) {
  p.rows = &p.draft_rows.expand(*p.batch);
  if (p.rows != p.batch) ++counts_.verifications;
  p.graph_use = GraphUse::kNone;
  ESP_CHECK(pages_.pool != nullptr, "allocate_kv comes before the first step");
  ESP_RETURN_IF_ERROR(cuda::use_device(model_->device()));
  if (CudaPageStaging* const staging = staging_of(pages_.copier.get()))
    ESP_RETURN_IF_ERROR(staging->precede(stream_));
  ESP_RETURN_IF_ERROR(p.started.record(stream_));
  if (controls_) ESP_RETURN_IF_ERROR(controls_->init(p.batch->slot_inits, stream_));
  if (samples_) {
    for (const SlotInit& init : p.batch->slot_inits) {
      ESP_RETURN_IF_ERROR(slots_->init(init, stream_));
      through_host_.sampling->init(init);
      if (through_host_.states) through_host_.states->init(init.slot);
    }
    p.logprobs = plan_logprobs(*p.rows, *slots_, limits_, p.refused);
    through_host_.sampling->begin(*p.rows, p.host_samples);
  }
  p.num_samples = 0;
  for (const BatchEntry& entry : p.rows->entries) p.num_samples += entry.sample ? 1 : 0;
  ESP_ASSIGN_OR_RETURN(p.packed, packer_->pack(*p.batch, *p.rows, p.host,
                                               {.pad_for_graphs = config_.graphs,
                                                .may_decode = p.ranks.decode,
                                                .rows_min = most_of(p.ranks.tokens)}));
  // Of a padded decode step all ranks have as many rows.
  if (!p.packed.decode || !config_.graphs) p.packed.rank_tokens = p.ranks.tokens;
  if (chains_) {
    chains_->pack(*p.batch, *p.rows, p.packed, p.chains);
    p.packed.keeps_states = p.chains.reads;
  }
  p.packed.has_controls = controls_ && controls_->any(*p.batch);
  if (through_host_.states) {
    through_host_.states->begin(*p.batch, p.states);
    p.packed.returns_states = p.states.any();
  }
  p.results_on_device = p.logprobs.sampled || p.packed.keeps_states;
  find_spans(*p.batch, model_->type(), p.spans);
  if (p.logprobs.num_wanted > 0) {
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(arrays_.wanted_begin, p.logprobs.wanted_begin.data(),
                                             std::ssize(p.logprobs.wanted_begin) * 4, stream_));
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(arrays_.wanted_ids, p.logprobs.wanted_ids.data(),
                                             std::ssize(p.logprobs.wanted_ids) * 4, stream_));
  }
  // Rows of other stages are copied outside of graphs, for their buffers take turns.
  if (p.packed.num_tokens > 0 || most_of(p.ranks.tokens) > 0) {
    const cuda::Range range(p.packed.decode ? "decode" : "prefill");
    if (stage_) ESP_RETURN_IF_ERROR(stage_->begin(*p.batch, p.packed.num_tokens, stream_));
    ESP_RETURN_IF_ERROR(run(p));
    if (stage_) ESP_RETURN_IF_ERROR(stage_->end(p.packed.num_tokens, stream_));
  }
  // Masks come when the tokens before them are known; their step is sampled then.
  return samples_ && p.packed.num_masked > 0 ? Status() : enqueue_sampling(p);
}

Status CudaExecutor::run(Place& p) {
  const PackedStep& packed = p.packed;
  if (packed.cascade) ++counts_.cascades;
  if (!packed.decode) {
    CudaStep step = packer_->step(p.packed, slots_->tokens());
    step.spans = p.spans;
    CudaPageStaging* const staging = staging_of(pages_.copier.get());
    const std::function<Status(int32_t)> stage = [&](int32_t layer) {
      return staging->on_append(layer, stream_);
    };
    if (staging != nullptr && staging->awaits_step()) step.on_append = &stage;
    ESP_RETURN_IF_ERROR(
        through_host_.forward(*model_, step, p.states, pages_.pool->view(), stream_));
    ESP_RETURN_IF_ERROR(enqueue_input_logprobs(p));
    if (p.num_samples == 0) return Status();
    return model_->logits(0, p.num_samples, arrays_.logits, stream_);
  }
  const auto run = [this, &p]() -> Status {
    ESP_RETURN_IF_ERROR(through_host_.forward(*model_, packer_->step(p.packed, slots_->tokens()),
                                              p.states, pages_.pool->view(), stream_));
    return model_->logits(0, p.packed.num_samples, arrays_.logits, stream_);
  };
  if (!config_.graphs || packed.returns_states) return run();
  const bool long_entry =
      packed.num_tokens == 1 &&
      (packed.keeps_states || packed.max_prefix_len >= model_->megakernel_context_max());
  return graphs_.run({packed.num_tokens, packed.cascade, !packed.adapters.empty(), long_entry,
                      packed.fresh_positions, packed.has_controls},
                     stream_, run, p.graph_use);
}

CudaExecutor::Counts CudaExecutor::counts() const {
  Counts counts = counts_;
  counts.captures = graphs_.num_captures();
  counts.replays = graphs_.num_replays();
  return counts;
}

// In blocks of as many rows of logits as there is room for.
Status CudaExecutor::enqueue_input_logprobs(Place& p) {
  const StepArrays& device = packer_->device();
  for (int32_t first = 0; first < p.packed.num_input_rows; first += limits_.max_entries) {
    const int32_t rows = std::min(limits_.max_entries, p.packed.num_input_rows - first);
    ESP_RETURN_IF_ERROR(model_->logits(p.num_samples + first, rows, arrays_.logits, stream_));
    if (!samples_) continue;
    ESP_RETURN_IF_ERROR(enqueue_logprobs(p, p.num_samples + first,
                                         {.rows = rows,
                                          .targets = device.targets + first,
                                          .logprobs = arrays_.results.input_logprobs + first,
                                          .statuses = arrays_.results.input_statuses + first}));
  }
  return Status();
}

// `args` names the rows, which are in arrays_.logits and are the step's from `first_row` on.
Status CudaExecutor::enqueue_logprobs(Place& p, int32_t first_row, kc::LogprobArgs args) {
  const int64_t top = int64_t{first_row} * p.logprobs.max_top;
  args.logits = arrays_.logits;
  args.logits_stride = model_->logits_stride();
  args.vocab_size = model_->info().vocab_size;
  args.max_top = p.logprobs.max_top;
  args.top_ids = arrays_.results.top_ids + top;
  args.top_logprobs = arrays_.results.top_logprobs + top;
  if (p.logprobs.num_wanted > 0) {
    args.wanted_begin = arrays_.wanted_begin + first_row;
    args.wanted_ids = arrays_.wanted_ids;
    args.wanted_logprobs = arrays_.results.wanted;
  }
  return kc::logprobs(args, {.stream = stream_.get()});
}

// The next step of every rank begins with the tokens that rank 0 has sampled.
Status CudaExecutor::enqueue_sampling(Place& p) {
  const cuda::Range range("sample");
  if (samples_) ESP_RETURN_IF_ERROR(enqueue_samples(p));
  if (chains_)
    ESP_RETURN_IF_ERROR(chains_->run(p.chains, p.packed, packer_->step(p.packed, slots_->tokens()),
                                     arrays_.results.tokens, pages_.pool->view(), p.graph_use));
  const bool has_peers =
      config_.collective != nullptr && !config_.own_rows && !config_.collective->ranks().single();
  if (has_peers && (!stage_ || stage_->is_last())) {
    ESP_RETURN_IF_ERROR(config_.collective->share_tokens({.row_slots = packer_->device().row_slots,
                                                          .rows = p.num_samples,
                                                          .slot_tokens = slots_->tokens()},
                                                         {.stream = stream_.get()}));
  }
  if (stage_ && p.num_samples > 0) ESP_RETURN_IF_ERROR(stage_->send_tokens(p.batch->step, stream_));
  if (samples_) {
    const int64_t inputs = p.packed.num_input_rows;
    ESP_RETURN_IF_ERROR(copy_results(arrays_.results, p.results,
                                     {.num_samples = p.results_on_device ? p.num_samples : 0,
                                      .num_inputs = inputs,
                                      .num_top = (p.num_samples + inputs) * p.logprobs.max_top,
                                      .num_wanted = p.logprobs.num_wanted},
                                     stream_));
  }
  ESP_RETURN_IF_ERROR(p.done.record(stream_));
  ESP_RETURN_IF_ERROR(graphs_.record(stream_));
  return chains_ ? chains_->record_graphs() : Status();
}

Status CudaExecutor::enqueue_samples(Place& p) {
  if (p.num_samples > 0) {
    const StepArrays& device = packer_->device();
    const bool masked = p.packed.num_masked > 0;
    // Where nothing on the device reads them they go straight to the host.
    const ResultArrays& results = p.results_on_device ? arrays_.results : p.results;
    const kc::SampleArgs sample{.logits = arrays_.logits,
                                .logits_stride = model_->logits_stride(),
                                .rows = p.num_samples,
                                .vocab_size = model_->info().vocab_size,
                                .slots = slots_->sampling(),
                                .row_slots = device.row_slots,
                                .output_indices = device.output_indices,
                                .masks = masked ? arrays_.masks : nullptr,
                                .mask_stride = arrays_.mask_words,
                                .has_mask = masked ? device.has_mask : nullptr,
                                .tokens = results.tokens,
                                .statuses = results.statuses,
                                .slot_tokens = slots_->tokens(),
                                .workspace = arrays_.workspace,
                                .workspace_bytes = static_cast<size_t>(arrays_.workspace_bytes)};
    ESP_RETURN_IF_ERROR(kc::sample(sample, {.stream = stream_.get()}));
    if (p.logprobs.sampled) {
      ESP_RETURN_IF_ERROR(enqueue_logprobs(p, 0,
                                           {.rows = p.num_samples,
                                            .targets = arrays_.results.tokens,
                                            .logprobs = arrays_.results.logprobs,
                                            .sampled = sample}));
    }
  }
  if (!p.host_samples.any()) return Status();
  p.host_samples.mask_words = arrays_.mask_words;
  if (p.packed.num_masked > 0)
    p.host_samples.masks = reinterpret_cast<const uint32_t*>(p.masks.data());
  return through_host_.sampling->enqueue(
      p.host_samples, p.num_samples,
      {.logits = arrays_.logits,
       .logits_stride = model_->logits_stride(),
       .row_slots = packer_->device().row_slots,
       .tokens = p.results_on_device ? arrays_.results.tokens : nullptr,
       .slot_tokens = slots_->tokens()},
      stream_);
}

void CudaExecutor::provide_masks(uint64_t step, const MaskView& masks) {
  const cuda::Range range("masks");
  Place& p = place_of(step);
  if (!p.status.ok()) return;
  auto* host = reinterpret_cast<uint32_t*>(p.masks.data());
  const MaskedRows rows = pack_masks(*p.rows, masks, arrays_.mask_words, host);
  const int64_t begin = int64_t{rows.begin} * arrays_.mask_words;
  p.status = cuda::use_device(model_->device());
  if (p.status.ok())
    p.status = cuda::copy_to_device(arrays_.masks + begin, host + begin,
                                    4ll * (rows.end - rows.begin) * arrays_.mask_words, stream_);
  if (p.status.ok()) p.status = enqueue_sampling(p);
  if (!p.status.ok()) p.status = lose_device(p.status);
}

const StepResult& CudaExecutor::wait(uint64_t step) {
  Place& p = place_of(step);
  ESP_CHECK(p.batch != nullptr && p.step == step, "step {} is not in flight", step);
  if (p.status.ok()) {
    const cuda::Range range("wait for the device");
    p.status = p.done.synchronize();
    if (!p.status.ok()) p.status = lose_device(p.status);
  }
  if (adapters_) adapters_->end_step();
  p.result.step = step;
  if (!p.status.ok()) {
    p.result.entries.assign(p.batch->entries.size(), {});
    for (size_t i = 0; i < p.batch->entries.size(); ++i) {
      p.result.entries[i].status = p.status;
      p.result.entries[i].input_logprobs.resize(p.batch->entries[i].input_logprob_targets.size());
    }
    return p.result;
  }
  if (!samples_) return p.result;
  const cuda::Range range("results");
  const auto seconds = p.done.seconds_since(p.started);
  p.result.forward_seconds = seconds ? *seconds : 0;
  p.result.graph_use = p.graph_use;
  const bool expanded = p.rows != p.batch;
  StepResult& rows = expanded ? p.draft_rows.results() : p.result;
  read_results(*p.rows, *slots_, p.logprobs, p.results, p.refused, rows);
  HostSampling::read(p.host_samples, p.refused, rows);
  if (expanded) p.draft_rows.fold(*p.batch, p.result);
  if (through_host_.states) through_host_.states->read(p.states, p.result);
  if (chains_) chains_->read(*p.batch, p.chains, p.done, p.result);
  return p.result;
}

Result<bool> CudaExecutor::is_done(uint64_t step) {
  Place& p = place_of(step);
  ESP_RETURN_IF_ERROR(p.status);
  Result<bool> done = p.done.is_done();
  if (!done) p.status = lose_device(done.error());
  ESP_RETURN_IF_ERROR(p.status);
  return done;
}

// In the stream's order: behind the steps in flight, in front of those to come.
Status CudaExecutor::copy_pages(std::span<const PageId> from, std::span<const PageId> to) {
  ESP_CHECK(from.size() == to.size() && pages_.pool->config().window_layers.empty());
  ESP_RETURN_IF_ERROR(lost_);
  ESP_RETURN_IF_ERROR(cuda::use_device(model_->device()));
  // One launch for each run of layers whose pages have the same size.
  const std::vector<KvView::Layer>& layers = pages_.pool->view().layers;
  Status status;
  for (auto first = layers.begin(); status.ok() && first != layers.end();) {
    const int64_t page_bytes = first->page_bytes();
    std::vector<void*> planes;
    for (; first != layers.end() && first->page_bytes() == page_bytes; ++first) {
      planes.push_back(first->k);
      if (first->v != first->k) planes.push_back(first->v);
    }
    status = kc::copy_pages({.planes = planes, .page_bytes = page_bytes, .from = from, .to = to},
                            {.stream = stream_.get()});
  }
  if (status.ok() && pages_.copier != nullptr) status = pages_.copier->follow(stream_);
  return status.ok() ? status : lose_device(status);
}

PageCopier* CudaExecutor::page_copier() {
  if (pages_.copier != nullptr) return pages_.copier.get();
  const Status device = cuda::use_device(model_->device());
  auto copier = device.ok() ? CudaPageCopier::create(pages_.pool->view(), /*stages_steps=*/!chains_)
                            : fail(device);
  if (copier) {
    pages_.copier = *std::move(copier);
  } else if (copier.error().code() != StatusCode::kUnimplemented) {
    log_error("no copies of pages error=\"{}\"", copier.error().message());
  }
  return pages_.copier.get();
}

Result<AdapterInfo> CudaExecutor::load_adapter(AdapterId id, const std::filesystem::path& folder,
                                               int32_t rank_max) {
  if (!adapters_) return Executor::load_adapter(id, folder, rank_max);
  return adapters_->load(id, folder, rank_max);
}

void CudaExecutor::unload_adapter(AdapterId id) {
  if (adapters_) adapters_->unload(id);
}

// Every later step fails with this status.
Status CudaExecutor::lose_device(const Status& status) {
  if (!lost_.ok()) return lost_;
  lost_ = status.with_context("the GPU failed");
  log_error("device lost error=\"{}\"", lost_.message());
  if (config_.on_device_lost) config_.on_device_lost(lost_);
  return lost_;
}

}  // namespace espalier
