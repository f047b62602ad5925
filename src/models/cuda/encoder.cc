#include "models/cuda/encoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "kernels/embedding/cuda.h"
#include "kernels/random/cuda.h"
#include "models/cuda/ops.h"
#include "models/cuda/support.h"
#include "models/program/gpu_passes.h"
#include "models/program/lower.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/range.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

constexpr int32_t kRowsMax = 65535;  // of learned positions, which one kernel adds at once
// More units than memory is measured for.
constexpr int32_t kUnitsMost = 1 << 19;

// Pinned at once: of pictures of one size few have a slab, for pinning holds up what other threads
// launch; among pictures of many sizes larger slabs leave less between two blocks.
constexpr int64_t kSlabBytes = int64_t{4} << 20, kMixedSlabBytes = int64_t{32} << 20;

int64_t size_of(DType type) { return static_cast<int64_t>(dtype_size(type)); }

// Elements of an encoder's type as floats.
void widen(const std::byte* from, DType type, std::span<float> to) {
  if (type == DType::kFloat32) {
    std::memcpy(to.data(), from, to.size_bytes());
    return;
  }
  const auto* halves = reinterpret_cast<const BFloat16*>(from);
  std::transform(halves, halves + to.size(), to.begin(),
                 [](BFloat16 half) { return to_float(half); });
}

template <typename T>
Status bring_array(T* device, const T* host, int64_t count, const cuda::Stream& stream) {
  if (device == nullptr || count == 0) return Status();
  return cuda::copy_to_device(device, host, count * static_cast<int64_t>(sizeof(T)), stream);
}

}  // namespace

CudaEncoder::CudaEncoder(EncoderPlan plan, PendingCudaWeights weights,
                         std::unique_ptr<kc::Linear> linear, CudaPlan program)
    : device_(cuda::current_device()),
      spec_(std::move(plan.spec)),
      weights_(std::move(weights.weights)),
      linear_(std::move(linear)),
      plan_(std::move(program)),
      context_(spec_, weights_, *linear_, policy_, plan_),
      info_({.num_rows = spec_.tiles ? 0 : spec_.patches->num_patches / spec_.patches->square(),
             .width = spec_.projector->row_width(),
             .patches = *spec_.patches,
             .tiles = spec_.tiles,
             .processor = plan.processor,
             .num_parameters = spec_.num_parameters(),
             .weight_bytes = weights_.size_bytes()}),
      rows_(std::make_shared<PinnedRows>(info_.num_rows > 0 ? kSlabBytes : kMixedSlabBytes)) {}

// What is in flight still reads and writes the buffers.
CudaEncoder::~CudaEncoder() { static_cast<void>(synchronize()); }

Status CudaEncoder::synchronize() const {
  ESP_RETURN_IF_ERROR(streams_.bring.synchronize());
  ESP_RETURN_IF_ERROR(streams_.compute.synchronize());
  return streams_.fetch.synchronize();
}

Status CudaEncoder::Slot::create(const DecoderSpec& spec, const EncoderSizes& sizes) {
  cuda::Arena measured;
  host.lay_out(measured, spec, sizes);
  ESP_ASSIGN_OR_RETURN(staged,
                       cuda::PinnedBuffer::allocate(measured.used_bytes(), "pictures' patches"));
  cuda::Arena arena(staged.data());
  host.lay_out(arena, spec, sizes);
  ESP_ASSIGN_OR_RETURN(brought, cuda::Event::create());
  ESP_ASSIGN_OR_RETURN(computed, cuda::Event::create());
  ESP_ASSIGN_OR_RETURN(done, cuda::Event::create());
  return Status();
}

Result<std::unique_ptr<CudaEncoder>> CudaEncoder::load(const ModelLoadOptions& options,
                                                       const CudaEncoderOptions& own) {
  ESP_ASSIGN_OR_RETURN(std::optional<EncoderPlan> plan, plan_image_encoder(options));
  if (!plan) return std::unique_ptr<CudaEncoder>();
  return load_planned(*std::move(plan), options, own);
}

Result<std::unique_ptr<CudaEncoder>> CudaEncoder::load_videos(const ModelLoadOptions& options,
                                                              const CudaEncoderOptions& own) {
  ESP_ASSIGN_OR_RETURN(const std::optional<EncoderPlan> plan, plan_image_encoder(options));
  if (!plan || plan->videos == nullptr) return std::unique_ptr<CudaEncoder>();
  return load_planned(*plan->videos, options, own);
}

Result<std::unique_ptr<CudaEncoder>> CudaEncoder::load_planned(EncoderPlan plan,
                                                               const ModelLoadOptions& options,
                                                               const CudaEncoderOptions& own) {
  ESP_RETURN_IF_ERROR(validate(plan.spec));
  ESP_RETURN_IF_ERROR(check_cuda_encoder(plan.spec));
  ESP_ASSIGN_OR_RETURN(CudaPlan program,
                       CudaPlan::create(program::encoder_passes(program::lower(plan.spec))));
  ModelLoadOptions quiet = options;
  quiet.progress = [](int64_t, int64_t) {};  // the decoder's is shown
  ESP_ASSIGN_OR_RETURN(
      PendingCudaWeights weights,
      load_cuda_weights(plan.spec, weight_layout(plan.spec), WeightTypes(plan.type), quiet));
  if (weights.loader) ESP_RETURN_IF_ERROR(weights.loader->finish());
  ESP_ASSIGN_OR_RETURN(auto linear,
                       kc::Linear::create({.cache_folder = kc::default_linear_cache()}));
  if (own.deterministic) linear->set_row_invariant();
  std::unique_ptr<CudaEncoder> encoder(
      new CudaEncoder(std::move(plan), std::move(weights), std::move(linear), std::move(program)));
  ESP_ASSIGN_OR_RETURN(encoder->ropes_, CudaRopes::upload(encoder->spec_));
  ESP_RETURN_IF_ERROR(encoder->reserve(own));
  if (encoder->spec_.patches->sound) {
    ESP_ASSIGN_OR_RETURN(SoundStem stem, load_sound_stem(options, encoder->spec_));
    encoder->set_stem(std::move(stem));
  }
  log_info(
      "image encoder loaded device=cuda parameters={} weight_bytes={} rows_per_image={} "
      "images_per_batch={} patches_per_image_max={} scratch_bytes={}",
      encoder->info_.num_parameters, encoder->info_.weight_bytes, encoder->info_.num_rows,
      encoder->batch_max_, encoder->patches_max(), encoder->block_.size_bytes());
  return encoder;
}

int64_t CudaEncoder::row_bytes(int32_t num_rows) const {
  return int64_t{num_rows} * info_.width * size_of(weights_.type());
}

Result<EncodedRows> CudaEncoder::allocate_rows(int32_t num_rows) {
  ESP_CHECK(num_rows > 0 && (info_.num_rows == 0 || num_rows == info_.num_rows),
            "{} rows instead of {}", num_rows, info_.num_rows);
  EncodedRows rows{.num_rows = num_rows, .width = info_.width, .values = {}, .elements = {}};
  ESP_RETURN_IF_ERROR(cuda::use_device(device_));
  ESP_ASSIGN_OR_RETURN(rows.elements, rows_->take(row_bytes(num_rows)));
  return rows;
}

// Every GEMM of the program in a batch of these sizes, with pointers where there is memory.
std::vector<kc::LinearArgs> CudaEncoder::gemms(const EncoderSizes& sizes) const {
  std::vector<kc::LinearArgs> out;
  for (const CudaPlan::BoundOp& bound : plan_.ops()) {
    if (!is_gemm(bound.op) || bound.op.layer > 0) continue;
    const auto& matmul = bound.op.as<program::Matmul>();
    const bool all =
        plan_.program().buffer(bound.op.outputs[0]).rows.count == program::RowCount::kTokens;
    kc::LinearArgs& args =
        out.emplace_back(matmul_shape(weights_, matmul, all ? sizes.rows : sizes.outputs));
    args.x = context_.read(bound.op.inputs[0]);
    args.x_stride = context_.stride(bound.op.inputs[0]);
    args.bias = weights_.data(matmul.bias);
    args.y = context_.write(bound.op.outputs[0]);
    args.y_stride = context_.stride(bound.op.outputs[0]);
    if (matmul.residual) args.residual = args.y;
  }
  return out;
}

void CudaEncoder::lay_out(cuda::Arena& arena, const EncoderSizes& sizes, int64_t linear_bytes) {
  context_.lay_out(arena, {.max_tokens = sizes.rows, .max_outputs = sizes.outputs});
  for (Slot& slot : slots_) {
    slot.device.lay_out(arena, spec_, sizes);
    slot.rows = arena.take<std::byte>(row_bytes(sizes.results));
    slot.tiles = mixes_rows(spec_) ? arena.take<std::byte>(row_bytes(sizes.outputs)) : slot.rows;
  }
  auto* workspace = arena.take<std::byte>(linear_bytes);
  context_.bind({.ropes = ropes_.frequencies(),
                 .gemm_workspace = {workspace, static_cast<size_t>(linear_bytes)}});
}

// Bytes of a batch of so many units.
int64_t CudaEncoder::measure(int32_t units) {
  const EncoderSizes sizes = EncoderSizes::most(spec_, units, batch_max_);
  const std::vector<kc::LinearArgs> shapes = gemms(sizes);
  cuda::Arena measured;
  lay_out(measured, sizes,
          static_cast<int64_t>(linear_->workspace_bytes(shapes, std::max(1, sizes.rows))));
  return measured.used_bytes();
}

// As many units as batches may have: those of the largest picture, and more where bytes_max allows.
int32_t CudaEncoder::fitting_units(int32_t units_least, int64_t bytes_max) {
  const PatchesSpec& patches = *spec_.patches;
  const bool any_size = patches.num_patches == 0;  // a unit is a patch, else a tile
  const int32_t square = any_size ? patches.square() : 1;
  const int64_t countable = any_size ? kUnitsMost : std::max(1, kRowsMax / patches.num_rows());
  const auto most =
      std::max<int64_t>(units_least, std::min(int64_t{batch_max_} * units_least, countable));
  int64_t fits = units_least, fails = most + 1;
  while (fails - fits > 1) {
    const int64_t middle = (fits + fails) / 2;
    (measure(static_cast<int32_t>(middle)) <= bytes_max ? fits : fails) = middle;
  }
  return static_cast<int32_t>(fits > units_least ? fits / square * square : fits);
}

Status CudaEncoder::reserve(const CudaEncoderOptions& own) {
  const int32_t least = units_max(spec_, info_.processor, own.patches_max);
  batch_max_ = std::max(1, own.batch_max);
  deterministic_ = own.deterministic;
  cuda::Arena first;
  lay_out(first, EncoderSizes::most(spec_, least, batch_max_), 0);  // operands have strides then
  units_max_ = fitting_units(least, own.scratch_bytes_max);
  if (info_.num_rows > 0) batch_max_ = std::min(batch_max_, units_max_);
  const EncoderSizes sizes = EncoderSizes::most(spec_, units_max_, batch_max_);
  const std::vector<kc::LinearArgs> shapes = gemms(sizes);
  const auto linear_bytes = static_cast<int64_t>(linear_->workspace_bytes(shapes, sizes.rows));
  ESP_ASSIGN_OR_RETURN(block_, cuda::DeviceBuffer::allocate(measure(units_max_),
                                                            "scratch of the pictures' encoder"));
  cuda::Arena arena(block_.data());
  lay_out(arena, sizes, linear_bytes);
  for (cuda::Stream* stream : {&streams_.compute, &streams_.bring, &streams_.fetch}) {
    ESP_ASSIGN_OR_RETURN(*stream, cuda::Stream::create());
  }
  for (Slot& slot : slots_) ESP_RETURN_IF_ERROR(slot.create(spec_, sizes));
  ESP_RETURN_IF_ERROR(tune(units_max_));
  return read_line_end();
}

// Batches of few units to full ones, on numbers that are no zeros: GEMMs of zeros run faster.
Status CudaEncoder::tune(int32_t units_max) {
  const cuda::Stream& stream = streams_.compute;
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(block_.data(), 0, block_.size_bytes(), stream));
  const std::span<std::byte> activations = context_.buffers().activations();
  ESP_RETURN_IF_ERROR(kc::draw({.type = weights_.type(),
                                .out = activations.data(),
                                .count = std::ssize(activations) / size_of(weights_.type())},
                               {.stream = stream.get()}));
  constexpr int64_t kPatchesLeast = 256;  // of pictures of any size
  std::vector<kc::LinearArgs> shapes;
  for (int64_t units = spec_.patches->num_patches == 0 ? kPatchesLeast : 1; units <= units_max;
       units *= 2) {
    const EncoderSizes sizes = EncoderSizes::most(spec_, static_cast<int32_t>(units), batch_max_);
    for (const kc::LinearArgs& args : gemms(sizes)) shapes.push_back(args);
  }
  const std::span<std::byte> workspace = context_.scratch().gemm_workspace;
  ESP_RETURN_IF_ERROR(linear_->tune(shapes, workspace.data(), workspace.size(), stream.get()));
  return stream.synchronize();
}

void CudaEncoder::ReleaseSlot::operator()(Slot* slot) const {
  {
    std::lock_guard lock(encoder->mutex_);
    slot->taken = false;
  }
  encoder->freed_.notify_one();
}

CudaEncoder::SlotLease CudaEncoder::take_slot() {
  const auto is_free = [](const Slot& slot) { return !slot.taken; };
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [&] { return std::ranges::any_of(slots_, is_free); });
  Slot& slot = *std::ranges::find_if(slots_, is_free);
  slot.taken = true;
  return SlotLease(&slot, {this});
}

Status CudaEncoder::encode_batch(std::span<const EncoderTask> tasks) {
  while (!tasks.empty()) {
    size_t count = 0;
    for (int64_t units = 0; count < tasks.size() && std::cmp_less(count, batch_max_); ++count) {
      units += units_of(spec_, *tasks[count].image);
      if (units > units_max_) break;
    }
    if (count == 0) {
      return invalid_argument(
          "a picture has {} patches, and the encoder takes at most {}: send a smaller one",
          int64_t{tasks[0].image->num_tiles} * tasks[0].image->grid.size(), patches_max());
    }
    ESP_RETURN_IF_ERROR(encode_part(tasks.first(count)));
    tasks = tasks.subspan(count);
  }
  return Status();
}

Status CudaEncoder::encode_part(std::span<const EncoderTask> tasks) {
  ESP_RETURN_IF_ERROR(cuda::use_device(device_));
  for (const EncoderTask& task : tasks) {
    ESP_CHECK(task.rows->elements != nullptr && task.rows->num_rows == task.image->num_rows,
              "{} rows instead of {}", task.rows->num_rows, task.image->num_rows);
  }
  const SlotLease slot = take_slot();
  const EncoderBatch batch = write_batch(spec_, tasks, slot->host);
  Status status;
  {
    const cuda::Range range("encode pictures");
    std::lock_guard lock(mutex_);
    status = enqueue(tasks, batch, *slot);
  }
  if (status.ok()) return slot->done.synchronize();
  // Nothing may be in flight that uses the slot.
  static_cast<void>(synchronize());
  return status;
}

Status CudaEncoder::bring(const EncoderBatch& batch, const Slot& slot) const {
  const EncoderArrays &to = slot.device, &from = slot.host;
  const EncoderSizes& sizes = batch.sizes;
  const cuda::Stream& stream = streams_.bring;
  const int64_t patches = sizes.rows - (spec_.patches->class_token ? sizes.sequences : 0);
  ESP_RETURN_IF_ERROR(
      bring_array(to.patches, from.patches, patches * spec_.patches->features(), stream));
  ESP_RETURN_IF_ERROR(bring_array(to.wanted, from.wanted, sizes.outputs, stream));
  ESP_RETURN_IF_ERROR(bring_array(to.positions, from.positions, sizes.rows, stream));
  ESP_RETURN_IF_ERROR(bring_array(to.places, from.places, int64_t{3} * sizes.rows, stream));
  ESP_RETURN_IF_ERROR(bring_array(to.between, from.between, sizes.rows, stream));
  ESP_RETURN_IF_ERROR(bring_array(to.begins, from.begins, sizes.sequences + 1, stream));
  ESP_RETURN_IF_ERROR(bring_array(to.windows, from.windows, sizes.windows + 1, stream));
  return bring_array(to.mixed, from.mixed, sizes.results, stream);
}

CudaStep CudaEncoder::step_of(const EncoderBatch& batch, const Slot& slot) const {
  CudaStep step;
  step.entries.num_tokens = batch.sizes.rows;
  // Of pictures of one size without class rows all rows are wanted as they are, unless they merge.
  const bool all =
      !spec_.patches->class_token && spec_.patches->num_patches > 0 && spec_.patches->merge == 1;
  step.rows = all ? nullptr : slot.device.wanted;
  step.num_rows = batch.sizes.outputs;
  step.places = slot.device.places;
  step.grid_positions = slot.device.between;
  // Of pictures of one size attention has another kernel, whose bits are others.
  const bool equal = batch.equal_rows && !deterministic_;
  step.pictures = {.count = batch.sizes.sequences,
                   .rows_max = batch.rows_longest,
                   .begins = equal ? nullptr : slot.device.begins};
  step.windows = {.count = batch.sizes.windows,
                  .rows_max = batch.window_rows_longest,
                  .begins = slot.device.windows};
  return step;
}

Status CudaEncoder::enqueue(std::span<const EncoderTask> tasks, const EncoderBatch& batch,
                            const Slot& slot) {
  ESP_RETURN_IF_ERROR(bring(batch, slot));
  ESP_RETURN_IF_ERROR(slot.brought.record(streams_.bring));
  ESP_RETURN_IF_ERROR(streams_.compute.wait(slot.brought));
  CudaScratch scratch = context_.scratch();
  scratch.patches = slot.device.patches;
  scratch.positions = slot.device.positions;
  context_.bind(scratch);
  context_.begin(step_of(batch, slot), no_pages_, streams_.compute);
  ESP_RETURN_IF_ERROR(context_.run(0, plan_.output_begin()));
  ESP_RETURN_IF_ERROR(context_.run_outputs(
      0, batch.sizes.outputs, reinterpret_cast<float*>(slot.tiles), info_.width, streams_.compute));
  if (mixes_rows(spec_)) {
    ESP_RETURN_IF_ERROR(kc::mix_rows({.type = weights_.type(),
                                      .x = slot.tiles,
                                      .apart = weights_.data({WeightKind::kLineEnd}),
                                      .rows = slot.device.mixed,
                                      .count = batch.sizes.results,
                                      .dim = info_.width,
                                      .out = slot.rows},
                                     {.stream = streams_.compute.get()}));
  }
  ESP_RETURN_IF_ERROR(slot.computed.record(streams_.compute));
  return fetch(tasks, batch, slot);
}

Status CudaEncoder::fetch(std::span<const EncoderTask> tasks, const EncoderBatch& batch,
                          const Slot& slot) {
  ESP_RETURN_IF_ERROR(streams_.fetch.wait(slot.computed));
  for (size_t i = 0; i < tasks.size(); ++i) {
    const int32_t begin = batch.result_begins[i], count = batch.result_begins[i + 1] - begin;
    ESP_RETURN_IF_ERROR(cuda::copy_to_host(tasks[i].rows->elements.get(),
                                           slot.rows + row_bytes(begin), row_bytes(count),
                                           streams_.fetch));
  }
  return slot.done.record(streams_.fetch);
}

Status CudaEncoder::read_line_end() {
  if (!mixes_rows(spec_)) return Status();
  const auto width = static_cast<size_t>(info_.width);
  const auto* from = static_cast<const std::byte*>(weights_.data({WeightKind::kLineEnd}));
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(1)));
  ESP_RETURN_IF_ERROR(cuda::copy_to_host(bytes.data(), from, std::ssize(bytes), streams_.compute));
  ESP_RETURN_IF_ERROR(streams_.compute.synchronize());
  line_end_.resize(width);
  widen(bytes.data(), weights_.type(), line_end_);
  return Status();
}

// Of tiles a picture of one, without the row that ends it.
Status CudaEncoder::encode_tile(std::span<const float> patches, const PatchGrid& grid,
                                std::span<float> rows, const std::stop_token&) {
  const auto num_rows = static_cast<int32_t>(std::ssize(rows) / info_.width);
  const PreparedImage image{.patches = {patches.begin(), patches.end()},
                            .grid = grid,
                            .tiles = {},
                            .num_rows = num_rows + (mixes_rows(spec_) ? 1 : 0)};
  ESP_ASSIGN_OR_RETURN(EncodedRows encoded, allocate_rows(image.num_rows));
  const EncoderTask task{.image = &image, .rows = &encoded};
  ESP_RETURN_IF_ERROR(encode_batch({&task, 1}));
  widen(encoded.elements.get(), weights_.type(), rows);
  return Status();
}

}  // namespace espalier
