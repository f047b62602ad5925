#include "models/program/cpu_encoder.h"

#include <numeric>
#include <utility>

#include "base/check.h"
#include "models/program/check.h"
#include "models/program/lower.h"
#include "models/weight_layout.h"

namespace espalier::program {
namespace {

ImageEncoderInfo describe(const DecoderSpec& spec, const ImageProcessorSpec& processor,
                          const DecoderWeights& weights) {
  return {.num_rows = spec.patches->num_patches,
          .width = spec.projector->layers.back().outputs,
          .patch_size = spec.patches->patch_size,
          .processor = processor,
          .num_parameters = spec.num_parameters(),
          .weight_bytes = weights.size_bytes()};
}

// One entry, whose class row, if it has one, is not wanted.
ForwardBatch one_picture(const PatchesSpec& patches) {
  ForwardBatch batch;
  const int32_t rows = patches.num_rows();
  batch.entries.push_back(
      {.num_query_tokens = rows, .num_pages = 1, .pooled_begin = patches.class_token ? 1 : 0});
  batch.token_ids.assign(static_cast<size_t>(rows), 0);
  batch.positions.resize(static_cast<size_t>(rows));
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  batch.page_tables = {0};
  return batch;
}

}  // namespace

CpuEncoder::CpuEncoder(DecoderSpec spec, const ImageProcessorSpec& processor, Program program,
                       DecoderWeights weights, std::unique_ptr<kernels::CpuBackend> backend)
    : spec_(std::move(spec)),
      program_(std::move(program)),
      weights_(std::move(weights)),
      backend_(std::move(backend)),
      info_(describe(spec_, processor, weights_)),
      context_(spec_, program_, weights_, *backend_),
      output_begin_(output_begin(program_)),
      batch_(one_picture(*spec_.patches)),
      result_rows_(static_cast<size_t>(spec_.patches->num_patches)) {
  std::iota(result_rows_.begin(), result_rows_.end(), 0);
}

Result<std::unique_ptr<CpuEncoder>> CpuEncoder::create(const DecoderSpec& spec,
                                                       const ImageProcessorSpec& processor,
                                                       const WeightTypes& types,
                                                       WeightSource& source, WorkPool& pool,
                                                       const Rewrite& rewrite) {
  ESP_RETURN_IF_ERROR(validate(spec));
  Program program = lower(spec);
  if (rewrite) program = rewrite(std::move(program));
  program = cpu_passes(std::move(program));
  ESP_RETURN_IF_ERROR(check(program));
  for (const Op& op : program.ops) {
    if (cpu_op(op.kind) != nullptr) continue;
    return fail(error(StatusCode::kUnimplemented, "{}: the CPU does not run the operation {}",
                      program.name, op_name(op.kind)));
  }
  ESP_ASSIGN_OR_RETURN(auto backend, kernels::CpuBackend::create(pool));
  ESP_ASSIGN_OR_RETURN(DecoderWeights weights,
                       load_weights(*backend, spec, weight_layout(spec), program, types, source));
  std::unique_ptr<CpuEncoder> encoder(
      new CpuEncoder(spec, processor, std::move(program), std::move(weights), std::move(backend)));
  ESP_RETURN_IF_ERROR(encoder->reserve());
  return encoder;
}

Status CpuEncoder::reserve() {
  const int32_t rows = spec_.patches->num_rows();
  ESP_RETURN_IF_ERROR(context_.reserve(rows, 1, spec_.patches->num_patches));
  const AttentionSpec& attention = spec_.layers[0].attention;
  const size_t plane_bytes =
      static_cast<size_t>(rows) * static_cast<size_t>(attention.kv_dim()) * sizeof(float);
  ESP_ASSIGN_OR_RETURN(keys_, espalier::Buffer::allocate(plane_bytes));
  ESP_ASSIGN_OR_RETURN(values_, espalier::Buffer::allocate(plane_bytes));
  KvView::Layer layer{.type = KvType::kFloat32,
                      .k = keys_.data(),
                      .v = values_.data(),
                      .num_pages = 1,
                      .num_kv_heads = attention.num_kv_heads,
                      .head_dim = attention.head_dim};
  layer.set_dense_strides(rows);
  kv_.page_size = rows;
  kv_.layers.assign(spec_.layers.size(), layer);
  return Status();
}

void CpuEncoder::run(size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) cpu_op(program_.ops[i].kind)(context_, program_.ops[i]);
}

void CpuEncoder::encode(std::span<const float> patches, std::span<float> rows) {
  const PatchesSpec& spec = *spec_.patches;
  ESP_CHECK(std::ssize(patches) == int64_t{spec.num_patches} * spec.features() &&
                std::ssize(rows) == int64_t{info_.num_rows} * info_.width,
            "{} numbers of patches, {} of rows", patches.size(), rows.size());
  context_.begin(batch_, batch_.token_ids, kv_, patches);
  run(0, output_begin_);
  context_.begin_outputs(result_rows_, rows.data());
  run(output_begin_, program_.ops.size());
}

}  // namespace espalier::program
