#include "models/cuda/encoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
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

constexpr int32_t kRowsMax = 65535;  // of a step: of the kernels between GEMMs

int64_t size_of(DType type) { return static_cast<int64_t>(dtype_size(type)); }

}  // namespace

CudaEncoder::CudaEncoder(EncoderPlan plan, PendingCudaWeights weights,
                         std::unique_ptr<kc::Linear> linear, CudaPlan program)
    : device_(cuda::current_device()),
      spec_(std::move(plan.spec)),
      weights_(std::move(weights.weights)),
      linear_(std::move(linear)),
      plan_(std::move(program)),
      context_(spec_, weights_, *linear_, policy_, plan_),
      info_({.num_rows = spec_.patches->num_patches,
             .width = spec_.projector->layers.back().outputs,
             .patches = *spec_.patches,
             .tiles = spec_.tiles,
             .processor = plan.processor,
             .num_parameters = spec_.num_parameters(),
             .weight_bytes = weights_.size_bytes()}),
      rows_(std::make_shared<PinnedRows>(picture_bytes())) {}

// What is in flight still reads and writes the buffers.
CudaEncoder::~CudaEncoder() { static_cast<void>(synchronize()); }

Status CudaEncoder::synchronize() const {
  ESP_RETURN_IF_ERROR(bringing_.synchronize());
  ESP_RETURN_IF_ERROR(stream_.synchronize());
  return fetching_.synchronize();
}

Status CudaEncoder::Slot::create(int64_t staged_bytes) {
  ESP_ASSIGN_OR_RETURN(staged, cuda::PinnedBuffer::allocate(staged_bytes, "pictures' patches"));
  ESP_ASSIGN_OR_RETURN(brought, cuda::Event::create());
  ESP_ASSIGN_OR_RETURN(computed, cuda::Event::create());
  ESP_ASSIGN_OR_RETURN(done, cuda::Event::create());
  return Status();
}

Result<std::unique_ptr<CudaEncoder>> CudaEncoder::load(const ModelLoadOptions& options,
                                                       const CudaEncoderOptions& own) {
  ESP_ASSIGN_OR_RETURN(std::optional<EncoderPlan> plan, plan_image_encoder(options));
  if (!plan) return std::unique_ptr<CudaEncoder>();
  ESP_RETURN_IF_ERROR(validate(plan->spec));
  ESP_RETURN_IF_ERROR(check_cuda_encoder(plan->spec));
  ESP_ASSIGN_OR_RETURN(CudaPlan program,
                       CudaPlan::create(program::encoder_passes(program::lower(plan->spec))));
  ModelLoadOptions quiet = options;
  quiet.progress = [](int64_t, int64_t) {};  // the decoder's is shown
  ESP_ASSIGN_OR_RETURN(
      PendingCudaWeights weights,
      load_cuda_weights(plan->spec, weight_layout(plan->spec), WeightTypes(plan->type), quiet));
  if (weights.loader) ESP_RETURN_IF_ERROR(weights.loader->finish());
  ESP_ASSIGN_OR_RETURN(auto linear,
                       kc::Linear::create({.cache_folder = kc::default_linear_cache()}));
  if (own.deterministic) linear->set_row_invariant();
  std::unique_ptr<CudaEncoder> encoder(
      new CudaEncoder(*std::move(plan), std::move(weights), std::move(linear), std::move(program)));
  ESP_RETURN_IF_ERROR(encoder->reserve(own));
  log_info(
      "image encoder loaded device=cuda parameters={} weight_bytes={} rows_per_image={} "
      "images_per_batch={} scratch_bytes={}",
      encoder->info_.num_parameters, encoder->info_.weight_bytes, encoder->info_.num_rows,
      encoder->batch_max_, encoder->block_.size_bytes());
  return encoder;
}

int64_t CudaEncoder::row_bytes(int32_t num_rows) const {
  return int64_t{num_rows} * info_.width * size_of(weights_.type());
}

Result<EncodedRows> CudaEncoder::allocate_rows(int32_t num_rows) {
  ESP_CHECK(num_rows == info_.num_rows, "{} rows instead of {}", num_rows, info_.num_rows);
  EncodedRows rows{.num_rows = num_rows, .width = info_.width, .values = {}, .elements = {}};
  ESP_RETURN_IF_ERROR(cuda::use_device(device_));
  ESP_ASSIGN_OR_RETURN(rows.elements, rows_->take());
  return rows;
}

// Every GEMM of the program with so many pictures, with pointers where there is memory.
std::vector<kc::LinearArgs> CudaEncoder::gemms(int32_t pictures) const {
  std::vector<kc::LinearArgs> out;
  for (const CudaPlan::BoundOp& bound : plan_.ops()) {
    if (!is_gemm(bound.op) || bound.op.layer > 0) continue;
    const auto& matmul = bound.op.as<program::Matmul>();
    const bool all =
        plan_.program().buffer(bound.op.outputs[0]).rows.count == program::RowCount::kTokens;
    const int32_t rows = all ? spec_.patches->num_rows() : spec_.patches->num_patches;
    kc::LinearArgs& args = out.emplace_back(matmul_shape(weights_, matmul, pictures * rows));
    args.x = context_.read(bound.op.inputs[0]);
    args.x_stride = context_.stride(bound.op.inputs[0]);
    args.bias = weights_.data(matmul.bias);
    args.y = context_.write(bound.op.outputs[0]);
    args.y_stride = context_.stride(bound.op.outputs[0]);
    if (matmul.residual) args.residual = args.y;
  }
  return out;
}

void CudaEncoder::lay_out(cuda::Arena& arena, int32_t pictures, int64_t linear_bytes) {
  const PatchesSpec& patches = *spec_.patches;
  const int64_t num_patches = int64_t{pictures} * patches.num_patches;
  context_.lay_out(arena, {.max_tokens = pictures * patches.num_rows(),
                           .max_outputs = static_cast<int32_t>(num_patches)});
  for (Slot& slot : slots_) {
    slot.patches = arena.take<float>(num_patches * patches.features());
    slot.rows = arena.take<std::byte>(pictures * picture_bytes());
  }
  positions_ = arena.take<int32_t>(int64_t{pictures} * patches.num_rows());
  wanted_ = arena.take<int32_t>(num_patches);
  auto* workspace = arena.take<std::byte>(linear_bytes);
  context_.bind(
      {.positions = positions_, .gemm_workspace = {workspace, static_cast<size_t>(linear_bytes)}});
}

Status CudaEncoder::reserve(const CudaEncoderOptions& own) {
  const PatchesSpec& patches = *spec_.patches;
  int64_t linear_bytes = 0;
  const auto measure = [&](int32_t pictures) {
    const std::vector<kc::LinearArgs> shapes = gemms(pictures);
    linear_bytes =
        static_cast<int64_t>(linear_->workspace_bytes(shapes, pictures * patches.num_rows()));
    cuda::Arena measured;
    lay_out(measured, pictures, linear_bytes);
    return measured.used_bytes();
  };
  cuda::Arena first;
  lay_out(first, 1, 0);  // GEMMs' operands have their strides then
  batch_max_ = std::clamp(own.batch_max, 1, std::max(1, kRowsMax / patches.num_rows()));
  while (batch_max_ > 1 && measure(batch_max_) > own.scratch_bytes_max) --batch_max_;
  ESP_ASSIGN_OR_RETURN(block_, cuda::DeviceBuffer::allocate(measure(batch_max_),
                                                            "scratch of the pictures' encoder"));
  cuda::Arena arena(block_.data());
  lay_out(arena, batch_max_, linear_bytes);
  for (cuda::Stream* stream : {&stream_, &bringing_, &fetching_}) {
    ESP_ASSIGN_OR_RETURN(*stream, cuda::Stream::create());
  }
  const int64_t staged_bytes =
      int64_t{batch_max_} * patches.num_patches * patches.features() * int64_t{sizeof(float)};
  for (Slot& slot : slots_) ESP_RETURN_IF_ERROR(slot.create(staged_bytes));
  ESP_RETURN_IF_ERROR(tune());
  return upload_rows();
}

// What every batch reads: positions, and the rows that are no class rows.
Status CudaEncoder::upload_rows() {
  const PatchesSpec& patches = *spec_.patches;
  std::vector<int32_t> positions, wanted;
  for (int32_t row = 0; row < batch_max_ * patches.num_rows(); ++row) {
    positions.push_back(row % patches.num_rows());
    if (!patches.class_token || positions.back() > 0) wanted.push_back(row);
  }
  const auto bytes = [](const std::vector<int32_t>& values) { return std::ssize(values) * 4; };
  ESP_RETURN_IF_ERROR(
      cuda::copy_to_device(positions_, positions.data(), bytes(positions), stream_));
  ESP_RETURN_IF_ERROR(cuda::copy_to_device(wanted_, wanted.data(), bytes(wanted), stream_));
  return stream_.synchronize();
}

// Batches of one picture to full ones, on numbers that are no zeros: GEMMs of zeros run faster.
Status CudaEncoder::tune() {
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(block_.data(), 0, block_.size_bytes(), stream_));
  const std::span<std::byte> activations = context_.buffers().activations();
  ESP_RETURN_IF_ERROR(kc::draw({.type = weights_.type(),
                                .out = activations.data(),
                                .count = std::ssize(activations) / size_of(weights_.type())},
                               {.stream = stream_.get()}));
  std::vector<kc::LinearArgs> shapes;
  for (int32_t pictures = 1; pictures <= batch_max_; pictures *= 2) {
    for (const kc::LinearArgs& args : gemms(pictures)) shapes.push_back(args);
  }
  const std::span<std::byte> workspace = context_.scratch().gemm_workspace;
  ESP_RETURN_IF_ERROR(linear_->tune(shapes, workspace.data(), workspace.size(), stream_.get()));
  return stream_.synchronize();
}

CudaEncoder::Slot& CudaEncoder::take_slot() {
  const auto is_free = [](const Slot& slot) { return !slot.taken; };
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [&] { return std::ranges::any_of(slots_, is_free); });
  Slot& slot = *std::ranges::find_if(slots_, is_free);
  slot.taken = true;
  return slot;
}

Status CudaEncoder::encode_batch(std::span<const EncoderTask> tasks) {
  if (tasks.empty()) return Status();
  ESP_CHECK(std::ssize(tasks) <= batch_max_, "{} pictures in a batch of {}", tasks.size(),
            batch_max_);
  ESP_RETURN_IF_ERROR(cuda::use_device(device_));
  const int64_t features = int64_t{spec_.patches->num_patches} * spec_.patches->features();
  Slot& slot = take_slot();
  auto* to = reinterpret_cast<float*>(slot.staged.data());
  for (const EncoderTask& task : tasks) {
    const std::vector<float>& from = task.image->patches;
    ESP_CHECK(std::ssize(from) == features && task.rows->elements != nullptr,
              "{} numbers of patches instead of {}", from.size(), features);
    to = std::copy_n(from.data(), features, to);
  }
  Status status;
  {
    const cuda::Range range("encode pictures");
    std::lock_guard lock(mutex_);
    status = enqueue(tasks, slot);
  }
  // After a failure, too, so that nothing is in flight that uses the slot.
  const Status done = status.ok() ? slot.done.synchronize() : synchronize();
  {
    std::lock_guard lock(mutex_);
    slot.taken = false;
  }
  freed_.notify_one();
  return status.ok() ? done : status;
}

Status CudaEncoder::enqueue(std::span<const EncoderTask> tasks, const Slot& slot) {
  const PatchesSpec& patches = *spec_.patches;
  const auto pictures = static_cast<int32_t>(tasks.size());
  const int64_t bytes = int64_t{pictures} * patches.num_patches * patches.features() * 4;
  ESP_RETURN_IF_ERROR(cuda::copy_to_device(slot.patches, slot.staged.data(), bytes, bringing_));
  ESP_RETURN_IF_ERROR(slot.brought.record(bringing_));
  ESP_RETURN_IF_ERROR(stream_.wait(slot.brought));
  CudaScratch scratch = context_.scratch();
  scratch.patches = slot.patches;
  context_.bind(scratch);
  CudaStep step;
  step.entries.num_entries = pictures;
  step.entries.num_tokens = pictures * patches.num_rows();
  step.rows = patches.class_token ? wanted_ : nullptr;
  step.num_rows = pictures * patches.num_patches;
  context_.begin(step, no_pages_, stream_);
  ESP_RETURN_IF_ERROR(context_.run(0, plan_.output_begin()));
  ESP_RETURN_IF_ERROR(context_.run_outputs(0, step.num_rows, reinterpret_cast<float*>(slot.rows),
                                           info_.width, stream_));
  ESP_RETURN_IF_ERROR(slot.computed.record(stream_));
  ESP_RETURN_IF_ERROR(fetching_.wait(slot.computed));
  for (int32_t i = 0; i < pictures; ++i) {
    ESP_RETURN_IF_ERROR(cuda::copy_to_host(tasks[static_cast<size_t>(i)].rows->elements.get(),
                                           slot.rows + i * picture_bytes(), picture_bytes(),
                                           fetching_));
  }
  return slot.done.record(fetching_);
}

Status CudaEncoder::encode_tile(std::span<const float> patches, const PatchGrid& grid,
                                std::span<float> rows, const std::stop_token&) {
  ESP_ASSIGN_OR_RETURN(EncodedRows encoded, allocate_rows(info_.num_rows));
  const PreparedImage image{.patches = {patches.begin(), patches.end()},
                            .grid = grid,
                            .tiles = {},
                            .num_rows = info_.num_rows};
  const EncoderTask task{.image = &image, .rows = &encoded};
  ESP_RETURN_IF_ERROR(encode_batch({&task, 1}));
  if (weights_.type() == DType::kFloat32) {
    std::memcpy(rows.data(), encoded.elements.get(), rows.size_bytes());
    return Status();
  }
  const auto* halves = reinterpret_cast<const BFloat16*>(encoded.elements.get());
  std::ranges::transform(std::span(halves, rows.size()), rows.begin(),
                         [](BFloat16 half) { return to_float(half); });
  return Status();
}

}  // namespace espalier
