#include "speech/cuda/cuda_weights.h"

#include <algorithm>
#include <cstring>

namespace espalier::speech {
namespace {

// Memory is taken in blocks that hold many tensors.
constexpr int64_t kBlockBytes = int64_t{256} << 20;
// GEMMs make a multiple of so many outputs.
constexpr int64_t kOutputsMultiple = 8;

class CudaPacker final : public WeightPacker<CudaFormat> {
 public:
  CudaPacker(CudaWhisperWeights& weights, const cuda::Stream& stream)
      : weights_(weights), stream_(stream) {}

  Result<CudaMatrix> matrix(std::vector<std::vector<float>> blocks, int64_t inputs) override {
    std::vector<float> all = std::move(blocks[0]);
    for (size_t i = 1; i < blocks.size(); ++i)
      all.insert(all.end(), blocks[i].begin(), blocks[i].end());
    const int64_t outputs = std::ssize(all) / inputs;
    const int64_t padded = (outputs + kOutputsMultiple - 1) / kOutputsMultiple * kOutputsMultiple;
    all.resize(static_cast<size_t>(padded * inputs));
    ESP_ASSIGN_OR_RETURN(const void* const data, vector(std::move(all)));
    return CudaMatrix{.data = data,
                      .outputs = static_cast<int32_t>(padded),
                      .inputs = static_cast<int32_t>(inputs)};
  }

  // Waits for the copy: the host's memory is given back.
  Result<const void*> vector(std::vector<float> values) override {
    const bool narrow = weights_.type == DType::kBFloat16;
    std::vector<BFloat16> rounded(narrow ? values.size() : 0);
    for (size_t i = 0; i < rounded.size(); ++i) rounded[i] = to_bfloat16(values[i]);
    const auto bytes = std::ssize(values) * static_cast<int64_t>(dtype_size(weights_.type));
    ESP_ASSIGN_OR_RETURN(std::byte* const to, take(bytes));
    const void* const from = narrow ? static_cast<const void*>(rounded.data()) : values.data();
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(to, from, bytes, stream_));
    ESP_RETURN_IF_ERROR(stream_.synchronize());
    return static_cast<const void*>(to);
  }

 private:
  Result<std::byte*> take(int64_t bytes) {
    const int64_t whole =
        (bytes + cuda::Arena::kAlignment - 1) / cuda::Arena::kAlignment * cuda::Arena::kAlignment;
    if (weights_.blocks.empty() || used_ + whole > weights_.blocks.back().size_bytes()) {
      ESP_ASSIGN_OR_RETURN(
          cuda::DeviceBuffer block,
          cuda::DeviceBuffer::allocate(std::max(kBlockBytes, whole), "weights of speech"));
      weights_.blocks.push_back(std::move(block));
      used_ = 0;
    }
    std::byte* const at = weights_.blocks.back().data() + used_;
    used_ += whole;
    weights_.size_bytes += bytes;
    return at;
  }

  CudaWhisperWeights& weights_;
  const cuda::Stream& stream_;
  int64_t used_ = 0;  // of the last block
};

}  // namespace

Result<CudaWhisperWeights> load_cuda_whisper_weights(TensorSource& source,
                                                     const WhisperSizes& sizes, DType type,
                                                     const cuda::Stream& stream) {
  CudaWhisperWeights out;
  out.type = type;
  CudaPacker packer(out, stream);
  ESP_ASSIGN_OR_RETURN(static_cast<WhisperWeightsOf<CudaFormat>&>(out),
                       WhisperReader<CudaFormat>(source, packer, sizes).read());
  return out;
}

}  // namespace espalier::speech
