#include "models/cuda/ropes.h"

#include <iterator>

#include "models/rope_table.h"
#include "tensor/cuda/stream.h"

namespace espalier {

Result<CudaRopes> CudaRopes::upload(const DecoderSpec& spec) {
  std::vector<std::vector<float>> tables;
  for (const RopeSpec& rope : spec.ropes) {
    tables.push_back(rope_frequencies(rope, spec.context_length));
  }
  CudaRopes out;
  const auto lay_out = [&](cuda::Arena& arena) {
    out.frequencies_.clear();
    for (const auto& table : tables) {
      out.frequencies_.push_back(arena.take<float>(std::ssize(table)));
    }
  };
  cuda::Arena measured;
  lay_out(measured);
  ESP_ASSIGN_OR_RETURN(out.block_, cuda::DeviceBuffer::allocate(measured.used_bytes(), "ropes"));
  cuda::Arena arena(out.block_.data());
  lay_out(arena);
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  for (size_t i = 0; i < tables.size(); ++i) {
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(const_cast<float*>(out.frequencies_[i]),
                                             tables[i].data(), std::ssize(tables[i]) * 4, stream));
  }
  ESP_RETURN_IF_ERROR(stream.synchronize());
  return out;
}

}  // namespace espalier
