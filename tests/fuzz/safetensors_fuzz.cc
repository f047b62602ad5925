// libFuzzer: files as safetensors. Every tensor that is found lies inside the file.
#include "checkpoint/safetensors.h"

#include "file_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = espalier::SafetensorsFile::open(espalier::fuzz::file_of(data, size));
  if (!file) return 0;
  size_t sum = 0;
  for (const auto& tensor : file->tensors())
    for (const std::byte b : tensor.bytes) sum += static_cast<size_t>(b);
  return sum == ~size_t{0} ? 1 : 0;
}
