#include "models/model_weights.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/safetensors.h"
#include "models/checkable_weights.h"
#include "models/model_plan.h"
#include "models/random_tensors.h"
#include "models/releasable_memory.h"
#include "models/weight_source.h"

namespace espalier {
namespace {

// They describe the files.
constexpr std::array<std::string_view, 6> kOfFiles = {
    "_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "vocab_file"};

// What the accessor reads in both objects is equal, or it reads neither.
template <typename T>
bool same_read(Result<T> (JsonObject::*read)(std::string_view) const, const JsonObject& a,
               const JsonObject& b, std::string_view field) {
  const Result<T> of_a = (a.*read)(field), of_b = (b.*read)(field);
  return of_a.has_value() == of_b.has_value() && (!of_a || *of_a == *of_b);
}

bool same_objects(const JsonObject& a, const JsonObject& b, std::string& differs);

bool same_fields(const JsonObject& a, const JsonObject& b, std::string_view field) {
  if (a.has(field) != b.has(field)) return false;
  std::string inner;
  const auto object_a = a.object(field), object_b = b.object(field);
  if (object_a && object_b) return same_objects(*object_a, *object_b, inner);
  return object_a.has_value() == object_b.has_value() &&
         same_read(&JsonObject::boolean, a, b, field) &&
         same_read(&JsonObject::number, a, b, field) &&
         same_read(&JsonObject::string, a, b, field) &&
         same_read(&JsonObject::numbers, a, b, field) &&
         same_read(&JsonObject::strings, a, b, field);
}

bool same_objects(const JsonObject& a, const JsonObject& b, std::string& differs) {
  std::set<std::string_view> fields;
  for (const JsonObject* each : {&a, &b})
    for (const std::string_view field : each->keys()) fields.insert(field);
  for (const std::string_view field : fields) {
    if (std::ranges::find(kOfFiles, field) != kOfFiles.end() || same_fields(a, b, field)) continue;
    differs = field;
    return false;
  }
  return true;
}

// A file that is read again though its name may be gone, and the names of its tensors.
class HeldFile {
 public:
  static Result<std::shared_ptr<const HeldFile>> open(const std::filesystem::path& path,
                                                      const SafetensorsFile& file) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(error(StatusCode::kNotFound, "{} cannot be opened", path.string()));
    std::set<std::string> names;
    for (const CheckpointTensor& tensor : file.tensors()) names.insert(tensor.name);
    return std::shared_ptr<const HeldFile>(new HeldFile(fd, std::move(names)));
  }
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;
  ~HeldFile() { ::close(fd_); }

  std::filesystem::path path() const { return fmt::format("/proc/self/fd/{}", fd_); }
  bool covers(const HeldFile& other) const { return std::ranges::includes(names_, other.names_); }

 private:
  HeldFile(int fd, std::set<std::string> names) : fd_(fd), names_(std::move(names)) {}
  const int fd_;
  const std::set<std::string> names_;
};

class HostModelWeights final : public ModelWeights,
                               public ReleasableMemory,
                               public CheckableWeights {
 public:
  HostModelWeights(Model& model, const ModelLoadOptions& options, JsonObject config)
      : model_(model), options_(options), config_(std::move(config)), loaded_{options.path, {}} {}

  Status prepare(const std::filesystem::path& path) override { return prepare_from({path, {}}); }

  // Packed matrices are made of several tensors, so all are read again.
  Status prepare_some(const std::filesystem::path& path) override {
    ESP_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
    ESP_ASSIGN_OR_RETURN(auto held, HeldFile::open(path, file));
    Files files = loaded_;
    std::erase_if(files.some, [&](const auto& older) { return held->covers(*older); });
    files.some.push_back(std::move(held));
    return prepare_from(std::move(files));
  }

  Result<std::vector<float>> read(const std::string& name, int64_t num_max) override {
    ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open(loaded_));
    const CheckpointTensor* const tensor = checkpoint.find(name);
    if (tensor == nullptr || !tensor->readable())
      return fail(error(StatusCode::kNotFound, "the model has no tensor '{}'", name));
    std::vector<float> out(static_cast<size_t>(std::min(num_max, tensor->num_elements())));
    copy_as_float(*tensor, 0, out);
    return out;
  }

  void drop() override { prepared_.reset(); }

  Status commit() override {
    ESP_CHECK(prepared_ != nullptr);
    const std::unique_ptr<Prepared> from = std::move(prepared_);
    ESP_RETURN_IF_ERROR(model_.replace_weights([&](const Ranks&, WorkPool& threads) {
      return std::make_unique<CheckpointSource>(from->checkpoint, from->plan.spec, from->plan.type,
                                                &threads);
    }));
    loaded_ = std::move(from->files);
    return Status();
  }

  Result<int64_t> release_memory() override {
    ESP_RETURN_IF_ERROR(prepare_from(loaded_));  // they can be read again
    drop();
    ESP_RETURN_IF_ERROR(model_.replace_weights([](const Ranks&, WorkPool&) { return nullptr; }));
    ::malloc_trim(0);  // what the allocator keeps of small matrices
    return model_.info().weight_bytes;
  }
  Result<std::vector<TensorDigest>> digests() override {
    ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open(loaded_));
    std::vector<TensorDigest> out;
    for (const CheckpointTensor& tensor : checkpoint.tensors()) {
      if (tensor.reader != nullptr)
        return fail(error(StatusCode::kUnimplemented,
                          "tensor '{}' is held in codes, whose digest is not taken", tensor.name));
      Sha256 hash;
      hash.update(tensor.bytes);
      out.push_back({tensor.name, hash.finish()});
      checkpoint.release(tensor);
    }
    return out;
  }
  Status prepare_random(uint64_t seed) override {
    ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open(loaded_));
    return with_random_tensors(
        checkpoint, seed, [this](const std::filesystem::path& file) { return prepare_some(file); });
  }

  // From the files again.
  Status restore_memory() override {
    ESP_RETURN_IF_ERROR(prepare_from(loaded_));
    return commit();
  }

 private:
  // What the weights are read from: a checkpoint, and files with some tensors in their place, the
  // newest last. Shared by what is loaded and what is prepared.
  struct Files {
    std::filesystem::path path;
    std::vector<std::shared_ptr<const HeldFile>> some;
  };
  struct Prepared {
    Files files;
    ModelPlan plan;
    Checkpoint checkpoint;
  };

  static Result<Checkpoint> open(const Files& files) {
    ESP_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(files.path));
    for (const auto& held : files.some) {
      ESP_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(held->path()));
      ESP_RETURN_IF_ERROR(checkpoint.replace_some(std::move(file)));
    }
    return checkpoint;
  }

  Status prepare_from(Files files) {
    prepared_.reset();
    ESP_ASSIGN_OR_RETURN(const ModelLoadOptions options,
                         options_of_update(config_, options_, files.path));
    ESP_ASSIGN_OR_RETURN(ModelPlan plan, plan_model(options));
    ESP_ASSIGN_OR_RETURN(Checkpoint checkpoint, open(files));
    prepared_ = std::make_unique<Prepared>(
        Prepared{std::move(files), std::move(plan), std::move(checkpoint)});
    return Status();
  }

  Model& model_;
  const ModelLoadOptions options_;
  const JsonObject config_;
  Files loaded_;
  std::unique_ptr<Prepared> prepared_;
};

}  // namespace

Status ModelWeights::prepare_shared(std::vector<SharedTensor>) {
  return error(StatusCode::kUnimplemented,
               "tensors in a GPU's memory are taken by a model on one GPU (--device cuda, no "
               "--tp-size): send a safetensors file to /update_weights_from_tensor");
}

Result<ModelLoadOptions> options_of_update(const JsonObject& config, const ModelLoadOptions& loaded,
                                           const std::filesystem::path& path) {
  ModelLoadOptions options = loaded;
  options.path = path;
  options.format = LoadFormat::kAuto;
  options.progress = nullptr;
  ESP_ASSIGN_OR_RETURN(const JsonObject other, read_changed_config(options));
  std::string field;
  if (!same_objects(config, other, field)) {
    return fail(other.field_error(
        field,
        "differs from that of the model that runs; weights are replaced by those of the "
        "same architecture and shapes: start another server for this model"));
  }
  return options;
}

Result<std::unique_ptr<ModelWeights>> make_model_weights(Model& model,
                                                         const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(JsonObject config, read_changed_config(options));
  return std::make_unique<HostModelWeights>(model, options, std::move(config));
}

}  // namespace espalier
