// How tensors come into device memory: read from a checkpoint, or drawn there. A tensor of any
// format that checkpoint/convert.h decodes becomes elements of the requested type on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/convert.h"
#include "kernels/linear/int4_weights.h"
#include "kernels/moe/mxfp4_weights.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "models/model_weights.h"
#include "models/storage_format.h"
#include "tensor/dtype.h"

namespace espalier {

// What is loaded of a tensor.
struct TensorPart {
  std::string name;
  std::vector<int64_t> shape;        // of the whole tensor, as the model expects it
  std::optional<TensorSlice> slice;  // nothing: all of it
};

// Used from one thread: put() for each tensor, start(), finish(). What is put may come only between
// start(), which returns at once, and finish(), which returns when all is there.
class CudaTensorLoader {
 public:
  virtual ~CudaTensorLoader() = default;
  // The part as elements of `type` (kFloat32 or kBFloat16), row-major to `device`. Fails by name.
  virtual Status put(const TensorPart& part, DType type, std::byte* device) = 0;
  // The codes that the tensor is stored in: e4m3 with a scale for each row, for all or for blocks
  // of 128 x 128, or 4 bits.
  virtual WeightCodes stored_codes(const std::string& name) const = 0;
  // The part's rows as e4m3, row-major to `device`, and the scale of each to `scales`: as they are
  // stored, or rounded (quantize_rows.h). REQUIRES: columns are a multiple of
  // kQuantizedRowMultiple.
  virtual Status put_e4m3(const TensorPart& part, std::byte* device, float* scales) = 0;
  // The same of what is stored with scales of blocks, [scale_blocks(rows)][block_scale_stride(
  // columns)]. REQUIRES: stored_codes() states so; a slice begins with a block.
  virtual Status put_block_e4m3(const TensorPart& part, std::byte* device, float* scales) = 0;
  // The part as rows of `to`'s records, whose number `to` has: as they are stored, or rounded.
  // REQUIRES: the part has no slice; its columns are a multiple of 32.
  virtual Status put_int4(const TensorPart& part, const kernels::cuda::Int4Destination& to) = 0;
  // The columns of the tensor that the inputs of its codes of 4 bits are, to `device`. REQUIRES:
  // stored_codes() has int4_columns.
  virtual Status put_columns(const std::string& name, int32_t* device) {
    return static_cast<void>(name), static_cast<void>(device), Status();
  }
  // The `count` matrices of the tensors NAME_blocks and NAME_scales, as they are stored, one behind
  // the other as records of `to`, which has the first. REQUIRES: the records are zeros.
  virtual Status put_mxfp4(const std::string& name, int64_t count,
                           const kernels::cuda::Mxfp4Destination& to) = 0;
  // The part's rows rounded to MXFP4, as rows of `to`, whose number `to` has. REQUIRES: the part
  // has no slice; the records are zeros.
  virtual Status put_rounded_mxfp4(const TensorPart& part,
                                   const kernels::cuda::Mxfp4Destination& to) = 0;
  // A tensor of bytes (U8), for what is decoded on the device.
  virtual Status put_bytes(const std::string& name, std::span<const int64_t> shape,
                           std::byte* device) = 0;
  // Whether the tensor is loaded. A loader of some tensors does nothing for the others, whose
  // memory stays as it is.
  virtual bool loads(const std::string& name) const { return static_cast<void>(name), true; }
  // Says that the tensor is used, though not here.
  virtual void pass_over(const std::string& name) { static_cast<void>(name); }
  // Fails for a tensor of the checkpoint that was never requested nor passed over.
  virtual Status check() { return Status(); }
  // The same, and begins to write.
  virtual Status start() = 0;
  // Fails for a tensor that could not be read.
  virtual Status finish() = 0;
};

// The loader keeps what it needs of its arguments, and works on the calling thread's current
// device.
Result<std::unique_ptr<CudaTensorLoader>> make_checkpoint_loader(const ModelLoadOptions& options,
                                                                 const DecoderSpec& spec);
// Of a tensor of some that are replaced: records are written into zeros, which those there are not.
Status refuse_records(const std::string& name);
// Of the tensors in one safetensors file alone; check() fails for one that the model has not.
// kUnimplemented for those that become records (int4, MXFP4), whose memory must be zeros.
Result<std::unique_ptr<CudaTensorLoader>> make_partial_loader(const std::filesystem::path& file,
                                                              const DecoderSpec& spec);
// Of tensors that another process has on the GPU; otherwise as the loader of one file.
Result<std::unique_ptr<CudaTensorLoader>> make_shared_loader(std::vector<SharedTensor> tensors);
// Of a folder whose config.json states FP8 in blocks of 128 x 128, matrices are such.
Result<std::unique_ptr<CudaTensorLoader>> make_dummy_loader(const ModelLoadOptions& options);

}  // namespace espalier
