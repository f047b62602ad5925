#include "speech/test_model.h"

#include <cstring>

#include "base/check.h"

namespace espalier::speech::test {
namespace {

template <typename T>
std::vector<T> values_of(const CheckpointTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace

Reference read_reference(const std::string& name) {
  const auto file = SafetensorsFile::open(golden_folder(name) / "reference.safetensors");
  ESP_CHECK(file.has_value());
  Reference out;
  for (const CheckpointTensor& tensor : file->tensors()) {
    if (tensor.name == "mel") {
      out.mel = {.num_mels = static_cast<int32_t>(tensor.shape[0]),
                 .num_frames = tensor.shape[1],
                 .values = values_of<float>(tensor)};
    } else if (tensor.name == "source") {
      out.source = values_of<float>(tensor);
    } else if (tensor.name == "logits") {
      out.logits = values_of<float>(tensor);
    } else if (tensor.name == "tokens") {
      out.tokens = values_of<TokenId>(tensor);
    }
  }
  return out;
}

std::vector<SpeechCase> read_cases(const std::string& name) {
  const auto file = JsonObject::read(golden_folder(name) / "cases.json");
  ESP_CHECK(file.has_value());
  std::vector<SpeechCase> cases;
  const std::vector<JsonObject> stored = file->objects("cases").value();
  for (const JsonObject& each : stored) {
    SpeechCase out;
    out.samples = each.integer("samples").value();
    out.timestamps = each.boolean("timestamps").value();
    out.translate = each.boolean_or("translate", false).value();
    out.language = each.string_or("language", "").value();
    out.prompt = each.string_or("prompt", "").value();
    out.detected = each.string("detected").value();
    out.text = each.string("text").value();
    const std::vector<int64_t> tokens = each.integers("tokens").value();
    for (const int64_t token : tokens) {
      out.tokens.push_back(static_cast<TokenId>(token));
    }
    const std::vector<JsonObject> segments = each.objects("segments").value();
    for (const JsonObject& segment : segments) {
      out.segments.push_back({segment.number("start").value(), segment.number("end").value()});
    }
    cases.push_back(std::move(out));
  }
  return cases;
}

std::unique_ptr<LoadedModel> LoadedModel::load(const std::string& name, const Change& change,
                                               std::string_view dtype, int32_t num_slots) {
  auto model = std::make_unique<LoadedModel>();
  model->backend = kernels::CpuBackend::create(model->pool).value();
  model->sizes = read_whisper_sizes(golden_folder(name)).value();
  const Checkpoint checkpoint = Checkpoint::open(golden_folder(name)).value();
  auto weights = load_whisper_weights(*model->backend, checkpoint, model->sizes, dtype);
  ESP_CHECK(weights.has_value(), "{}", weights.error().message());
  model->weights = std::move(*weights);
  if (change) change(model->sizes, model->weights);
  model->encoder = std::make_unique<WhisperEncoder>(model->sizes, model->weights, *model->backend);
  model->decoder =
      WhisperDecoder::create(model->sizes, model->weights, *model->backend, num_slots).value();
  return model;
}

}  // namespace espalier::speech::test
