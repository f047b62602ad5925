#include "checkpoint/tensor_writer.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>

#include "base/check.h"
#include "checkpoint/staged_output.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr int64_t kChunkElements = 1 << 20;
constexpr size_t kAlignment = 32;  // of a GGUF's tensors, the format's default

enum GgufType : uint32_t { kGgufUint32 = 4, kGgufInt32 = 5, kGgufFloat32 = 6, kGgufBool = 7 };
constexpr uint32_t kGgufString = 8, kGgufArray = 9;

template <typename T>
void append_value(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void append_text(std::string& out, std::string_view text) {
  append_value(out, static_cast<uint64_t>(text.size()));
  out += text;
}

template <typename T>
std::string scalar_value(uint32_t type, T value) {
  std::string out;
  append_value(out, type);
  append_value(out, value);
  return out;
}

size_t padding(size_t size) { return (kAlignment - size % kAlignment) % kAlignment; }

// Writes tensors one after the other, and reports how far it is.
class TensorStream {
 public:
  TensorStream(const WriteProgress& progress)
      : elements_(static_cast<size_t>(kChunkElements)), progress_(progress) {}

  Status write(OutputFile& file, const TensorToWrite& tensor) {
    if (tensor.lines)
      ESP_RETURN_IF_ERROR(write_lines(file, *tensor.lines));
    else
      ESP_RETURN_IF_ERROR(tensor.stored.empty() ? write_elements(file, tensor)
                                                : write_stored(file, tensor.stored));
    if (tensor.done) tensor.done();
    return {};
  }

 private:
  Status write_lines(OutputFile& file, const LinesToWrite& lines) {
    blocks_.resize(static_cast<size_t>(lines.line_bytes));
    for (int64_t line = 0; line < lines.count; ++line) {
      lines.write(line, blocks_.data());
      ESP_RETURN_IF_ERROR(file.write(blocks_));
      advance(blocks_.size());
    }
    return {};
  }

  Status write_stored(OutputFile& file, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto now = bytes.first(std::min<size_t>(bytes.size(), kChunkElements));
      ESP_RETURN_IF_ERROR(file.write(now));
      bytes = bytes.subspan(now.size());
      advance(now.size());
    }
    return {};
  }

  Status write_elements(OutputFile& file, const TensorToWrite& tensor) {
    const BlockType& type = block_type_of(*tensor.encoder);
    const int64_t count = tensor.num_elements();
    for (int64_t first = 0; first < count; first += kChunkElements) {
      const auto now = static_cast<size_t>(std::min(kChunkElements, count - first));
      const std::span<float> elements = std::span(elements_).first(now);
      tensor.read(first, elements);
      blocks_.resize(now / type.elements * type.bytes);
      encode_blocks(*tensor.encoder, elements, blocks_);
      ESP_RETURN_IF_ERROR(file.write(blocks_));
      advance(blocks_.size());
    }
    return {};
  }

  void advance(size_t bytes) {
    written_ += static_cast<int64_t>(bytes);
    if (progress_) progress_(written_);
  }

  std::vector<float> elements_;
  std::vector<std::byte> blocks_;
  int64_t written_ = 0;
  const WriteProgress& progress_;
};

// One safetensors file.
Status write_shard(const fs::path& path, std::span<const TensorToWrite> tensors,
                   TensorStream& stream) {
  json::object header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    json::array shape;
    for (const int64_t extent : tensor.shape) shape.push_back(extent);
    const int64_t end = at + tensor.num_bytes();
    const std::string_view type = tensor.lines ? tensor.lines->type : tensor.encoder->name;
    header[tensor.name] = {
        {"dtype", type}, {"shape", std::move(shape)}, {"data_offsets", json::array{at, end}}};
    at = end;
  }
  std::string text = json::serialize(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string head;
  append_value(head, static_cast<uint64_t>(text.size()));
  ESP_ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  ESP_RETURN_IF_ERROR(file.write(head + text));
  for (const TensorToWrite& tensor : tensors) ESP_RETURN_IF_ERROR(stream.write(file, tensor));
  return file.finish();
}

// Where each shard ends.
std::vector<size_t> shard_ends(std::span<const TensorToWrite> tensors, int64_t shard_bytes) {
  std::vector<size_t> ends;
  int64_t filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = tensors[i].num_bytes();
    if (filled > 0 && filled + bytes > shard_bytes) {
      ends.push_back(i);
      filled = 0;
    }
    filled += bytes;
  }
  ends.push_back(tensors.size());
  return ends;
}

}  // namespace

int64_t TensorToWrite::num_elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

int64_t TensorToWrite::num_bytes() const {
  if (lines) return lines->count * lines->line_bytes;
  const BlockType& type = block_type_of(*encoder);
  return num_elements() / type.elements * type.bytes;
}

int64_t total_bytes(std::span<const TensorToWrite> tensors) {
  int64_t sum = 0;
  for (const TensorToWrite& tensor : tensors) sum += tensor.num_bytes();
  return sum;
}

std::string& GgufMetadata::at(std::string_view key) {
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found == entries_.end()) return entries_.emplace_back(std::string(key)).value;
  return found->value;
}

void GgufMetadata::integer(std::string_view key, uint32_t value) {
  at(key) = scalar_value(kGgufUint32, value);
}
void GgufMetadata::number(std::string_view key, float value) {
  at(key) = scalar_value(kGgufFloat32, value);
}
void GgufMetadata::boolean(std::string_view key, bool value) {
  at(key) = scalar_value(kGgufBool, static_cast<uint8_t>(value));
}

void GgufMetadata::text(std::string_view key, std::string_view value) {
  std::string& out = at(key);
  out.clear();
  append_value(out, kGgufString);
  append_text(out, value);
}

void GgufMetadata::texts(std::string_view key, std::span<const std::string> values) {
  std::string& out = at(key);
  out = scalar_value(kGgufArray, kGgufString);
  append_value(out, static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) append_text(out, value);
}

void GgufMetadata::integers(std::string_view key, std::span<const int32_t> values) {
  std::string& out = at(key);
  out = scalar_value<uint32_t>(kGgufArray, kGgufInt32);
  append_value(out, static_cast<uint64_t>(values.size()));
  for (const int32_t value : values) append_value(out, value);
}

void GgufMetadata::raw(std::string_view key, std::span<const std::byte> bytes) {
  at(key).assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void GgufMetadata::remove(std::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.key == key; });
}

std::string GgufMetadata::bytes() const {
  std::string out;
  for (const Entry& entry : entries_) {
    append_text(out, entry.key);
    out += entry.value;
  }
  return out;
}

Status write_gguf(const fs::path& path, const GgufMetadata& metadata,
                  std::span<const TensorToWrite> tensors, const WriteProgress& progress) {
  std::string head = "GGUF";
  append_value(head, uint32_t{3});
  append_value(head, static_cast<uint64_t>(tensors.size()));
  append_value(head, static_cast<uint64_t>(metadata.size()));
  head += metadata.bytes();
  uint64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    append_text(head, tensor.name);
    append_value(head, static_cast<uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent)
      append_value(head, static_cast<uint64_t>(*extent));
    append_value(head, block_type_of(*tensor.encoder).id);
    append_value(head, at);
    const auto bytes = static_cast<size_t>(tensor.num_bytes());
    at += bytes + padding(bytes);
  }
  head.append(padding(head.size()), '\0');
  ESP_ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  ESP_RETURN_IF_ERROR(file.write(head));
  TensorStream stream(progress);
  for (const TensorToWrite& tensor : tensors) {
    ESP_RETURN_IF_ERROR(stream.write(file, tensor));
    const auto bytes = static_cast<size_t>(tensor.num_bytes());
    ESP_RETURN_IF_ERROR(file.write(std::string(padding(bytes), '\0')));
  }
  return file.finish();
}

Status write_safetensors(const fs::path& folder, std::span<const TensorToWrite> tensors,
                         int64_t shard_bytes, const WriteProgress& progress) {
  const std::vector<size_t> ends = shard_ends(tensors, shard_bytes);
  TensorStream stream(progress);
  if (ends.size() == 1) return write_shard(folder / "model.safetensors", tensors, stream);
  json::object places;
  size_t begin = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, ends.size());
    const auto part = tensors.subspan(begin, ends[i] - begin);
    for (const TensorToWrite& tensor : part) places[tensor.name] = name;
    ESP_RETURN_IF_ERROR(write_shard(folder / name, part, stream));
    begin = ends[i];
  }
  const json::object index{{"metadata", {{"total_size", total_bytes(tensors)}}},
                           {"weight_map", std::move(places)}};
  ESP_ASSIGN_OR_RETURN(OutputFile file,
                       OutputFile::create(folder / "model.safetensors.index.json"));
  ESP_RETURN_IF_ERROR(file.write(json::serialize(index)));
  return file.finish();
}

}  // namespace espalier
