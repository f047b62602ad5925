// An encoder of texts on the CPU: the interpreter of its program. A text is a batch entry whose
// rows see each other; the keys and values of one layer lie in memory of the encoder, and the next
// layer overwrites them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "models/decoder_weights.h"
#include "models/program/cpu_context.h"
#include "models/program/cpu_model.h"
#include "models/text_encoder.h"
#include "models/weight_source.h"
#include "tensor/buffer.h"

namespace espalier::program {

class CpuTextEncoder final : public TextEncoder {
 public:
  // pool: borrowed, outlives the encoder. rewrite: tests inject faults with it. Fails as
  // CpuModel::create does.
  static Result<std::unique_ptr<CpuTextEncoder>> create(const DecoderSpec& spec, TextHead head,
                                                        const WeightTypes& types,
                                                        WeightSource& source, WorkPool& pool,
                                                        int32_t step_tokens_max,
                                                        const Rewrite& rewrite = {});

  int32_t step_tokens_max() const override { return step_tokens_max_; }

 private:
  CpuTextEncoder(const DecoderSpec& spec, TextHead head, Program program, DecoderWeights weights,
                 std::unique_ptr<kernels::CpuBackend> backend);
  Status reserve(int32_t step_tokens_max);
  Result<std::span<const float>> run(std::span<const EncoderText> texts,
                                     const TextRows& rows) override;
  void begin_batch(std::span<const EncoderText> texts, const TextRows& rows);

  const Program program_;
  const DecoderWeights weights_;
  const std::unique_ptr<kernels::CpuBackend> backend_;
  CpuContext context_;
  const size_t output_begin_;  // of program_.ops
  int32_t step_tokens_max_ = 0;
  ForwardBatch batch_;  // of the texts that run
  std::vector<int32_t> types_;
  std::vector<float> results_;
  espalier::Buffer keys_, values_;
  KvView kv_;  // all layers in the same memory
};

}  // namespace espalier::program
