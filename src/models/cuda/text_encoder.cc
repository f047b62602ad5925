#include "models/cuda/text_encoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "kernels/norm/cuda.h"
#include "kernels/random/cuda.h"
#include "models/cuda/ops.h"
#include "models/cuda/support.h"
#include "models/program/gpu_passes.h"
#include "models/program/lower.h"
#include "models/weight_layout.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/range.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;
using Kind = PoolingSpec::Kind;

int64_t size_of(DType type) { return static_cast<int64_t>(dtype_size(type)); }

}  // namespace

void CudaTextEncoder::Arrays::lay_out(cuda::Arena& arena, int32_t tokens) {
  ids = arena.take<int32_t>(tokens);
  types = arena.take<int32_t>(tokens);
  positions = arena.take<int32_t>(tokens);
  places = arena.take<int32_t>(int64_t{3} * tokens);
  begins = arena.take<int32_t>(tokens + 1);
  wanted = arena.take<int32_t>(tokens);
}

CudaTextEncoder::CudaTextEncoder(const DecoderSpec& spec, TextHead head, PendingCudaWeights weights,
                                 std::unique_ptr<kc::Linear> linear, CudaPlan program)
    : TextEncoder(spec, std::move(head), true),
      device_(cuda::current_device()),
      weights_(std::move(weights.weights)),
      linear_(std::move(linear)),
      plan_(std::move(program)),
      context_(this->spec(), weights_, *linear_, policy_, plan_) {
  info_.weight_bytes = weights_.size_bytes();
}

// What is in flight still reads and writes the buffers.
CudaTextEncoder::~CudaTextEncoder() { static_cast<void>(stream_.synchronize()); }

Result<std::unique_ptr<CudaTextEncoder>> CudaTextEncoder::load(const ModelLoadOptions& options,
                                                               const CudaTextEncoderOptions& own) {
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  ESP_RETURN_IF_ERROR(check_cuda_text_encoder(plan.spec));
  if (plan.weights.quantize || plan.weights.e4m3 || plan.weights.int4 || plan.weights.mxfp4)
    return fail(error(StatusCode::kUnimplemented,
                      "dtype {} is not for encoders of texts on a GPU: use auto, bfloat16 or "
                      "float32",
                      options.dtype));
  ESP_ASSIGN_OR_RETURN(TextHead head, TextHead::load(options, plan.spec));
  ESP_ASSIGN_OR_RETURN(CudaPlan program,
                       CudaPlan::create(program::encoder_passes(program::lower(plan.spec))));
  ESP_ASSIGN_OR_RETURN(
      PendingCudaWeights weights,
      load_cuda_weights(plan.spec, weight_layout(plan.spec), WeightTypes(plan.type), options));
  if (weights.loader) ESP_RETURN_IF_ERROR(weights.loader->finish());
  ESP_ASSIGN_OR_RETURN(auto linear,
                       kc::Linear::create({.cache_folder = kc::default_linear_cache()}));
  if (own.deterministic) linear->set_row_invariant();
  std::unique_ptr<CudaTextEncoder> encoder(new CudaTextEncoder(
      plan.spec, std::move(head), std::move(weights), std::move(linear), std::move(program)));
  ESP_ASSIGN_OR_RETURN(encoder->ropes_, CudaRopes::upload(encoder->spec()));
  ESP_RETURN_IF_ERROR(encoder->reserve(own));
  log_info(
      "encoder of texts loaded device=cuda parameters={} weight_bytes={} step_tokens={} "
      "scratch_bytes={}",
      encoder->info_.num_parameters, encoder->info_.weight_bytes, encoder->tokens_max_,
      encoder->block_.size_bytes());
  return encoder;
}

bool CudaTextEncoder::wants_all() const {
  return spec().pooling->kind != Kind::kFirst && spec().pooling->kind != Kind::kLast;
}

bool CudaTextEncoder::pools_here() const {
  return spec().pooling->kind == Kind::kMean || spec().pooling->kind == Kind::kMax;
}

int32_t CudaTextEncoder::width() const {
  return spec().projector ? spec().projector->layers.back().outputs : spec().hidden_size;
}

// Returns the program's GEMMs, each kind once, in the shapes of a step with `tokens` tokens.
// Pointers are set once the buffers are allocated.
std::vector<kc::LinearArgs> CudaTextEncoder::gemms(int32_t tokens) const {
  std::vector<kc::LinearArgs> out;
  for (const CudaPlan::BoundOp& bound : plan_.ops()) {
    if (!is_gemm(bound.op) || bound.op.layer > 0) continue;
    const auto& matmul = bound.op.as<program::Matmul>();
    kc::LinearArgs& args = out.emplace_back(matmul_shape(weights_, matmul, tokens));
    args.x = context_.read(bound.op.inputs[0]);
    args.x_stride = context_.stride(bound.op.inputs[0]);
    args.bias = weights_.data(matmul.bias);
    args.y = context_.write(bound.op.outputs[0]);
    args.y_stride = context_.stride(bound.op.outputs[0]);
    if (matmul.residual) args.residual = args.y;
  }
  return out;
}

void CudaTextEncoder::lay_out(cuda::Arena& arena, int64_t linear_bytes) {
  context_.lay_out(arena, {.max_tokens = tokens_max_, .max_outputs = tokens_max_});
  arrays_.lay_out(arena, tokens_max_);
  results_ = arena.take<std::byte>(int64_t{tokens_max_} * width() * size_of(weights_.type()));
  if (pools_here()) pooled_ = arena.take<float>(int64_t{tokens_max_} * width());
  auto* workspace = arena.take<std::byte>(linear_bytes);
  context_.bind({.ropes = ropes_.frequencies(),
                 .positions = arrays_.positions,
                 .gemm_workspace = {workspace, static_cast<size_t>(linear_bytes)}});
}

Status CudaTextEncoder::reserve(const CudaTextEncoderOptions& own) {
  tokens_max_ = std::max(own.step_tokens_max, spec().context_length);
  deterministic_ = own.deterministic;
  cuda::Arena first;
  lay_out(first, 0);  // operands have strides then
  const auto linear_bytes =
      static_cast<int64_t>(linear_->workspace_bytes(gemms(tokens_max_), tokens_max_));
  cuda::Arena measured;
  lay_out(measured, linear_bytes);
  ESP_ASSIGN_OR_RETURN(block_, cuda::DeviceBuffer::allocate(measured.used_bytes(),
                                                            "scratch of the encoder of texts"));
  cuda::Arena arena(block_.data());
  lay_out(arena, linear_bytes);
  cuda::Arena of_host;
  host_.lay_out(of_host, tokens_max_);
  ESP_ASSIGN_OR_RETURN(staged_,
                       cuda::PinnedBuffer::allocate(of_host.used_bytes(), "tokens of texts"));
  cuda::Arena staged(staged_.data());
  host_.lay_out(staged, tokens_max_);
  ESP_ASSIGN_OR_RETURN(
      fetched_, cuda::PinnedBuffer::allocate(int64_t{tokens_max_} * width() * 4, "rows of texts"));
  ESP_ASSIGN_OR_RETURN(stream_, cuda::Stream::create());
  return tune();
}

// Steps of few tokens to full ones, on numbers that are no zeros: GEMMs of zeros run faster.
Status CudaTextEncoder::tune() {
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(block_.data(), 0, block_.size_bytes(), stream_));
  const std::span<std::byte> activations = context_.buffers().activations();
  ESP_RETURN_IF_ERROR(kc::draw({.type = weights_.type(),
                                .out = activations.data(),
                                .count = std::ssize(activations) / size_of(weights_.type())},
                               {.stream = stream_.get()}));
  std::vector<kc::LinearArgs> shapes;
  for (int64_t tokens = 16; tokens < tokens_max_; tokens *= 2)
    for (const kc::LinearArgs& args : gemms(static_cast<int32_t>(tokens))) shapes.push_back(args);
  for (const kc::LinearArgs& args : gemms(tokens_max_)) shapes.push_back(args);
  const std::span<std::byte> workspace = context_.scratch().gemm_workspace;
  ESP_RETURN_IF_ERROR(linear_->tune(shapes, workspace.data(), workspace.size(), stream_.get()));
  return stream_.synchronize();
}

void CudaTextEncoder::write_arrays(std::span<const EncoderText> texts, const TextRows& rows) {
  for (size_t i = 0; i < texts.size(); ++i) {
    const EncoderText& text = texts[i];
    for (size_t at = 0; at < text.ids.size(); ++at) {
      const size_t row = static_cast<size_t>(rows.begins[i]) + at;
      const auto position = static_cast<int32_t>(at);
      host_.ids[row] = text.ids[at];
      host_.types[row] = text.types.empty() ? 0 : text.types[at];
      host_.positions[row] = spec().texts->first_position + position;
      host_.places[3 * row] = position;
      host_.places[3 * row + 1] = host_.places[3 * row + 2] = 0;
    }
  }
  std::ranges::copy(rows.begins, host_.begins);
  std::ranges::copy(rows.wanted, host_.wanted);
}

Status CudaTextEncoder::enqueue(std::span<const EncoderText> texts, const TextRows& rows) {
  const int32_t tokens = rows.begins.back();
  const auto bring = [&](int32_t* to, const int32_t* from, int64_t count) {
    return cuda::copy_to_device(to, from, count * 4, stream_);
  };
  ESP_RETURN_IF_ERROR(bring(arrays_.ids, host_.ids, tokens));
  ESP_RETURN_IF_ERROR(bring(arrays_.types, host_.types, tokens));
  ESP_RETURN_IF_ERROR(bring(arrays_.positions, host_.positions, tokens));
  if (!spec().ropes.empty())
    ESP_RETURN_IF_ERROR(bring(arrays_.places, host_.places, int64_t{3} * tokens));
  ESP_RETURN_IF_ERROR(bring(arrays_.begins, host_.begins, std::ssize(rows.begins)));
  ESP_RETURN_IF_ERROR(bring(arrays_.wanted, host_.wanted, std::ssize(rows.wanted)));
  int32_t longest = 0;
  bool equal = !deterministic_;  // texts of one length have another kernel, whose bits are others
  for (size_t i = 0; i < texts.size(); ++i) {
    longest = std::max(longest, rows.begins[i + 1] - rows.begins[i]);
    equal &= texts[i].ids.size() == texts[0].ids.size();
  }
  CudaStep step;
  step.ids = arrays_.ids;
  step.types = arrays_.types;
  step.places = arrays_.places;
  step.entries.num_tokens = tokens;
  step.rows = wants_all() ? nullptr : arrays_.wanted;
  step.num_rows = static_cast<int32_t>(rows.wanted.size());
  step.pictures = {.count = static_cast<int32_t>(texts.size()),
                   .rows_max = longest,
                   .begins = equal ? nullptr : arrays_.begins};
  context_.begin(step, no_pages_, stream_);
  ESP_RETURN_IF_ERROR(context_.run(0, plan_.output_begin()));
  return context_.run_outputs(0, step.num_rows, reinterpret_cast<float*>(results_), width(),
                              stream_);
}

// Elements on the device as floats of the host.
Status CudaTextEncoder::fetch(int64_t rows, const void* from, DType type) {
  const int64_t count = rows * width();
  ESP_RETURN_IF_ERROR(cuda::copy_to_host(fetched_.data(), from, count * size_of(type), stream_));
  ESP_RETURN_IF_ERROR(stream_.synchronize());
  floats_.resize(static_cast<size_t>(count));
  if (type == DType::kFloat32) {
    std::memcpy(floats_.data(), fetched_.data(), floats_.size() * sizeof(float));
    return Status();
  }
  const auto* const halves = reinterpret_cast<const BFloat16*>(fetched_.data());
  std::transform(halves, halves + count, floats_.begin(),
                 [](BFloat16 half) { return to_float(half); });
  return Status();
}

Result<std::span<const float>> CudaTextEncoder::run(std::span<const EncoderText> texts,
                                                    const TextRows& rows) {
  const cuda::Range range("encode texts");
  ESP_RETURN_IF_ERROR(cuda::use_device(device_));
  write_arrays(texts, rows);
  Status status = enqueue(texts, rows);
  // The section's last operation may have left its rows where it found them.
  const program::Operand& last = plan_.ops().back().op.outputs[0];
  if (status.ok() && pools_here()) {
    status = kc::pool_rows({.type = weights_.type(),
                            .x = context_.read(last),
                            .x_stride = width(),
                            .begins = arrays_.begins,
                            .texts = static_cast<int32_t>(texts.size()),
                            .dim = width(),
                            .largest = spec().pooling->kind == Kind::kMax,
                            .y = pooled_},
                           {.stream = stream_.get()});
    if (status.ok()) status = fetch(std::ssize(texts), pooled_, DType::kFloat32);
  } else if (status.ok()) {
    status = fetch(std::ssize(rows.wanted), context_.read(last), weights_.type());
  }
  if (status.ok()) return std::span<const float>(floats_);
  static_cast<void>(stream_.synchronize());  // nothing may be in flight that uses the buffers
  return fail(std::move(status));
}

}  // namespace espalier
