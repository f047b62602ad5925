#include "models/program/cpu_text_encoder.h"

#include <algorithm>
#include <utility>

#include "models/program/check.h"
#include "models/program/cpu_ops.h"
#include "models/program/lower.h"
#include "models/program/passes.h"
#include "models/weight_layout.h"

namespace espalier::program {
namespace {

constexpr int32_t kPageSize = 16;  // a text begins with a page of its own

int32_t pages_of(int64_t tokens) {
  return static_cast<int32_t>((tokens + kPageSize - 1) / kPageSize);
}

}  // namespace

CpuTextEncoder::CpuTextEncoder(const DecoderSpec& spec, TextHead head, Program program,
                               DecoderWeights weights, std::unique_ptr<kernels::CpuBackend> backend)
    : TextEncoder(spec, std::move(head)),
      program_(std::move(program)),
      weights_(std::move(weights)),
      backend_(std::move(backend)),
      context_(this->spec(), program_, weights_, *backend_),
      output_begin_(output_begin(program_)) {
  info_.weight_bytes = weights_.size_bytes();
}

Result<std::unique_ptr<CpuTextEncoder>> CpuTextEncoder::create(
    const DecoderSpec& spec, TextHead head, const WeightTypes& types, WeightSource& source,
    WorkPool& pool, int32_t step_tokens_max, const Rewrite& rewrite) {
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
  std::unique_ptr<CpuTextEncoder> encoder(new CpuTextEncoder(
      spec, std::move(head), std::move(program), std::move(weights), std::move(backend)));
  ESP_RETURN_IF_ERROR(encoder->reserve(std::max(step_tokens_max, spec.context_length)));
  return encoder;
}

Status CpuTextEncoder::reserve(int32_t step_tokens_max) {
  step_tokens_max_ = step_tokens_max;
  // A text of one token has a page.
  ESP_RETURN_IF_ERROR(context_.reserve(step_tokens_max, step_tokens_max, step_tokens_max));
  const AttentionSpec& attention = spec().layers[0].attention;
  const int64_t num_pages = step_tokens_max;
  const size_t plane_bytes = static_cast<size_t>(num_pages * kPageSize) *
                             static_cast<size_t>(attention.kv_dim()) * sizeof(float);
  ESP_ASSIGN_OR_RETURN(keys_, espalier::Buffer::allocate(plane_bytes));
  ESP_ASSIGN_OR_RETURN(values_, espalier::Buffer::allocate(plane_bytes));
  KvView::Layer layer{.type = KvType::kFloat32,
                      .k = keys_.data(),
                      .v = values_.data(),
                      .num_pages = static_cast<int32_t>(num_pages),
                      .num_kv_heads = attention.num_kv_heads,
                      .head_dim = attention.head_dim};
  layer.set_dense_strides(kPageSize);
  kv_.page_size = kPageSize;
  kv_.layers.assign(spec().layers.size(), layer);
  return Status();
}

void CpuTextEncoder::begin_batch(std::span<const EncoderText> texts, const TextRows& rows) {
  batch_.clear();
  types_.clear();
  for (size_t i = 0; i < texts.size(); ++i) {
    const EncoderText& text = texts[i];
    const auto count = static_cast<int32_t>(text.ids.size());
    const auto page_begin = static_cast<int32_t>(batch_.page_tables.size());
    batch_.entries.push_back({.num_query_tokens = count,
                              .query_begin = rows.begins[i],
                              .page_begin = page_begin,
                              .num_pages = pages_of(count),
                              .pooled_begin = 0,
                              .pooled_end = true});
    batch_.token_ids.insert(batch_.token_ids.end(), text.ids.begin(), text.ids.end());
    for (int32_t at = 0; at < count; ++at)
      batch_.positions.push_back(spec().texts->first_position + at);
    for (int32_t page = 0; page < pages_of(count); ++page)
      batch_.page_tables.push_back(page_begin + page);
    types_.insert(types_.end(), text.types.begin(), text.types.end());
    types_.resize(static_cast<size_t>(rows.begins[i + 1]));  // those that are not stated are 0
  }
}

Result<std::span<const float>> CpuTextEncoder::run(std::span<const EncoderText> texts,
                                                   const TextRows& rows) {
  begin_batch(texts, rows);
  const int64_t width =
      spec().projector ? spec().projector->layers.back().outputs : spec().hidden_size;
  results_.resize(rows.wanted.size() * static_cast<size_t>(width));
  context_.begin(batch_, batch_.token_ids, kv_, {.types = types_});
  for (size_t i = 0; i < output_begin_; ++i)
    cpu_op(program_.ops[i].kind)(context_, program_.ops[i]);
  context_.begin_outputs(rows.wanted, results_.data());
  for (size_t i = output_begin_; i < program_.ops.size(); ++i)
    cpu_op(program_.ops[i].kind)(context_, program_.ops[i]);
  return std::span<const float>(results_);
}

}  // namespace espalier::program
