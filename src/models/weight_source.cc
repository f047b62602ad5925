#include "models/weight_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/rng.h"
#include "checkpoint/convert.h"

namespace espalier {
namespace {

bool aligned_for(DType type, const std::byte* data) {
  return reinterpret_cast<uintptr_t>(data) % dtype_size(type) == 0;
}

uint64_t hash_name(std::string_view name) {
  uint64_t hash = name.size();
  for (const char c : name) hash = mix64(hash ^ static_cast<unsigned char>(c));
  return hash;
}

// Of buffers that DummySource keeps for the next layer.
constexpr size_t kMostSpareBytes = size_t{256} << 20;
constexpr size_t kMostSpares = 4;

// The four bytes of `bits` summed have mean 510 and this deviation: sqrt(4 * (256^2 - 1) / 12).
constexpr float kMean = 510.0f;
constexpr float kDeviation = 147.80f;

// Close to normal (the sum of four uniform draws), from 32 random bits; in +-3.45.
float near_normal(uint32_t bits) {
  const uint32_t pairs = (bits & 0x00ff00ffu) + ((bits >> 8) & 0x00ff00ffu);
  return (static_cast<float>((pairs & 0xffffu) + (pairs >> 16)) - kMean) * (1.0f / kDeviation);
}

void store(float value, float& out) { out = value; }
void store(float value, BFloat16& out) { out = to_bfloat16(value); }

// Elements [begin, end) of a tensor; begin is even. Each 64 random bits make two elements.
template <typename T>
void draw(uint64_t key, float centre, float deviation, int64_t begin, int64_t end, T* out) {
  for (int64_t i = begin; i < end; i += 2) {
    const uint64_t bits = mix64(key + static_cast<uint64_t>(i / 2));
    store(centre + deviation * near_normal(static_cast<uint32_t>(bits)), out[i]);
    if (i + 1 < end) {
      store(centre + deviation * near_normal(static_cast<uint32_t>(bits >> 32)), out[i + 1]);
    }
  }
}

}  // namespace

float element_of(const LentTensor& tensor, int64_t i) {
  switch (tensor.type) {
    case DType::kFloat32:
      return static_cast<const float*>(tensor.data)[i];
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(tensor.data)[i]);
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(tensor.data)[i]);
  }
  return 0;
}

WeightCodes stored_codes(const CheckpointTensor* tensor) {
  if (tensor == nullptr || tensor->reader == nullptr || tensor->shape.size() != 2) return {};
  if (const auto int4 = tensor->reader->int4()) {
    return {.int4 = {.group = int4->group, .zeros = int4->zeros}, .int4_columns = int4->columns};
  }
  const std::optional<StoredBlocks> blocks = tensor->reader->blocks();
  if (blocks && blocks->format == BlockFormat::kMxfp4) return {.mxfp4 = true};
  const std::optional<StoredE4m3> e4m3 = tensor->reader->e4m3();
  return {.e4m3 = e4m3.has_value(), .block_scales = e4m3 && e4m3->block_columns > 0};
}

CheckpointSource::CheckpointSource(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                   DType type, WorkPool* pool)
    : checkpoint_(checkpoint),
      names_(spec.names),
      tied_(spec.tied_embeddings),
      type_(type == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16),
      pool_(pool) {
  const std::string embedding = names_.embedding + ".weight";
  const size_t dot = embedding.find('.');
  if (spec.pooling && checkpoint.find(embedding) == nullptr &&
      checkpoint.find(embedding.substr(dot + 1)) != nullptr) {
    left_out_prefix_ = embedding.substr(0, dot + 1);
  }
}

std::string CheckpointSource::stored_name(const std::string& name) const {
  if (!left_out_prefix_.empty() && name.starts_with(left_out_prefix_)) {
    return name.substr(left_out_prefix_.size());
  }
  if (names_.other_prefixes.empty() || checkpoint_.find(name) != nullptr) return name;
  for (const auto& [prefix, other] : names_.other_prefixes) {
    if (!name.starts_with(prefix)) continue;
    std::string stored = other + name.substr(prefix.size());
    if (checkpoint_.find(stored) != nullptr) return stored;
  }
  return name;
}

Result<const CheckpointTensor*> CheckpointSource::find(const std::string& wanted,
                                                       std::span<const int64_t> shape) {
  const std::string name = stored_name(wanted);
  const auto ends = [&](const std::string& suffix) { return name.ends_with(suffix); };
  if (std::ranges::any_of(names_.absent_suffixes, ends) && checkpoint_.find(name) == nullptr)
    return make_zeros(name, shape);
  ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, checkpoint_.require(name, shape));
  lent_.insert(name);
  return tensor;
}

const CheckpointTensor* CheckpointSource::make_zeros(const std::string& name,
                                                     std::span<const int64_t> shape) {
  CheckpointTensor tensor;
  tensor.name = name;
  tensor.dtype_name = "F32";
  tensor.dtype = DType::kFloat32;
  tensor.shape.assign(shape.begin(), shape.end());
  const auto bytes = static_cast<size_t>(tensor.num_elements()) * sizeof(float);
  tensor.bytes = zero_bytes_.emplace_back(bytes);
  return &zeros_.emplace_back(std::move(tensor));
}

Result<LentTensor> CheckpointSource::lend(const std::string& wanted,
                                          std::span<const int64_t> shape) {
  ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, find(wanted, shape));
  const std::string& name = tensor->name;
  if (tensor->reader != nullptr) return compute(*tensor);
  const std::byte* data = tensor->bytes.data();
  if (!aligned_for(*tensor->dtype, data)) {
    ESP_ASSIGN_OR_RETURN(Buffer copy, Buffer::allocate(tensor->bytes.size()));
    std::memcpy(copy.data(), data, tensor->bytes.size());
    data = made_.insert_or_assign(name, std::move(copy)).first->second.data();
  }
  return LentTensor{data, *tensor->dtype};
}

Result<std::span<const std::byte>> WeightSource::lend_bytes(const std::string& name,
                                                            std::span<const int64_t> shape) {
  return fail(error(StatusCode::kUnimplemented, "'{}' {}: quantised weights cannot be made up",
                    name, shape_string(shape)));
}

std::optional<BlockFormat> WeightSource::stored_format(std::string_view) const {
  return std::nullopt;
}

Result<StoredBlocks> WeightSource::lend_blocks(const std::string& name,
                                               std::span<const int64_t> shape) {
  return fail(error(StatusCode::kUnimplemented, "'{}' {} is not held in blocks", name,
                    shape_string(shape)));
}

std::optional<BlockFormat> CheckpointSource::stored_format(std::string_view name) const {
  const CheckpointTensor* tensor = checkpoint_.find(stored_name(std::string(name)));
  if (tensor == nullptr || tensor->reader == nullptr || tensor->shape.size() != 2) {
    return std::nullopt;
  }
  const std::optional<StoredBlocks> blocks = tensor->reader->blocks();
  return blocks ? std::optional(blocks->format) : std::nullopt;
}

Result<StoredBlocks> CheckpointSource::lend_blocks(const std::string& wanted,
                                                   std::span<const int64_t> shape) {
  const std::string name = stored_name(wanted);
  ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, checkpoint_.require(name, shape));
  const std::optional<StoredBlocks> blocks =
      tensor->reader == nullptr ? std::nullopt : tensor->reader->blocks();
  if (!blocks) return WeightSource::lend_blocks(name, shape);
  lent_.insert(name);
  return *blocks;
}

Result<std::span<const std::byte>> CheckpointSource::lend_bytes(const std::string& wanted,
                                                                std::span<const int64_t> shape) {
  const std::string name = stored_name(wanted);
  const CheckpointTensor* tensor = checkpoint_.find(name);
  if (tensor == nullptr) {
    return fail(error(StatusCode::kNotFound, "{}: there is no tensor '{}'",
                      checkpoint_.folder().string(), name));
  }
  if (tensor->dtype_name != "U8" || !std::ranges::equal(tensor->shape, shape)) {
    return fail(invalid_argument("{}: the tensor '{}' is {} {}; U8 {} was expected",
                                 checkpoint_.folder().string(), name, tensor->dtype_name,
                                 shape_string(tensor->shape), shape_string(shape)));
  }
  lent_.insert(name);
  return tensor->bytes;
}

Result<LentTensor> CheckpointSource::compute(const CheckpointTensor& tensor) {
  const int64_t count = tensor.num_elements();
  ESP_ASSIGN_OR_RETURN(Buffer buffer,
                       Buffer::allocate(static_cast<size_t>(count) * dtype_size(type_)));
  constexpr int64_t kGrain = 1 << 16;  // whole blocks of any format
  const auto compute_grains = [&](int64_t first, int64_t last) {
    const int64_t begin = first * kGrain, end = std::min(count, last * kGrain);
    const auto size = static_cast<size_t>(end - begin);
    if (type_ == DType::kFloat32) {
      copy_as_float(tensor, begin, {buffer.as<float>() + begin, size});
    } else {
      copy_as_bfloat16(tensor, begin, {buffer.as<BFloat16>() + begin, size});
    }
  };
  const int64_t num_grains = (count + kGrain - 1) / kGrain;
  if (pool_ != nullptr) {
    pool_->parallel_for(num_grains, 1, compute_grains);
  } else {
    compute_grains(0, num_grains);
  }
  const Buffer& kept = made_.insert_or_assign(tensor.name, std::move(buffer)).first->second;
  return LentTensor{kept.data(), type_};
}

void CheckpointSource::give_back(const std::string& wanted) {
  const std::string name = stored_name(wanted);
  made_.erase(name);
  const CheckpointTensor* tensor = checkpoint_.find(name);
  if (tensor == nullptr) return;
  checkpoint_.release(*tensor);
  if (!progress_ || !given_back_.insert(name).second) return;
  given_back_bytes_ += static_cast<int64_t>(tensor->bytes.size());
  progress_->set(given_back_bytes_);
}

void CheckpointSource::report_to(ReportLoaded progress) {
  int64_t total = 0;
  for (const CheckpointTensor& tensor : checkpoint_.tensors())
    total += static_cast<int64_t>(tensor.bytes.size());
  progress_.emplace(std::move(progress), total, clock_);
}

bool CheckpointSource::may_be_left(std::string_view name) const {
  const auto ends = [&](const std::string& suffix) { return name.ends_with(suffix); };
  const auto begins = [&](const std::string& prefix) { return name.starts_with(prefix); };
  return std::ranges::any_of(names_.unused_suffixes, ends) ||
         std::ranges::any_of(names_.unused_prefixes, begins);
}

// Some checkpoints with tied embeddings hold the head as well; it must then be the embedding.
Status CheckpointSource::check_unused_head() const {
  const CheckpointTensor* head = checkpoint_.find(names_.head + ".weight");
  const CheckpointTensor* embedding = checkpoint_.find(names_.embedding + ".weight");
  const bool same = head != nullptr && embedding != nullptr && head->dtype == embedding->dtype &&
                    std::ranges::equal(head->bytes, embedding->bytes);
  if (head != nullptr) checkpoint_.release(*head);
  if (embedding != nullptr) checkpoint_.release(*embedding);
  if (same) return Status();
  return invalid_argument(
      "{}: config.json ties the output head to the embedding, and '{}.weight' is another matrix; "
      "set tie_word_embeddings to false, or remove the tensor",
      checkpoint_.folder().string(), names_.head);
}

Status CheckpointSource::finish() {
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    if (lent_.contains(tensor.name) || may_be_left(tensor.name)) continue;
    if (tied_ && tensor.name == names_.head + ".weight") {
      ESP_RETURN_IF_ERROR(check_unused_head());
      continue;
    }
    return invalid_argument("{}: the tensor '{}' {} belongs to nothing that config.json describes",
                            checkpoint_.folder().string(), tensor.name, shape_string(tensor.shape));
  }
  if (progress_) progress_->finish();
  return Status();
}

DummyTensor dummy_tensor(uint64_t seed, std::string_view name, std::span<const int64_t> shape) {
  const bool matrix = shape.size() > 1;
  const bool bias = name.ends_with(".bias");
  return {.key = mix64(seed ^ hash_name(name)),
          .centre = matrix || bias ? 0.0f : 1.0f,
          .deviation = matrix
                           ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.back())))
                           : 0.1f};
}

DummySource::DummySource(uint64_t seed, DType type, WorkPool& pool)
    : seed_(seed),
      type_(type == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16),
      pool_(pool) {}

Result<LentTensor> DummySource::lend(const std::string& name, std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  ESP_ASSIGN_OR_RETURN(Buffer buffer, take_buffer(static_cast<size_t>(count) * dtype_size(type_)));
  const auto [key, centre, deviation] = dummy_tensor(seed_, name, shape);
  constexpr int64_t kGrain = 1 << 16;  // even: elements are drawn in pairs
  pool_.parallel_for((count + kGrain - 1) / kGrain, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kGrain, end = std::min(count, last * kGrain);
    if (type_ == DType::kFloat32) {
      draw(key, centre, deviation, begin, end, buffer.as<float>());
    } else {
      draw(key, centre, deviation, begin, end, buffer.as<BFloat16>());
    }
  });
  const Buffer& kept = made_.insert_or_assign(name, std::move(buffer)).first->second;
  return LentTensor{kept.data(), type_};
}

Result<Buffer> DummySource::take_buffer(size_t size_bytes) {
  const auto fits = [&](const Buffer& buffer) { return buffer.size_bytes() >= size_bytes; };
  const auto it = std::find_if(spare_.begin(), spare_.end(), fits);
  if (it == spare_.end()) return Buffer::allocate(size_bytes);
  Buffer buffer = std::move(*it);
  spare_.erase(it);
  return buffer;
}

void DummySource::give_back(const std::string& name) {
  const auto it = made_.find(name);
  if (it == made_.end()) return;
  // A layer's matrices come again; the embedding does not, and is too large to keep.
  if (it->second.size_bytes() <= kMostSpareBytes && spare_.size() < kMostSpares) {
    spare_.push_back(std::move(it->second));
  }
  made_.erase(it);
}

Status DummySource::finish() {
  spare_.clear();
  return Status();
}

}  // namespace espalier
