// An encoder of pictures on the CPU: the interpreter of its program. A picture is a batch entry
// whose rows see each other; the keys and values of one layer lie in memory of the encoder, and the
// next layer overwrites them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "models/decoder_weights.h"
#include "models/image_encoder.h"
#include "models/program/cpu_context.h"
#include "models/program/cpu_model.h"
#include "models/program/cpu_ops.h"
#include "models/weight_source.h"
#include "tensor/buffer.h"

namespace espalier::program {

class CpuEncoder final : public ImageEncoder {
 public:
  // pool: borrowed, outlives the encoder. rewrite: tests inject faults with it. Fails as
  // CpuModel::create does.
  static Result<std::unique_ptr<CpuEncoder>> create(const DecoderSpec& spec,
                                                    const ImageProcessorSpec& processor,
                                                    const WeightTypes& types, WeightSource& source,
                                                    WorkPool& pool, const Rewrite& rewrite = {});

  const ImageEncoderInfo& info() const override { return info_; }

 private:
  CpuEncoder(DecoderSpec spec, const ImageProcessorSpec& processor, Program program,
             DecoderWeights weights, std::unique_ptr<kernels::CpuBackend> backend);
  Status encode_tile(std::span<const float> patches, const PatchGrid& grid, std::span<float> rows,
                     const std::stop_token& stop) override;
  std::span<const float> line_end() const override { return weights_.line_end; }
  // Sizes all memory for pictures of this grid, and states its rows, windows and places.
  Status begin(const PatchGrid& grid);
  Status reserve(int32_t rows);
  // The same where tiles see each other.
  Status begin_joint(const PatchGrid& grid);
  void lay_keys(int32_t rows);
  // kAborted where `stop` is requested before one of the operations.
  Status run(size_t first, size_t last, const std::stop_token& stop);

  const DecoderSpec spec_;
  const Program program_;
  const DecoderWeights weights_;
  const std::unique_ptr<kernels::CpuBackend> backend_;
  ImageEncoderInfo info_;
  CpuContext context_;
  const size_t output_begin_;  // of program_.ops
  PatchGrid grid_;             // of what follows
  ForwardBatch batch_;         // one picture
  std::vector<BatchEntry> windows_;
  std::vector<int32_t> tiles_;  // of each row, where tiles see each other
  int64_t num_kept_ = 0;
  std::vector<int32_t> places_;  // [3, patches]: time, height, width; empty without sections
  std::vector<kernels::MixedRow> positions_;  // grid_positions()
  int32_t reserved_rows_ = 0;
  espalier::Buffer keys_, values_;
  KvView kv_;  // all layers in the same memory
  std::vector<int32_t> result_rows_;
};

}  // namespace espalier::program
