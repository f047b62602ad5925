// Weights that another process has in the same GPU's memory.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "kernels/linear/quantize_rows.h"
#include "models/cuda/tensor_loader.h"
#include "tensor/cuda/ipc.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

constexpr uintptr_t kRowAlignment = 16;  // of rows that kernels round

class SharedLoader final : public CudaTensorLoader {
 public:
  static Result<std::unique_ptr<CudaTensorLoader>> create(std::vector<SharedTensor> tensors) {
    auto out = std::make_unique<SharedLoader>();
    for (SharedTensor& tensor : tensors) {
      const std::string name = tensor.name;
      if (Status added = out->add(std::move(tensor)); !added.ok())
        return fail(added.with_context(fmt::format("the tensor '{}'", name)));
    }
    ESP_ASSIGN_OR_RETURN(out->stream_, cuda::Stream::create());
    return out;
  }

  bool loads(const std::string& name) const override { return tensors_.contains(name); }

  Status put(const TensorPart& part, DType type, std::byte* device) override {
    if (!loads(part.name)) return Status();
    ESP_ASSIGN_OR_RETURN(const Source from, find(part));
    if (from.type == type) {
      const auto size = static_cast<int64_t>(dtype_size(type));
      jobs_.emplace_back([this, from, device, size] {
        return cuda::copy_on_device(device, from.data, from.stride * size,
                                    from.slice.columns * size, from.slice.rows, stream_);
      });
      return Status();
    }
    jobs_.emplace_back([this, from, type, device] { return convert(from, type, device); });
    return Status();
  }

  WeightCodes stored_codes(const std::string&) const override { return {}; }

  Status put_e4m3(const TensorPart& part, std::byte* device, float* scales) override {
    if (!loads(part.name)) return Status();
    ESP_ASSIGN_OR_RETURN(const Source from, find_rounded(part));
    jobs_.emplace_back([this, from, device, scales] {
      return kc::quantize_rows({.type = from.type,
                                .x = from.data,
                                .x_stride = from.stride,
                                .y = reinterpret_cast<uint8_t*>(device),
                                .scales = scales,
                                .rows = static_cast<int32_t>(from.slice.rows),
                                .dim = static_cast<int32_t>(from.slice.columns)},
                               {.stream = stream_.get()});
    });
    return Status();
  }

  Status put_block_e4m3(const TensorPart& part, std::byte*, float*) override {
    return refuse(part.name);
  }

  Status put_int4(const TensorPart& part, const kc::Int4Destination& to) override {
    if (!loads(part.name)) return Status();
    ESP_ASSIGN_OR_RETURN(const Source from, find_rounded(part));
    jobs_.emplace_back([this, from, to] {
      return kc::quantize_int4(
          {.type = from.type, .x = from.data, .x_stride = from.stride, .to = to},
          {.stream = stream_.get()});
    });
    return Status();
  }

  Status put_mxfp4(const std::string& name, int64_t, const kc::Mxfp4Destination&) override {
    return refuse(name + "_blocks");
  }
  Status put_rounded_mxfp4(const TensorPart& part, const kc::Mxfp4Destination&) override {
    return refuse(part.name);
  }
  Status put_bytes(const std::string& name, std::span<const int64_t>, std::byte*) override {
    return refuse(name);
  }

  Status check() override {
    for (const auto& [name, tensor] : tensors_)
      if (!used_.contains(name))
        return invalid_argument("the tensor '{}' is none that the model reads", name);
    return Status();
  }

  Status start() override {
    ESP_RETURN_IF_ERROR(check());
    for (const auto& job : jobs_) ESP_RETURN_IF_ERROR(job());
    return Status();
  }
  Status finish() override { return stream_.synchronize(); }

 private:
  struct Tensor {
    SharedTensor is;
    DType type = DType::kBFloat16;
    const std::byte* data = nullptr;
  };
  // A rectangle in device memory, whose rows are `stride` elements apart.
  struct Source {
    const std::byte* data = nullptr;
    DType type = DType::kBFloat16;
    int64_t stride = 0;
    TensorSlice slice;
  };

  Status add(SharedTensor tensor) {
    const std::optional<DType> type = parse_dtype(tensor.dtype);
    if (!type || dtype_size(*type) < 2)
      return invalid_argument("is {}; send F32, BF16 or F16", tensor.dtype);
    auto found = memory_.find(tensor.handle);
    if (found == memory_.end()) {
      ESP_ASSIGN_OR_RETURN(cuda::SharedMemory memory, cuda::SharedMemory::open(tensor.handle));
      found = memory_.emplace(tensor.handle, std::move(memory)).first;
    }
    int64_t bytes = static_cast<int64_t>(dtype_size(*type));
    for (const int64_t extent : tensor.shape)
      if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes))
        return invalid_argument("has the shape {}", shape_string(tensor.shape));
    const int64_t room = found->second.size_bytes();
    if (tensor.offset_bytes < 0 || tensor.offset_bytes > room || bytes > room - tensor.offset_bytes)
      return invalid_argument("takes {} bytes from byte {} on of an allocation of {}", bytes,
                              tensor.offset_bytes, room);
    if (tensor.offset_bytes % static_cast<int64_t>(dtype_size(*type)) != 0)
      return invalid_argument("begins at byte {}, between two elements", tensor.offset_bytes);
    const std::byte* data = found->second.data() + tensor.offset_bytes;
    const std::string name = tensor.name;
    if (!tensors_.emplace(name, Tensor{std::move(tensor), *type, data}).second)
      return invalid_argument("comes twice");
    return Status();
  }

  Result<Source> find(const TensorPart& part) {
    const Tensor& tensor = tensors_.at(part.name);
    if (!std::ranges::equal(tensor.is.shape, part.shape))
      return fail(invalid_argument("the tensor '{}' has shape {} and the model's {}", part.name,
                                   shape_string(tensor.is.shape), shape_string(part.shape)));
    used_.insert(part.name);
    Source out{.type = tensor.type, .slice = part.slice.value_or(TensorSlice::whole(part.shape))};
    out.stride = TensorSlice::whole(part.shape).columns;
    const int64_t first = out.slice.first_row * out.stride + out.slice.first_column;
    out.data = tensor.data + first * static_cast<int64_t>(dtype_size(tensor.type));
    return out;
  }

  Result<Source> find_rounded(const TensorPart& part) {
    ESP_ASSIGN_OR_RETURN(Source from, find(part));
    const auto stride_bytes = static_cast<uintptr_t>(from.stride) * dtype_size(from.type);
    if (from.type != DType::kFloat16 &&
        (reinterpret_cast<uintptr_t>(from.data) | stride_bytes) % kRowAlignment == 0)
      return from;
    return fail(invalid_argument(
        "the tensor '{}' is rounded on the device: it must be BF16 or F32 and begin at a multiple "
        "of {} bytes",
        part.name, kRowAlignment));
  }

  Status refuse(const std::string& name) const {
    return loads(name) ? refuse_records(name) : Status();
  }

  // Through the host: few tensors are held in another type than they are trained in.
  Status convert(const Source& from, DType type, std::byte* device) {
    const auto size = static_cast<int64_t>(dtype_size(from.type));
    const int64_t rows = from.slice.rows, columns = from.slice.columns;
    const int64_t out_bytes = rows * columns * static_cast<int64_t>(dtype_size(type));
    ESP_ASSIGN_OR_RETURN(auto read, cuda::PinnedBuffer::allocate(rows * columns * size, "tensors"));
    ESP_ASSIGN_OR_RETURN(auto made, cuda::PinnedBuffer::allocate(out_bytes, "tensors"));
    ESP_RETURN_IF_ERROR(cuda::copy_rows_to_host(read.data(),
                                                {.first = const_cast<std::byte*>(from.data),
                                                 .pitch = from.stride * size,
                                                 .row_bytes = columns * size,
                                                 .num_rows = rows},
                                                stream_));
    ESP_RETURN_IF_ERROR(stream_.synchronize());
    const CheckpointTensor tensor{.name = {},
                                  .dtype_name = {},
                                  .dtype = from.type,
                                  .shape = {rows, columns},
                                  .bytes = {read.data(), static_cast<size_t>(read.size_bytes())},
                                  .reader = nullptr};
    copy_slice(tensor, TensorSlice::whole(tensor.shape), type, made.data());
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(device, made.data(), out_bytes, stream_));
    return stream_.synchronize();
  }

  std::map<std::string, cuda::SharedMemory> memory_;  // by handle
  std::map<std::string, Tensor> tensors_;
  std::set<std::string> used_;
  cuda::Stream stream_;
  std::vector<std::function<Status()>> jobs_;
};

}  // namespace

Result<std::unique_ptr<CudaTensorLoader>> make_shared_loader(std::vector<SharedTensor> tensors) {
  return SharedLoader::create(std::move(tensors));
}

}  // namespace espalier
