// libFuzzer: files as GGUF, with what is made of their metadata.
#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_model.h"
#include "file_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto file = espalier::GgufFile::open(espalier::fuzz::file_of(data, size));
  if (!file) return 0;
  size_t sum = 0;
  for (const auto& tensor : file->tensors())
    for (const std::byte b : tensor.bytes) sum += static_cast<size_t>(b);
  const auto config = espalier::gguf_config(*file);
  const auto vocabulary = espalier::gguf_vocabulary(*file);
  std::vector<espalier::GgufFile> files;
  files.push_back(std::move(*file));
  const auto tensors = espalier::gguf_tensors(files);
  return sum == ~size_t{0} && config && vocabulary && tensors ? 1 : 0;
}
