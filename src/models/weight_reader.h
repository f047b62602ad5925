// Reads tensors of a WeightSource into what kernels take: packed matrices, tables, float32 vectors.
// It knows the shapes in which checkpoints lay matrices; which tensors a model has is the loader's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "kernels/linear/op.h"
#include "models/decoder_spec.h"
#include "models/storage_format.h"
#include "models/weight_layout.h"
#include "models/weight_source.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace espalier {

struct NormWeights;

// [count] matrices of [rows, columns] in one tensor. interleaved: gate and up take turns as rows;
// they are parted, all of gate first. shard: of each matrix; of gate and of up an equal part. The
// matrices `experts` are read, in this order.
struct ExpertRows {
  int64_t count = 0, rows = 0, columns = 0;
  bool interleaved = false;
  Shard shard;
  std::vector<int64_t> experts;

  int64_t blocks() const { return interleaved ? 2 : 1; }
  // Of one block.
  TensorSlice slice() const { return shard.slice(rows / blocks(), columns); }
};

// The tensor from this element on.
LentTensor skip_elements(const LentTensor& tensor, int64_t count);

// Used from one thread. Each function fails by the tensor's name.
class WeightReader {
 public:
  WeightReader(kernels::CpuBackend& backend, WeightSource& source, const WeightTypes& types)
      : backend_(backend), source_(source), types_(types), type_(types.type) {}

  // Whether matrix() would store it in blocks.
  bool quantizes(const MatrixLayout& layout) const { return !format_of(layout).blocks.empty(); }

  // Each does nothing where the layout is empty. gate_up: for linear_silu_mul.
  Status matrix(const MatrixLayout& layout, kernels::PackedMatrix& out, bool gate_up = false);
  Status vector(const VectorLayout& layout, std::vector<float>& out);
  Status norm(const std::optional<NormSpec>& spec, const VectorLayout& layout, NormWeights& out);
  // [rows, columns] in the model's type, not packed; of a shard, which has whole rows, its rows.
  Status table(const MatrixLayout& layout, Buffer& out);

  // An expert of another rank, or a tensor of another stage: it is used, though not here.
  void pass_over(const MlpLayout& expert);
  void pass_over(const std::string& name) { source_.pass_over(name); }

  // [count, columns, rows]: each expert's matrix lies [in, out].
  Status experts(const std::string& name, const ExpertRows& shape,
                 std::vector<kernels::PackedMatrix>& out);
  // NAME_blocks [count, rows, columns / 32, 16] U8 and NAME_scales [count, rows, columns / 32] U8.
  Status mxfp4_experts(const std::string& name, const ExpertRows& shape,
                       std::vector<kernels::PackedMatrix>& out);
  // [count, rows]: of each expert the elements that belong to the rows of the shape's shard.
  Status expert_biases(const std::string& name, const ExpertRows& shape,
                       std::vector<std::vector<float>>& out);

  // For matrices that are cut out of a tensor by hand.
  Result<LentTensor> lend(const std::string& name, std::span<const int64_t> shape) {
    return source_.lend(name, shape);
  }
  void give_back(const std::string& name) { source_.give_back(name); }
  // rows: [rows, columns] of `tensor`, outputs as they lie; or transposed: outputs are columns.
  Status pack(const LentTensor& tensor, int64_t rows, int64_t columns, kernels::PackedMatrix& out);
  Status pack_transposed(const LentTensor& tensor, int64_t rows, int64_t columns,
                         kernels::PackedMatrix& out);
  Status finish() { return source_.finish(); }

 private:
  StorageFormat format_of(const MatrixLayout& layout, bool gate_up = false) const;
  Status pack_rows(const kernels::PackSpec& spec, kernels::PackedMatrix& out);
  Status stored_matrix(const MatrixLayout& layout, bool gate_up, kernels::PackedMatrix& out);
  // [rows, columns] to [columns, rows] in float32.
  Result<Buffer> transpose(const LentTensor& tensor, int64_t rows, int64_t columns);

  kernels::CpuBackend& backend_;
  WeightSource& source_;
  const WeightTypes types_;
  const DType type_;
};

}  // namespace espalier
