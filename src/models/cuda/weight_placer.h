// Places matrices and vectors in device memory: takes their memory from an arena, requests their
// tensors from a loader, and lists what the GPU has to convert when the loader has finished. One
// table (weight_placer.cc) has a row for each form in which checkpoints store matrices; the formats
// of elements and quantised blocks are the loader's (checkpoint/convert.h), so each form is read in
// all of them.
//
// Used from one thread, twice: without memory and loader to measure, then with both. Borrows the
// arenas and the loader; the memory outlives the placer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/relayout/cuda.h"
#include "models/cuda/tensor_loader.h"
#include "models/storage_format.h"
#include "models/weight_layout.h"
#include "tensor/cuda/memory.h"
#include "tensor/dtype.h"

namespace espalier {

// A matrix [out_features, in_features], a stack of them (one for each expert or head), or a vector
// [out_features], with in_features 1. Null data: the model has no such weight. Of a layer norm the
// weight, then the bias.
struct CudaWeight {
  const void* data = nullptr;
  // [out_features], of a stack [count, out_features], where elements are e4m3, or of blocks (
  // kernels/linear/cuda.h); int4 has them in records, as has MXFP4.
  const float* scales = nullptr;
  // Of int4: which input of x each input is, [in_features]; null: their own order.
  const int32_t* columns = nullptr;
  int32_t in_features = 0;
  int32_t out_features = 0;
  // Elements between the matrices of a stack; of those in 4 bits bytes.
  int64_t group_stride = 0;
  // Elements of the model's type; float32 where weight_id.h states it. Where there are scales, the
  // type of what is multiplied with them.
  StorageFormat format;
  Shard shard;  // the part of the matrix that this device has
};

// Matrices [rows, columns] in one tensor.
struct MatrixStack {
  std::string name;
  int64_t count = 0;  // of matrices; 0: one, and the tensor has no such extent
  int64_t rows = 0, columns = 0;
  bool interleaved = false;          // rows of gate and up alternate; gate comes first in memory
  std::optional<TensorSlice> slice;  // of the tensor; nothing: all of it
};

// How a tensor stores a stack of matrices.
enum class StoredForm : uint8_t {
  kRows,        // [count, rows, columns]
  kTransposed,  // [count, columns, rows]; converted on the GPU
  kMxfp4,       // NAME_blocks [count, rows, columns / 32, 16] U8, NAME_scales; converted on the GPU
};

// kUnimplemented for a shard, by the tensor's name: every rank has all of such a matrix.
Status check_whole(const MatrixLayout& layout);

class WeightPlacer {
 public:
  // What coded_matrix() places in codes.
  struct Rounding {
    WeightTypes types;                         // e4m3, int4 and MXFP4
    const CudaTensorLoader* stored = nullptr;  // not null: what it stores so
  };

  // type: of elements. loader: null measures. staging: memory of what the GPU converts.
  WeightPlacer(DType type, const Rounding& rounding, cuda::Arena& arena, cuda::Arena& staging,
               CudaTensorLoader* loader)
      : type_(type), rounding_(rounding), arena_(arena), staging_(staging), loader_(loader) {}

  // Each does nothing where the layout is empty. columns: what each row is a multiple of, with
  // zeros behind the layout's; REQUIRES of a layout with a stored_shape: zeros in the arena.
  Status matrix(const MatrixLayout& layout, CudaWeight& out, int64_t columns = 1);
  // The same of a matrix that GEMMs of kernels/linear alone read: in the codes of device_codes().
  Status coded_matrix(const MatrixLayout& layout, CudaWeight& out);
  // What the stacks of a layer's experts are in.
  struct ExpertFormat {
    ExpertCodes codes = ExpertCodes::kNone;
    int32_t int4_group = 0;  // inputs of a group of 4-bit codes
  };
  ExpertFormat format_of(const ExpertsLayout& layout) const;
  // A stack of matrices alike, one behind the other, in e4m3 with the scales that device_codes() of
  // the first states.
  Status e4m3_stack(std::span<const MatrixLayout* const> matrices, CudaWeight& out);
  // Whether matrices that are stored in codes stay so.
  bool keeps_codes() const { return rounding_.stored != nullptr; }
  // A stack that is stored in MXFP4 (StoredForm::kMxfp4), as records; interleaved: gated.
  Status mxfp4_stack(const MatrixStack& stack, CudaWeight& out);
  // A stack of matrices alike that are rounded to MXFP4; of two blocks: gate and up.
  Status rounded_mxfp4_stack(std::span<const MatrixLayout* const> matrices, CudaWeight& out);
  // The same of 4-bit codes with scales of groups of 128 or 32 inputs (ExpertFormat::int4_group).
  Status int4_stack(std::span<const MatrixLayout* const> matrices, int32_t group, CudaWeight& out);
  Status vector(const VectorLayout& layout, CudaWeight& out);
  // In float32 whatever the model's type is. REQUIRES of a matrix: check_whole().
  Status float_matrix(const MatrixLayout& layout, CudaWeight& out);
  Status floats(const VectorLayout& layout, CudaWeight& out);

  // Tensors of an expert of another rank, or of another stage: they are used, though not here.
  void pass_over(const std::vector<std::string>& tensors);

  // Memory of `count` matrices [rows, columns], one behind the other.
  std::byte* stack(int64_t count, int64_t rows, int64_t columns, CudaWeight& out);
  // Requests the blocks of a matrix or vector to `data`, which moves behind them.
  Status blocks(const MatrixLayout& layout, std::byte*& data);
  Status blocks(const VectorLayout& layout, std::byte*& data);
  // Requests a stack to `data`.
  Status stored(StoredForm form, const MatrixStack& stack, std::byte* data);

  std::byte* take(int64_t count) { return arena_.take<std::byte>(count * element_bytes()); }
  int64_t element_bytes() const { return static_cast<int64_t>(dtype_size(type_)); }
  DType type() const { return type_; }

  // To be run in this order when the loader has finished.
  const std::vector<kernels::cuda::RelayoutArgs>& relayouts() const { return relayouts_; }
  void add_relayout(const kernels::cuda::RelayoutArgs& args) { relayouts_.push_back(args); }

 private:
  struct Form;
  static const Form kForms[];

  StoredCodesOf stored_codes() const;
  Status int4_matrix(const MatrixLayout& layout, const WeightCodes& codes, CudaWeight& out);
  // Memory of `count` matrices of records.
  std::byte* mxfp4_records(int64_t count, const kernels::cuda::Mxfp4Shape& shape, CudaWeight& out);
  Status rows(const MatrixStack& stack, std::byte* data);
  Status transposed(const MatrixStack& stack, std::byte* data);
  Status mxfp4(const MatrixStack& stack, std::byte* data);
  static Status each_run(const VectorLayout& layout,
                         const std::function<Status(const WeightBlock& block,
                                                    const std::optional<TensorSlice>& slice)>& fn);
  Status put(const std::string& name, std::vector<int64_t> shape,
             const std::optional<TensorSlice>& slice, std::byte* data);
  kernels::cuda::RelayoutArgs relayout_of(const MatrixStack& stack, std::byte* to) const;

  const DType type_;
  const Rounding rounding_;
  cuda::Arena &arena_, &staging_;
  CudaTensorLoader* const loader_;
  std::vector<kernels::cuda::RelayoutArgs> relayouts_;
};

}  // namespace espalier
